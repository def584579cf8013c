"""The C++ models (models/): compiled code calls `apply`, and `apply` calls compiled layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from retape import _models
from retape.bench.models.model import Model
from retape.bench.task import Apply, Task


class CppTask(Task):
    def __init__(self, kind: str, dtype: torch.dtype, layers: int, **options: Any) -> None:
        self.model = getattr(_models, kind)(dtype=dtype, depth=layers, **options)
        self.leaves = self.model.parameters()
        self.buffers = {}

    def loss(self, apply: Apply) -> torch.Tensor:
        return self.model.loss(apply)


MODELS = (
    Model(
        "cpp_transformer", "C++: transformer, unfused attention, dropout", partial(CppTask, "Transformer"),
        dict(
            layers=12, width=768, heads=12, hidden=2048, vocabulary=32000, batch=2, tokens=1024, dropout=0.1
        ),
        dict(layers=8, width=64, heads=4, hidden=176, vocabulary=256, batch=2, tokens=64, dropout=0.1),
    ),
    Model(
        "cpp_moe", "C++: mixture of experts, rows go where their values send them", partial(CppTask, "Moe"),
        dict(
            layers=4, width=256, heads=4, hidden=512, experts=8, experts_per_token=2, vocabulary=4000,
            batch=2, tokens=256, dropout=0.1,
        ),
        dict(
            layers=4, width=32, heads=2, hidden=64, experts=4, experts_per_token=2, vocabulary=64,
            batch=2, tokens=32, dropout=0.1,
        ),
        dry=False,
    ),
    Model(
        "cpp_pi05", "C++: pi05, two towers and a cache between them", partial(CppTask, "Pi05"),
        dict(
            layers=8, prefix_width=512, prefix_hidden=2048, suffix_width=256, suffix_hidden=1024,
            heads=8, kv_heads=2, head_size=64, batch=2, image_tokens=256, language_tokens=48, chunk=50,
            insulation=False, dropout=0.1,
        ),
        dict(
            layers=4, prefix_width=32, prefix_hidden=64, suffix_width=16, suffix_hidden=32,
            batch=2, image_tokens=16, insulation=False, dropout=0.1,
        ),
    ),
)  # fmt: skip
