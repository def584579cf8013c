"""The first thing that importing Retape does: refuse a torch that the extension would crash with.

`retape doctor` exists for the day on which Retape cannot be imported, and its own code is in the package.
So for that command alone a process of its own tries the import first. Where it fails, the doctor runs
before anything that failed is loaded here, and the process ends with what he found.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from retape._torch_version import check

_TRY = """
import sys
sys.path[:] = {path!r}
try:
    import {module}
except BaseException as error:
    sys.exit("\\n" + (" ".join(str(error).split()) or type(error).__name__))
"""
_SECONDS = 300


def start() -> None:
    if doctor_is_asked(getattr(sys, "argv", []), sys.orig_argv) and (why := why_not("retape")):
        from retape import cli

        sys.exit(cli.main(broken=why))
    check()


def doctor_is_asked(argv: Sequence[str], orig_argv: Sequence[str]) -> bool:
    """`retape doctor` or `python -m retape doctor`, and no other program with that word."""
    if list(argv[1:2]) != ["doctor"]:
        return False
    if argv[0] == "-m":  # what the module is, sys.argv does not say yet
        return orig_argv[-len(argv)].removeprefix("-m") == "retape"
    return Path(argv[0]).stem == "retape"


def why_not(module: str) -> str:
    """Why `module` cannot be imported, on one line; nothing where it can. In a process of its own: an
    extension of another torch may take the process with it."""
    code = _TRY.format(path=sys.path, module=module)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import does not come to an end within {_SECONDS} s"
    except OSError as error:
        return f"cannot run {sys.executable or 'Python'} ({error.strerror})"
    if done.returncode < 0:
        return f"its import ends the process with {signal.Signals(-done.returncode).name}"
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""
