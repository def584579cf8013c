"""Tensors inside whatever a model is given or returns, by name."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

from retape import _C


def named_tensors(tree: Any, alone: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """`("logits", tensor)` for each tensor in dicts, lists, tuples and dataclasses; no other object
    is looked into. A tensor by itself is called `alone`."""
    if isinstance(tree, torch.Tensor):
        yield alone, tree
        return
    for part, value in _parts(tree):
        for name, tensor in named_tensors(value):
            yield f"{part}.{name}" if name else str(part), tensor


def _parts(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif isinstance(tree, (list, tuple)):
        yield from zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield from ((field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree))


def generators_of(model: nn.Module) -> list[torch.Generator]:
    """Private generators that modules hold, as attributes or in lists and dicts of theirs."""
    found: dict[int, torch.Generator] = {}

    def look(value: Any) -> None:
        if isinstance(value, torch.Generator):
            found[id(value)] = value
        elif isinstance(value, (list, tuple)):
            for each in value:
                look(each)
        elif isinstance(value, dict):
            for each in value.values():
                look(each)

    for module in model.modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                look(value)
    return list(found.values())


def copied(tree: Any, shared: list[torch.Generator], function: str) -> Any:
    """A deep copy: tensors are leaves of their own, with requires_grad as it was; generators, which
    cannot be copied, are shared."""
    memo: dict[int, Any] = {id(generator): generator for generator in shared}
    for _, tensor in named_tensors(tree):
        memo.setdefault(id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad))
    try:
        twin = copy.deepcopy(tree, memo)
    except Exception as error:  # whatever an object's own copying raises
        raise _C.UsageError(
            f"[{function}] {type(tree).__name__} cannot be copied: {error}. Fix: a function without "
            "arguments that makes model and inputs anew."
        ) from error
    if isinstance(tree, torch.jit.ScriptModule):  # copies its parameters by an op
        for own, original in zip(twin.parameters(), tree.parameters(), strict=True):
            own.detach_().requires_grad_(original.requires_grad)
    return twin


def cast(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same tree with every tensor changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(cast(value, change) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(cast(value, change) for value in tree)
    parts = {name: cast(value, change) for name, value in _parts(tree)}
    if isinstance(tree, MutableMapping) and type(tree) is not dict:
        twin = copy.copy(tree)
        twin.update(parts)
        return twin
    if isinstance(tree, Mapping):
        return parts
    return dataclasses.replace(tree, **parts) if parts else tree
