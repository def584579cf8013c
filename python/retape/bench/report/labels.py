"""Names beside the points of a plot, none over another."""

from __future__ import annotations

from dataclasses import dataclass

from retape.bench.report.axis import short

_CHARACTER, _BOLD, _LINE = 7.1, 8.0, 15  # estimates that are rather too wide
_LONGEST = 34  # characters


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
    line: str = ""  # to its point, where it stands far from it
    box: Box | None = None


def place(points: dict[int, Named], taken: list[Box], room: Box) -> dict[int, Label]:
    """None over another or over what is taken; in the order given. Where no place is left there is no
    name: pointing at the mark tells it."""
    placed: dict[int, Label] = {}
    for index, point in points.items():
        for label in _candidates(point):
            if label.box.inside(room) and not any(label.box.overlaps(box) for box in taken):
                placed[index] = label
                taken = [*taken, label.box]
                break
    return placed


def _candidates(point: Named) -> list[Label]:
    x, y, longest = point.x, point.y, _LONGEST - len(point.more)
    name = point.name if len(point.name) <= longest else point.name[: longest - 1] + "…"
    text = name + point.more
    width = len(text) * (_BOLD if point.bold else _CHARACTER)
    found = []
    for away in (0, 5, 14, 26, 40, 56):
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
            if away > 5:
                near = 6 if dy > 0 else -6
                line = f"M{short(x)},{short(y + near)}L{short(x + dx * 0.9)},{short(y + dy)}"
            found.append(Label(text, short(x + dx), short(y + dy + 4), anchor, line, box))
    return found
