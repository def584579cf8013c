"""A subject that is to be measured, and how: method by method, then all of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from retape._progress import Part
from retape._text import first_line
from retape.bench import measure, timing
from retape.bench.methods import Method
from retape.bench.result import CLOSE, DIFFERENT, UNSTABLE, Row, Subject, Timeline
from retape.bench.task import Make

# Stages of the bar; the first, memory and gradients, has no name.
TIME_OF, TIMELINE_OF = "time of ", "timeline of "


@dataclass(frozen=True)
class Entry:
    """A subject that is to be measured: on which tasks, by which methods."""

    subject: Subject
    memory: Make
    times: Make | None  # smaller; None: memory only
    methods: list[Method]
    dry: bool
    rounds: int  # 0: no times
    drawn: Sequence[str]  # methods whose timelines are
    is_own: bool = False  # the user's: nobody knows whether its plain step is the same every time
    warnings: Callable[[], list[str]] = list  # once it was measured

    def part(self, stage: str, method: str) -> Part:
        return Part(self.subject.key, stage, method)

    def parts(self) -> list[Part]:
        """For the progress bar. A method that runs is timed once to warm up, and once in each round."""
        runs = [method.name for method in self.methods if not method.missing]
        timed = [self.part(TIME_OF, name) for name in runs] * (1 + self.rounds)
        drawn = [self.part(TIMELINE_OF, name) for name in runs if name in self.drawn]
        first = [self.part("", method.name) for method in self.methods]
        return first + timed * bool(self.rounds) + drawn


def fill_in(entry: Entry, begin: Callable[[Part], None]) -> list[timing.Times]:
    """Measures the subject. Times, for what they say about the machine."""
    subject = entry.subject
    expected: measure.After | None = None
    unstable: tuple[str, list[str]] | None = None
    rows: dict[str, Row] = {}
    for method in entry.methods:
        begin(entry.part("", method.name))
        row = Row(
            method.name,
            method.family,
            method.around,
            rounds=method.in_rows,
            skipped=method.missing,
        )
        rows[method.name] = row
        if row.skipped:
            continue
        try:
            if entry.times is not None:
                after = measure.after_step(entry.times, method)
                if expected is None:  # plain is the first
                    expected = after
                    unstable = _unstable(entry, method, expected)
                row.equal, row.differs = unstable or measure.equality(after, expected)
            measure.memory(entry.memory, method, row, entry.dry)
        except Exception as error:  # a peer's failure is a result of this bench
            if method.family == "plain":
                raise
            row.error = _error_text(error)
    subject.rows = list(rows.values())
    times: list[timing.Times] = []
    if entry.rounds and (runs := _running(entry, rows)):
        times = measure.times(
            entry.times,
            runs,
            rows,
            entry.rounds,
            lambda name: begin(entry.part(TIME_OF, name)),
            lambda name, error: setattr(rows[name], "error", _error_text(error)),
        )
    subject.timelines = list(_timelines(entry, rows, begin))
    return times


def _unstable(entry: Entry, method: Method, first: measure.After) -> tuple[str, list[str]] | None:
    """What differs from one plain step to the next: nothing can be compared with it then."""
    if not entry.is_own:
        return None
    equal, differs = measure.equality(measure.after_step(entry.times, method), first)
    return (UNSTABLE, differs) if equal in (CLOSE, DIFFERENT) else None


def _running(entry: Entry, rows: dict[str, Row]) -> list[Method]:
    """Those that did not fail until now."""
    return [m for m in entry.methods if not rows[m.name].skipped and not rows[m.name].error]


def _timelines(
    entry: Entry, rows: dict[str, Row], begin: Callable[[Part], None]
) -> Iterator[Timeline]:
    for method in _running(entry, rows):
        if method.name not in entry.drawn:
            continue
        begin(entry.part(TIMELINE_OF, method.name))
        try:
            yield measure.timeline(entry.memory, method, entry.dry)
        except Exception as error:
            if method.family == "plain":
                raise
            rows[method.name].error = _error_text(error)


def _error_text(error: Exception) -> str:
    kind, first = type(error).__name__, first_line(error)
    return kind if first == kind else f"{kind}: {first[:200]}"
