"""The JSON file that every verb leaves behind: what ran, where, and what came out."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

FORMAT = "retape/1"
_ROW = re.compile(r"\[\n\s+(-?\d[\d\s,.eE+-]*)\n\s+\]")  # numbers only; strings have no line breaks


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """Runnable processes over the last minute, or None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


_BLAS_NAMES = {
    "mkl": "MKL",
    "open": "OpenBLAS",
    "accelerate": "Accelerate",
    "generic": "generic BLAS",
}


def blas() -> str:
    """Who multiplies matrices: "MKL 2024.2, oneDNN 3.7.1"."""
    import torch

    text = torch.__config__.show()
    chosen = re.search(r"\bBLAS_INFO=(\w+)", text)
    name = _BLAS_NAMES.get(chosen[1], chosen[1]) if chosen else "unknown BLAS"
    version = re.search(r"Math Kernel Library Version ([\d.]+)", text) if name == "MKL" else None
    dnn = re.search(r"(?:MKL-DNN|oneDNN) v([\d.]+)", text)
    parts = [f"{name} {version[1]}" if version else name, f"oneDNN {dnn[1]}" if dnn else ""]
    return ", ".join(part for part in parts if part)


def command_line(words: Sequence[str]) -> str:
    """What was typed, fit to be typed again; of a path outside this folder only the file's name."""
    return shlex.join(["retape", *(without_folder(word) for word in words)])


def without_folder(value: Any) -> Any:
    """`--html=/home/me/x.html` -> `--html=x.html`. What is no such path comes back as it is."""
    if isinstance(value, (list, tuple)):
        return [without_folder(each) for each in value]
    if not isinstance(value, str):
        return value
    option, equals, path = value.partition("=") if value.startswith("-") else ("", "", value)
    outside = path.startswith(("/", "~")) or ".." in PurePath(path).parts
    return option + equals + PurePath(path).name if outside else value


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers. No host name, user or path."""
    import torch

    import retape

    return {
        "retape": retape.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "blas": blas(),
        "load_average": load_average(),
    }


def artefact(
    verb: str,
    arguments: dict[str, Any],
    result: dict[str, Any],
    code: int,
    command: str = "",
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """`facts` are of this machine, now, unless given."""
    return {
        "format": FORMAT,
        "verb": verb,
        "command": command,
        "environment": environment() if facts is None else facts,
        "arguments": {name: without_folder(value) for name, value in arguments.items()},
        "result": result,
        "exit_code": int(code),
    }


def prepare(path: str) -> None:
    """OSError now, not after minutes of work, where `path` cannot be written. No file is left by it:
    what is refused for another reason would leave an empty one."""
    if path == "-":
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    is_new = not target.exists()
    with target.open("a", encoding="utf-8"):
        pass
    if is_new:
        target.resolve().unlink()  # what a dangling link points to, not the link


def _on_one_line(row: re.Match[str]) -> str:
    return f"[{' '.join(row[1].split())}]"


def _finite(content: Any) -> Any:
    """JSON has no infinity and no NaN: null in their place."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, (list, tuple)) else content


def write(path: str, content: dict[str, Any]) -> None:
    """Writes to `path`, or to standard output where `path` is "-". A file is whole at any moment: an
    artefact may be written again and again, and its writer killed."""
    made = json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False)
    # What is no Unicode (a file's name, a text of the user's) becomes the escape that JSON has for it.
    text = (_ROW.sub(_on_one_line, made) + "\n").encode("utf-8", "backslashreplace").decode("utf-8")
    if path == "-":
        sys.stdout.write(text)
    else:
        target = Path(path).resolve()
        is_special = target.exists() and not target.is_file()  # /dev/null
        part = target if is_special else target.with_name(f"{target.name}.part")
        part.write_text(text, encoding="utf-8")
        if not is_special:
            part.replace(target)
