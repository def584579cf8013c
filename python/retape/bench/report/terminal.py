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

_STYLES = {"good": "green", "loud": "yellow", "bad": "bold red", "": ""}


def print_run(run: Run, console: Console) -> None:
    for subject in run.subjects:
        console.print(table(subject))
        for label, row in zip(cells.labels(subject), subject.rows, strict=True):
            if cells.note(row):
                style = "red" if row.error else "dim"
                console.print(f"  {label}: {cells.note(row)}", style=style, markup=False)
    if run.subjects:
        console.print(cells.LEGEND, style="dim", markup=False)
    else:
        console.print("Nothing was measured.", style="yellow")
    for warning in run.warnings:
        console.print(f"Warning: {printable(warning)}", style="yellow", markup=False)


def table(subject: Subject) -> Table:
    """Plain's row first as it comes; "◆" marks what nothing beats in both memory and time."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = Text.assemble((printable(subject.key), "bold"), f"\n{printable(subject.title)}")
    made = Table(
        title=title,
        caption=Text(cells.sizes_text(subject)),
        box=SIMPLE_HEAD,
        pad_edge=False,
        title_style="",
        title_justify="left",
        caption_justify="left",
    )
    made.add_column("method", vertical="bottom")
    columns = cells.columns(subject)
    for column in columns:
        words = column.name in ("bits",)
        heading = f"{column.name}\n{column.unit}" if column.unit else column.name
        made.add_column(heading, justify="left" if words else "right", no_wrap=True)
    best = set(cells.frontier(subject))
    for index, label in enumerate(cells.labels(subject)):
        mark = "◆ " if index in best else "  "
        family = subject.rows[index].family
        name = Text(mark + label, style="bold" if family == "retape" else "")
        made.add_row(name, *(_cell(column, index) for column in columns))
    return made


def _cell(column: cells.Column, index: int) -> Text:
    from rich.text import Text

    cell = column.cells[index]
    if not cell.text:
        return Text("–", style="dim")
    made = Text(cell.text, style=_STYLES[cell.tone])
    if cell.spread and column.name == "total":
        made.append(f" ± {cell.spread}", style="dim")
    return made
