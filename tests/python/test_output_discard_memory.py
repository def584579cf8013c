"""What OutputDiscardCheckpoint says about memory, to the byte, on stacks of feed-forward blocks.

Weights and their gradients exist before the meter is opened: what is counted is activations.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import retape
from retape._bits import same_bits

LAYERS, TOKENS, WIDTH, HIDDEN = 8, 2 * 64, 64, 256
X = TOKENS * WIDTH * 4  # bytes of a block's input
H = TOKENS * HIDDEN * 4  # ... and of its wide activation

Make = Callable[[], Any]


class Plain:
    def checkpoint(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    def discard_output_and_register_recompute(self, hook_tensor: Tensor) -> int:
        return 0


class Undiscarded(retape.OutputDiscardCheckpoint):
    """The call alone, so that what discard itself frees can be told."""

    def discard_output_and_register_recompute(self, hook_tensor: Tensor) -> int:
        return 0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def whole(self, make: Make, x: Tensor) -> Tensor:
        """OLMo-core's cut: the region holds the projection too."""
        ckpt = make()
        h = ckpt.checkpoint(lambda t: F.silu(self.up(t)), x)
        z = self.down(h)
        ckpt.discard_output_and_register_recompute(z)
        return x + z

    def act(self, make: Make, x: Tensor) -> Tensor:
        """Megatron's cut: only what is cheap to do again is in a region."""
        norm, act = make(), make()
        n = norm.checkpoint(self.norm, x)
        up = self.up(n)
        norm.discard_output_and_register_recompute(up)
        h = act.checkpoint(F.silu, up)
        z = self.down(h)
        act.discard_output_and_register_recompute(z)
        return x + z


Cut = Callable[[Block, Make, Tensor], Tensor]


@dataclass
class Step:
    held: int  # when forward is over: activations, without the input and the result
    peak: int
    left: int
    grads: list[Tensor]


@pytest.fixture(autouse=True)
def _no_cycle_collector() -> Iterator[None]:
    """What dies must die by reference counts alone, at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(LAYERS)]
    # torch sets up its dispatch modes at first use, and keeps the frames that did.
    blocks[0].whole(lambda: retape.OutputDiscardCheckpoint("python"), torch.ones(TOKENS, WIDTH))
    return blocks


def measure(
    blocks: list[Block], forward: Callable[[Block, Tensor], Tensor], scope: Any = None
) -> Step:
    parameters = [p for block in blocks for p in block.parameters()]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    x = torch.randn(
        2, TOKENS // 2, WIDTH, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    x.grad = torch.zeros_like(x)
    with retape.memory.Meter() as meter:
        with scope or contextlib.nullcontext():
            y = x
            for block in blocks:
                y = forward(block, y)
        total = y.sum()
        del y
        held = meter.current - total.nbytes
        total.backward()
        del total
        left = meter.current
    return Step(held, meter.peak, left, [x.grad, *(p.grad.clone() for p in parameters)])


def stacked(blocks: list[Block], cut: Cut, make: Make) -> Step:
    return measure(blocks, lambda block, x: cut(block, make, x))


def assert_same_grads(plain: Step, found: Step) -> None:
    assert all(grad.abs().max() > 0 for grad in plain.grads if grad.shape != (WIDTH,))
    assert all(map(same_bits, plain.grads, found.grads))


@pytest.mark.parametrize("backend", ["cpp", "python"])
def test_stack_of_blocks_falls_by_exactly_the_outputs(backend: str, blocks: list[Block]) -> None:
    plain = stacked(blocks, Block.whole, Plain)
    called = stacked(blocks, Block.whole, lambda: Undiscarded(backend))
    found = stacked(blocks, Block.whole, lambda: retape.OutputDiscardCheckpoint(backend))
    for step in (called, found):
        assert_same_grads(plain, step)
        assert step.left == plain.left == 0
    assert plain.held == LAYERS * (2 * H) + (LAYERS - 1) * X  # up, silu; inputs but the first
    assert called.held == LAYERS * H + (LAYERS - 1) * X
    assert found.held == called.held - LAYERS * H
    assert found.peak < called.peak < plain.peak


@pytest.mark.parametrize("backend", ["cpp", "python"])
def test_recompute_cheap_reaches_the_same_memory_with_nobody_calling_discard(
    backend: str, blocks: list[Block]
) -> None:
    plain = stacked(blocks, Block.act, Plain)
    discarded = stacked(blocks, Block.act, lambda: retape.OutputDiscardCheckpoint(backend))
    scope = retape.recompute("cheap")
    cheap = measure(blocks, lambda block, x: block.act(Plain, x), scope)
    for step in (discarded, cheap):
        assert_same_grads(plain, step)
        assert step.left == 0
    assert discarded.held == LAYERS * H + (LAYERS - 1) * X  # the projections and the inputs
    assert cheap.held == discarded.held
    assert cheap.peak <= discarded.peak
    assert scope.stats.ops_replayed > 0


def test_output_is_moved_back_and_not_copied(blocks: list[Block]) -> None:
    """C++: what replay makes becomes the storage's data; no second wide buffer, ever."""
    block = blocks[0]
    x = torch.randn(TOKENS, WIDTH)
    ckpt = retape.OutputDiscardCheckpoint("cpp")
    with retape.memory.Meter() as meter:
        h = ckpt.checkpoint(lambda t: F.silu(block.up(t)), x)
        z = block.down(h)
        assert meter.current == H + z.nbytes
        ckpt.discard_output_and_register_recompute(z)
        before = meter.current
        meter.reset_peak()
        h.detach().view(-1)[0].item()
        assert meter.current == before + H
        assert meter.peak <= before + 2 * H + 64  # the projection, for a moment, and the scalar


@pytest.mark.parametrize("backend", ["cpp", "python"])
def test_graph_that_dies_without_backward_leaves_nothing(backend: str, blocks: list[Block]) -> None:
    x = torch.randn(TOKENS, WIDTH)
    with retape.memory.Meter() as meter:
        y = x
        for block in blocks:
            y = block.whole(lambda: retape.OutputDiscardCheckpoint(backend), y)
        assert meter.current > 0
        del y
        assert meter.current == 0


@pytest.mark.parametrize("backend", ["cpp", "python"])
def test_graph_kept_holds_what_plain_autograd_holds_and_no_more(
    backend: str, blocks: list[Block]
) -> None:
    def kept(make: Make) -> tuple[int, int]:
        x = torch.randn(TOKENS, WIDTH, requires_grad=True)
        with retape.memory.Meter() as meter:
            total = blocks[0].whole(make, x).sum()
            torch.autograd.grad(total, x, retain_graph=True)
            between = meter.current
            torch.autograd.grad(total, x)
            del total
            return between, meter.current

    plain, found = kept(Plain), kept(lambda: retape.OutputDiscardCheckpoint(backend))
    assert found[0] <= plain[0]
    assert found[1] == plain[1] == 0
