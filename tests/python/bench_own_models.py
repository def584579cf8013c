"""Models as users write them: layers that take keywords, return several things, or are called by nobody's rule."""

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
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, *, mask: torch.Tensor, scale: float = 1.0, debug: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """debug: a name that torch's checkpoint has, too."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2) * scale + mask).softmax(-1)
        x = x + F.dropout(self.out(weights @ v), 0.1, self.training)
        return x + self.down(F.gelu(self.up(x))), weights


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x, spread = self.words(ids), 0.0
        mask = torch.full((ids.shape[1], ids.shape[1]), -1e9).triu(1)
        for block in self.blocks:
            x, weights = block(x, mask=mask, scale=0.3, debug=False)
            spread = spread + weights.square().mean()
        logits = x @ self.words.weight.T
        return {
            "loss": F.cross_entropy(logits.flatten(0, 1), ids.flatten()) + spread,
            "logits": logits,
        }


def transformer(layers: int = 3, width: int = 32, batch: int = 4) -> tuple[nn.Module, Any]:
    return Transformer(layers, width), {"ids": torch.randint(50, (batch, 48))}


def step() -> retape.Step:
    """Two modules, and a teacher that learns nothing."""
    (student, given), (teacher, _) = transformer(2), transformer(2)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(**given)["logits"]
        return F.mse_loss(student(**given)["logits"], wanted)

    return retape.Step(forward, modules=[student, teacher])


class Normed(nn.Module):
    """An nn.Sequential is called by torch's own code."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh()) for _ in range(4)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).square().mean()


def normed() -> tuple[nn.Module, torch.Tensor]:
    return Normed(), torch.randn(32, 16, requires_grad=True)


class InDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": self.inner(x).sin()}


class ByDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(InDict() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)["x"]
        return x


def by_dict() -> tuple[nn.Module, torch.Tensor]:
    return ByDict(), torch.randn(4, 8)


class Attention(nn.Linear):
    """Whose backward allocates in every thread of its kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = super().forward(x).unflatten(-1, (4, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads[:, :2], heads[:, :2], enable_gqa=True)


def attention() -> tuple[nn.Module, torch.Tensor]:
    return Attention(64, 64), torch.randn(2, 64, 64)


class Noise(nn.Module):
    """Draws from Python's and NumPy's generators, which a second call does not find where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * random.random() * numpy.random.rand()).sin().exp()


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Noise() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def noisy() -> tuple[nn.Module, torch.Tensor]:
    return Noisy(), torch.randn(4, 8)


class LooksAtValues(nn.Module):
    """At a number that is another one each time: memory that nobody wrote may still have the last."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = next(self.numbers)
        if torch.full((), float(number)).item() != number:
            raise ValueError("that was not computed")
        return self.linear(x)


def looks() -> tuple[nn.Module, torch.Tensor]:
    return LooksAtValues(), torch.randn(4, 8)


def wrong_shape() -> tuple[nn.Module, torch.Tensor]:
    return LooksAtValues(), torch.randn(4, 7)


ONCE = Normed()


def shared() -> tuple[nn.Module, torch.Tensor]:
    return ONCE, torch.randn(32, 16)


def enabled() -> tuple[nn.Module, Any]:
    model, given = transformer()
    retape.enable(model)
    return model, given


def no_tensor() -> tuple[nn.Module, tuple]:
    class Silent(nn.Linear):
        def forward(self) -> str:
            return "nothing"

    return Silent(2, 2), ()


def needs_more(width: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(width, width), torch.randn(2, width)


def bert(layers: int = 2) -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    ids = torch.randint(50, (2, 24))
    return BertForMaskedLM(config).train(), {"input_ids": ids, "labels": ids}
