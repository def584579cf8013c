"""C++ models as subjects: what runs in forward and backward is compiled code, not Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from retape import _models
from retape._step import Step


def pi05(dtype: torch.dtype, **options: Any) -> Step:
    """Two towers, one cache: the layers of one write what those of the other read."""
    model = _models.Pi05(**options, dtype=dtype)
    return Step(model.forward, leaves=model.parameters())


def losses(output: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: output[name] for name in ("mse", "ce")}


def _pi05(*, sdpa: bool, insulation: bool, dropout: float) -> Callable[[torch.dtype], Step]:
    return partial(pi05, sdpa=sdpa, insulation=insulation, dropout=dropout, layers=False)


MODELS: dict[str, Callable[[torch.dtype], Step]] = {
    "pi05": _pi05(sdpa=False, insulation=True, dropout=0.3),
    "pi05-open": _pi05(sdpa=False, insulation=False, dropout=0.3),
    "pi05-sdpa": _pi05(sdpa=True, insulation=False, dropout=0.0),
}
