"""Rows in processes of their own: one that crashes or hangs is a row, not the end of all."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from functools import partial

import torch

from retape.verifying import case as cases
from retape.verifying.case import DIFFERENT, NOT_BUILT, Case, Result

_ROWS_PER_PROCESS = 50  # then a new one: what models leave behind does not add up


def run(
    rows: Sequence[Case], jobs: int, limit: float, finished: Callable[[Case], None]
) -> list[Result]:
    """Results in the order of `rows`; `jobs` processes at once, `limit` seconds for each row.

    `finished` is called from another thread, whenever a row is done.
    """
    from pebble import ProcessPool

    results: list[Result] = []
    with ProcessPool(
        max_workers=jobs,
        max_tasks=_ROWS_PER_PROCESS,
        initializer=_prepare,
        initargs=(max(1, (os.cpu_count() or 1) // jobs),),
        context=multiprocessing.get_context("spawn"),  # torch's threads do not survive a fork
    ) as pool:
        try:
            futures = [pool.schedule(cases.run, args=(row, True), timeout=limit) for row in rows]
            for row, future in zip(rows, futures, strict=True):
                future.add_done_callback(partial(_tell, finished, row))
            for row, future in zip(rows, futures, strict=True):
                results.append(_result(row, future, limit))
        except BaseException:
            pool.stop()
            raise
    return results


def _prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends us


def _tell(finished: Callable[[Case], None], row: Case, future: Future[Result]) -> None:
    if not future.cancelled():
        finished(row)


def _result(row: Case, future: Future[Result], limit: float) -> Result:
    from pebble import ProcessExpired

    try:
        return future.result()
    except TimeoutError:
        reason = f"no verdict in {limit:g} s. Fix: --time-limit {2 * limit:g}"
        return Result(row, NOT_BUILT, reason=reason, seconds=limit)
    except ProcessExpired as error:
        return Result(row, DIFFERENT, reason=f"the process that ran it {_end(error.exitcode)}")


def _end(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended itself with exit code {exit_code}"
    return f"was ended by {signal.Signals(-exit_code).name}"
