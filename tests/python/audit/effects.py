"""What Retape assumes of one call: `retape._C.op_effects`, by positions in the op's schema."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import retape

BACKENDS = ("CPU", "CUDA", "MPS", "XPU", "HPU", "PrivateUse1")


@dataclass(frozen=True)
class Effects:
    writes: frozenset[int]
    overwrites: frozenset[int]
    recipe: bool
    uninitialized: bool


def effects_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effects:
    name, overload = op._schema.name, op._schema.overload_name
    found = (getattr(retape._C, "op_effects", None) or _from_lists)(name, overload, args, kwargs)
    return Effects(
        frozenset(found["writes"]),
        frozenset(found["overwrites"]),
        found["recipe"],
        found["uninitialized"],
    )


def is_composite(op: Any) -> bool:
    """Runs as other ops, which Retape records in its place."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = op.name()
    return has(name, "CompositeImplicitAutograd") and not any(has(name, key) for key in BACKENDS)


# Until the core has op_effects: the same from src/tape/op_lists.h, as describe() reads it.


@functools.cache
def _lists() -> dict[str, set[str]]:
    text = (Path(__file__).parents[3] / "src/tape/op_lists.h").read_text(encoding="utf-8")
    arrays = re.findall(r"constexpr std::array (k\w+)\{(.*?)\};", text, re.DOTALL)
    return {name: set(re.findall(r'Names\("([^"]+)"\)', body)) for name, body in arrays}


def _from_lists(name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    op = getattr(packet, overload or "default")
    schema, lists, tags = op._schema, _lists(), op.tags
    writes = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    training = bool(given.get("training", given.get("train")))
    metadata = torch.Tag.inplace_view in tags and name in lists["kMetadataOnly"]
    overwrites = torch.Tag.out in tags or name in lists["kOverwrite"]
    uninitialized = name in lists["kUninitialized"]
    if name in lists["kUpdateStatistics"]:
        writes = [3, 4] if training else []
        overwrites = False
    if metadata:
        writes = []
    effectful = (
        (torch.Tag.dynamic_output_shape in tags and name not in lists["kPicks"])
        or torch.Tag.data_dependent_output in tags
        or torch.Tag.inplace_view in tags
        or torch.Tag.maybe_aliasing_or_mutating in tags
        or name in lists["kHiddenState"]
    )
    return {
        "writes": writes,
        "overwrites": writes if overwrites else [],
        "recipe": not effectful and not uninitialized,
        "uninitialized": uninitialized,
    }
