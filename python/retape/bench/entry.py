"""A subject that is to be measured, and how: method by method, then all of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retape._progress import Part
from retape.bench import measure, timing
from retape.bench.methods import Method
from retape.bench.result import CLOSE, DIFFERENT, UNSTABLE, Row, Subject
from retape.bench.task import Make

# Stages of the bar; the first, memory and gradients, has no name.
TIME_OF, TIMELINE_OF = "time of ", "timeline of "

Begin = Callable[[Part], None]  # called before each part


@dataclass(frozen=True)
class Entry:
    """A subject that is to be measured: on which tasks, by which methods, of which plain is the first."""

    subject: Subject
    memory: Make
    times: Make | None  # smaller; None: memory only
    methods: list[Method]
    dry: bool
    is_own: bool = False  # the user's model: its plain step may differ from one time to the next
    warnings: Callable[[], list[str]] = list  # once it was measured

    def _part(self, stage: str, method: str) -> Part:
        return Part(self.subject.key, stage, method)

    def parts(self, rounds: int, drawn: Sequence[str]) -> list[Part]:
        """For the progress bar. A method that runs is timed once to warm up, and once in each round."""
        runs = [method.name for method in self.methods if not method.missing]
        return [
            *(self._part("", method.name) for method in self.methods),
            *[self._part(TIME_OF, name) for name in runs] * (rounds and 1 + rounds),
            *(self._part(TIMELINE_OF, name) for name in runs if name in drawn),
        ]

    def measure(self, rounds: int, drawn: Sequence[str], begin: Begin) -> list[timing.Times]:
        """Fills in the subject's rows and timelines. rounds: 0 takes no times; drawn: methods with a timeline.
        Returns the times, for what they say about the machine."""
        rows = {method.name: _row(method) for method in self.methods}
        self.subject.rows = list(rows.values())
        self._compare_and_count(rows, begin)
        times: list[timing.Times] = []
        if rounds and (running := self._running(rows)):

            def announce(name: str) -> None:
                begin(self._part(TIME_OF, name))

            times = measure.times(self.times, running, rows, rounds, announce)
        for method in self._running(rows):
            if method.name in drawn:
                begin(self._part(TIMELINE_OF, method.name))
                with measure.failing_is_a_result(method, rows[method.name]):
                    drawing = measure.timeline(self.memory, method, self.dry)
                    self.subject.timelines.append(drawing)
        return times

    def _compare_and_count(self, rows: dict[str, Row], begin: Begin) -> None:
        expected: measure.After | None = None
        unstable: tuple[str, list[str]] | None = None
        for method in self.methods:
            begin(self._part("", method.name))
            row = rows[method.name]
            if row.skipped:
                continue
            with measure.failing_is_a_result(method, row):
                if self.times is not None:
                    after = measure.after_step(self.times, method)
                    if expected is None:
                        expected = after
                        unstable = self._unstable(method, expected)
                    row.equal, row.differs = unstable or measure.equality(after, expected)
                measure.memory(self.memory, method, row, self.dry)

    def _unstable(self, method: Method, first: measure.After) -> tuple[str, list[str]] | None:
        """What differs from one plain step to the next: nothing can be compared with it then."""
        if not self.is_own:
            return None
        equal, differs = measure.equality(measure.after_step(self.times, method), first)
        return (UNSTABLE, differs) if equal in (CLOSE, DIFFERENT) else None

    def _running(self, rows: dict[str, Row]) -> list[Method]:
        """Those that did not fail until now."""
        return [m for m in self.methods if not rows[m.name].skipped and not rows[m.name].error]


def _row(method: Method) -> Row:
    return Row(
        method.name, method.family, method.around, rounds=method.in_rows, skipped=method.missing
    )
