"""Bitwise comparison of tensors, with an explanation of where they differ.

Two tensors are the same when dtype, shape and every bit agree. +0 and -0 differ. Any NaN equals any
other NaN, because the payload of a NaN depends on operand order inside a kernel. None equals only
None. Tuples, lists and dicts are compared element by element, anything else with `==`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_INT_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Any, b: Any) -> bool:
    return explain_difference(a, b) is None


def assert_same_bits(a: Any, b: Any, where: str = "value") -> None:
    difference = explain_difference(a, b, where)
    assert difference is None, difference


def explain_difference(a: Any, b: Any, where: str = "value") -> str | None:
    """None when `a` and `b` are the same, else one line that says where they differ first."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return _tensors(a, b, where)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if len(a) != len(b):
            return f"{where}: {len(a)} elements against {len(b)}"
        pairs = ((x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    elif isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{where}: keys {sorted(a, key=str)} against {sorted(b, key=str)}"
        pairs = ((a[key], b[key], f"{where}[{key!r}]") for key in a)
    elif type(a) is not type(b):
        return f"{where}: {_kind(a)} against {_kind(b)}"
    else:
        both_nan = isinstance(a, float) and math.isnan(a) and math.isnan(b)
        return None if both_nan or a == b else f"{where}: {a!r} against {b!r}"
    return next((d for x, y, at in pairs if (d := explain_difference(x, y, at)) is not None), None)


def _kind(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"a {x.dtype} tensor of shape {tuple(x.shape)}"
    return repr(x)


def _plain(t: torch.Tensor) -> torch.Tensor:
    """A dense strided real tensor with the same content."""
    t = t.detach()
    if t.is_quantized:
        t = t.int_repr()
    if t.layout != torch.strided:
        t = t.to_dense()
    t = t.resolve_conj().resolve_neg()
    return torch.view_as_real(t) if t.is_complex() else t


def _pattern(t: torch.Tensor) -> torch.Tensor:
    if t.is_floating_point() or t.dtype == torch.bool:
        return t.view(_INT_OF_WIDTH[t.element_size()])
    return t


def _nan(t: torch.Tensor) -> torch.Tensor:
    return torch.isnan(t.float() if t.element_size() == 1 else t)


def _tensors(a: torch.Tensor, b: torch.Tensor, where: str) -> str | None:
    if a.dtype != b.dtype:
        return f"{where}: dtype {a.dtype} against {b.dtype}"
    if a.shape != b.shape:
        return f"{where}: shape {tuple(a.shape)} against {tuple(b.shape)}"
    if a.layout != b.layout:
        return f"{where}: layout {a.layout} against {b.layout}"
    x, y = _plain(a), _plain(b)
    if torch.equal(_pattern(x), _pattern(y)):
        return None
    differs = _pattern(x) != _pattern(y)
    if x.is_floating_point():
        differs &= ~(_nan(x) & _nan(y))
        if not differs.any():
            return None
    first = tuple(differs.nonzero()[0].tolist())
    count, total = int(differs.sum()), differs.numel()
    at = list(first)
    return (
        f"{where}: {count} of {total} elements of {a.dtype}{list(a.shape)} differ, "
        f"first at {at}: {x[first].item()!r} against {y[first].item()!r}"
    )
