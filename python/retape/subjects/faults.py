"""For each fault that can be injected, the smallest model in which it strikes.

`retape verify --inject one-ulp` runs "fault:one-ulp" where no other subject is named: equal as it is,
different with the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Inner(nn.Module):
    """A layer that does `body(layer, x)`, with whatever a body may want to use."""

    def __init__(self, body: Callable[[Inner, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.w = nn.Parameter(torch.randn(8, 8))
        self.b = nn.Parameter(torch.randn(8))
        self.register_buffer("shift", torch.ones(4, 8))
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


class Outer(nn.Module):
    """`inner` under autocast or not, and a number of steps in the data: no two steps are alike."""

    def __init__(self, body: Callable[[Inner, Tensor], Tensor], autocast: bool) -> None:
        super().__init__()
        self.inner = Inner(body)
        self.autocast = autocast
        self.register_buffer("weights", torch.arange(32.0).sin().view(4, 8))
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            y = self.inner(x * self.steps)
        return (y.float() * self.weights).mean()  # saves nothing of the layer's


def _chain(layer: Inner, x: Tensor) -> Tensor:
    return torch.tanh(F.silu(x @ layer.w + layer.b) @ layer.w).sin() @ layer.w


def _dropout(layer: Inner, x: Tensor) -> Tensor:
    return (F.dropout(x @ layer.w, 0.5) * layer.b).sin()


def _private_noise(layer: Inner, x: Tensor) -> Tensor:
    return (x @ layer.w * torch.rand(4, 8, generator=layer.generator) + layer.b).sin()


def _normed(layer: Inner, x: Tensor) -> Tensor:
    return (layer.norm(x @ layer.w) + layer.b).sin()


def _some_nan(layer: Inner, x: Tensor) -> Tensor:
    y = (layer.w[:4] * x.sqrt()).sin()
    return torch.where(y.isnan(), 0.0, y) + layer.b.sin()


def _some_zeros(layer: Inner, x: Tensor) -> Tensor:
    return (torch.relu(x @ layer.w + layer.b) * layer.w[:4]).sin()


def _with_arguments(layer: Inner, x: Tensor) -> Tensor:
    return torch.add(F.leaky_relu(x @ layer.w, 0.3), layer.b, alpha=3).sin()


def _moving_buffer(layer: Inner, x: Tensor) -> Tensor:
    y = ((x @ layer.w + layer.b) + layer.shift).sin()
    layer.shift.add_(1)
    return (y + layer.shift).sin()


def _written_while_needed(layer: Inner, x: Tensor) -> Tensor:
    h = (x @ layer.w + layer.b) * 2
    before = (h + layer.b).sin()  # reads h, and saves only the sum
    h.mul_(3)
    return h.sin() + before


def _rrelu(layer: Inner, x: Tensor) -> Tensor:
    return F.rrelu(x @ layer.w + layer.b, training=True)


def _tail(layer: Inner, x: Tensor) -> Tensor:
    return (x @ layer.w + layer.b).sin() * 2 + 1


def _made_inside(layer: Inner, x: Tensor) -> Tensor:
    ramp = torch.linspace(0.5, 1.5, 8).requires_grad_()
    return (ramp * 2).sin() * (x @ layer.w + layer.b)


@dataclass(frozen=True)
class Program:
    body: Callable[[Inner, Tensor], Tensor] = _chain
    rerun: bool = False  # the layer is called again; else a scope around all
    autocast: bool = False
    steps: int = 1
    orders: bool = False

    def build(self) -> tuple[nn.Module, tuple[Any, ...]]:
        return Outer(self.body, self.autocast), (torch.randn(4, 8),)


PROGRAMS = {
    "rng-not-restored": Program(_dropout),
    "wrong-generator": Program(_private_noise),
    "private-generator": Program(_private_noise),
    "autocast-dropped": Program(rerun=True, autocast=True),
    "autocast-dtype": Program(rerun=True, autocast=True),
    "grad-mode-off": Program(rerun=True),
    "swapped-tensors": Program(),
    "stale-frame": Program(steps=2),
    "stops-early": Program(_rrelu, rerun=True),
    "stops-late": Program(_tail, rerun=True),
    "stale-version": Program(_moving_buffer),
    "data-mutated": Program(),
    "batchnorm-twice": Program(_normed),
    "other-op": Program(),
    "layout": Program(),
    "dtype-widened": Program(),
    "one-ulp": Program(),
    "nan-payload": Program(_some_nan),
    "sign-of-zero": Program(_some_zeros),
    "missing-argument": Program(_with_arguments),
    "default-device": Program(_made_inside, rerun=True),
    "thread-race": Program(_written_while_needed),
    "freed-early": Program(),
    "leak": Program(),
    "second-unpack": Program(orders=True),
}
