"""Hugging Face caches among the arguments of a function that will run again.

A cache is Python state: `update` binds longer tensors, counts, sets flags. So the second run gets a
cache of its own, as the first run found it, and the caller's is written once. What is written in place
(a `StaticCache`, states of Mamba) is memory that both share: the C++ side puts that back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def is_cache(value: Any) -> bool:
    """A cache, or a layer of one."""
    return _is_cache_class(type(value))


@functools.cache
def _is_cache_class(kind: type) -> bool:
    return any(base.__module__ == "transformers.cache_utils" for base in kind.__mro__)


class Found:
    """A cache as it is now. It holds no graph: what is in a cache ends up in the graph that is built
    with it, and that holds this."""

    def __init__(self, cache: Any) -> None:
        self._cache = _copy(cache, lambda t: t.detach().requires_grad_(t.requires_grad))

    def again(self) -> Any:
        return _copy(self._cache, lambda t: _Joined.apply(t) if t.requires_grad else t.detach())


class _Joined(torch.autograd.Function):
    """The same memory with a history of its own, so that it may be written in place."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _copy(value: Any, tensor: Callable[[Tensor], Tensor]) -> Any:
    """Containers, caches and their layers anew; what `tensor` makes of the tensors in them."""
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, list):
        return [_copy(each, tensor) for each in value]
    if isinstance(value, dict):
        return {key: _copy(each, tensor) for key, each in value.items()}
    if is_cache(value):
        new = object.__new__(type(value))
        new.__dict__.update(_copy(value.__dict__, tensor))
        return new
    return value
