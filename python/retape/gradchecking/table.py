"""What a check found, on a terminal: a line for each topology and dtype, a column for each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retape._text import printable

if TYPE_CHECKING:
    from rich.console import Console

EQUAL, DIFFERENT, VACUOUS = "equal", "different", "vacuous"
STYLES = {EQUAL: "green", DIFFERENT: "bold red", VACUOUS: "yellow"}
SYMBOLS = {EQUAL: "✓", DIFFERENT: "✗", VACUOUS: "○"}
MOST_COLUMNS = 7  # of runs; more do not fit a terminal

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """All tensors of one run."""

    kind: str
    error: float  # the worst
    rows: Sequence[Row]

    @property
    def text(self) -> str:
        return f"{SYMBOLS[self.kind]} {error_text(self.error)}"


@dataclass(frozen=True)
class Matrix:
    lines: list[tuple[str, str]]  # topology, dtype
    columns: list[str]  # terms
    cells: dict[tuple[str, str, str], Cell]


def error_of(row: Row) -> float:
    """JSON has no infinity: None is what is not finite."""
    return math.inf if row["error"] is None else row["error"]


def error_text(error: float) -> str:
    return "∞" if math.isinf(error) else f"{error:.1e}" if error else "0"


def kind_of(rows: Sequence[Row]) -> str:
    kinds = {row["kind"] for row in rows}
    return next((kind for kind in (DIFFERENT, VACUOUS) if kind in kinds), EQUAL)


def matrix_of(rows: Sequence[Row]) -> Matrix:
    runs: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((row["topology"], row["dtype"], row["terms"]), []).append(row)
    lines = list(dict.fromkeys((topology, dtype) for topology, dtype, _ in runs))
    columns = list(dict.fromkeys(terms for _, _, terms in runs))
    cells = {run: Cell(kind_of(of), max(map(error_of, of)), of) for run, of in runs.items()}
    return Matrix(lines, columns, cells)


def print_report(report: Mapping[str, Any], text: str, console: Console) -> None:
    print_matrix(matrix_of(report["rows"]), console)
    first, *others = text.splitlines()
    for line in others:
        console.print(printable(line), markup=False, soft_wrap=True)
    console.print(printable(first), style=STYLES[report["kind"]], markup=False, soft_wrap=True)


def print_matrix(matrix: Matrix, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title="retape gradcheck", title_style="bold")
    for heading in ("topology", "dtype"):
        table.add_column(heading)
    columns = matrix.columns if len(matrix.columns) <= MOST_COLUMNS else None
    for heading in columns or ["worst run"]:
        table.add_column(Text(printable(heading)), justify="right", no_wrap=True)
    for line in matrix.lines:
        cells = [Text(printable(word)) for word in line]
        if columns is None:
            terms, cell = worst_of(matrix, line)
            cells.append(Text(f"{cell.text} ({printable(terms)})", style=STYLES[cell.kind]))
        for terms in columns or ():
            found = matrix.cells.get((*line, terms))
            cells.append(Text(found.text, style=STYLES[found.kind]) if found else Text(""))
        table.add_row(*cells)
    console.print(table)
    console.print("How far ranks are off, of the largest number of one process.", style="dim")


def worst_of(matrix: Matrix, line: tuple[str, str]) -> tuple[str, Cell]:
    of_line = [(t, c) for t in matrix.columns if (c := matrix.cells.get((*line, t))) is not None]
    order = (EQUAL, VACUOUS, DIFFERENT)
    return max(of_line, key=lambda pair: (order.index(pair[1].kind), pair[1].error))
