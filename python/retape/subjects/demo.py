"""Subjects that are always there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from retape.subjects.gpt import GPT, Size, Sums


def gpt(seed: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """The GPT of `retape demo`, smaller, with dropout."""
    size = Size(layers=3, heads=2, width=32, context=24, batch=2)
    return GPT(len(Sums.alphabet), size), (Sums(seed).batch(size),)


LENGTH = 5


class MixedLayer(nn.Module):
    """One of everything that replay, and a second call, have to get right."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.generator = torch.Generator().manual_seed(seed)
        self.register_buffer("usage", torch.ones(LENGTH, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(self.norm(x)).chunk(2, dim=-1)  # views; cast by autocast from outside
        mask = torch.empty_like(gate).bernoulli_(0.8, generator=self.generator)
        h = F.dropout(F.silu(gate) * value * mask, 0.1, self.training)
        with torch.autocast("cpu", enabled=False):
            h = h.to(x.dtype).masked_fill(mask == 0, float("nan")).nan_to_num(0.0)
            h = (h + 0.1).clamp_(max=20).exp()
            keys = h.transpose(0, 1).contiguous().transpose(0, 1)
            h = F.scaled_dot_product_attention(h, keys, x)
            h = self.batch_norm(h.flatten(0, 1)).view_as(h)
        h = (h + self.usage).sin()
        with torch.no_grad():  # written after it was read
            self.usage.mul_(0.9).add_(h.abs().mean(0).to(self.usage.dtype), alpha=0.1)
        h = h.cos() if h.mean().item() < 9 else h  # a branch on a value
        h = self.down(h).to(x.dtype) * torch.linspace(0.5, 1.5, h.shape[-1]).to(x.dtype)
        return F.rrelu(x + h, training=self.training)


class Mixed(nn.Module):
    """Two such layers, run under settings that they do not know of; two outputs."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MixedLayer(width, seed + i) for i in range(2))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("cpu"):
            for layer in self.layers:
                x = layer(x)
        early = x * 1.5
        late = (early + 1).sin()
        early[..., 0].mul_(2)  # what `late` is replayed from is written later
        return {"hidden": x, "mixed": late + early.cos()}


def mixed(seed: int) -> tuple[nn.Module, tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return Mixed(16, seed), (torch.randn(3, LENGTH, 16, generator=generator).requires_grad_(),)


DEMOS: dict[str, Callable[[int], tuple[nn.Module, Any]]] = {"gpt": gpt, "mixed": mixed}
