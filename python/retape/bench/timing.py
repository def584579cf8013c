"""Timing that survives a shared machine: interleaved rounds, thread CPU time, medians.

Every variant runs once per round, in an order that rotates, and is compared with the reference
of the same round. So a slow minute slows all of them alike and the ratios stay.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retape import _artefact
from retape._progress import progress
from retape._text import quartiles

if TYPE_CHECKING:
    from rich.console import Console

THREADS = 1  # inside an op that is timed

# Times of one run in nanoseconds, one per phase ("forward", "backward").
Phases = tuple[int, ...]


@dataclass
class Times:
    """What one variant took, round by round; `ratios` are to the reference of that round."""

    rounds: list[Phases] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def median_ns(self, phase: int | None = None) -> float:
        """Of one phase, or of their sum."""
        return quartiles([_total(r) if phase is None else r[phase] for r in self.rounds])[1]

    def least_ns(self) -> int:
        """The quickest round: its time has the least noise of other programs."""
        return min(_total(phases) for phases in self.rounds)

    def ratio(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile."""
        return quartiles(self.ratios)


def _total(phases: Phases) -> int:
    return sum(phases)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """That many threads inside an op, as long as it is open."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_subnormals() -> Iterator[None]:
    """Numbers next to zero are zero on this thread, as long as it is open. Eight layers of swiglu have many of them in
    backward, and an Intel CPU takes fifty times as long for a product with them, whoever asks for it."""
    import torch

    before = bool(torch.tensor(1e-38) * 1e-3 == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def quiet_process() -> Iterator[None]:
    """THREADS, no subnormal numbers and no garbage collector, as long as it is open."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with threads(THREADS), no_subnormals():
            yield
    finally:
        if collecting:
            gc.enable()


def interleave(
    runs: dict[str, Callable[[], Phases]],
    reference: str,
    rounds: int,
    warmup: int,
    on_round: Callable[[], None] = lambda: None,
    on_error: Callable[[str, Exception], None] | None = None,
) -> dict[str, Times]:
    """Times of every run. The first `warmup` rounds are thrown away. A run that raises is passed to
    `on_error` and has no times; others go on. The reference must not raise: ratios need it."""
    times = {name: Times() for name in runs}
    for index in range(warmup + rounds):
        gc.collect()
        names = list(times)
        turn = index % len(names)
        measured = {}
        for name in names[turn:] + names[:turn]:
            try:
                measured[name] = runs[name]()
            except Exception as error:
                if on_error is None or name == reference:
                    raise
                on_error(name, error)
                del times[name]
        if index >= warmup:
            for name, phases in measured.items():
                times[name].rounds.append(phases)
                times[name].ratios.append(_total(phases) / _total(measured[reference]))
        on_round()
    return times


def with_bar(measure: Callable[[Callable[[], None]], Any], rounds: int, console: Console) -> Any:
    """`measure(on_round)`, under a bar that counts its calls of on_round()."""
    found = []
    progress(lambda advance: found.append(measure(lambda: advance("rounds"))), rounds, console)
    return found[0]


def noise_warnings(times: Sequence[Times], limit: float = 0.10) -> list[str]:
    """What makes these numbers doubtful; empty when they are good."""
    warnings = []
    wide = 0
    for entry in times:
        low, middle, high = entry.ratio()
        wide += (high - low) / middle > limit
    if wide:
        warnings.append(
            f"noisy: in {wide} of {len(times)} rows the middle half of the ratios spreads over "
            f"more than {limit:.0%}. Close other programs, or raise --rounds."
        )
    load, cores = _artefact.load_average(), os.cpu_count() or 1
    if load is not None and load > cores:
        warnings.append(f"busy: load average {load} on {cores} cores; trust ratios, not times.")
    return warnings


def environment() -> dict[str, Any]:
    """Of a run that has times: its process's threads are not those."""
    return {**_artefact.environment(), "timed_with": f"{THREADS} thread{'s' * (THREADS != 1)}"}


def thread_ns() -> int:
    return time.thread_time_ns()
