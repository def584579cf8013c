"""`python -m module ...` without starting Python: forks of a process that has imported torch already.

Importing torch costs seconds, and a command that starts torchrun that starts ranks does it in each of them.
A `Nursery` has done it once. What it forks runs as it would by itself: its own environment, folder, output,
session and exit code; and what that starts in turn by subprocess.Popen is forked as well. A test of what
starting does (sitecustomize, imports) needs a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from retape.cli.gradcheck import launch, rank

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """As much of subprocess.Popen as torchrun, and the command that starts it, make use of."""

    def __init__(
        self,
        args: Sequence[str],
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            env = os.environ.copy() if env is None else env
            # At once: above are frames of whoever started this, with files and folders to clear away.
            os._exit(_become(args, env, cwd, (stdin, stdout, stderr)))
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._ended], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode or 0

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become(
    args: Sequence[str], env: dict[str, str], cwd: str | None, streams: Sequence[Any]
) -> int:
    """The program `[python, "-m", module, ...]`, as far as it can tell; its exit code."""
    try:
        words = [word for word in args[1:] if word != "-u"]
        assert words[0] == "-m", args
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for number, given in enumerate(streams):
            _put(number, given)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd or ".")
        sys.path.insert(0, os.getcwd())  # as -m does
        tempfile.tempdir = None  # as that environment has it
        sys.argv = words[1:]
        warnings.simplefilter("ignore", RuntimeWarning)  # that it is imported already
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()


def _put(number: int, given: Any) -> None:
    if given == subprocess.DEVNULL:
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    elif given is not None:
        os.dup2(given if isinstance(given, int) else given.fileno(), number)


# ---- for tests -------------------------------------------------------------------------------------


# What a rank comes to import: torch itself takes seconds, and DDP, optimizers and FSDP2 as many again.
PRELOADED = (
    "retape.cli.gradcheck.rank",
    "retape.cli.gradcheck.torchrun",
    "retape.dist",
    "torch._dynamo",
    "torch.distributed.fsdp",
)


class Nursery:
    """A process that forks programs, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.python.forks", str(os.getpid())],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *words: str, output: Path) -> int:
        """`python -m words` in the current folder, with this environment; its process. What it writes comes
        to `output`, and what it writes to standard error beside it."""
        told = {"args": [sys.executable, "-m", *words], "env": dict(os.environ), "cwd": os.getcwd()}
        pipe = _pipe(self._process.stdin)
        pipe.write(json.dumps({**told, "output": str(output)}) + "\n")
        pipe.flush()
        return self.join()

    def join(self) -> int:
        """How that ended."""
        return int(json.loads(_pipe(self._process.stdout).readline()))

    def run(self, *words: str, output: Path) -> subprocess.CompletedProcess[str]:
        self.start(*words, output=output)
        code = self.join()
        return subprocess.CompletedProcess(
            words, code, output.read_text(), errors_of(output).read_text()
        )

    def end(self) -> None:
        """With what it has forked, should a test have left it running."""
        self._process.kill()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """One for all tests of this process."""
    made = Nursery()
    atexit.register(made.end)
    return made


def errors_of(output: Path) -> Path:
    return output.with_suffix(".err")


def check_one_thread() -> None:
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would have one of them, and the locks of all"


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _serve() -> int:
    """Comes to its end in each fork: as any program, with all that an interpreter does then."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # who is forked does not answer
    parent = os.getpid()
    for line in sys.stdin:
        told = json.loads(line)
        output = Path(told["output"])
        check_one_thread()
        process = os.fork()
        if process == 0:
            rank.end_with_parent(parent)
            with output.open("w") as out, errors_of(output).open("w") as err:
                return _become(
                    told["args"], told["env"], told["cwd"], (subprocess.DEVNULL, out, err)
                )
        print(process, file=answers, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(code, file=answers, flush=True)
    return 0


def _main(parent: str) -> int:
    gc.disable()  # while much is made and nothing is dropped
    for module in PRELOADED:
        importlib.import_module(module)
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    rank.end_with_parent(int(parent))
    subprocess.Popen = subprocess_handler.Popen = Forked  # type: ignore[misc, assignment]
    launch._GRACE = 1.0  # nobody here takes longer to tell
    gc.enable()
    gc.freeze()  # a collection in a fork would write to, and so copy, all of it
    return _serve()


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
