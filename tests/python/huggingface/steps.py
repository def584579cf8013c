"""One training step of a model, and the comparison of two of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.python.bits import assert_same_bits
from torch import nn

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


def assert_close_step(plain: Step, other: Step) -> None:
    """Equal but for rounding, measured by the largest gradient of the model."""
    assert plain.live, "no gradient to compare"
    assert other.live == plain.live
    largest = max(float(plain.gradients[name].abs().max()) for name in plain.live)
    bound = largest * 16 * torch.finfo(plain.loss.dtype).eps
    for name in plain.live:
        assert float((plain.gradients[name] - other.gradients[name]).abs().max()) <= bound, name
    assert_same_bits(other.buffers, plain.buffers, "buffers")
    assert_same_bits(other.rng, plain.rng, "generator state")
