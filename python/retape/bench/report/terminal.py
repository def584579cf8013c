"""A run on a terminal: a table for each subject. The bar before it is `retape._progress.progress`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from retape._table import Column, Layout, fitted
from retape._text import printable
from retape.bench import cells
from retape.bench.result import Run, Subject

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_SPREADS = ("forward", "backward", "total", "time")  # columns that have one
# What a narrow terminal does without, the first of them first: spreads, then columns. That of the
# time delta is what a difference is judged by: it goes last.
_SPREADS_FIRST = (("forward", "backward"), ("total",))
_DISPENSABLE = ("forward", "backward", "replayed", "GFLOP", "total", "held")
_LAST = ("saved", "bits", "time")
_METHOD = 25  # characters that names of methods have in any case; longer ones go on below

_STYLES = {"good": "green", "loud": "yellow", "bad": "bold red", "": ""}


def print_subject(subject: Subject, console: Console) -> None:
    console.print(table(subject, console))
    names = cells.labels(subject)
    for index in cells.shown(subject):
        row = subject.rows[index]
        if cells.note(row):
            style = "red" if row.error else "dim"
            console.print(f"  {names[index]}: {cells.note(row)}", style=style, markup=False)
    if missing := cells.not_run(subject):
        console.print(f"  {missing}", style="dim", markup=False)
    console.print()


def print_rest(run: Run, console: Console) -> None:
    """What comes behind the subjects."""
    if run.subjects:
        for text in filter(None, (cells.legend(run), cells.mark_legend(run))):
            console.print(text, style="dim", markup=False)
    else:
        console.print("Nothing was measured.", style="yellow")
    for warning in run.warnings:
        console.print(f"Warning: {printable(warning)}", style="yellow", markup=False)


def table(subject: Subject, console: Console) -> Table:
    """The richest that fits, every figure whole. Plain's row first as it comes."""
    from rich.text import Text

    title = Text.assemble((printable(subject.key), "bold"), f"\n{printable(subject.title)}")
    sizes = cells.sizes_text(subject)
    return fitted(_layouts(subject), console, lambda layout: sizes, title=title, title_style="")


def _layouts(subject: Subject) -> Iterator[Layout]:
    """From all there is down to the peak alone."""
    columns, spreads = cells.columns(subject), set(_SPREADS)

    def layout() -> Layout:
        return [
            *_names(subject),
            *(_column(subject, column, column.name in spreads) for column in columns),
        ]

    yield layout()
    for names in _SPREADS_FIRST:
        spreads.difference_update(names)
        yield layout()
    for name in _DISPENSABLE:
        columns = [column for column in columns if column.name != name]
        yield layout()
    spreads.clear()
    yield layout()
    for name in _LAST:
        columns = [column for column in columns if column.name != name]
        yield layout()


def _names(subject: Subject) -> list[Column]:
    from rich.text import Text

    names, best = cells.labels(subject), set(cells.frontier(subject))
    rows = cells.shown(subject)
    bold = {index for index in rows if cells.is_ours(subject.rows[index])}
    methods = [Text(names[index], style="bold" if index in bold else "") for index in rows]
    marks = [cells.MARK * (index in best) for index in rows]
    return [Column("mark", marks, ""), Column("method", methods, justify="left", least=_METHOD)]


def _column(subject: Subject, column: cells.Column, with_spread: bool) -> Column:
    heading = f"{column.name}\n{column.unit}" if column.unit else column.name
    justify = "left" if column.name == "bits" else "right"
    return Column(
        column.name, _figures(column, cells.shown(subject), with_spread), heading, justify
    )


def _figures(column: cells.Column, rows: list[int], with_spread: bool) -> list[Text]:
    """Cells with their points below each other: all spreads are as wide as the widest."""
    from rich.text import Text

    shown = [column.cells[index] for index in rows]
    widest = max((len(cell.spread) for cell in shown), default=0) if with_spread else 0
    made = []
    for cell in shown:
        if not cell.text:
            made.append(Text("–", style="dim"))
            continue
        text = Text(cell.text, style=_STYLES[cell.tone])
        if widest:
            spread = f" ± {cell.spread:>{widest}}" if cell.spread else " " * (widest + 3)
            text.append(spread, style="dim")
        made.append(text)
    return made
