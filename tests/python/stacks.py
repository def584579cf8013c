"""Small stacks of layers in plain torch, and one training step of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH = 16


class Block(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, hidden: torch.Tensor, scale: Any = 1.0, *, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        inner = self.dropout(nn.functional.gelu(self.up(self.norm(hidden)))) * scale
        out = self.down(inner)
        return hidden + (out if mask is None else out * mask)


class Other(Block):
    pass


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class Model(nn.Module):
    def __init__(self, blocks: int = 3, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList([block() for _ in range(blocks)])
        self.heads = nn.ModuleList([nn.Linear(WIDTH, 1) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return sum(head(hidden).square().mean() for head in self.heads)


def build(**options: Any) -> Model:
    torch.manual_seed(0)
    return Model(**options).train()


def data() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def step(model: nn.Module, call: Callable[[nn.Module], torch.Tensor] | None = None) -> dict:
    """Everything that a step of training leaves behind."""
    torch.manual_seed(2)
    loss = model(data()) if call is None else call(model)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert any(gradient is not None and gradient.any() for gradient in gradients.values())
    model.zero_grad()
    return {
        "loss": loss.detach(),
        "gradients": gradients,
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "rng": torch.get_rng_state(),
    }
