"""The audit over the overloads that the database does not reach, with arguments made from schemas."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch

from .arguments import Maker, Unmakeable
from .check import Checker
from .database import Audit
from .effects import is_composite
from .refused import REFUSED
from .variants import overloads

TRIES = 300
WANTED = 3  # accepted calls


def families(names: set[str]) -> list[list[str]]:
    """Names whose ops differ in how they return: x, x.out, x_. Calls of one are tried for the others."""
    def family(name: str) -> str:
        return name.partition(".")[0].removeprefix("aten::").rstrip("_")

    grouped = itertools.groupby(sorted(names, key=family), key=family)
    return [sorted(group, key=lambda n: (_is_written(n), n)) for _, group in grouped]


def _is_written(name: str) -> bool:
    return any(a.alias_info and a.alias_info.is_write for a in overloads()[name]._schema.arguments)


def audit_family(names: list[str], checker: Checker) -> None:
    audit = Audit(checker)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            if name not in REFUSED:
                torch.manual_seed(0)
                _audit_overload(overloads()[name], checker, audit)


def _audit_overload(op: Any, checker: Checker, audit: Audit) -> None:
    maker = Maker(op.name())
    accepted = 0
    for _ in range(TRIES):
        try:
            args, kwargs = maker.call(op)
        except Unmakeable:
            return
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
        if accepted == WANTED:
            return
