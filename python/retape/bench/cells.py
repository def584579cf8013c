"""The table of a subject as every renderer shows it: columns with one unit each, cells as text.

A column has one unit and one number of digits, so that figures can be compared by eye.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retape._text import GIB, KIB, MIB, listed, printable
from retape.bench.result import BITWISE, CLOSE, DIFFERENT, OURS, Row, Run, Spread, Subject, saved

MARK = "◆"  # of rows on the frontier
TONES = {BITWISE: "good", CLOSE: "loud", DIFFERENT: "bad"}
# By the column that it is about.
_LEGEND = {
    "peak": "Peak: parameters, inputs, gradients and activations together.",
    "held": "Held: activations when backward began.",
    "total": "Times: median ± half the distance between the quartiles, of interleaved rounds.",
    "saved": "Saved: beside plain.",
    "time": "Time delta: beside plain, of the same round; ± as for times.",
    "GFLOP": "GFLOP: of matrix products, convolutions and fused attention.",
    "bits": "Bits: gradients and buffers beside plain's.",
}


@dataclass(frozen=True)
class Unit:
    name: str
    scale: float
    digits: int

    def number(self, value: float) -> str:
        return f"{value / self.scale:.{self.digits}f}"


@dataclass(frozen=True)
class Cell:
    text: str = ""  # empty: not measured
    spread: str = ""
    tone: str = ""  # "good", "loud", "bad"

    def __str__(self) -> str:
        return f"{self.text} ± {self.spread}" if self.spread else self.text


@dataclass(frozen=True)
class Column:
    name: str  # a word
    heading: str  # all of it
    unit: str
    cells: list[Cell]


# From which value on, scale, name. Methods differ by some MiB where a step needs some GiB.
_BYTES = ((100 * GIB, GIB, "GiB"), (MIB, MIB, "MiB"), (KIB, KIB, "KiB"), (1, 1, "B"))
_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "us"))


def bytes_unit(values: Sequence[float]) -> Unit:
    """The one that suits the largest of them."""
    return _unit(values, _BYTES)


def seconds_unit(values: Sequence[float]) -> Unit:
    return _unit(values, _SECONDS)


def gflop_unit(values: Sequence[float]) -> Unit:
    most = max(values, default=0)
    return Unit("", 1, 1 if most >= 10 else 2 if most >= 0.1 else 4)


def _unit(values: Sequence[float], known: Sequence[tuple[float, float, str]]) -> Unit:
    most = max((abs(value) for value in values), default=0)
    _, scale, name = next((each for each in known if most >= each[0]), known[-1])
    digits = 0 if name == "B" else 2 if most / scale < 10 else 1
    return Unit(name, scale, digits)


def columns(subject: Subject) -> list[Column]:
    rows, plain = subject.rows, subject.plain
    memory = bytes_unit([b for row in rows for b in (row.peak, row.held) if b is not None])
    times = [t for row in rows for t in (row.forward, row.backward, row.total) if t is not None]
    clock = seconds_unit([spread[1] for spread in times])
    work = gflop_unit([row.gflop for row in rows if row.gflop is not None])

    def column(name: str, heading: str, unit: str, cell: Callable[[Row], Cell]) -> Column:
        return Column(name, heading, unit, [cell(row) for row in rows])

    all_of_them = [
        column("peak", "peak", memory.name, lambda row: _number(row.peak, memory)),
        column("held", "held after forward", memory.name, lambda row: _number(row.held, memory)),
        column("forward", "forward", clock.name, lambda row: _spread(row.forward, clock)),
        column("backward", "backward", clock.name, lambda row: _spread(row.backward, clock)),
        column("total", "total", clock.name, lambda row: _spread(row.total, clock)),
        column("saved", "memory saved", "%", lambda row: saved_cell(row, plain)),
        column("time", "time delta", "%", lambda row: delta_cell(row, plain)),
        column("GFLOP", "GFLOP run", "", lambda row: _number(row.gflop, work)),
        column("bits", "bitwise equal", "", _bits),
        column("replayed", "ops replayed", "", lambda row: _number(row.replayed, Unit("", 1, 0))),
    ]
    return [column for column in all_of_them if any(cell.text for cell in column.cells)]


def legend(run: Run) -> str:
    """What the columns that are there mean."""
    there = {column.name for subject in run.subjects for column in columns(subject)}
    return " ".join(text for name, text in _LEGEND.items() if name in there)


def mark_legend(run: Run, mark: str = f"{MARK} on the frontier") -> str:
    """What it means; empty where it is nowhere."""
    costs = dict.fromkeys(frontier_cost(s) for s in run.subjects if frontier(s))
    return " ".join(f"{mark}: {frontier_text(cost)}." for cost in costs)


def _number(value: float | None, unit: Unit) -> Cell:
    return Cell() if value is None else Cell(unit.number(value))


def _spread(value: Spread | None, unit: Unit) -> Cell:
    if value is None:
        return Cell()
    half = half_spread(value)
    return Cell(unit.number(value[1]), "" if half is None else unit.number(half))


def half_spread(value: Spread | None) -> float | None:
    """Half the distance between the quartiles; None for a single round, of which nothing is known."""
    return None if value is None or value[0] == value[2] else (value[2] - value[0]) / 2


def _percent(share: float | None, sign: str, half: float | None = None) -> Cell:
    if share is None:
        return Cell()
    spread = "" if half is None else f"{half * 100:.1f}"
    return Cell(f"{share * 100:{sign}z.1f}", spread)  # z: no "-0.0"


def _bits(row: Row) -> Cell:
    return Cell(printable(row.equal), tone=TONES.get(row.equal, "loud")) if row.equal else Cell()


def delta_cell(row: Row, plain: Row | None) -> Cell:
    """`time_delta` in percent, with its spread where rounds lie side by side."""
    return _percent(time_delta(row, plain), "+", half_spread(row.ratio))


def saved_cell(row: Row, plain: Row | None) -> Cell:
    return _percent(_saved(row, plain), "")


def _saved(row: Row, plain: Row | None) -> float | None:
    return None if row is plain else saved(row, plain)


def time_delta(row: Row, plain: Row | None) -> float | None:
    """0.12: takes 12 % longer than plain. Of rounds side by side where there are such."""
    if row is plain:
        return None
    if row.ratio is not None:
        return row.ratio[1] - 1
    if row.total is None or plain is None or plain.total is None or not plain.total[1]:
        return None
    return row.total[1] / plain.total[1] - 1


def step_time(row: Row, plain: Row | None) -> Spread | None:
    """Seconds that agree with `time_delta`: plain's median times the ratios of rounds side by side."""
    if row.ratio is None or plain is None or plain.total is None:
        return row.total
    low, middle, high = (plain.total[1] * ratio for ratio in row.ratio)
    return low, middle, high


