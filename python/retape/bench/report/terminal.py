"""A run on a terminal: a table for each subject. The bar before it is `retape._progress.progress`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retape._text import printable
from retape.bench import cells
from retape.bench.result import Run, Subject

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# What a narrow terminal does without, the first of them first.
_DISPENSABLE = ("forward", "backward", "replayed", "GFLOP", "total", "held")
_METHOD = 24  # characters that names of methods have in any case; longer ones go on below

_STYLES = {"good": "green", "loud": "yellow", "bad": "bold red", "": ""}


def print_subject(subject: Subject, console: Console) -> None:
    console.print(table(subject, console.width))
    for label, row in zip(cells.labels(subject), subject.rows, strict=True):
        if cells.note(row):
            style = "red" if row.error else "dim"
            console.print(f"  {label}: {cells.note(row)}", style=style, markup=False)


def print_rest(run: Run, console: Console) -> None:
    """What comes behind the subjects."""
    if run.subjects:
        console.print(cells.legend(run), style="dim", markup=False)
    else:
        console.print("Nothing was measured.", style="yellow")
    for warning in run.warnings:
        console.print(f"Warning: {printable(warning)}", style="yellow", markup=False)


def table(subject: Subject, width: int) -> Table:
    """Plain's row first as it comes; "◆" marks what nothing beats in both memory and time."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    names, columns = cells.labels(subject), cells.columns(subject)
    widths = {column.name: _width(column) for column in columns}
    least = min(_METHOD, max((len(name) + 2 for name in names), default=0))
    columns = _fitting(columns, widths, width - least)
    absent = ", ".join(name for name in widths if name not in {column.name for column in columns})
    caption = cells.sizes_text(subject) + f"\nOnly in a wider terminal: {absent}" * bool(absent)
    title = Text.assemble((printable(subject.key), "bold"), f"\n{printable(subject.title)}")
    made = Table(
        title=title,
        caption=Text(caption),
        box=SIMPLE_HEAD,
        pad_edge=False,
        title_style="",
        title_justify="left",
        caption_justify="left",
    )
    made.add_column("method", vertical="bottom", min_width=least)
    for column in columns:
        justify = "left" if column.name == "bits" else "right"
        made.add_column(_heading(column), justify=justify, no_wrap=True)
    best = set(cells.frontier(subject))
    for index, label in enumerate(names):
        mark = "◆ " if index in best else "  "
        family = subject.rows[index].family
        name = Text(mark + label, style="bold" if family == "retape" else "")
        made.add_row(name, *(_cell(column, index) for column in columns))
    return made


def _heading(column: cells.Column) -> str:
    return f"{column.name}\n{column.unit}" if column.unit else column.name


def _width(column: cells.Column) -> int:
    """Of the column and the space beside it."""
    shown = [_cell(column, index).cell_len for index in range(len(column.cells))]
    return 3 + max(*(len(line) for line in _heading(column).splitlines()), *shown)


def _fitting(
    columns: list[cells.Column], widths: dict[str, int], room: int
) -> list[cells.Column]:
    """Without the least important ones, where not all of them fit."""
    for name in _DISPENSABLE:
        if sum(widths[column.name] for column in columns) <= room:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _cell(column: cells.Column, index: int) -> Text:
    from rich.text import Text

    cell = column.cells[index]
    if not cell.text:
        return Text("–", style="dim")
    made = Text(cell.text, style=_STYLES[cell.tone])
    if cell.spread and column.name == "total":
        made.append(f" ± {cell.spread}", style="dim")
    return made
