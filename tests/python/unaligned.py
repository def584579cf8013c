"""Tensors whose storage starts where it is asked to, at an offset from a multiple of 64 bytes."""

from __future__ import annotations

import torch

LINE = 64  # bytes: what torch's allocator aligns to


def offsets(dtype: torch.dtype) -> range:
    """Every offset from an aligned address that a tensor of this dtype can have."""
    return range(0, LINE, dtype.itemsize)


def placed(x: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy with the same layout. Not a view with a storage_offset: the storage starts at the offset."""
    x = x.detach()
    if x.layout != torch.strided or x.is_conj() or x.is_neg() or x.numel() == 0:
        return x.clone()
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    memory = bytearray(span * x.element_size() + 2 * LINE)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % LINE + offset
    whole = torch.frombuffer(memory, dtype=x.dtype, count=span, offset=start)
    copy = whole.as_strided(x.shape, x.stride()).copy_(x)
    assert copy.data_ptr() % LINE == offset
    assert copy.storage_offset() == 0
    return copy.detach()
