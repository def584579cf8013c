"""One training step of a model, and the comparison of two of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.python.bits import assert_same_bits
from torch import nn
from torch.utils._pytree import tree_map_only

from retape._bits import same_bits

Tensors = dict[str, torch.Tensor]
Forward = Callable[[nn.Module], tuple[torch.Tensor, Tensors]]


@dataclass
class Step:
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: Tensors
    rng: torch.Tensor
    extra: Tensors = field(default_factory=dict)  # the content of a cache, for example

    @property
    def live(self) -> set[str]:
        """Parameters with a gradient that is not zero."""
        return {n for n, g in self.gradients.items() if g is not None and bool(g.any())}


def step(model: nn.Module, forward: Forward) -> Step:
    """Forward and backward from one seed."""
    torch.manual_seed(2)
    loss, extra = forward(model)
    loss.backward()
    return Step(
        loss.detach(),
        {name: parameter.grad for name, parameter in model.named_parameters()},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
        torch.get_rng_state(),
        {name: tensor.detach().clone() for name, tensor in extra.items()},
    )


def copy_step(model: nn.Module, forward: Forward, enable: Callable[[nn.Module], Any]) -> Any:
    """The step of a copy on which `enable` was called, and what that returned."""
    model = copy.deepcopy(model)
    report = enable(model)
    return step(model, forward), report


def assert_same_step(plain: Step, other: Step) -> None:
    assert plain.live, "no gradient to compare"
    assert other.live == plain.live
    assert_same_bits(other.loss, plain.loss, "loss")
    different = [n for n, g in plain.gradients.items() if not same_bits(g, other.gradients[n])]
    assert different == []
    assert_same_bits(other.buffers, plain.buffers, "buffers")
    assert_same_bits(other.extra, plain.extra, "extra")
    assert_same_bits(other.rng, plain.rng, "generator state")


def summed_by_layer(model: nn.Module, layers: Iterable[str]) -> nn.Module:
    """Let each of these layers read its tensors through one node each: no bit of forward changes.

    A tensor that several layers read then gets one gradient from each layer. Plainly it gets one from
    each op that reads it: the same terms, added up in another order.
    """

    def enter(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        return tree_map_only(
            torch.Tensor, lambda t: t.view_as(t) if t.requires_grad else t, (args, kwargs)
        )

    for name in layers:
        model.get_submodule(name).register_forward_pre_hook(enter, with_kwargs=True)
    return model
