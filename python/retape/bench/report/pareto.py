"""Memory against what it is paid with, time or GFLOP: where each method lies, and its name beside it.

Only geometry; the template draws it. Rows without a peak or a cost are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from retape.bench import cells
from retape.bench.report.axis import Axis, left_margin, short, spanning, tick_text
from retape.bench.report.labels import Box, Label, Named, place
from retape.bench.result import DIFFERENT, Spread, Subject

WIDTH, HEIGHT = 600, 500
_RIGHT, _TOP, _BOTTOM = 18, 18, 46
_TICKS = 6  # about as many on either axis

# What each family is drawn as; the style sheet has their colours by the same words.
MARKS = {
    "plain": "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0",
    "retape": "M0,-7L7,0L0,7L-7,0Z",
    "torch": "M-4.6,-4.6h9.2v9.2h-9.2Z",
    "output-discard": "M0,-6L6,5H-6Z",
    "compile": "M0,6L6,-5H-6Z",
    "other": "M-5.5,-2h3.5v-3.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5Z",
}


def family_class(family: str) -> str:
    """One of MARKS, whatever the family is called."""
    name = family.replace(" ", "-")
    return name if name in MARKS else "other"


@dataclass(frozen=True)
class Point:
    x: str
    y: str
    family: str
    wrong: bool  # gradients differ: never on the frontier
    best: bool
    whisker: str  # quartiles of the cost; empty where it is exact
    lines: list[str]  # for the one who points at it
    label: Label | None


@dataclass(frozen=True)
class Plot:
    title: str
    caption: str
    points: list[Point]
    x_ticks: list[tuple[str, str]]
    y_ticks: list[tuple[str, str]]
    x_title: str
    y_title: str
    frontier: str
    plain: tuple[str, str] | None
    left_out: str
    box: Box


@dataclass(frozen=True)
class _Mark:
    """Rows that nobody could tell apart in the picture: what is counted is often the same."""

    rows: list[int]  # the one that is drawn first
    x: float
    y: float
    low: float
    high: float
    best: bool
    wrong: bool

    def hides(self, other: _Mark) -> bool:
        apart = (self.x - other.x, self.y - other.y, self.low - other.low, self.high - other.high)
        return self.wrong is other.wrong and max(map(abs, apart)) < 1


@dataclass(frozen=True)
class _Cost:
    word: str
    title: str
    x_title: str
    unit: cells.Unit
    paid: dict[int, Spread]  # by row


def plot(subject: Subject, cost: str) -> Plot | None:
    """Against "time" or "GFLOP". None where no row has both a peak and that."""
    paid = cells.costs(subject, cost)
    if not paid:
        return None
    kind = _of_time(paid) if cost == "time" else _of_gflop(paid)
    rows = subject.rows
    memory = cells.bytes_unit([rows[index].peak for index in paid])
    up = _upwards([rows[index].peak for index in paid])
    y_ticks = _ticks(up, memory.scale)
    left = left_margin([text for _, text in y_ticks])
    ends = [end for spread in paid.values() for end in spread]  # no whisker is cut off
    across = Axis(*spanning(min(ends), max(ends)), left, WIDTH - _RIGHT)
    box = Box(left, _TOP, WIDTH - left - _RIGHT, HEIGHT - _TOP - _BOTTOM)
    marks = _marks(subject, paid, across, up)
    placed = _labels(subject, marks, box)
    stairs = dict.fromkeys(
        (mark.x, mark.y) for mark in sorted(marks, key=lambda m: m.x) if mark.best
    )
    at_plain = (mark for mark in marks if any(rows[i] is subject.plain for i in mark.rows))
    return Plot(
        kind.title,
        _caption(subject, cost),
        [_point(subject, mark, kind, memory, placed.get(mark.rows[0])) for mark in marks],
        _ticks(across, kind.unit.scale),
        y_ticks,
        kind.x_title,
        f"peak, {memory.name}",
        _stairs(list(stairs)),
        next(((short(mark.x), short(mark.y)) for mark in at_plain), None),
        _left_out(len(cells.shown(subject)) - len(paid), cost),
        box,
    )


def _of_time(paid: dict[int, Spread]) -> _Cost:
    unit = cells.seconds_unit([middle for _, middle, _ in paid.values()])
    title = f"time of a step, {unit.name}: plain's, times the ratio to it"
    return _Cost("time", "Memory against time", title, unit, paid)


def _of_gflop(paid: dict[int, Spread]) -> _Cost:
    unit = cells.gflop_unit([middle for _, middle, _ in paid.values()])
    title = "GFLOP of a step: matrix products, convolutions, fused attention"
    return _Cost("GFLOP", "Memory against GFLOP", title, unit, paid)


def _caption(subject: Subject, cost: str) -> str:
    if cost == "GFLOP":
        return "GFLOP are counted: no noise."
    other_size = subject.time_size is not None and subject.time_size != subject.size
    return "Whiskers: quartiles of the time." + " Times are of the smaller size." * other_size


def _left_out(count: int, cost: str) -> str:
    if not count:
        return ""
    what = "a time" if cost == "time" else "GFLOP"
    return f"{count} row{'s' * (count != 1)} without a peak or {what}: not drawn."


def _upwards(peaks: list[int]) -> Axis:
    bottom, top = spanning(min(peaks), max(peaks))
    if min(peaks) < 0.6 * max(peaks):
        bottom = 0.0  # half as high is half as much
    return Axis(bottom, top, HEIGHT - _BOTTOM, _TOP)


def _ticks(axis: Axis, scale: float) -> list[tuple[str, str]]:
    values = axis.ticks(_TICKS, scale)
    step = (values[1] - values[0]) / scale if len(values) > 1 else 1.0
    return [(short(axis.at(value)), tick_text(value / scale, step)) for value in values]


def _marks(subject: Subject, paid: dict[int, Spread], across: Axis, up: Axis) -> list[_Mark]:
    rows = subject.rows
    best = set(cells.least_memory(subject, paid))

    def first(index: int) -> tuple[bool, bool, bool]:
        return rows[index] is not subject.plain, index not in best, not cells.is_ours(rows[index])

    marks: list[_Mark] = []
    for index in sorted(paid, key=first):
        low, x, high = (across.at(value) for value in paid[index])
        mark = _Mark(
            [index],
            x,
            up.at(rows[index].peak),
            low,
            high,
            index in best,
            rows[index].equal == DIFFERENT,
        )
        under = next((other for other in marks if other.hides(mark)), None)
        if under is None:
            marks.append(mark)
        else:
            under.rows.append(index)
    return sorted(marks, key=lambda mark: mark.rows[0])


def _labels(subject: Subject, marks: list[_Mark], room: Box) -> dict[int, Label]:
    names = cells.labels(subject)
    taken = [Box(mark.x - 7, mark.y - 7, 14, 14) for mark in marks]
    taken += [Box(mark.low, mark.y - 2, mark.high - mark.low, 4) for mark in marks]
    first = sorted(marks, key=lambda m: (not m.best, not cells.is_ours(subject.rows[m.rows[0]])))
    points = {}
    for mark in first:
        more = f" + {len(mark.rows) - 1}" if len(mark.rows) > 1 else ""
        points[mark.rows[0]] = Named(mark.x, mark.y, names[mark.rows[0]], more, mark.best)
    return place(points, taken, room)


def _point(
    subject: Subject, mark: _Mark, kind: _Cost, memory: cells.Unit, label: Label | None
) -> Point:
    row = subject.rows[mark.rows[0]]
    return Point(
        x=short(mark.x),
        y=short(mark.y),
        family=family_class(row.family),
        wrong=mark.wrong,
        best=mark.best,
        whisker=f"M{short(mark.low)},{short(mark.y)}H{short(mark.high)}"
        if mark.low < mark.high
        else "",
        lines=_told(subject, mark.rows, kind, memory),
        label=label,
    )


def _stairs(points: list[tuple[float, float]]) -> str:
    """Whatever lies above and to the right of it is beaten by one of the points."""
    if not points:
        return ""
    path = f"M{short(points[0][0])},{_TOP}V{short(points[0][1])}"
    for x, y in points[1:]:
        path += f"H{short(x)}V{short(y)}"
    return f"{path}H{WIDTH - _RIGHT}"


def _told(subject: Subject, rows: list[int], kind: _Cost, memory: cells.Unit) -> list[str]:
    """Of one row all that there is; of several what each of them is called, and what they share."""
    names = cells.labels(subject)
    figures = {index: _figures(subject, index, kind, memory) for index in rows}
    shared = [line for line in figures[rows[0]] if all(line in each for each in figures.values())]
    lines = []
    for index in rows:
        own = [line for line in figures[index] if line not in shared]
        lines.append(": ".join(filter(None, [names[index], ", ".join(own)])))
    return [*lines, *shared]


def _figures(subject: Subject, index: int, kind: _Cost, memory: cells.Unit) -> list[str]:
    half = cells.half_spread(kind.paid[index])
    spread = "" if half is None else f" ± {kind.unit.number(half)}"
    lines = [
        f"peak {memory.number(subject.rows[index].peak)} {memory.name}",
        f"{kind.word} {kind.unit.number(kind.paid[index][1])}{spread} {kind.unit.name}".rstrip(),
    ]
    for column in cells.columns(subject):
        cell = column.cells[index]
        if column.name in ("saved", "time") and cell.text:
            spread = f" ± {cell.spread}" if cell.spread else ""
            lines.append(f"{column.heading} {cell.text}{spread} %")
        elif column.name == "bits" and cell.text:
            lines.append(f"gradients {cell.text}")
    return lines
