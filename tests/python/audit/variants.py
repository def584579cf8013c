"""Overloads that take the same arguments as one that was called: its out= forms, its in-place form."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .memory import Copier, fill


@functools.cache
def overloads() -> dict[str, Any]:
    """Every aten overload, by its name."""
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    found = {}
    for name in names:
        base, _, overload = name.removeprefix("aten::").partition(".")
        found[name] = getattr(getattr(torch.ops.aten, base), overload or "default")
    return {op.name(): op for op in found.values()}


def is_out(name: str, argument: str) -> bool:
    return any(a.name == argument and a.is_out for a in overloads()[name]._schema.arguments)


@functools.cache
def _of_base() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for op in overloads().values():
        found.setdefault(op._schema.name, []).append(op)
    return found


def _names(op: Any, out: bool = True) -> tuple[str, ...]:
    return tuple(a.name for a in op._schema.arguments if out or not a.is_out)


def _is_out(op: Any) -> bool:
    return any(a.is_out for a in op._schema.arguments)


@functools.cache
def variants(op: Any) -> tuple[list[Any], list[Any]]:
    """Overloads with out= arguments, and overloads in place, that take what `op` takes."""
    base = op._schema.name
    outs = [
        other
        for other in _of_base().get(base, ())
        if _is_out(other) and _names(other, out=False) == _names(op)
    ]
    places = [
        other
        for other in _of_base().get(base + "_", ())
        if set(_names(other)) <= set(_names(op))
        and other._schema.overload_name == op._schema.overload_name
    ]
    return outs, places


def _likeness(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return x
    if x.is_quantized:
        return x.clone()
    like = torch.empty(x.shape, dtype=x.dtype)
    fill(like, 0x2B)  # unlike what will be written there
    return like


def calls_of_variants(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """(overload, args, kwargs) of every variant of this call."""
    outs, places = variants(op)
    for other in places:
        allowed = set(_names(other))
        yield other, *Copier()((args, {k: v for k, v in kwargs.items() if k in allowed}))
    results = result if isinstance(result, tuple) else (result,)
    for other in outs:
        wanted = [a.name for a in other._schema.arguments if a.is_out]
        if len(wanted) != len(results):
            continue
        made = tree_map(_likeness, dict(zip(wanted, results, strict=True)))
        args_, kwargs_ = Copier()((args, kwargs))
        yield other, args_, {**kwargs_, **made}
