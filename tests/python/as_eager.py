"""Run a program plain and under a policy, and compare every bit of what it returns.

A program takes `way`: how a region of forward is run. It returns tensors and other values to
compare, or raises. Under each way of Retape it must return what plain autograd returns, or raise
what it raises.

    @WAYS
    def test_noise_is_replayed(way):
        def program(way):
            x = leaf(4)
            way(lambda x: F.dropout(x.sin(), 0.5).cos(), x).sum().backward()
            return x.grad

        assert_as_eager(program, way)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.python.bits import assert_same_bits
from torch import Tensor

import retape

Way = Callable[..., Any]
Program = Callable[[Way], Any]

INPLACE = "modified by an inplace operation"


def plain(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def under(policy: Any) -> Way:
    def way(function: Callable[..., Any], *args: Any) -> Any:
        with retape.recompute(policy):
            return function(*args)

    return way


def nested(function: Callable[..., Any], *args: Any) -> Any:
    with retape.recompute("full"):
        return retape.checkpoint(function, *args)


EVERY_WAY: dict[str, Way] = {
    "none": under("none"),
    "full": under("full"),
    "cheap": under("cheap"),
    "checkpoint": retape.checkpoint,
    "nested": nested,
}
WAYS = pytest.mark.parametrize("way", EVERY_WAY.values(), ids=EVERY_WAY)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    """A float32 parameter, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def run(program: Program, way: Way) -> Any:
    torch.manual_seed(0)
    return program(way)


def assert_as_eager(program: Program, way: Way) -> None:
    """The bits of plain autograd, and no error."""
    assert_same_bits(run(program, way), run(program, plain), program.__name__)


def assert_as_eager_or_mismatch(program: Program, way: Way) -> None:
    """The bits of plain autograd, or a ReplayMismatch with a fix.

    For tensors that the region was given and that change after it: plain autograd may hold what it
    computed from them, while replay has to read them.
    """
    expected = run(program, plain)
    try:
        found = run(program, way)
    except retape.ReplayMismatch as error:
        assert "Fix:" in str(error), error
        return
    assert_same_bits(found, expected, program.__name__)


def assert_raises_as_eager(program: Program, way: Way, match: str) -> None:
    """The error of plain autograd: its type, and a message that matches in both."""
    with pytest.raises(Exception, match=match) as expected:
        run(program, plain)
    with pytest.raises(expected.type, match=match):
        run(program, way)
