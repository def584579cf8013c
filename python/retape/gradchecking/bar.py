"""A bar for work whose amount becomes known on the way: a self-test has as many runs as there is to break."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from retape._text import printable

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def bar(console: Console) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives a function that takes done, total and what. Where nobody watches, there is no bar."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task("starting ranks", total=None)

        def advance(told: dict[str, Any]) -> None:
            what = printable(told["what"])
            shown.update(task, completed=told["done"], total=told["total"], description=what)

        yield advance
