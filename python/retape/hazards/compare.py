"""Runs a hazard in every way and says what came of it."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from retape import _C
from retape.hazards.hazard import HAZARDS, Evidence, Hazard
from retape.hazards.ways import WAYS, Plain, Way

EQUAL, DIFFERENT, ERROR = "equal", "different", "error"


@dataclass
class Cell:
    """One hazard in one way."""

    outcome: str  # EQUAL, DIFFERENT (silently) or ERROR
    short: str = ""  # a word or two for the table
    detail: str = ""  # the same in full
    error: str = ""  # first line of what was raised
    is_mismatch: bool = False  # it was ReplayMismatch: Retape found that out
    again: int = 0  # calls, or ops, that backward ran again
    relative_error: float | None = None  # largest |difference| over largest |gradient|, per tensor
    differences: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Row:
    hazard: Hazard
    cells: dict[str, Cell]  # by the key of the way

    @property
    def plain_raises(self) -> bool:
        return self.cells["plain"].outcome == ERROR

    def to_dict(self) -> dict[str, Any]:
        hazard = self.hazard
        return {
            "name": hazard.name,
            "title": hazard.title,
            "story": hazard.story,
            "sources": list(hazard.sources),
            "cells": {key: asdict(cell) for key, cell in self.cells.items()},
        }


def run_all(on_row: Callable[[Hazard], None] = lambda _: None) -> list[Row]:
    rows = []
    for hazard in HAZARDS:
        on_row(hazard)
        rows.append(run(hazard))
    return rows


def run(hazard: Hazard) -> Row:
    truth = hazard.true_program or hazard.program
    expected = _evidence(truth, Plain({}))
    return Row(hazard, {way.key: _cell(hazard, way, expected) for way in WAYS})


def _cell(hazard: Hazard, kind: type[Way], expected: Evidence) -> Cell:
    way = kind(dict(hazard.options))
    with _C.Observer() as observer:
        try:
            found = _evidence(hazard.program, way)
        except Exception as error:  # whatever a way raises is what its users get to see
            return _error_cell(error, way.again)
    again = way.again + sum(region.ops_replayed for region in observer.regions)
    differences, relative = _compare(expected, found)
    if not differences:
        return Cell(EQUAL, again=again)
    words = _in_words(differences, relative, expected)
    short = _in_short(differences, relative, expected)
    return Cell(
        DIFFERENT,
        short,
        "; ".join(words),
        again=again,
        relative_error=relative,
        differences=differences,
    )


def _error_cell(error: Exception, again: int) -> Cell:
    text = str(error).strip().splitlines()
    first = text[0] if text else "no message"
    is_mismatch = isinstance(error, _C.ReplayMismatch)
    return Cell(ERROR, "error", first, f"{type(error).__name__}: {first}", is_mismatch, again)


def _evidence(program: Callable[[Way], Evidence], way: Way) -> Evidence:
    with _same_start(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of some rows, and goes on
        return program(way)


@contextlib.contextmanager
def _same_start() -> Iterator[None]:
    """The same random numbers for everybody; afterwards generators are as they were."""
    import numpy

    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(4)
        numpy.random.seed(0)
        try:
            yield
        finally:
            random.setstate(python_state)
            numpy.random.set_state(numpy_state)


def _compare(expected: Evidence, found: Evidence) -> tuple[list[dict[str, Any]], float | None]:
    differences, relative = [], None
    for what, tensors in expected.items():
        for name, right in tensors.items():
            wrong = found[what][name]
            if right is None or wrong is None:
                if right is not wrong:
                    differences.append({"what": what, "name": name, "missing": True})
                continue
            difference = _C.compare(right, wrong)
            if difference is None:
                continue
            entry = {
                "what": what,
                "name": name,
                "missing": False,
                "differing": difference.differing,
                "elements": difference.elements,
                "ulps": difference.ulps,
                "first": difference.first,
                "plain": difference.plain,
                "recomputed": difference.recomputed,
            }
            if what == "gradient":
                entry["relative_error"] = _relative_error(right, wrong)
                relative = max(relative or 0.0, entry["relative_error"])
            differences.append(entry)
    return differences, relative


def _relative_error(right: torch.Tensor, wrong: torch.Tensor) -> float:
    if wrong.isnan().any():
        return float("inf")
    return ((wrong - right).abs().max() / right.abs().max()).item()


def _in_short(differences: list[dict[str, Any]], relative: float | None, expected: Evidence) -> str:
    missing = sum(each["missing"] for each in differences)
    if missing:
        return f"{missing} of {len(expected['gradient'])} missing"
    if relative is not None:
        return "NaN" if relative == float("inf") else f"off by {format_relative(relative)}"
    return f"{differences[0]['what']}s differ"


def _in_words(
    differences: list[dict[str, Any]], relative: float | None, expected: Evidence
) -> list[str]:
    """The worst first."""
    words = []
    missing = [each["name"] for each in differences if each["missing"]]
    if missing:
        total = len(expected["gradient"])
        words.append(f"gradients missing: {len(missing)} of {total} ({', '.join(missing)})")
    if relative is not None:
        far = "NaN" if relative == float("inf") else f"off by {format_relative(relative)}"
        words.append(f"gradients {far}")
    buffers = [e["name"] for e in differences if e["what"] == "buffer" and not _is_count(e)]
    if buffers:
        words.append(f"{' and '.join(buffers)} differ{'s' * (len(buffers) == 1)}")
    counts = [each for each in differences if _is_count(each)]
    words += [f"{each['name']} is {each['recomputed']}, not {each['plain']}" for each in counts]
    words += [f"{each['name']} moved twice" for each in differences if each["what"] == "generator"]
    words += [f"output {each['name']} differs" for each in differences if each["what"] == "output"]
    return words


def _is_count(difference: dict[str, Any]) -> bool:
    return difference["what"] in ("count", "buffer") and difference["plain"].isdigit()


def format_relative(error: float) -> str:
    """`format_relative(0.42)` -> "42 %", `format_relative(3e-7)` -> "3e-07"."""
    if error < 0.001:
        return f"{error:.0e}"
    if error >= 10:
        return f"{error:.0f} x"
    percent = error * 100
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


OURS = tuple(way.key for way in WAYS if way.ours)


def is_right(row: Row, key: str) -> bool:
    """What the table must show of Retape: equal bits; where plain raises, its error or ours; and ours where
    a second call cannot be right. Any other exception is a bug."""
    cell = row.cells[key]
    if cell.outcome != ERROR:
        return cell.outcome == EQUAL and not row.plain_raises
    if row.plain_raises:
        return cell.is_mismatch or _sentence(cell) == _sentence(row.cells["plain"])
    return cell.is_mismatch and key == "rerun" and row.hazard.rerun_raises


def _sentence(cell: Cell) -> str:
    """Of an error: its type and what it says, without the tensor that it names."""
    return cell.error.partition(": [")[0]


def is_vacuous(row: Row, key: str) -> bool:
    cell = row.cells[key]
    return cell.outcome == EQUAL and cell.again == 0
