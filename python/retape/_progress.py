"""A bar for work of many parts: how many are done, how long still, and what is running."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from retape._text import printable

if TYPE_CHECKING:
    from rich.console import Console


class Part(NamedTuple):
    """One of a plan: parts that agree in more take more nearly the same time."""

    subject: str
    stage: str
    method: str


class Remaining:
    """How long still, from what parts like those to come have taken."""

    def __init__(self, parts: Iterable[Part], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = Counter(parts)
        self._clock = clock
        self._taken: dict[Part, list[float]] = {}
        self._running: Part | None = None
        self._since = 0.0

    def begin(self, part: Part) -> None:
        """The one before has ended; parts of its subject that were left out do not come any more."""
        now = self._clock()
        if self._running is not None:
            self._taken.setdefault(self._running, []).append(now - self._since)
            if self._running.subject != part.subject:
                for other in [each for each in self._left if each.subject == self._running.subject]:
                    del self._left[other]
        self._left[part] -= 1
        self._running, self._since = part, now

    def seconds(self) -> float | None:
        """None until something has ended of the stages that most of what is left belongs to: the first parts
        of a run are of another stage, and the first of all loads what the others find."""
        if not self._taken or self._running is None or not self._knows_most_of_it():
            return None
        now = max(0.0, self._cost(self._running) - (self._clock() - self._since))
        return now + sum(
            self._cost(part) * count for part, count in self._left.items() if count > 0
        )

    def _knows_most_of_it(self) -> bool:
        stages = {part.stage for part in self._taken}
        left = {part: count for part, count in self._left.items() if count > 0}
        known = sum(count for part, count in left.items() if part.stage in stages)
        return 2 * known >= sum(left.values())

    def _cost(self, part: Part) -> float:
        """Of the same part, else of any method's there, else of that stage and method elsewhere."""
        alike: tuple[Callable[[Part], bool], ...] = (
            lambda each: each == part,
            lambda each: each[:2] == part[:2],
            lambda each: each[1:] == part[1:],
            lambda each: each.stage == part.stage,
            lambda each: True,
        )
        for is_alike in alike:
            known = [t for each, times in self._taken.items() if is_alike(each) for t in times]
            if known:
                return sum(known) / len(known)
        return 0.0


def progress(
    work: Callable[[Callable[[str], None]], None],
    total: int,
    console: Console,
    remaining: Remaining | None = None,
) -> None:
    """Calls `work(advance)`; `advance(what)` is called before each of `total` parts. Where nobody
    watches, there is no bar. Parts that take very different times need a `remaining`."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import (
        Task as Bar,
    )
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Bar) -> Text:
            seconds = remaining.seconds() if remaining is not None else None
            text = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
            return Text(text, style="progress.remaining")

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn() if remaining is None else Left(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)
        done = itertools.count()
        work(lambda what: bar.update(task, completed=next(done), description=printable(what)))
