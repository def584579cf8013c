"""The table of a subject as every renderer shows it: columns with one unit each, cells as text.

A column has one unit and one number of digits, so that figures can be compared by eye.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retape._text import GIB, KIB, MIB, printable
from retape.bench.result import BITWISE, CLOSE, DIFFERENT, Row, Run, Spread, Subject, saved

TONES = {BITWISE: "good", CLOSE: "loud", DIFFERENT: "bad"}
# By the column that it is about.
_LEGEND = {
    "peak": "Peak: parameters, inputs, gradients and activations together.",
    "held": "Held: activations when backward began.",
    "total": "Times: median ± half the distance between the quartiles, of interleaved rounds.",
    "saved": "Saved: beside plain.",
    "time": "Time delta: beside plain, of the same round.",
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
    gflop = 2 if max((row.gflop or 0 for row in rows), default=0) < 10 else 1

    def column(name: str, heading: str, unit: str, cell: Callable[[Row], Cell]) -> Column:
        return Column(name, heading, unit, [cell(row) for row in rows])

    all_of_them = [
        column("peak", "peak", memory.name, lambda row: _number(row.peak, memory)),
        column("held", "held after forward", memory.name, lambda row: _number(row.held, memory)),
        column("forward", "forward", clock.name, lambda row: _spread(row.forward, clock)),
        column("backward", "backward", clock.name, lambda row: _spread(row.backward, clock)),
        column("total", "total", clock.name, lambda row: _spread(row.total, clock)),
        column("saved", "memory saved", "%", lambda row: _percent(_saved(row, plain), "")),
        column("time", "time delta", "%", lambda row: _percent(time_delta(row, plain), "+")),
        column("GFLOP", "GFLOP run", "", lambda row: _number(row.gflop, Unit("", 1, gflop))),
        column("bits", "bitwise equal", "", _bits),
        column("replayed", "ops replayed", "", lambda row: _number(row.replayed, Unit("", 1, 0))),
    ]
    return [column for column in all_of_them if any(cell.text for cell in column.cells)]


def legend(run: Run) -> str:
    """What the columns that are there mean."""
    there = {column.name for subject in run.subjects for column in columns(subject)}
    return " ".join(text for name, text in _LEGEND.items() if name in there)


def _number(value: float | None, unit: Unit) -> Cell:
    return Cell() if value is None else Cell(unit.number(value))


def _spread(value: Spread | None, unit: Unit) -> Cell:
    if value is None:
        return Cell()
    low, middle, high = value
    return Cell(unit.number(middle), unit.number((high - low) / 2))


def _percent(share: float | None, sign: str) -> Cell:
    return Cell() if share is None else Cell(f"{share * 100:{sign}z.1f}")  # z: no "-0.0"


def _bits(row: Row) -> Cell:
    return Cell(printable(row.equal), tone=TONES.get(row.equal, "loud")) if row.equal else Cell()


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


def labels(subject: Subject) -> list[str]:
    """A name for each row; with what it is wrapped around, where the method alone does not tell."""
    count = Counter(row.method for row in subject.rows)
    return [
        printable(f"{row.method}, {row.around}" if count[row.method] > 1 and row.around else row.method)
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
    timed = any(row.total for row in subject.rows)
    what = "times and gradients" if timed else "gradients compared"
    other = {name: n for name, n in subject.time_size.items() if n != subject.size.get(name)}
    return f"memory at {size_text(subject.size)}; {what} at {size_text(other)}"


def frontier(subject: Subject) -> list[int]:
    """Rows with right gradients that no other such row beats in both peak and time, quickest first."""
    known = [
        (time[1], row.peak, index)
        for index, row in enumerate(subject.rows)
        if (time := step_time(row, subject.plain)) is not None
        and row.peak is not None
        and row.equal != DIFFERENT
    ]
    best: list[int] = []
    least = float("inf")
    for _, peak, index in sorted(known):
        if peak < least:
            best.append(index)
            least = peak
    return best
