"""Live bytes of a step, allocation by allocation: what was kept or passed by, replayed, and made by backward.

The template draws the areas, the page's script tells what is under the pointer. However long a step is,
its picture has at most STEPS moments, and the peak is one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retape._html.charts import Axis, Box, Frame, cut, left_margin, short
from retape._text import printable
from retape.bench import cells
from retape.bench.result import Event, Timeline

WIDTH, HEIGHT = 600, 240
RIGHT, TOP, BOTTOM = 20, 26, 40
STEPS = 1000
_BOLD = 7.2  # of a character of the peak's name: rather too wide
NAMED = 1500  # allocations that can be pointed at

# From the bottom up. "before": there when the step began, or of no kind that is known.
# "passing": made by forward and dropped before backward began, which is not kept.
WORDS = {
    "before": "from before the step",
    "kept": "kept from forward",
    "passing": "made and dropped in forward",
    "gradient": "gradients",
    "replayed": "replayed",
}
KINDS = tuple(WORDS)
KEPT, PASSING, GRADIENT = (KINDS.index(kind) for kind in ("kept", "passing", "gradient"))


@dataclass(frozen=True)
class Allocation:
    event: int
    freed: int  # the event that does; one past the last: none
    kind: int


@dataclass(frozen=True)
class Picture(Frame):
    method: str
    peak: int
    peak_text: str
    peak_at: tuple[float, float]  # its line is as high
    areas: list[tuple[str, str]]  # kind and path, the one to draw first first
    kinds: list[tuple[str, str]]  # kind and words, of those that are there
    backward: float | None  # where the first gradient or replay is
    events: int
    merged: bool
    data: dict[str, Any]  # for the script


def moments(events: Sequence[Event], limit: int = STEPS) -> list[int]:
    """Events that stand for all: of neighbours the one with the most live bytes, and the last."""
    count = len(events)
    if count <= limit:
        return list(range(count))
    size = -(-count // (limit - 1))
    groups = (range(at, min(at + size, count)) for at in range(0, count, size))
    chosen = [max(group, key=lambda i: events[i].current) for group in groups]
    return chosen if chosen[-1] == count - 1 else [*chosen, count - 1]


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
    changes = [(each.event, each.kind, events[each.event].bytes) for each in known]
    changes += [(each.freed, each.kind, -events[each.event].bytes) for each in known]
    changes.sort(key=lambda change: change[0], reverse=True)
    now = [0] * len(KINDS)
    found = []
    for moment in at:
        while changes and changes[-1][0] <= moment:
            _, kind, size = changes.pop()
            now[kind] += size
        found.append([max(0, events[moment].current - sum(now[1:])), *now[1:]])
    return found


def peak(timeline: Timeline) -> int:
    return max((event.current for event in timeline.events), default=0)


def picture(timeline: Timeline, most: int) -> Picture | None:
    """`most`: bytes at the top, the same for all pictures of a subject. None without events."""
    events = timeline.events
    if not events:
        return None
    at, known = moments(events), allocations(events)
    levels = live(events, known, at)
    unit = cells.bytes_unit([most])
    up = Axis(0, max(most, 1) * 1.12, HEIGHT - BOTTOM, TOP)
    y_ticks = up.labelled(4, unit.scale)
    left = left_margin(y_ticks)
    across = Axis(0, len(at), left, WIDTH - RIGHT)
    counted = Axis(0, len(events), across.start, across.end)
    top = max(range(len(at)), key=lambda i: events[at[i]].current)
    op = cut(printable(events[at[top]].op), 36)
    peak_text = f"peak {unit.number(peak(timeline))} {unit.name}" + f" at {op}" * bool(op)
    half = len(peak_text) * _BOLD / 2  # it stands above the peak, and inside
    peak_x = max(left + half, min(across.at(top + 0.5), across.end - half))
    first = next((each.event for each in known if each.kind >= GRADIENT), None)
    there = [kind for kind in range(len(KINDS)) if any(level[kind] for level in levels)]
    return Picture(
        WIDTH,
        HEIGHT,
        Box(left, TOP, across.end - left, HEIGHT - BOTTOM - TOP),
        [(short(counted.at(v)), f"{v:,.0f}") for v in counted.ticks(5) if v == int(v)],
        y_ticks,
        "allocations and frees, in order",
        f"live, {unit.name}",
        method=printable(timeline.method),
        peak=peak(timeline),
        peak_text=peak_text,
        peak_at=(peak_x, up.at(peak(timeline))),
        areas=[(KINDS[kind], _area(levels, kind, across, up)) for kind in reversed(there)],
        kinds=[(KINDS[kind], WORDS[KINDS[kind]]) for kind in there],
        backward=None if first is None else across.at(bisect_left(at, first)),
        events=len(events),
        merged=len(at) < len(events),
        data=_data(events, known, at, levels, across, up),
    )


def _area(levels: Sequence[Sequence[int]], kind: int, across: Axis, up: Axis) -> str:
    """From the bottom to the top of `kind`. The ones below it are drawn over it afterwards."""
    floor = last = short(up.at(0))
    path = f"M{short(across.start)},{floor}"
    for index, level in enumerate(levels):
        height = short(up.at(sum(level[: kind + 1])))
        if height != last:
            path += f"H{across.at(index):.2f}V{height}"
            last = height
    return f"{path}H{short(across.end)}V{floor}Z"


def _data(
    events: Sequence[Event],
    known: Sequence[Allocation],
    at: Sequence[int],
    levels: Sequence[Sequence[int]],
    across: Axis,
    up: Axis,
) -> dict[str, Any]:
    numbers: dict[str, int] = {}  # each text once; rows refer to it by number

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    alike: dict[tuple[int, ...], list[int]] = {}
    for each in known:
        start, end = bisect_left(at, each.event), bisect_left(at, each.freed)
        if start == end or each.kind == 0:
            continue  # never there at a moment that is drawn
        event = events[each.event]
        texts = (number(event.op), number(event.shape), number(event.region))
        total = alike.setdefault((start, end, each.kind, *texts), [0, 0])
        total[0] += event.bytes
        total[1] += 1
    # The largest in the picture: bytes times how long they are there.
    largest = sorted(alike.items(), key=lambda item: item[1][0] * (item[0][0] - item[0][1]))
    return {
        "box": [across.start, TOP, across.end, HEIGHT - BOTTOM, WIDTH],
        "most": round(up.high),
        "words": list(WORDS.values()),
        "moments": list(at),
        "events": len(events),
        "ops": [number(events[moment].op) for moment in at],
        "live": [list(column) for column in zip(*levels, strict=True)],
        # start, end, kind, op, shape, region, bytes, how many
        "named": sorted([*key, *total] for key, total in largest[:NAMED]),
        "names": [cut(printable(text), 160) for text in numbers],
    }
