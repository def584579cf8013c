"""Models for the tests of verify, and factories that the command line finds by name."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import retape


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.dropout(F.gelu(self.up(x)), 0.2, self.training)).tanh()


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class WritesBehindTheBack(Block):
    """A kernel that the dispatcher does not see changes what a recorded op made (docs/limits.md)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x).tanh()
        h.detach().numpy()[...] *= 0.5
        return self.down(h.exp().sin())


class Noisy(nn.Module):
    """Draws from Python, NumPy and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.sources = {"masks": torch.Generator().manual_seed(1)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.empty(8).bernoulli_(0.7, generator=self.sources["masks"])
        scale = random.random() + numpy.random.rand()
        return (x * self.weight * mask * scale).sin().exp()


class WithDeadParameter(Block):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(8, 8)


class NeverTheSame(Block):
    calls = itertools.count(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * next(self.calls)


def x(rows: int = 4, *, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 8, generator=generator).requires_grad_(grad)


# ---- what the command line imports


def equal() -> tuple[nn.Module, Any]:
    return Stack(), x()


def different() -> tuple[nn.Module, Any]:
    return WritesBehindTheBack(), (x(),)


def vacuous() -> tuple[nn.Module, Any]:
    return WithDeadParameter(), x()


def step() -> retape.Step:
    model, given = Stack(2), x()
    return retape.Step(lambda: model(given).square().mean(), modules=[model])


def raises() -> tuple[nn.Module, Any]:
    raise RuntimeError("no data <here> & now")


def no_model() -> int:
    return 3


not_callable = 7
