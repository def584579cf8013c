"""Measures one method on one task: bytes, times, gradients."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

import retape
from retape import _C
from retape._bits import same_bits
from retape._text import first_line, quartiles
from retape.bench import timing
from retape.bench.methods import Method
from retape.bench.result import BITWISE, CLOSE, DIFFERENT, NAN, ZERO, Event, Row, Timeline
from retape.bench.task import Make, Task

KINDS = {"forward": "kept", "replay": "replayed", "backward": "gradient"}


@dataclass(frozen=True)
class After:
    """What a step leaves, by name."""

    gradients: Mapping[str, torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor]

    def all(self) -> dict[str, torch.Tensor | None]:
        return {**self.gradients, **self.buffers}

    def is_zero(self) -> bool:
        """In every gradient, or there is none."""
        return not any(each is not None and each.any() for each in self.gradients.values())

    def is_nan(self) -> bool:
        """In every gradient, where it is not zero."""
        return all(
            each is None or each.nan_to_num(0, 1, 1).eq(0).all() for each in self.gradients.values()
        )


def close_enough(dtype: torch.dtype) -> float:
    """Of the largest element: rounding in another order, some units in the last place."""
    return max(1e-3, 4 * torch.finfo(dtype).eps) if dtype.is_floating_point else 0


def _step(make: Make, method: Method) -> Task:
    task = make()
    method.loss(task).backward()
    return task


def memory(make: Make, method: Method, row: Row, dry: bool) -> None:
    """Fills in peak, held, GFLOP and ops replayed: of a step alone, without making its tensors and
    without compiling."""
    if not method.is_eager:
        with maybe_dry(dry):
            _step(make, method)
    before = _C.ops_replayed()
    with maybe_dry(dry), retape.memory.Meter() as meter:
        task = make()
        meter.reset_peak()
        live = meter.current
        with retape.memory.Flops() as count:
            method.loss(task).backward()
        row.held = meter.held - task.resident(live)
        del task
    row.peak = meter.peak
    row.gflop = count.flops / 1e9
    row.replayed = _C.ops_replayed() - before if method.replays else None


def timeline(make: Make, method: Method, dry: bool) -> Timeline:
    """Of the step alone; what was there before it is in the bytes that are live."""
    with maybe_dry(dry), retape.memory.Meter(timeline=True) as meter:
        task = make()
        before = len(meter.timeline)
        method.with_names(task).loss(task).backward()
        made = meter.timeline[before:]
    events = [
        Event(e.bytes, e.current, e.id, KINDS[e.phase], e.op, e.region, e.shape) for e in made
    ]
    return Timeline(method.name, events)


def maybe_dry(dry: bool) -> contextlib.AbstractContextManager[object]:
    return retape.memory.Dry() if dry else contextlib.nullcontext()


def after_step(make: Make, method: Method) -> After:
    with timing.no_subnormals():
        task = _step(make, method)
    return After({name: leaf.grad for name, leaf in task.leaves.items()}, task.buffers)


def equality(got: After, plain: After) -> tuple[str, list[str]]:
    """BITWISE, CLOSE or DIFFERENT, and the names of what is not bitwise equal. ZERO or NAN where gradients are
    equal and would be whatever the method did."""
    after = got.all()
    verdicts = {name: _equality(after[name], each) for name, each in plain.all().items()}
    worst = next((v for v in (DIFFERENT, CLOSE) if v in verdicts.values()), BITWISE)
    if worst != DIFFERENT and got.is_zero() and plain.is_zero():
        return ZERO, []
    if worst != DIFFERENT and got.is_nan() and plain.is_nan():
        return NAN, []
    return worst, [name for name, verdict in verdicts.items() if verdict == worst != BITWISE]


def _equality(got: torch.Tensor | None, plain: torch.Tensor | None) -> str:
    if got is None or plain is None:
        return BITWISE if got is plain else DIFFERENT
    if same_bits(got, plain):
        return BITWISE
    far = (got.double() - plain.double()).abs().max()
    is_close = bool(far <= close_enough(plain.dtype) * plain.double().abs().max())
    return CLOSE if is_close else DIFFERENT


def times(
    make: Make,
    chosen: Sequence[Method],
    rows: dict[str, Row],
    rounds: int,
    announce: Callable[[str], None],
) -> list[timing.Times]:
    """Fills in times and ratios of all methods, round by round beside each other, or the error of a step
    that raises. `announce(name)` is called before each step."""
    task = make()

    def step(method: Method) -> timing.Phases:
        announce(method.name)
        return _phases(task, method)

    steps = {method.name: functools.partial(step, method) for method in chosen}

    def failed(name: str, error: Exception) -> None:
        rows[name].error = error_text(error)

    with timing.quiet_process():  # for the warm-up too: what it compiles is for that many threads
        measured = timing.interleave(steps, "plain", rounds, warmup=1, on_error=failed)
    for name, entry in measured.items():
        row = rows[name]
        forward, backward = zip(*entry.rounds, strict=True)
        row.forward = _seconds(forward)
        row.backward = _seconds(backward)
        row.total = _seconds([f + b for f, b in entry.rounds])
        row.ratio = entry.ratio()
        row.ratios = [round(ratio, 5) for ratio in entry.ratios]
    return list(measured.values())


@contextlib.contextmanager
def failing_is_a_result(method: Method, row: Row) -> Iterator[None]:
    """A peer that raises has a row that says so. Plain may not: the others are compared with it."""
    try:
        yield
    except Exception as error:
        if method.family == "plain":
            raise
        row.error = error_text(error)


def error_text(error: Exception) -> str:
    kind, first = type(error).__name__, first_line(error)
    return kind if first == kind else f"{kind}: {first[:200]}"


def _phases(task: Task, method: Method) -> timing.Phases:
    for leaf in task.leaves.values():
        leaf.grad = None
    start = time.thread_time_ns()
    loss = method.loss(task)
    middle = time.thread_time_ns()
    loss.backward()
    return middle - start, time.thread_time_ns() - middle


def _seconds(nanoseconds: Sequence[int]) -> tuple[float, float, float]:
    low, median, high = quartiles([float(each) for each in nanoseconds])
    return low / 1e9, median / 1e9, high / 1e9
