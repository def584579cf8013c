"""The ways to run a region of forward that the table puts side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint as torch_checkpoint

import retape


class Way:
    """Calls functions in one way, and counts how often they were called again for backward."""

    key: str
    label: str
    ours = False
    checkpoint: Callable[..., Any]
    fixed: dict[str, Any] = {}

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.regions = 0
        self._calls = 0

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.regions += 1

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return function(*args, **kwargs)

        return self.run(counted, *args, **kwargs)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.checkpoint(function, *args, **self.fixed, **self.options, **kwargs)

    @property
    def again(self) -> int:
        """Calls of functions beyond the first."""
        return max(0, self._calls - self.regions)


class Plain(Way):
    key, label = "plain", "plain"

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class Torch(Way):
    key, label = "torch", "torch"
    checkpoint, fixed = staticmethod(torch_checkpoint), {"use_reentrant": False}


class TorchReentrant(Way):
    key, label = "torch_reentrant", "torch, reentrant"
    checkpoint, fixed = staticmethod(torch_checkpoint), {"use_reentrant": True}


class Replay(Way):
    key, label, ours = "replay", "Retape", True
    checkpoint = staticmethod(retape.checkpoint)


class Rerun(Way):
    key, label, ours = "rerun", "Retape, rerun", True
    checkpoint, fixed = staticmethod(retape.checkpoint), {"method": "rerun"}


WAYS: tuple[type[Way], ...] = (Plain, Torch, TorchReentrant, Replay, Rerun)
