"""A bar for work of many parts: how many are done, how long still, and what is running."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from retape._text import printable

if TYPE_CHECKING:
    from rich.console import Console


def progress(work: Callable[[Callable[[str], None]], None], total: int, console: Console) -> None:
    """Calls `work(advance)`; `advance(what)` is called before each of `total` parts. Where nobody
    watches, there is no bar."""
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
    ) as bar:
        task = bar.add_task("", total=total)
        done = itertools.count()
        work(lambda what: bar.update(task, completed=next(done), description=printable(what)))
