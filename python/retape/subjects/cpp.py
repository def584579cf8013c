"""C++ models as subjects: what runs in forward and backward is compiled code, not Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from retape import _models
from retape._step import Step

LOSSES = ("mse", "ce", "balance")


def step(make: Callable[..., Any], dtype: torch.dtype, **options: Any) -> Step:
    """A forward pass of a model in `_models`; all that it draws is drawn from the default generator."""
    model = make(**options, dtype=dtype)
    return Step(model.forward, leaves=model.parameters())


def losses(output: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: output[name] for name in LOSSES if name in output}


def maker(build: Callable[[torch.dtype], Step]) -> Callable[..., Any]:
    def make(dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        def seeded() -> Step:
            torch.manual_seed(seed)
            return build(dtype or torch.float32)

        return seeded, None, {"loss": losses}

    return make


_pi05 = partial(step, _models.Pi05)

MODELS: dict[str, Callable[[torch.dtype], Step]] = {
    "transformer": partial(step, _models.Transformer, dropout=0.3),
    # Rows go to experts by what is in them.
    "moe": partial(step, _models.Moe, dropout=0.3),
    # Two towers, one cache: the layers of one write what those of the other read.
    "pi05": partial(_pi05, sdpa=False, insulation=True, dropout=0.3),
    "pi05-open": partial(_pi05, sdpa=False, insulation=False, dropout=0.3),
    "pi05-sdpa": partial(_pi05, sdpa=True, insulation=True, dropout=0.3),
    "pi05-sdpa-open": partial(_pi05, sdpa=True, insulation=False, dropout=0.3),
    "pi05-sdpa-no-dropout": partial(_pi05, sdpa=True, insulation=False, dropout=0.0),
}
