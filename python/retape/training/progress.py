"""What is said while it trains: a live line on a terminal, a line per step elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TextColumn

from retape._text import format_bytes, make_console

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class Totals:
    steps: int
    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0  # of this process, as all below
    replay_seconds: float = 0.0
    tokens: int = 0
    peak_bytes: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def replay_share(self) -> float:
        return self.replay_seconds / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"step {self.step}/{self.steps}  loss {self.loss:.9g}  "
            f"tokens/s {self.tokens_per_second:.0f}  peak {format_bytes(self.peak_bytes)}  "
            f"replay {100 * self.replay_share:.1f} %"
        )


class Shown:
    """`step` after every step; to standard error, so that standard output is for results."""

    def __init__(self, quiet: bool, totals: Totals) -> None:
        self._console: Console | None = None if quiet else make_console(to_stderr=True)
        self._totals = totals
        self._live: Progress | None = None
        if self._console is not None and self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20))
            self._live = Progress(*columns, console=self._console)

    def note(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._task = self._live.add_task(str(self._totals), total=self._totals.steps)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self) -> None:
        if self._live is not None:
            self._live.update(
                self._task, completed=self._totals.step, description=str(self._totals)
            )
        elif self._console is not None:
            self._console.print(str(self._totals), markup=False, soft_wrap=True)
            self._console.file.flush()
