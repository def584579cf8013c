"""What a fault does that lies in Python (src/check/fault_hooks.h has the others)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.utils._device import DeviceContext, _device_constructors

from retape import _C


class _Elsewhere(DeviceContext):
    """Another default device. It strikes when a tensor is made there."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        if func in _device_constructors() and made.device == self.device:
            _C.fault_hit()
        return made


def sabotaged(device: AbstractContextManager) -> AbstractContextManager:
    """The default device of a second run: `device`, unless that fault is injected."""
    return _Elsewhere("meta") if _C.is_injected("default-device") else device
