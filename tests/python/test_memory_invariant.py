"""Recomputing never holds more than eager does, and never peaks higher than eager and one window.

Over random programs and over the bench's models, in bytes of a `Meter`:

1. held after forward, under any policy: at most what eager holds. Of a random program that is looked at before
   the graphs go that forward made and does not return: a graph that shares what it is replayed from with
   another one may outlive it (docs/limits.md);
2. the peak under any policy: at most eager's, what a window of the policy holds besides, and the operands
   of one op: to replay it takes what it reads, what it makes, and a random one the generator's state.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.python import programs
from tests.python.programs import prelude

import retape
from retape.bench.models import MODELS
from retape.bench.task import Task, plain

PROGRAMS = 60
CHUNK = 10
OPERANDS = 4  # of the largest size: three inputs and a result
# While a random op is replayed: the generator's state now, and the one that forward found.
STATES = 2 * torch.default_generator.get_state().nbytes
LENGTH = 64  # tensors of up to 600 KiB, so that a window is not larger than a program
PRODUCTS = ["aten::mm", "aten::bmm", "aten::addmm"]
# Not drop_ops and not functions: who drops a sum and keeps both terms asks for more than eager holds.
POLICIES = {
    "full": retape.Policy.full(),
    "full, no anchors": retape.Policy.full().anchors(False),
    "full, keeps products": retape.Policy.full().keep_ops(PRODUCTS),
    "cheap": retape.Policy.cheap(),
    "cheap, keeps norms": retape.Policy.cheap().keep_ops(["aten::native_layer_norm"]),
    "none": retape.Policy.none(),
}


@pytest.fixture(autouse=True)
def _no_cycle_collector() -> Iterator[None]:
    """What dies must die by reference counts alone, at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@dataclass
class Bytes:
    held: int
    peak: int
    window: int = 0


class Under:
    """Stands in for `retape`, with one policy for every scope and checkpoint of a program."""

    Policy = retape.Policy

    def __init__(self, policy: retape.Policy) -> None:
        self.policy = policy
        self.scopes: list[Any] = []

    def checkpoint(self, function: Callable[..., Any], *args: Any) -> Any:
        with self.recompute():
            return function(*args)

    def recompute(self, policy: object = "full", name: str = "") -> Any:
        scope = retape.recompute(self.policy, name=name)
        self.scopes.append(scope)
        return scope


def measured(forward: Callable[[], Any], backward: Callable[[Any], None]) -> tuple[Bytes, int]:
    """Of one step, and the largest tensor that it made."""
    with retape.memory.Meter(timeline=True) as meter:
        losses = forward()
        held = meter.current
        backward(losses)
        peak = meter.peak
        del losses
    largest = max((event.bytes for event in meter.timeline), default=0)
    return Bytes(held, peak), largest


def window_of(scopes: list[Any], largest: int) -> int:
    """The most bytes that windows of these scopes held, all of them at once at worst; and an op's."""
    return sum(scope.stats.window_bytes for scope in scopes) + OPERANDS * largest + STATES


def violations(eager: Bytes, under: Bytes) -> list[str]:
    found = []
    if under.held > eager.held:
        found.append(f"held after forward: {under.held:,} bytes, eager {eager.held:,}")
    if under.peak > eager.peak + under.window:
        found.append(
            f"peak: {under.peak:,} bytes, eager {eager.peak:,} and a window of {under.window:,}"
        )
    return found


# ---- random programs


class AtTheEnd(prelude.Seen):
    """Calls `look` at the end of forward, where its tensors are still there."""

    look: Callable[[], None] = staticmethod(lambda: None)

    def value(self, name: str, value: Any) -> None:
        if name == "losses":
            self.look()
        super().value(name, value)


def of_program(program: programs.Program, R: Any) -> tuple[Bytes, int]:
    torch.manual_seed(0)
    seen = AtTheEnd()
    forward = programs.compiled(program)(R, seen)
    held: list[int] = []
    with retape.memory.Meter() as meter:
        seen.look = lambda: held.append(meter.current)
        result, largest = measured(forward, lambda losses: sum(losses).backward())
    return replace(result, held=held[0]), largest


def found_in(program: programs.Program, policies: Iterable[str]) -> tuple[str, str] | None:
    """The first policy that violates something, and what. A program that raises is no matter of memory."""
    try:
        eager, largest = of_program(program, prelude.Plain())
    except RuntimeError:
        return None
    for policy in policies:
        R = Under(POLICIES[policy])
        try:
            under, _ = of_program(program, R)
        except RuntimeError:
            continue
        under.window = window_of(R.scopes, largest)
        if "create_graph=True" in programs.source(program):
            under.held = (
                0  # holds the graph of a backward too, of which eager shares tensors with forward
            )
        if found := violations(eager, under):
            return policy, f'policy "{policy}": {"; ".join(found)}'
    return None


def reported(program: programs.Program, policy: str, text: str) -> str:
    """The smallest program in which the same is violated, and the figures."""

    def manner(candidate: programs.Program) -> list[str]:
        _, text = found_in(candidate, [policy]) or ("", "")
        return [word for word in ("held", "peak: ") if word in text]

    wanted = manner(program)
    small = programs.shrink(program, lambda candidate: manner(candidate) == wanted)
    _, again = found_in(small, [policy]) or ("", "not found a second time")
    return f"seed {program.seed // 1000}: {text}\nshrunk: {again}\n\n{programs.source(small)}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_no_policy_needs_more_memory_than_eager_in_random_programs(first: int) -> None:
    for seed in range(first, first + CHUNK):
        program = programs.make(seed, LENGTH)
        if found := found_in(program, POLICIES):
            pytest.fail(reported(program, *found), pytrace=False)


# ---- the bench's models


@functools.cache
def of_model(name: str, policy: str | None) -> tuple[Bytes, int, list[Any]]:
    """One scope around the whole of forward; None: eager."""
    task: Task = MODELS[name].at(MODELS[name].small, "float32")()
    for leaf in task.leaves.values():
        leaf.grad = torch.zeros_like(leaf)
    scopes: list[Any] = []

    def forward() -> torch.Tensor:
        scope = contextlib.nullcontext() if policy is None else retape.recompute(POLICIES[policy])
        if policy is not None:
            scopes.append(scope)
        with scope:
            return task.loss(plain)

    torch.manual_seed(1)
    result, largest = measured(forward, lambda loss: loss.backward())
    return result, largest, scopes


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_no_policy_needs_more_memory_than_eager_in_the_benchs_models(
    name: str, policy: str
) -> None:
    eager, largest, _ = of_model(name, None)
    under, _, scopes = of_model(name, policy)
    under.window = window_of(scopes, largest)
    found = violations(eager, under)
    assert not found, f'{name}, policy "{policy}": {"; ".join(found)}'


# ---- the test itself


def test_a_step_that_holds_more_is_reported_with_both_figures() -> None:
    found = violations(Bytes(held=100, peak=1000), Bytes(held=101, peak=1201, window=200))
    assert found == [
        "held after forward: 101 bytes, eager 100",
        "peak: 1,201 bytes, eager 1,000 and a window of 200",
    ]
    assert violations(Bytes(100, 1000), Bytes(100, 1200, 200)) == []
