"""Live bytes of a step, allocation by allocation: what was kept or passed by, replayed, and made by backward.

Only geometry and data; the template draws the areas, the page's script tells what is under the
pointer. However long a step is, its picture has at most STEPS moments, and the peak is one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retape._text import printable
from retape.bench import cells
from retape.bench.report.axis import Axis, left_margin, short, tick_text
from retape.bench.result import Event, Timeline

WIDTH, HEIGHT = 600, 240
RIGHT, TOP, BOTTOM = 20, 26, 40
STEPS = 1000
_BOLD = 7.2  # of a character of the peak's name: rather too wide
NAMED = 1500  # allocations that can be pointed at

# From the bottom up. "before": there when the step began, or of no kind that is known.
# "passing": made by forward and dropped before backward began, which nobody kept.
KINDS = ("before", "kept", "passing", "gradient", "replayed")
KEPT, PASSING, GRADIENT = (KINDS.index(kind) for kind in ("kept", "passing", "gradient"))
WORDS = {
    "before": "from before the step",
    "kept": "kept from forward",
    "passing": "made and dropped in forward",
    "gradient": "gradients",
    "replayed": "replayed",
}


@dataclass(frozen=True)
class Allocation:
    event: int
    freed: int  # the event that does; one past the last: none
    kind: int


@dataclass(frozen=True)
class Picture:
    method: str
    peak: int
    peak_text: str
    peak_y: str
    peak_x: str
    peak_label_y: str
    areas: list[tuple[str, str]]  # kind and path, the one to draw first first
    kinds: list[tuple[str, str]]  # kind and words, of those that are there
    x_ticks: list[tuple[str, str]]
    y_ticks: list[tuple[str, str]]
    y_title: str
    backward_x: str  # where the first gradient or replay is; empty: nowhere
    has_forward: bool  # is there room for the word?
    has_backward: bool
    events: int
    merged: bool
    left: float  # where the areas begin
    data: dict[str, Any]  # for the script


def moments(events: Sequence[Event], limit: int = STEPS) -> list[int]:
    """Events that stand for all: of neighbours the one with the most live bytes, and the last."""
    if len(events) <= limit:
        return list(range(len(events)))
    group = -(-len(events) // (limit - 1))
    chosen = [
        max(range(at, min(at + group, len(events))), key=lambda i: events[i].current)
        for at in range(0, len(events), group)
    ]
    return chosen if chosen[-1] == len(events) - 1 else [*chosen, len(events) - 1]


def allocations(events: Sequence[Event]) -> list[Allocation]:
    """A free belongs to the last allocation with its id that is still open."""
    found: list[Allocation] = []
    open_: dict[int, int] = {}
    is_forward = True
    for index, event in enumerate(events):
        is_forward = is_forward and event.kind not in KINDS[GRADIENT:]
        if event.bytes >= 0:
            kind = KINDS.index(event.kind) if event.kind in KINDS else 0
            open_[event.id] = len(found)
            found.append(Allocation(index, len(events), kind))
        elif event.id in open_:
            place = open_.pop(event.id)
            kind = PASSING if is_forward and found[place].kind == KEPT else found[place].kind
            found[place] = Allocation(found[place].event, index, kind)
    return found


def live(
    events: Sequence[Event], known: Sequence[Allocation], at: Sequence[int]
) -> list[list[int]]:
    """Bytes of each kind at each moment. What no allocation explains was there before."""
    changes: list[tuple[int, int, int]] = []
    for each in known:
        changes.append((each.event, each.kind, events[each.event].bytes))
        changes.append((each.freed, each.kind, -events[each.event].bytes))
    changes.sort(key=lambda change: change[0])
    now = [0] * len(KINDS)
    place = 0
    found = []
    for moment in at:
        while place < len(changes) and changes[place][0] <= moment:
            now[changes[place][1]] += changes[place][2]
            place += 1
        before = max(0, events[moment].current - sum(now[1:]))
        found.append([before, *now[1:]])
    return found


def peak(timeline: Timeline) -> int:
    return max((event.current for event in timeline.events), default=0)


def picture(timeline: Timeline, most: int) -> Picture | None:
    """`most`: bytes at the top, the same for all pictures of a subject. None without events."""
    events = timeline.events
    if not events:
        return None
    at = moments(events)
    known = allocations(events)
    levels = live(events, known, at)
    up = Axis(0, max(most, 1) * 1.12, HEIGHT - BOTTOM, TOP)
    unit = cells.bytes_unit([most])
    y_values = up.ticks(4, unit.scale)
    y_step = y_values[1] / unit.scale
    y_ticks = [(short(up.at(v)), tick_text(v / unit.scale, y_step)) for v in y_values]
    left = left_margin([text for _, text in y_ticks])
    across = Axis(0, len(at), left, WIDTH - RIGHT)
    top = max(range(len(at)), key=lambda i: events[at[i]].current)
    first = next((each.event for each in known if each.kind >= GRADIENT), None)
    backward = None if first is None else bisect_left(at, first)
    there = [kind for kind in range(len(KINDS)) if any(level[kind] for level in levels)]
    op = printable(events[at[top]].op)
    peak_text = f"peak {unit.number(peak(timeline))} {unit.name}" + (
        f" at {_cut(op, 36)}" if op else ""
    )
    half = len(peak_text) * _BOLD / 2
    return Picture(
        method=printable(timeline.method),
        peak=peak(timeline),
        peak_text=peak_text,
        peak_y=short(up.at(peak(timeline))),
        # Above the peak, and inside.
        peak_x=short(max(left + half, min(across.at(top + 0.5), across.end - half))),
        peak_label_y=short(up.at(peak(timeline)) - 5),
        areas=[(KINDS[kind], _area(levels, kind, across, up)) for kind in reversed(there)],
        kinds=[(KINDS[kind], WORDS[KINDS[kind]]) for kind in there],
        x_ticks=_event_ticks(len(events), across),
        y_ticks=y_ticks,
        y_title=f"live, {unit.name}",
        backward_x="" if backward is None else short(across.at(backward)),
        has_forward=backward is not None and across.at(backward) > left + 60,
        has_backward=backward is not None and across.at(backward) < WIDTH - RIGHT - 70,
        events=len(events),
        merged=len(at) < len(events),
        left=left,
        data=_data(events, known, at, levels, across, up),
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _event_ticks(count: int, across: Axis) -> list[tuple[str, str]]:
    events = Axis(0, count, across.start, across.end)
    return [(short(events.at(v)), f"{v:,.0f}") for v in events.ticks(5) if v == int(v)]


def _area(levels: Sequence[Sequence[int]], kind: int, across: Axis, up: Axis) -> str:
    """From the bottom to the top of `kind`. The ones below it are drawn over it afterwards."""
    floor = short(up.at(0))
    path = f"M{short(across.start)},{floor}"
    last = floor
    for index, level in enumerate(levels):
        height = short(up.at(sum(level[: kind + 1])))
        if height != last:
            path += f"H{across.at(index):.2f}V{height}"
            last = height
    return f"{path}H{short(across.end)}V{floor}Z"


class _Names:
    """Each text once; rows refer to it by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(_cut(printable(text), 160))
        return self._numbers[text]


