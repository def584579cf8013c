"""Geometry of the charts on a page: axes with round ticks, and names beside points.

A chart is a `Frame` that a template draws with the macros of charts.html.j2. Colours are classes of the
page's style sheet, so that a chart follows the reader's theme; nothing is loaded and nothing is styled inline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

LEAST_SPAN = 0.05  # of a value
_CHARACTER, _BOLD, _LINE = 7.1, 8.0, 15  # estimates that are rather too wide
_LONGEST = 34  # characters of a name

Ticks = list[tuple[str, str]]  # places and texts


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def overlaps(self, other: Box) -> bool:
        across = self.x < other.right and other.x < self.right
        return across and self.y < other.bottom and other.y < self.bottom

    def inside(self, other: Box) -> bool:
        across = self.x >= other.x and self.right <= other.right
        return across and self.y >= other.y and self.bottom <= other.bottom


@dataclass(frozen=True)
class Frame:
    """What lies around the data: the box that it is drawn in, ticks and titles of both axes."""

    width: int
    height: int
    box: Box
    x_ticks: Ticks
    y_ticks: Ticks
    x_title: str
    y_title: str


@dataclass(frozen=True)
class Axis:
    """From `low` to `high` in the data's unit, drawn from `start` to `end` in the picture's."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int, scale: float = 1.0) -> list[float]:
        """About `count` round values inside, round when divided by `scale`."""
        step = _round_step((self.high - self.low) / scale / max(count, 1)) * scale
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def labelled(self, count: int, scale: float = 1.0) -> Ticks:
        """Places and texts of ticks, with as many digits as neighbours need to differ."""
        values = self.ticks(count, scale)
        step = (values[1] - values[0]) / scale if len(values) > 1 else 1.0
        digits = next((d for d in range(6) if math.isclose(round(step, d), step)), 6)
        return [(short(self.at(value)), f"{value / scale:.{digits}f}") for value in values]


def spanning(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis with air on both sides. Values that are nearly the same look so: what differs by
    less than LEAST_SPAN of itself does not fill a picture."""
    air = max((high - low) * 0.1, (LEAST_SPAN * abs(high) - (high - low)) / 2) or 1.0
    return max(low - air, 0.0), high + air


def left_margin(ticks: Ticks) -> float:
    """So wide that the title of an axis stands beside its ticks."""
    return max(58.0, 30 + 7 * max((len(text) for _, text in ticks), default=0))


def _round_step(rough: float) -> float:
    power = 10 ** math.floor(math.log10(rough))
    steps = (times * power for times in (1, 2, 2.5, 5, 10))
    return next(step for step in steps if step >= rough * (1 - 1e-9))


def short(value: float) -> str:
    """One digit behind the point at most: "12.5", "3"."""
    return f"{value:.1f}".removesuffix(".0")


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


@dataclass(frozen=True)
class Named:
    """A point that is to get a name."""

    x: float
    y: float
    name: str
    more: str = ""  # behind the name, and never cut
    bold: bool = False


@dataclass(frozen=True)
class Label:
    text: str
    x: str
    y: str
    anchor: str
    line: str  # to its point, where it stands far from it
    box: Box


def place(points: dict[int, Named], taken: list[Box], room: Box) -> dict[int, Label]:
    """Names by point, none over another or over what is taken; in the order given. A point without room
    for its name has none: the page shows it when the pointer is over the mark."""
    placed: dict[int, Label] = {}
    for index, point in points.items():
        boxes = [*taken, *(label.box for label in placed.values())]
        for label in _candidates(point):
            if label.box.inside(room) and not any(label.box.overlaps(box) for box in boxes):
                placed[index] = label
                break
    return placed


def _candidates(point: Named) -> Iterator[Label]:
    """Beside, above and below the point, the nearest first."""
    x, y, text = point.x, point.y, cut(point.name, _LONGEST - len(point.more)) + point.more
    width = len(text) * (_BOLD if point.bold else _CHARACTER)
    for away in (0, 5, 14, 26, 40, 56):
        side = 10 + away * 0.6
        places = [(dx, dy) for dx in (side, -side) for dy in (-away, away)]
        for dx, dy in (*places, (0, -14 - away), (0, 14 + away)):
            anchor, left = ("start", 0.0) if dx > 0 else ("end", -width)
            if dx == 0:
                anchor, left = "middle", -width / 2
            near = y + (6 if dy > 0 else -6)
            line = f"M{short(x)},{short(near)}L{short(x + dx * 0.9)},{short(y + dy)}"
            box = Box(x + dx + left, y + dy - _LINE / 2, width, _LINE)
            line = line if away > 5 else ""
            yield Label(text, short(x + dx), short(y + dy + 4), anchor, line, box)
