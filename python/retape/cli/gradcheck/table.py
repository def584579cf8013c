"""What a check found, on a terminal: a line for each topology and dtype, a column for each run; or what fits."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retape._text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

EQUAL, DIFFERENT, VACUOUS = "equal", "different", "vacuous"
STYLES = {EQUAL: "green", DIFFERENT: "bold red", VACUOUS: "yellow"}
SYMBOLS = {EQUAL: "✓", DIFFERENT: "✗", VACUOUS: "○"}
MOST_LINES = 40  # of a table; more are not read

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
        print_line(printable(line), console, style="dim" if line.startswith("  note:") else "")
    print_line(printable(first), console, style=STYLES[report["kind"]])


def print_line(line: str, console: Console, style: str) -> None:
    """On a terminal broken at words and indented; into a file as it is."""
    if console.is_terminal:
        line = "\n".join(textwrap.wrap(line, console.width, subsequent_indent="    "))
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_matrix(matrix: Matrix, console: Console) -> None:
    from rich.measure import Measurement

    def width(table: Table) -> Measurement:
        return Measurement.get(console, console.options.update(max_width=10_000), table)

    table = _wide(matrix)
    if width(table).maximum > console.width:
        table = _tall(matrix)
        if width(table).minimum > console.width or table.row_count > MOST_LINES:
            table = _worst(matrix)
    console.print(table)
    console.print("How far ranks are off, of the largest number of one process.", style="dim")


def _table(headings: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="retape gradcheck", title_style="bold")
    for heading in headings:
        table.add_column(_plain(heading))
    return table


def _add_numbers(table: Table, headings: Sequence[str]) -> None:
    for heading in headings:
        table.add_column(_plain(heading), justify="right", no_wrap=True)


def _plain(word: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(printable(word), style=style)


def _shown(cell: Cell | None) -> Text:
    return _plain(cell.text, STYLES[cell.kind]) if cell else _plain("")


def _wide(matrix: Matrix) -> Table:
    """A column for each run."""
    table = _table(["topology", "dtype"])
    _add_numbers(table, matrix.columns)
    for line in matrix.lines:
        cells = [_shown(matrix.cells.get((*line, terms))) for terms in matrix.columns]
        table.add_row(*map(_plain, line), *cells)
    return table


def _tall(matrix: Matrix) -> Table:
    """A line for each run, a column for each dtype, and a stretch of lines for each topology."""
    dtypes = list(dict.fromkeys(dtype for _, dtype in matrix.lines))
    table = _table(["run"])
    _add_numbers(table, dtypes)
    for topology in dict.fromkeys(topology for topology, _ in matrix.lines):
        table.add_section()
        table.add_row(_plain(topology, "bold"))
        for terms in matrix.columns:
            cells = [_shown(matrix.cells.get((topology, dtype, terms))) for dtype in dtypes]
            table.add_row(_plain(f"  {terms}"), *cells)
    return table


def _worst(matrix: Matrix) -> Table:
    """Of all runs the worst."""
    table = _table(["topology", "dtype", "worst run"])
    for line in matrix.lines:
        terms, cell = worst_of(matrix, line)
        table.add_row(*map(_plain, line), _plain(f"{cell.text} ({terms})", STYLES[cell.kind]))
    return table


def worst_of(matrix: Matrix, line: tuple[str, str]) -> tuple[str, Cell]:
    of_line = [(t, c) for t in matrix.columns if (c := matrix.cells.get((*line, t))) is not None]
    order = (EQUAL, VACUOUS, DIFFERENT)
    return max(of_line, key=lambda pair: (order.index(pair[1].kind), pair[1].error))
