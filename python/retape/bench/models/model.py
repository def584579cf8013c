"""What the bench knows about a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from retape.bench.task import Make, Task, seeded


@dataclass(frozen=True)
class Model:
    """size: as it is used, for memory. small: for times. Both are options of `make`, beside `dtype`."""

    name: str
    title: str
    make: Callable[..., Task]
    size: Mapping[str, Any]
    small: Mapping[str, Any]
    dry: bool = True  # False: what it does depends on values, or its kernels' own memory counts
    needs: str = ""  # a package

    def at(self, size: Mapping[str, Any], dtype: str) -> Make:
        return seeded(self.make, dtype=getattr(torch, dtype), **size)

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        if self.needs and importlib.util.find_spec(self.needs) is None:
            return f"needs the package {self.needs}"
        return ""
