"""Custom ops and compiled functions that update a tensor inside the region, after an op has read
it.

Their write is known before it happens: from `mutates_args`, or from the schemas that a compiled
function runs. The bits that were read have to be there in backward.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.python.as_eager import WAYS, Way, assert_as_eager, leaf
from torch import Tensor, nn


@torch.library.custom_op("retape_test_updates::double", mutates_args={"state"})
def double(state: Tensor) -> None:
    state.mul_(2)


@torch.library.custom_op("retape_test_updates::double_first", mutates_args={"states"})
def double_first(states: list[Tensor]) -> None:
    states[0].mul_(2)


@torch.library.custom_op("retape_test_updates::decay", mutates_args={"state"})
def decay(state: Tensor, x: Tensor) -> Tensor:
    state.mul_(0.5).add_(x)
    return x * 2


@torch.library.custom_op("retape_test_updates::unknown", mutates_args="unknown")
def unknown(state: Tensor) -> None:
    state.mul_(2)


def by_list(state: Tensor) -> None:
    double_first([state, torch.ones(2)])


def by_a_row(state: Tensor) -> None:
    double(state[0])


def by_result(state: Tensor) -> None:
    decay(state, torch.ones_like(state))


CUSTOM = [double, by_list, by_a_row, by_result, unknown]


def doubled(state: Tensor) -> Tensor:
    state.mul_(2)
    return state.sum()


COMPILED = {
    "aot_eager": torch.compile(doubled, backend="aot_eager"),
    "inductor": torch.compile(doubled, backend="inductor"),
    "eager": torch.compile(doubled, backend="eager"),
}

UPDATES = pytest.mark.parametrize(
    "update",
    [*CUSTOM, *COMPILED.values()],
    ids=["custom", "custom_list", "custom_row", "custom_result", "custom_unknown", *COMPILED],
)

Update = Callable[[Tensor], object]


@WAYS
@UPDATES
def test_a_given_tensor_is_updated_between_two_reads(way: Way, update: Update) -> None:
    def program(way: Way):
        x, state = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            first = (x + state).sin()
            update(state)
            return first * (x - state).cos()

        way(region, x).sum().backward()
        return x.grad, state

    assert_as_eager(program, way)


@WAYS
@UPDATES
def test_a_given_tensor_is_updated_after_its_last_read(way: Way, update: Update) -> None:
    def program(way: Way):
        x, state = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            y = (x + state).sin()
            update(state)
            return y

        way(region, x).sum().backward()
        return x.grad, state

    assert_as_eager(program, way)


@WAYS
@UPDATES
def test_a_value_of_the_region_is_updated_between_two_reads(way: Way, update: Update) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            state = x.detach() * 3
            first = (x + state).sin()
            update(state)
            second = (x - state).cos()
            update(state)
            return first * second * (x + state).tanh()

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
@UPDATES
def test_a_running_buffer_of_a_module_is_updated_in_every_layer(way: Way, update: Update) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("state", torch.full((4, 4), 0.25))

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x + self.state).tanh()
            with torch.no_grad():
                update(self.state)
            return y

    def program(way: Way):
        torch.manual_seed(1)
        layer, x = Layer(), leaf(4, 4)
        way(lambda x: layer(layer(layer(x))), x).sum().backward()
        return x.grad, layer.linear.weight.grad, layer.state

    assert_as_eager(program, way)


@WAYS
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_layer_that_updates_its_statistics(way: Way, backend: str) -> None:
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(4)
    compiled = torch.compile(norm, backend=backend)
    start = {name: value.clone() for name, value in norm.state_dict().items()}

    def program(way: Way):
        norm.load_state_dict(start)
        norm.zero_grad()
        x = leaf(6, 4)

        def region(x: Tensor) -> Tensor:
            h = (x + norm.running_mean).sin()
            h = compiled(h * 2)
            return (h - norm.running_mean).cos() * norm.running_var

        y = way(region, x)
        y.sum().backward()
        buffers = [buffer.clone() for buffer in norm.buffers()]
        return y.detach(), x.grad, norm.weight.grad.clone(), buffers

    assert_as_eager(program, way)


COMPILED_BEFORE = """
import sys, torch, retape
from torch._dynamo.utils import counters

def doubled(state):
    state.mul_(2)
    return state.sum()

compiled = torch.compile(doubled, backend=sys.argv[1])
compiled(torch.ones(2, 8))
graphs = [counters["stats"]["unique_graphs"]]

def gradient(policy):
    state, x = torch.ones(2, 8), torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(policy) as scope:
        h = (x + state).sin()
        compiled(state)
        loss = h.sin().sum()
    del h
    loss.backward()
    return x.grad, scope.stats.ops_replayed

eager, _ = gradient("none")
for _ in range(2):
    recomputed, replayed = gradient(retape.Policy.full().anchors(False))
    assert torch.equal(eager, recomputed) and replayed > 0
    graphs.append(counters["stats"]["unique_graphs"])
print(graphs)
"""


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_function_that_was_compiled_before_the_first_scope_is_compiled_again_in_a_scope(
    backend: str,
) -> None:
    """In a process of its own, where no scope has been open."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_BEFORE, backend],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[1, 2, 2]\n", done.stdout + done.stderr


@WAYS
def test_holding_an_old_version_does_not_hide_the_new_one(way: Way) -> None:
    """`state` is overwritten twice, and between these `var`, from which its first version is made."""

    def region(x: Tensor, var: Tensor) -> Tensor:
        state = var.detach() * 0.75
        first = (x + state).sin()
        double(state)
        second = x * state.sum()
        nn.functional.instance_norm(
            torch.ones(2, 32, 3), torch.zeros(32), var, use_input_stats=True
        )
        double(state)
        return first.sum() + second.sin().sum()

    def program(way: Way) -> Tensor:
        x = leaf(32)
        way(region, x, torch.full((32,), 0.5)).backward()
        return x.grad

    assert_as_eager(program, way)
