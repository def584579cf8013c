"""Bytes of storages, copies of arguments that share memory as the originals do, poisoned memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

_LIBC = ctypes.CDLL(None)
_M_PERTURB = -6


def poison(byte: int) -> None:
    """glibc fills what malloc hands out from now on with the complement of `byte`."""
    if _LIBC.mallopt(_M_PERTURB, byte) != 1:
        raise RuntimeError("[audit] mallopt(M_PERTURB) failed: this audit needs glibc's malloc")


def has_bytes(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.layout == torch.strided
        and x.device.type == "cpu"
        and not x.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and not torch._is_functional_tensor(x)
        and type(x) in (torch.Tensor, torch.nn.Parameter)
        and not x._is_zerotensor()
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (x for x in tree_flatten(value)[0] if has_bytes(x))


def raw(storage: torch.UntypedStorage) -> bytes:
    size = storage.nbytes()
    return ctypes.string_at(storage.data_ptr(), size) if size else b""


def visible(x: torch.Tensor) -> bytes:
    """The bytes of its elements, in order."""
    if x.is_quantized:
        x = x.int_repr()
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    size = x.numel() * x.element_size()
    return ctypes.string_at(x.data_ptr(), size) if size else b""


def covers(x: torch.Tensor) -> bool:
    return (
        x.storage_offset() == 0
        and x.numel() * x.element_size() == x.untyped_storage().nbytes()
        and torch.ops.aten.is_non_overlapping_and_dense(x)
    )


def fill(x: torch.Tensor, byte: int) -> None:
    """All of its storage. Bools get 0 or 1."""
    size = x.untyped_storage().nbytes()
    if size:
        value = byte & 1 if x.dtype == torch.bool else byte
        ctypes.memset(x.untyped_storage().data_ptr(), value, size)


GUARD = 4096  # bytes of zeros before and after what an op is given
LINE = 64


class Copier:
    """Copies tensors; those that share a storage share the copy of it.

    Copies lie between zeros. An op whose arguments do not fit each other may read outside of them: it
    reads the same each time then, and what it writes there shows. Such memory cannot be resized;
    `resizable` does without, for the tensors in it.
    """

    def __init__(self, resizable: Any = ()) -> None:
        self._resizable = {x.untyped_storage()._cdata for x in tensors_in(resizable)}
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._generators: dict[int, torch.Generator] = {}
        self._guarded: list[tuple[bytearray, int, int]] = []

    def __call__(self, value: Any) -> Any:
        return tree_map(self._copy, value)

    def reached_outside(self) -> bool:
        """Something was written to the zeros around the copies."""
        return any(
            memory.count(0, 0, start) != start or memory.count(0, end) != len(memory) - end
            for memory, start, end in self._guarded
        )

    def _copy(self, x: Any) -> Any:
        if isinstance(x, torch.Generator):
            if id(x) not in self._generators:
                self._generators[id(x)] = x.clone_state()
            return self._generators[id(x)]
        if isinstance(x, torch.Tensor) and x.layout != torch.strided:
            return x.detach().clone()
        if not has_bytes(x):
            return x
        if x.is_quantized:
            return x.clone()
        storage = x.untyped_storage()
        if storage._cdata not in self._copies:
            self._copies[storage._cdata] = self._copy_of(storage)
        copy = torch.empty(0, dtype=x.dtype)
        copy.set_(self._copies[storage._cdata], x.storage_offset(), x.shape, x.stride())
        if x.is_conj():
            copy = torch._conj(copy)
        return torch._neg_view(copy) if x.is_neg() else copy

    def _copy_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        size = storage.nbytes()
        if size == 0 or storage._cdata in self._resizable:
            return storage.clone()
        memory = bytearray(size + 2 * GUARD + LINE)
        start = GUARD + -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % LINE
        copy = torch.frombuffer(
            memory, dtype=torch.uint8, count=size, offset=start
        ).untyped_storage()
        ctypes.memmove(copy.data_ptr(), storage.data_ptr(), size)
        self._guarded.append((memory, start, start + size))
        return copy
