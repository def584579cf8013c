"""What `method="rerun"` cannot do: what torch.utils.checkpoint cannot do either, since both run the function again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import retape

Way = Callable[..., Tensor]


def by_torch(function: Callable[..., Tensor], *args: Any) -> Tensor:
    return checkpoint(function, *args, use_reentrant=False)


def by_rerun(function: Callable[..., Tensor], *args: Any) -> Tensor:
    return retape.checkpoint(function, *args, method="rerun")


BOTH = pytest.mark.parametrize("way", [by_torch, by_rerun])


def leaf() -> Tensor:
    return torch.linspace(-1, 1, 4).requires_grad_()


@BOTH
def test_a_raw_saved_tensor_takes_no_hooks(way: Way) -> None:
    y = way(lambda x: (x * 2).sin(), leaf())
    with pytest.raises(RuntimeError, match="hooks have already been set"):
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)


@BOTH
def test_a_write_to_a_saved_tensor_is_lost(way: Way) -> None:
    x = leaf()
    y = way(lambda x: (x * 2).sin(), x)
    y.grad_fn._saved_self.mul_(3)  # plain autograd raises in backward
    y.sum().backward()
    assert torch.equal(x.grad, torch.cos(x.detach() * 2) * 2)


@BOTH
def test_random_ops_do_not_run_in_a_batched_backward(way: Way) -> None:
    x = leaf()
    y = way(lambda x: torch.dropout(x * 2, 0.5, True).sin(), x)
    with pytest.raises(RuntimeError, match="random operations"):
        torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)


class Looks(torch.autograd.Function):
    note: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        doubled = x * 2
        doubled.note = "kept"
        ctx.save_for_backward(doubled)
        return doubled.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (doubled,) = ctx.saved_tensors
        Looks.note = getattr(doubled, "note", None)
        return grad * 2 * torch.ones_like(doubled)


def test_an_attribute_of_a_saved_tensor_is_lost_by_rerun_alone() -> None:
    seen = {}
    for way in (by_torch, by_rerun, retape.checkpoint):
        way(Looks.apply, leaf()).backward()
        seen[way.__name__] = Looks.note
    assert seen == {"by_torch": "kept", "by_rerun": None, "checkpoint": "kept"}
