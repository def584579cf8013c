"""Memory against time: where each method of a subject lies, and its name beside it.

Only geometry; the template draws it. Rows without a peak or a time are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from retape.bench import cells
from retape.bench.report.axis import Axis, short, tick_text
from retape.bench.result import DIFFERENT, Subject

WIDTH, HEIGHT = 600, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 18, 46
_CHARACTER, _BOLD, _LINE = 7.1, 8.0, 15  # of a label: estimates that are rather too wide
_LONGEST = 34  # characters of a label

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
class Box:
    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def inside(self, other: Box) -> bool:
        return (
            self.x >= other.x
            and self.y >= other.y
            and self.x + self.width <= other.x + other.width
            and self.y + self.height <= other.y + other.height
        )


@dataclass(frozen=True)
class Label:
    text: str
    x: str
    y: str
    anchor: str
    line: str = ""  # to its point, where it stands far from it
    box: Box | None = None


@dataclass(frozen=True)
class Point:
    x: str
    y: str
    family: str
    wrong: bool  # gradients differ: never on the frontier
    best: bool
    low: str  # quartiles of the time
    high: str
    lines: list[str]  # for the one who points at it
    label: Label | None


@dataclass(frozen=True)
class Plot:
    points: list[Point]
    x_ticks: list[tuple[str, str]]
    y_ticks: list[tuple[str, str]]
    x_title: str
    y_title: str
    frontier: str
    plain: tuple[str, str] | None
    left_out: int
    box: Box = Box(_LEFT, _TOP, WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM)


def plot(subject: Subject) -> Plot | None:
    """None where no row has both a peak and a time."""
    rows, names, plain = subject.rows, cells.labels(subject), subject.plain
    times = {
        index: time
        for index, row in enumerate(rows)
        if row.peak is not None and (time := cells.step_time(row, plain)) is not None
    }
    drawn = list(times)
    if not drawn:
        return None
    clock = cells.seconds_unit([middle for _, middle, _ in times.values()])
    memory = cells.bytes_unit([rows[index].peak for index in drawn])
    across, up = _axes([times[i][1] for i in drawn], [rows[i].peak for i in drawn])
    where = {i: (across.at(times[i][1]), up.at(rows[i].peak)) for i in drawn}
    best = cells.frontier(subject)
    first = sorted(drawn, key=lambda i: (i not in best, rows[i].family != "retape"))
    whiskers = {i: (across.at(low), across.at(high)) for i, (low, _, high) in times.items()}
    taken = [Box(x - 7, y - 7, 14, 14) for x, y in where.values()]
    taken += [Box(low, where[i][1] - 2, high - low, 4) for i, (low, high) in whiskers.items()]
    wide = {i: _BOLD if i in best else _CHARACTER for i in drawn}
    placed = _place({i: (*where[i], names[i], wide[i]) for i in first}, taken, Plot.box)
    points = []
    for index in drawn:
        row = rows[index]
        low, high = whiskers[index]
        points.append(
            Point(
                x=short(where[index][0]),
                y=short(where[index][1]),
                family=family_class(row.family),
                wrong=row.equal == DIFFERENT,
                best=index in best,
                low=short(max(low, _LEFT)),
                high=short(min(high, WIDTH - _RIGHT)),
                lines=_told(subject, index, names[index], times[index], clock, memory),
                label=placed.get(index),
            )
        )
    at_plain = next((where[i] for i in drawn if rows[i] is plain), None)
    return Plot(
        points,
        _ticks(across, 6, clock.scale),
        _ticks(up, 6, memory.scale),
        f"time of a step, {clock.name}: plain's, times the ratio to it",
        f"peak, {memory.name}",
        _stairs([where[index] for index in best]),
        (short(at_plain[0]), short(at_plain[1])) if at_plain else None,
        len(rows) - len(drawn),
    )


def _axes(times: list[float], peaks: list[int]) -> tuple[Axis, Axis]:
    low, high = _padded(min(times), max(times))
    bottom, top = _padded(min(peaks), max(peaks))
    if min(peaks) < 0.6 * max(peaks):
        bottom = 0.0  # half as high is half as much
    return (
        Axis(max(low, 0.0), high, _LEFT, WIDTH - _RIGHT),
        Axis(max(bottom, 0.0), top, HEIGHT - _BOTTOM, _TOP),
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _ticks(axis: Axis, count: int, scale: float) -> list[tuple[str, str]]:
    values = axis.ticks(count, scale)
    step = (values[1] - values[0]) / scale if len(values) > 1 else 1.0
    return [(short(axis.at(value)), tick_text(value / scale, step)) for value in values]


def _stairs(points: list[tuple[float, float]]) -> str:
    """Whatever lies above and to the right of it is beaten by one of the points."""
    if not points:
        return ""
    path = f"M{short(points[0][0])},{_TOP}V{short(points[0][1])}"
    for x, y in points[1:]:
        path += f"H{short(x)}V{short(y)}"
    return f"{path}H{WIDTH - _RIGHT}"


def _told(
    subject: Subject,
    index: int,
    name: str,
    time: cells.Spread,
    clock: cells.Unit,
    memory: cells.Unit,
) -> list[str]:
    row = subject.rows[index]
    low, middle, high = time
    lines = [
        name,
        f"peak {memory.number(row.peak)} {memory.name}",
        f"time {clock.number(middle)} ± {clock.number((high - low) / 2)} {clock.name}",
    ]
    for column in cells.columns(subject):
        cell = column.cells[index]
        if column.name in ("saved", "time") and cell.text:
            lines.append(f"{column.heading} {cell.text} %")
        elif column.name == "bits" and cell.text:
            lines.append(f"gradients {cell.text}")
    return lines


def _place(
    points: dict[int, tuple[float, float, str, float]], taken: list[Box], room: Box
) -> dict[int, Label]:
    """Names beside their points, none over another or over what is taken; in the order given. Where
    no place is left there is no name: pointing at the mark tells it."""
    placed: dict[int, Label] = {}
    for index, (x, y, name, character) in points.items():
        text = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
        for label in _candidates(x, y, text, len(text) * character):
            if label.box.inside(room) and not any(label.box.overlaps(box) for box in taken):
                placed[index] = label
                taken = [*taken, label.box]
                break
    return placed


def _candidates(x: float, y: float, text: str, width: float) -> list[Label]:
    found = []
    for away in (0, 14, 26, 40, 56):
        side = 10 + away * 0.6
        for dx, dy, anchor in (
            (side, -away, "start"),
            (side, away, "start"),
            (-side, -away, "end"),
            (-side, away, "end"),
            (0, -14 - away, "middle"),
            (0, 14 + away, "middle"),
        ):
            left = {"start": 0, "end": -width, "middle": -width / 2}[anchor]
            box = Box(x + dx + left, y + dy - _LINE / 2, width, _LINE)
            line = ""
            if away:
                near = 6 if dy > 0 else -6
                line = f"M{short(x)},{short(y + near)}L{short(x + dx * 0.9)},{short(y + dy)}"
            found.append(Label(text, short(x + dx), short(y + dy + 4), anchor, line, box))
    return found
