"""A small transformer under a large head: most of its memory is logits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from retape.bench.models.model import Model
from retape.bench.task import Apply, ModuleTask


class Head(nn.Module):
    """Logits of every token, and their cross entropy: one layer like the others."""

    def __init__(self, width: int, vocabulary: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.linear = nn.Linear(width, vocabulary, bias=False, dtype=dtype)
        self.targets: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.linear(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), self.targets)


class VocabularyTask(ModuleTask):
    def __init__(
        self, dtype: torch.dtype, layers: int, width: int, vocabulary: int, batch: int, tokens: int
    ) -> None:
        model = nn.Module()
        model.words = nn.Embedding(vocabulary, width, dtype=dtype)
        model.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.1, batch_first=True, norm_first=True, dtype=dtype
            )
            for _ in range(layers)
        )
        model.head = Head(width, vocabulary, dtype)
        super().__init__(model)
        self.ids = torch.randint(vocabulary, (batch, tokens))
        model.head.targets = torch.randint(vocabulary, (batch * tokens,))

    def loss(self, apply: Apply) -> torch.Tensor:
        return apply([*self.model.layers, self.model.head], self.model.words(self.ids))


MODELS = (
    Model(
        "vocabulary", "a head of 32,000 words over 4 layers", VocabularyTask,
        dict(layers=4, width=512, vocabulary=32000, batch=4, tokens=512),
        dict(layers=4, width=64, vocabulary=4000, batch=2, tokens=64),
    ),
)  # fmt: skip
