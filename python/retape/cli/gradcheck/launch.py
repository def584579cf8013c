"""Ranks of `retape gradcheck`, started on this machine by torchrun.

Ranks and torchrun report JSON in a folder that only the user can read; nothing is pickled. torchrun
serves the store in which ranks meet, and it and Gloo listen on loopback alone.

torchrun ends all ranks when one fails. A rank that has reported what it raised has not failed in that sense: the
others have some time to report what they raise, which may be the cause. So torchrun handles only a rank that
is gone without a report. A rank that is stopped, or left with exit code 0, is found here.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from retape.cli.gradcheck import messages, torchrun
from retape.cli.gradcheck.messages import RankError, Settings

_LOOK = 0.1  # seconds between looks at how far ranks are
_GRACE = 5.0  # seconds that ranks have to end by themselves when one has failed

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Ended:
    """How ranks have ended."""

    told: dict[str, Any] | None  # the first rank's report and its text
    errors: list[RankError]
    output: str  # last lines of the rank, or of torchrun, that ended without a report


def run(
    settings: Settings, ranks: int, progress: Callable[[dict[str, Any]], None], show: bool = False
) -> Ended:
    """`progress` is called whenever the first rank has got on. `show`: what ranks print is shown as it
    comes; else only where they fail. SIGTERM ends ranks and removes the folder, as Ctrl-C does."""
    with _terminable(), tempfile.TemporaryDirectory(prefix="retape-") as name:  # mode 0700
        folder = Path(name)
        messages.write_settings(folder, settings)
        process = _start(folder, ranks, show)
        try:
            _wait(process, folder, ranks, progress)
            silent = _silent(process, folder, ranks)
        finally:
            _end(process)
        told = messages.read(folder / "report.json")
        errors = [*silent, *messages.read_errors(folder)]
        return Ended(told, errors, _last_lines(folder, errors))


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that what is open is closed."""

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # not once more while closing
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(folder: Path, ranks: int, show: bool) -> Process:
    program = ["retape.cli.gradcheck.rank", str(folder)]
    with (folder / "torchrun.log").open("wb") as log:
        return subprocess.Popen(
            torchrun.command(folder, ranks, program, show),
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if show else log,
            stderr=sys.stderr if show else log,
            start_new_session=True,  # Ctrl-C reaches this process only, which ends it
        )


def _wait(
    process: Process, folder: Path, ranks: int, progress: Callable[[dict[str, Any]], None]
) -> None:
    """Until all have ended, or for a while when one has failed: the others may wait for that one."""
    seen = None
    until = math.inf
    while time.monotonic() < until:
        running = process.poll() is None
        told = messages.read(folder / "progress.json")
        if told is not None and told != seen:
            seen = told
            progress(told)
        if not running:
            return
        failed = any(folder.glob("error.*.json")) or any(
            _is_gone_without_a_report(folder, rank) for rank in range(ranks)
        )
        if math.isinf(until) and failed:
            until = time.monotonic() + _GRACE
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK)


def _end(process: Process) -> None:
    """torchrun ends ranks. They end with it, should it not."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _silent(process: Process, folder: Path, ranks: int) -> list[RankError]:
    """Ranks that ended without a report, and those that are stopped while others have failed: what other
    ranks raise follows from them."""
    code = process.poll()
    codes = messages.read_exit_codes(folder)
    if code and not codes:
        return [RankError(None, "", f"ended {_how(code)}, and ranks with it")]
    first = next(iter(codes), None)
    errors = []
    for rank in range(ranks):
        gone = code is not None or _is_gone_without_a_report(folder, rank)
        if gone and _ended_by_itself(folder, rank, first, codes.get(rank, 0)):
            how = _how(codes.get(rank, 0))
            errors.append(RankError(rank, "", f"ended {how}, without an exception"))
        elif not gone and _is_stopped(folder, rank):
            text = "is stopped (SIGSTOP, or a debugger), and others waited for it"
            errors.append(RankError(rank, "", text))
    return sorted(errors, key=lambda error: error.rank != first)


def _is_gone_without_a_report(folder: Path, rank: int) -> bool:
    process = messages.process_of(folder, rank)
    if process is None:
        return False  # not there yet
    try:
        os.kill(process, 0)
        return False
    except ProcessLookupError:
        return not messages.has_spoken(folder, rank)


def _ended_by_itself(folder: Path, rank: int, first: int | None, code: int) -> bool:
    """Without a report, and not because torchrun ended it by SIGTERM after the `first` that failed. A rank
    that received SIGTERM has a mark, unless it was only starting."""
    if messages.has_spoken(folder, rank):
        return False
    told_to = code == -signal.SIGTERM or messages.was_told_to_end(folder, rank)
    return rank == first or not told_to


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def _is_stopped(folder: Path, rank: int) -> bool:
    """False where there is no /proc."""
    try:
        stat = Path(f"/proc/{messages.process_of(folder, rank)}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def _last_lines(folder: Path, errors: Sequence[RankError], count: int = 20) -> str:
    if not errors or errors[0].kind:
        return ""
    rank = errors[0].rank
    if rank is None:
        text = (folder / "torchrun.log").read_text(encoding="utf-8", errors="replace")
    else:
        text = torchrun.output_of(folder, rank)
    return "\n".join(text.splitlines()[-count:])
