"""Memory against what it is paid with, time or GFLOP: where each method lies, and its name beside it.

Rows without a peak or a cost are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from retape._html.charts import Axis, Box, Frame, Label, Named, left_margin, place, short, spanning
from retape.bench import cells
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
_TITLES = {
    "time": ("Memory against time", "time of a step, {}: plain's, times the ratio to it"),
    "GFLOP": (
        "Memory against GFLOP",
        "GFLOP of a step: matrix products, convolutions, fused attention",
    ),
}


def family_class(family: str) -> str:
    """One of MARKS, whatever the family is called."""
    name = family.replace(" ", "-")
    return name if name in MARKS else "other"


@dataclass
class Point:
    """A mark. Rows that look the same in the picture share one: counts are often equal."""

    rows: list[int]  # the one that is drawn first
    x: float
    y: float
    low: float  # quartiles of the cost
    high: float
    family: str
    best: bool
    wrong: bool  # gradients differ: never on the frontier
    lines: list[str] = field(default_factory=list)  # shown when the pointer is over it
    label: Label | None = None

    @property
    def whisker(self) -> str:
        """Empty where the cost is exact."""
        is_exact = self.low >= self.high
        return "" if is_exact else f"M{short(self.low)},{short(self.y)}H{short(self.high)}"

    def hides(self, other: Point) -> bool:
        apart = (self.x - other.x, self.y - other.y, self.low - other.low, self.high - other.high)
        return self.wrong is other.wrong and max(map(abs, apart)) < 1


@dataclass(frozen=True)
class Plot(Frame):
    title: str
    caption: str
    points: list[Point]
    frontier: str
    plain: Point | None
    left_out: str


def plot(subject: Subject, cost: str) -> Plot | None:
    """Against "time" or "GFLOP". None where no row has both a peak and that."""
    paid = cells.costs(subject, cost)
    if not paid:
        return None
    rows = subject.rows
    peaks = [rows[index].peak for index in paid]
    memory = cells.bytes_unit(peaks)
    unit = (cells.seconds_unit if cost == "time" else cells.gflop_unit)(
        [middle for _, middle, _ in paid.values()]
    )
    bottom, top = spanning(min(peaks), max(peaks))
    if min(peaks) < 0.6 * max(peaks):
        bottom = 0.0  # half as high is half as much
    up = Axis(bottom, top, HEIGHT - _BOTTOM, _TOP)
    y_ticks = up.labelled(_TICKS, memory.scale)
    left = left_margin(y_ticks)
    ends = [end for spread in paid.values() for end in spread]  # no whisker is cut off
    across = Axis(*spanning(min(ends), max(ends)), left, WIDTH - _RIGHT)
    box = Box(left, _TOP, WIDTH - left - _RIGHT, HEIGHT - _TOP - _BOTTOM)
    points = _points(subject, paid, across, up)
    labels = _labels(subject, points, box)
    for point in points:
        point.lines = _told(subject, point.rows, cost, unit, paid, memory)
        point.label = labels.get(point.rows[0])
    title, x_title = _TITLES[cost]
    return Plot(
        WIDTH,
        HEIGHT,
        box,
        across.labelled(_TICKS, unit.scale),
        y_ticks,
        x_title.format(unit.name),
        f"peak, {memory.name}",
        title,
        _caption(subject, cost),
        points,
        _stairs(points, box),
        next((p for p in points if any(rows[i] is subject.plain for i in p.rows)), None),
        _left_out(len(cells.shown(subject)) - len(paid), cost),
    )


def _caption(subject: Subject, cost: str) -> str:
    if cost == "GFLOP":
        return "GFLOP are counted: no noise."
    other_size = subject.time_size is not None and subject.time_size != subject.size
    return "Whiskers: quartiles of the time." + " Times are of the smaller size." * other_size


def _left_out(count: int, cost: str) -> str:
    what = "a time" if cost == "time" else "GFLOP"
    text = f"{count} row{'s' * (count != 1)} without a peak or {what}: not drawn."
    return text if count else ""


def _points(subject: Subject, paid: dict[int, Spread], across: Axis, up: Axis) -> list[Point]:
    rows = subject.rows
    best = set(cells.least_memory(subject, paid))

    def first(index: int) -> tuple[bool, bool, bool]:
        return rows[index] is not subject.plain, index not in best, not cells.is_ours(rows[index])

    points: list[Point] = []
    for index in sorted(paid, key=first):
        row, (low, x, high) = rows[index], (across.at(value) for value in paid[index])
        family, wrong = family_class(row.family), row.equal == DIFFERENT
        point = Point([index], x, up.at(row.peak), low, high, family, index in best, wrong)
        under = next((other for other in points if other.hides(point)), None)
        if under is None:
            points.append(point)
        else:
            under.rows.append(index)
    return sorted(points, key=lambda point: point.rows[0])


def _labels(subject: Subject, points: list[Point], room: Box) -> dict[int, Label]:
    """Those of the frontier and of Retape first."""
    names = cells.labels(subject)
    taken = [Box(p.x - 7, p.y - 7, 14, 14) for p in points]
    taken += [Box(p.low, p.y - 2, p.high - p.low, 4) for p in points]
    ordered = sorted(points, key=lambda p: (not p.best, not cells.is_ours(subject.rows[p.rows[0]])))
    named = {}
    for point in ordered:
        first, *others = point.rows
        more = f" + {len(others)}" if others else ""
        named[first] = Named(point.x, point.y, names[first], more, point.best)
    return place(named, taken, room)


def _stairs(points: list[Point], box: Box) -> str:
    """Whatever lies above and to the right of it is beaten by one of the points."""
    steps = sorted({(point.x, point.y) for point in points if point.best}, key=lambda step: step[0])
    if not steps:
        return ""
    path = "".join(f"H{short(x)}V{short(y)}" for x, y in steps[1:])
    return f"M{short(steps[0][0])},{box.y}V{short(steps[0][1])}{path}H{box.right}"


def _told(
    subject: Subject,
    rows: list[int],
    cost: str,
    unit: cells.Unit,
    paid: dict[int, Spread],
    memory: cells.Unit,
) -> list[str]:
    """Of one row all that there is; of several what each of them is called, and what they share."""
    names, columns = cells.labels(subject), cells.columns(subject)

    def figures(index: int) -> list[str]:
        half = cells.half_spread(paid[index])
        spread = "" if half is None else f" ± {unit.number(half)}"
        lines = [f"peak {memory.number(subject.rows[index].peak)} {memory.name}"]
        lines.append(f"{cost} {unit.number(paid[index][1])}{spread} {unit.name}".rstrip())
        for column in columns:
            cell = column.cells[index]
            if column.name in ("saved", "time") and cell.text:
                lines.append(f"{column.heading} {cell} %")
            elif column.name == "bits" and cell.text:
                lines.append(f"gradients {cell.text}")
        return lines

    told = [figures(index) for index in rows]
    shared = [line for line in told[0] if all(line in lines for lines in told)]
    own = [", ".join(line for line in lines if line not in shared) for lines in told]
    each = [": ".join(filter(None, [names[i], text])) for i, text in zip(rows, own, strict=True)]
    return [*each, *shared]
