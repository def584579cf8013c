"""What Retape assumes of one call: `retape._C.op_effects`, by positions in the op's schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import retape

from .variants import overloads

BACKENDS = ("CPU", "CUDA", "MPS", "XPU", "HPU", "PrivateUse1")
LISTS = (
    "kHiddenWrites",
    "kHiddenState",
    "kPartlyUnwritten",
    "kOutUpdated",
    "kUninitialized",
    "kOverwrite",
    "kMetadataOnly",
)


@dataclass(frozen=True)
class Effects:
    writes: frozenset[int]
    overwrites: frozenset[int]
    recipe: bool
    uninitialized: bool

    def kind(self, place: int) -> str:
        """What a call does to this argument, as Retape counts it."""
        if place in self.overwrites:
            return "overwritten"
        return "updated" if place in self.writes else "read"


def effects_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effects:
    name, overload = op._schema.name, op._schema.overload_name
    found = retape._C.op_effects(name, overload, args, kwargs)
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


def listed_overloads() -> set[str]:
    """Those of which src/tape/op_lists.h says what their schemas do not: what they write, overwrite or leave
    unwritten."""
    text = (Path(__file__).parents[3] / "src/tape/op_lists.h").read_text(encoding="utf-8")
    arrays = dict(re.findall(r"constexpr std::array (k\w+)\{(.*?)\n\};", text, re.DOTALL))
    bases = {base for array in LISTS for base in re.findall(r'"(aten::\w+)"', arrays[array])}
    return {name for name in overloads() if name.partition(".")[0] in bases}
