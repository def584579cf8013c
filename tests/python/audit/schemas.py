"""The audit over the overloads that the database does not reach, with arguments made from schemas."""

from __future__ import annotations

import itertools
import mmap
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from .arguments import Maker, Unmakeable
from .check import Checker
from .database import Audit
from .effects import is_composite
from .refused import REFUSED
from .variants import overloads

TRIES = 200
FATAL = 5  # calls that end the process, until an overload is left alone
WANTED = 3  # accepted calls


def families(names: set[str]) -> list[list[str]]:
    """Names whose ops differ in how they return: x, x.out, x_. Calls of one are tried for the others."""

    def family(name: str) -> str:
        return name.partition(".")[0].removeprefix("aten::").rstrip("_")

    grouped = itertools.groupby(sorted(names, key=family), key=family)
    return [sorted(group, key=lambda n: (_is_written(n), n)) for _, group in grouped]


def _is_written(name: str) -> bool:
    return any(a.alias_info and a.alias_info.is_write for a in overloads()[name]._schema.arguments)


@dataclass
class Progress:
    """Which call is made now, in memory that outlives the process that makes it."""

    memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 512))

    def set(self, name: str, number: int) -> None:
        self.memory.seek(0)
        self.memory.write(f"{name} {number}\n".encode())

    def get(self) -> tuple[str, int]:
        self.memory.seek(0)
        name, number = self.memory.readline().decode().split()
        return name, int(number)


def audit_family(
    names: list[str],
    checker: Checker,
    progress: Progress,
    fatal: set[tuple[str, int]],
    wanted: int = WANTED,
) -> None:
    """All but the calls in `fatal`, which ended their process before."""
    audit = Audit(checker)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            if name not in REFUSED:
                torch.default_generator.manual_seed(0)
                skipped = {number for other, number in fatal if other == name}
                _audit_overload(overloads()[name], checker, audit, progress, skipped, wanted)


def _audit_overload(
    op: Any, checker: Checker, audit: Audit, progress: Progress, skipped: set[int], wanted: int
) -> None:
    maker = Maker(op.name())
    accepted = 0
    for number in range(TRIES):
        if accepted == wanted or len(skipped) >= FATAL:
            return
        try:
            args, kwargs = maker.call(op)
        except Unmakeable as error:
            checker.report.errors[op.name()] = f"no rule makes a {error}"
            return
        if number in skipped:
            continue
        progress.set(op.name(), number)
        try:
            if is_composite(op):
                with audit, torch.no_grad():
                    op(*args, **kwargs)
                checker.report.composites.add(op.name())
            elif checker.wants(op, args, kwargs):
                result = checker.call(op, args, kwargs)
                audit.check_variants(op, args, kwargs, result)
            else:
                continue
        except Exception as error:
            checker.report.errors[op.name()] = str(error).partition("\n")[0][:160]
            continue
        accepted += 1
