"""How Retape speaks on a terminal: the console, units, exit codes."""

from __future__ import annotations

import difflib
import enum
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
LOG_WIDTH = 124  # characters


class Exit(enum.IntEnum):
    """Exit codes, the same for every verb."""

    OK = 0
    DIFFERENT = 1  # gradients differ
    USAGE = 2
    REGRESSION = 3  # slower or larger than what was promised
    BUDGET = 4  # the budget cannot be held
    RANK = 5  # a rank or a collective failed
    VACUOUS = 6  # nothing was replayed, so nothing was proved
    INTERNAL = (
        70  # an error of Retape's own, as EX_SOFTWARE of sysexits.h; nothing is known of gradients
    )
    UNREAD = 141  # nobody reads what is printed any more: what a shell says of SIGPIPE


def offer(
    word: str,
    known: Iterable[str],
    show: Callable[[str], str] = str,
    *,
    most: int = 100,
    cutoff: float = 0.5,
) -> str:
    """ "Did you mean swiglu?": the names that `word` begins, else the closest spelling, else all names."""
    names = list(known)
    meant = closest(word, names, cutoff)
    if not meant:
        return f"There is: {', '.join(names[:most])}{', ...' if len(names) > most else ''}."
    return f"Did you mean {listed([show(name) for name in meant], 'or')}?"


def closest(word: str, names: Sequence[str], cutoff: float = 0.5) -> list[str]:
    """The names that `word` begins, without longer forms of one of them; else the closest spelling."""
    begun = [name for name in names if word and name.lower().startswith(word.lower())]
    short = [name for name in begun if not any(name != b and name.startswith(b) for b in begun)]
    return short or difflib.get_close_matches(word, names, n=1, cutoff=cutoff)


def listed(words: Sequence[str], link: str = "and") -> str:
    """`["a", "b", "c"]` -> "a, b and c"."""
    return f" {link} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def make_console(to_stderr: bool = False) -> Console:
    """A console that honours NO_COLOR, CI and COLUMNS, and is wide enough for tables in a log file."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            try:
                super().on_broken_pipe()  # ends with 1, which says something of gradients here
            except SystemExit:
                raise SystemExit(int(Exit.UNREAD)) from None

    # A program that was started without one (`>&-`) has nobody to tell.
    stream = (sys.stderr if to_stderr else sys.stdout) or open(os.devnull, "w", encoding="utf-8")
    interactive = stream.isatty() and not os.environ.get("CI")
    return Ours(
        file=stream,
        force_terminal=interactive,
        no_color=True if os.environ.get("NO_COLOR") or not interactive else None,
        width=None if interactive else _log_width(),
        highlight=False,
    )


def _log_width() -> int:
    """Of what is not a terminal: what COLUMNS says, else enough for the tables."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) else LOG_WIDTH


def format_bytes(count: float) -> str:
    """`format_bytes(19 * MIB)` -> "19.0 MiB"; a whole number of bytes below 1 KiB."""
    size = abs(count)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """`format_seconds(0.0123)` -> "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of a single value, that value three times."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def median_between(values: Sequence[float]) -> tuple[float, float, float] | None:
    """The median, between the values of the sample that the true one lies between with 95 % certainty,
    whatever the distribution; none for fewer than six."""
    ordered, count = sorted(values), len(values)
    # So many of the lowest may lie below the true median, each with an even chance.
    below, chance = 0, 0.5**count
    while chance <= 0.025:
        below += 1
        chance += math.comb(count, below) * 0.5**count
    if below == 0:
        return None
    return ordered[below - 1], statistics.median(ordered), ordered[count - below]


def format_spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and half the distance between the quartiles: "1.12 ± 0.02"."""
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def first_line(error: BaseException) -> str:
    """Of its message; of what raises without one, its kind."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def told_by_a_verb(error: BaseException) -> str:
    """A usage error without the function, in brackets, that it opens with: a verb has its own name there."""
    return re.sub(r"^\[[^\]]*\] ", "", str(error))


# Control characters, halves of surrogate pairs, and what turns the direction of writing around.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def printable(text: str, lines: bool = False) -> str:
    """A name from outside, fit for a terminal, a table or a file: what would act instead of being
    shown is a "�". White space is a space, unless `lines` may stay."""
    if not lines:
        text = re.sub(r"[\t\n\r]+", " ", text)
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in "\t\n" else "�", text)


_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], top: float) -> str:
    """One character per value, full height at `top`."""
    if top <= 0:
        return " " * len(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[max(0, min(steps, round(v / top * steps)))] for v in values)
