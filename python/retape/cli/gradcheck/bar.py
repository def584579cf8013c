"""A progress bar for work whose total becomes known while it runs: a self-test adds runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from retape._text import printable

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def bar(console: Console, shown: bool = True) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function that takes done, total and what. No bar unless the console is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        BarColumn(20),
        TextColumn("{task.fields[count]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),  # what is left
        ),
    )
    with Progress(
        *columns,
        console=console,
        expand=True,
        transient=True,
        disable=not (shown and console.is_terminal),
    ) as progress:
        task = progress.add_task("starting ranks", total=None, count="")

        def advance(told: dict[str, Any]) -> None:
            done, total = told["done"], told["total"]
            what = printable(told["what"])
            progress.update(
                task, completed=done, total=total, description=what, count=f"{done}/{total}"
            )

        yield advance
