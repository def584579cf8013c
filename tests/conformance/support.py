"""The ways to checkpoint, a counter of calls, and comparison of bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import retape
from retape._bits import same_bits

Tensor = torch.Tensor

OPTIONS: dict[str, dict[str, Any]] = {
    "replay": {"method": "replay"},
    "rerun": {"method": "rerun", "use_reentrant": False},
    "reentrant": {"method": "rerun", "use_reentrant": True},
}
#: Calls of a checkpointed function in one forward and one backward.
RUNS = {"replay": 1, "rerun": 2, "reentrant": 2}

every_way = pytest.mark.parametrize("how", ["replay", "rerun", "reentrant"])
with_a_graph = pytest.mark.parametrize("how", ["replay", "rerun"])
by_running_again = pytest.mark.parametrize("how", ["rerun", "reentrant"])


def checkpoint(how: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return retape.checkpoint(function, *args, **OPTIONS[how], **kwargs)


def checkpoint_sequential(how: str, functions: Any, segments: int, value: Any) -> Any:
    return retape.checkpoint_sequential(functions, segments, value, **OPTIONS[how])


def assert_same(got: Any, expected: Any, where: str = "value") -> None:
    """Tensors, or lists and tuples of them: the same bits."""
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), where
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
        return
    assert same_bits(got, expected), f"{where}:\n{got}\nagainst\n{expected}"


def leaf(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator, dtype=dtype).requires_grad_()


def same_leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def grads(tensors: Iterable[Tensor]) -> list[Tensor | None]:
    return [tensor.grad for tensor in tensors]


class Counted:
    """A function, and how often it was called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


class OpsSeen(TorchDispatchMode):
    """Names of the ops that reach the backend while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Flops(TorchDispatchMode):
    """Flops of matrix products. (torch's own FlopCounterMode also hooks into modules, with ops that
    a selective checkpoint's second run does not know.)"""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            (rows, inner), (_, columns) = args[0].shape, args[1].shape
            self.total += 2 * rows * inner * columns
        return func(*args, **(kwargs or {}))
