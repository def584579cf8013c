"""How far from each other is still the same: (rtol, atol) for each dtype, in Python and on the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from retape._C import UsageError
from retape._text import offer

Pairs = dict[torch.dtype, tuple[float, float]]
_FIX = "Fix: tolerance={torch.float32: (rtol, atol)}."
_DTYPES = [
    name
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex)
]


def checked(tolerance: Any) -> Pairs:
    """What `retape.verify` was given, by dtype. UsageError for what is no tolerance."""
    if tolerance is None:
        return {}
    if not isinstance(tolerance, Mapping):
        raise UsageError(f"[verify] expected a tolerance for each dtype, got {tolerance!r}. {_FIX}")
    return {_dtype(dtype): _pair(dtype, pair) for dtype, pair in tolerance.items()}


def parsed(texts: Sequence[str]) -> Pairs:
    """`["float32=1e-5,1e-8"]`, as --tolerance has them."""
    return checked(dict(_parsed(text) for text in texts))


def _parsed(text: str) -> tuple[str, tuple[float, ...]]:
    dtype, _, numbers = text.partition("=")
    try:
        return dtype, tuple(float(number) for number in numbers.split(","))
    except ValueError:
        raise UsageError(
            f"[verify] --tolerance: expected DTYPE=RTOL,ATOL, got {text!r}. Fix: float32=1e-5,1e-8"
        ) from None


def _dtype(dtype: Any) -> torch.dtype:
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
        if name in _DTYPES:
            return getattr(torch, name)
        raise UsageError(
            f"[verify] tolerance: no such floating dtype: {dtype!r}. {offer(name, _DTYPES)}"
        )
    if isinstance(dtype, torch.dtype):
        return dtype
    raise UsageError(f"[verify] tolerance: expected a dtype or its name, got {dtype!r}. {_FIX}")


def _pair(dtype: Any, pair: Any) -> tuple[float, float]:
    is_pair = isinstance(pair, Sequence) and len(pair) == 2
    if not is_pair or not all(isinstance(number, (int, float)) for number in pair):
        raise UsageError(
            f"[verify] tolerance: expected (rtol, atol) of {dtype}, got {pair!r}. {_FIX}"
        )
    if not all(math.isfinite(number) and number >= 0 for number in pair):
        raise UsageError(
            f"[verify] tolerance: expected numbers of 0 or more for {dtype}, got {pair!r}."
        )
    rtol, atol = pair
    return float(rtol), float(atol)
