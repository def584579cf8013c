"""Rows in processes of their own: one that crashes or hangs is a row, not the end of all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from functools import partial
from pathlib import Path

import torch

from retape.cli.verify import case as cases
from retape.cli.verify.case import DIFFERENT, NOT_BUILT, Case, Result

_ROWS_PER_PROCESS = 50  # then a new one: what models leave behind does not add up


def run(
    rows: Sequence[Case], jobs: int, limit: float, finished: Callable[[Case], None]
) -> list[Result]:
    """Results in the order of `rows`; `jobs` processes at once, `limit` seconds for each row.

    `finished` is called from another thread, whenever a row is done.
    """
    from pebble import ProcessPool

    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPool(
            max_workers=jobs,
            max_tasks=_ROWS_PER_PROCESS,
            initializer=_prepare,
            initargs=(max(1, (os.cpu_count() or 1) // jobs),),
            context=multiprocessing.get_context("spawn"),  # torch's threads do not survive a fork
        ) as pool,
    ):
        # A file for each row says that its plain step has ended: it outlives the row's process.
        marks = [Path(folder, str(i)) for i in range(len(rows))]
        try:
            futures = [
                pool.schedule(cases.run, args=(row, True, mark.touch), timeout=limit)
                for row, mark in zip(rows, marks, strict=True)
            ]
            for row, future in zip(rows, futures, strict=True):
                future.add_done_callback(partial(_tell, finished, row))
            for row, future, mark in zip(rows, futures, marks, strict=True):
                results.append(_result(row, future, jobs, limit, mark))
        except BaseException:
            pool.stop()
            raise
    return results


def _prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this


def _tell(finished: Callable[[Case], None], row: Case, future: Future[Result]) -> None:
    if not future.cancelled():
        finished(row)


def _result(
    row: Case, future: Future[Result], jobs: int, limit: float, plain_ended: Path
) -> Result:
    from pebble import ProcessExpired

    again = ("--jobs", str(jobs), "--time-limit", f"{limit:g}")
    try:
        return future.result()
    except TimeoutError:
        fix = f"in {limit:g} s. Fix: --time-limit {2 * limit:g}"
        if plain_ended.exists():
            reason = f"the plain step ended, the recomputed one did not {fix}, if it is slow"
            return Result(row, DIFFERENT, reason=reason, apart=again, seconds=limit)
        reason = f"the plain step did not end {fix}"
        return Result(row, NOT_BUILT, reason=reason, apart=again, seconds=limit)
    except ProcessExpired as error:
        # Before the plain step has ended too: what an earlier row did to the process may be to blame.
        when = "while it recomputed" if plain_ended.exists() else "before the plain step had ended"
        reason = f"the process that ran it {_end(error.exitcode)} {when}"
        return Result(row, DIFFERENT, reason=reason, apart=again)


def _end(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended itself with exit code {exit_code}"
    return f"was ended by {signal.Signals(-exit_code).name}"
