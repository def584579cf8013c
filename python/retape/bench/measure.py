"""Measures one method on one stack of layers: bytes, times, gradients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import retape
from retape._bits import same_bits
from retape._text import quartiles
from retape.bench import methods, timing
from retape.bench.methods import Method
from retape.bench.result import BITWISE, CLOSE, DIFFERENT, Event, Row, Timeline

KINDS = {"forward": "kept", "replay": "replayed", "backward": "gradient"}
CLOSE_ENOUGH = 1e-3  # of the largest element: rounding in another order, in whatever dtype


@dataclass(frozen=True)
class Work:
    """What every method is measured on: made anew each time, from the same seed."""

    make: Callable[[], tuple[nn.ModuleList, torch.Tensor]]
    loss: Callable[[torch.Tensor], torch.Tensor]


def memory(work: Work, method: Method, row: Row, dry: bool) -> None:
    """Fills in peak, held, GFLOP and ops replayed."""
    with _maybe_dry(dry) as run, retape.memory.Meter() as meter, methods.scopes() as scopes:
        layers, x = work.make()
        parameters = sum(parameter.nbytes for parameter in layers.parameters())
        y = method.apply(layers, x)
        work.loss(y).backward()
        row.held = meter.held - parameters - y.nbytes
        replayed = sum(scope.stats.ops_replayed for scope in scopes)
        del layers, x, y
    row.peak = meter.peak
    row.gflop = run.flops / 1e9 if run is not None else None
    row.replayed = replayed if method.family in ("plain", "retape") else None


def timeline(work: Work, method: Method, dry: bool) -> Timeline:
    with _maybe_dry(dry), retape.memory.Meter(timeline=True) as meter:
        layers, x = work.make()
        y = method.apply(layers, x)
        work.loss(y).backward()
        del layers, x, y
    events = [Event(e.bytes, e.current, e.id, KINDS[e.phase], e.op) for e in meter.timeline]
    return Timeline(method.name, events)


@contextlib.contextmanager
def _maybe_dry(dry: bool) -> Iterator[retape.memory.Dry | None]:
    if not dry:
        yield None
        return
    with retape.memory.Dry() as run:
        yield run


def gradients(work: Work, method: Method) -> list[torch.Tensor | None]:
    layers, x = work.make()
    work.loss(method.apply(layers, x)).backward()
    return [x.grad, *(parameter.grad for parameter in layers.parameters())]


def equality(got: Sequence[torch.Tensor | None], plain: Sequence[torch.Tensor | None]) -> str:
    if any((a is None) != (b is None) for a, b in zip(got, plain, strict=True)):
        return DIFFERENT
    pairs = [(a, b) for a, b in zip(got, plain, strict=True) if a is not None and b is not None]
    if all(same_bits(a, b) for a, b in pairs):
        return BITWISE
    close = all(
        bool((a.float() - b.float()).abs().max() <= CLOSE_ENOUGH * b.float().abs().max())
        for a, b in pairs
    )
    return CLOSE if close else DIFFERENT


def times(
    work: Work, chosen: Sequence[Method], rows: dict[str, Row], rounds: int, on_round: Any
) -> list[timing.Times]:
    """Fills in times and ratios of all methods, round by round beside each other."""
    layers, x = work.make()
    for method in chosen:  # compiles, fills caches
        _phases(work, method, layers, x)
    runs = {m.name: (lambda m=m: _phases(work, m, layers, x)) for m in chosen}
    with timing.quiet_process():
        measured = timing.interleave(runs, "plain", rounds, 0, on_round)
    for name, entry in measured.items():
        row = rows[name]
        forward, backward = zip(*entry.rounds, strict=True)
        row.forward = _seconds(forward)
        row.backward = _seconds(backward)
        row.total = _seconds([f + b for f, b in entry.rounds])
        row.ratio = entry.ratio()
    return list(measured.values())


def _phases(work: Work, method: Method, layers: nn.ModuleList, x: torch.Tensor) -> timing.Phases:
    for tensor in (x, *layers.parameters()):
        tensor.grad = None
    start = time.thread_time_ns()
    loss = work.loss(method.apply(layers, x))
    middle = time.thread_time_ns()
    loss.backward()
    return middle - start, time.thread_time_ns() - middle


def _seconds(nanoseconds: Sequence[int]) -> tuple[float, float, float]:
    low, median, high = quartiles([float(each) for each in nanoseconds])
    return low / 1e9, median / 1e9, high / 1e9