def _data(
    events: Sequence[Event],
    known: Sequence[Allocation],
    at: Sequence[int],
    levels: Sequence[Sequence[int]],
    across: Axis,
    up: Axis,
) -> dict[str, Any]:
    names = _Names()
    alike: dict[tuple[int, ...], list[int]] = {}
    for each in known:
        start, end = bisect_left(at, each.event), bisect_left(at, each.freed)
        if start == end or each.kind == 0:
            continue  # never there at a moment that is drawn
        event = events[each.event]
        texts = (names.number(event.op), names.number(event.shape), names.number(event.region))
        total = alike.setdefault((start, end, each.kind, *texts), [0, 0])
        total[0] += event.bytes
        total[1] += 1
    # The largest in the picture: bytes times how long they are there.
    largest = sorted(alike.items(), key=lambda item: item[1][0] * (item[0][0] - item[0][1]))[:NAMED]
    rows = sorted([*key, *total] for key, total in largest)
    return {
        "box": [across.start, TOP, across.end, HEIGHT - BOTTOM, WIDTH],
        "most": round(up.high),
        "words": [WORDS[kind] for kind in KINDS],
        "moments": list(at),
        "events": len(events),
        "ops": [names.number(events[moment].op) for moment in at],
        "live": [list(column) for column in zip(*levels, strict=True)],
        "named": rows,  # start, end, kind, op, shape, region, bytes, how many
        "names": names.texts,
    }