def is_ours(row: Row) -> bool:
    """Retape's own, its output discard too."""
    return row.family in OURS


def shown(subject: Subject) -> list[int]:
    """Rows of its table: all that were run. `not_run` has the others."""
    return [index for index, row in enumerate(subject.rows) if not row.skipped]


def not_run(subject: Subject) -> str:
    """ "not run: Megatron's (needs the package megatron)"; empty if all were."""
    named = zip(labels(subject), subject.rows, strict=True)
    told = [f"{label} ({printable(row.skipped)})" for label, row in named if row.skipped]
    return f"not run: {', '.join(told)}" if told else ""


def labels(subject: Subject) -> list[str]:
    """A name for each row; with what it is wrapped around, where the method alone is ambiguous."""
    count = Counter(row.method for row in subject.rows)
    return [
        printable(
            f"{row.method}, {row.around}" if count[row.method] > 1 and row.around else row.method
        )
        for row in subject.rows
    ]


def note(row: Row) -> str:
    """Why a row has cells that are empty, or what is not equal."""
    if row.error:
        return printable(f"failed: {row.error}")
    if row.skipped:
        return printable(f"skipped: {row.skipped}")
    if not row.differs:
        return ""
    more = f" and {len(row.differs) - 1} more" if len(row.differs) > 1 else ""
    return printable(f"{row.equal}: {row.differs[0]}{more}")


def size_text(size: dict[str, Any] | None) -> str:
    """`{"layers": 8, "dtype": "float32", "width": 512}` -> "8 layers, float32, width 512"."""
    parts = []
    for name, value in (size or {}).items():
        if name == "layers":
            parts.append(f"{value} layer{'s' * (value != 1)}")
        else:
            parts.append(f"{value}" if name == "dtype" else f"{name} {value}")
    return printable(", ".join(parts))


def sizes_text(subject: Subject) -> str:
    if subject.time_size is None or subject.time_size == subject.size:
        return size_text(subject.size)
    other = {name: n for name, n in subject.time_size.items() if n != subject.size.get(name)}
    what = "times and gradients" if timed(subject) else "gradients compared"
    return f"{_of_the_size(subject)} at {size_text(subject.size)}; {what} at {size_text(other)}"


def _of_the_size(subject: Subject) -> str:
    """ "memory, GFLOP and ops replayed": what was counted while memory was."""
    there = [
        "memory",
        *["GFLOP"] * any(row.gflop is not None for row in subject.rows),
        *["ops replayed"] * any(row.replayed is not None for row in subject.rows),
    ]
    return listed(there)


def timed(subject: Subject) -> bool:
    return any(row.total is not None for row in subject.rows)


def compared(subject: Subject) -> bool:
    """Were gradients?"""
    return any(row.equal is not None for row in subject.rows)


def frontier(subject: Subject) -> list[int]:
    """Rows that no other beats, the cheapest first: in time, or in GFLOP where no times were taken."""
    return least_memory(subject, costs(subject, frontier_cost(subject)))


def frontier_cost(subject: Subject) -> str:
    """What the memory is paid with, on the frontier."""
    return "time" if costs(subject, "time") else "GFLOP"


def frontier_text(cost: str) -> str:
    little = "fewer" if cost == "GFLOP" else "less"
    return f"less memory takes more {cost}, {little} {cost} more memory"


def costs(subject: Subject, cost: str) -> dict[int, Spread]:
    """ "time" in seconds, or "GFLOP", of each row that has a peak too."""
    found = {}
    for index, row in enumerate(subject.rows):
        spread = step_time(row, subject.plain) if cost == "time" else _exactly(row.gflop)
        if row.peak is not None and spread is not None:
            found[index] = spread
    return found


def _exactly(value: float | None) -> Spread | None:
    return None if value is None else (value, value, value)


def least_memory(subject: Subject, paid: dict[int, Spread]) -> list[int]:
    """Of rows with right gradients those that no other beats in peak without being beaten in cost."""
    rows = subject.rows
    known = sorted(
        (spread[1], rows[i].peak, i) for i, spread in paid.items() if rows[i].equal != DIFFERENT
    )
    best: list[tuple[float, int, int]] = []
    for each in known:
        # Counts are exact: rows can be alike in both.
        if not best or each[1] < best[-1][1] or each[:2] == best[-1][:2]:
            best.append(each)
    return [index for _, _, index in best]
