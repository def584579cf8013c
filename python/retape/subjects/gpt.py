"""A small GPT for `retape demo`: pre-norm, attention written out, dropout on, nothing clever.

Written as anyone would write it: no wrappers, no regions, no knowledge of Retape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    layers: int = 6
    heads: int = 4
    width: int = 128
    context: int = 192
    batch: int = 6
    dropout: float = 0.1


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = size.dropout
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        mask = torch.ones(size.context, size.context, dtype=torch.bool).triu(1)
        self.register_buffer("future", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        weights = scores.masked_fill(self.future[:length, :length], float("-inf")).softmax(-1)
        weights = F.dropout(weights, self.dropout, self.training)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return F.dropout(self.out(mixed), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.norm2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)
        self.dropout = size.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(hidden, self.dropout, self.training)


class GPT(nn.Module):
    """Next-character loss of a batch of token ids, one column longer than the context."""

    def __init__(self, vocabulary: int, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Parameter(torch.zeros(size.context, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, call: Callable = lambda block, x: block(x)) -> Tensor:
        """`call` is how a block is called: the place where checkpointing per layer goes."""
        x = self.tokens(ids[:, :-1]) + self.positions
        for block in self.blocks:
            x = call(block, x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class Sums:
    """Endless text to learn from: "17+25=42." written out, characters as ids."""

    alphabet = "0123456789+=."

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def batch(self, size: Size) -> Tensor:
        return torch.stack([self._line(size.context + 1) for _ in range(size.batch)])

    def _line(self, length: int) -> Tensor:
        text = ""
        while len(text) < length:
            a, b = torch.randint(0, 50, (2,), generator=self._generator).tolist()
            text += f"{a}+{b}={a + b}."
        return torch.tensor([self.alphabet.index(char) for char in text[:length]])
