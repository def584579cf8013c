"""Bitwise comparison of tensors: the only equality that Retape reports."""

from __future__ import annotations

import torch


def same_bits(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    """Same dtype, same shape, same bytes. None is only the same as None."""
    if left is None or right is None:
        return left is None and right is None
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_bytes_of(left), _bytes_of(right))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
