"""A run as one HTML page: plots, timelines, tables, the machine and the command. See retape._html."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retape import _html
from retape._html import Card
from retape._text import printable
from retape.bench import cells
from retape.bench.report import pareto, timeline
from retape.bench.result import BITWISE, CLOSE, Row, Run, Subject, saved

FAMILIES = {
    "plain": "plain autograd",
    "retape": "Retape",
    "torch": "torch.utils.checkpoint",
    "output-discard": "output discard",
    "compile": "torch.compile",
    "other": "other",
}


@dataclass(frozen=True)
class TableRow:
    label: str
    family: str
    best: bool
    ours: bool
    note: str
    tone: str
    cells: list[cells.Cell]


@dataclass(frozen=True)
class Section:
    anchor: str
    key: str
    title: str
    size: str
    sentence: str
    families: list[tuple[str, str]]
    plots: list[pareto.Plot]
    pictures: list[timeline.Picture]
    columns: list[cells.Column]
    rows: list[TableRow]
    frontier: str  # what its mark means
    not_run: str


@dataclass(frozen=True)
class Chosen:
    """A row of a subject in the overview."""

    label: str = ""
    saved: cells.Cell = cells.Cell()
    time: cells.Cell = cells.Cell()


@dataclass(frozen=True)
class Summary:
    anchor: str
    key: str
    peak: str
    ours: Chosen
    others: Chosen


@dataclass(frozen=True)
class Page:
    title: str
    lead: str
    cards: list[Card]
    warnings: list[str]
    overview: list[Summary]
    chosen: str  # which rows are in it
    timed: bool
    groups: list[tuple[str, list[Section]]]
    legend: str
    marks: dict[str, str]
    machine: list[tuple[str, str]]
    command: str


def render(run: Run, environment: dict[str, Any], command: str = "") -> str:
    return _html.render(
        Path(__file__).with_name("page.html.j2"),
        page=of_run(run, environment, command),
    )


def of_run(run: Run, environment: dict[str, Any], command: str = "") -> Page:
    groups: dict[str, list[Section]] = {}
    for number, subject in enumerate(run.subjects, 1):
        group = groups.setdefault(printable(subject.group), [])
        group.append(_section(f"s{number}", subject))
    return Page(
        title="What recomputing saves, and what it costs",
        lead=_lead(run),
        cards=_cards(run),
        warnings=run.warnings,
        overview=_overview(run) if len(run.subjects) > 1 else [],
        chosen=_chosen_text(run),
        timed=_timed(run),
        groups=list(groups.items()),
        legend=" ".join(filter(None, (cells.legend(run), cells.mark_legend(run, "Frontier")))),
        marks=pareto.MARKS,
        machine=[(name.replace("_", " "), str(found)) for name, found in environment.items()],
        command=command,
    )


def _lead(run: Run) -> str:
    """Of what was measured, and no more."""
    timed, compared = _timed(run), _compared(run)
    done = ["Memory is counted byte by byte"]
    done += ["time is taken in interleaved rounds"] * timed
    done += ["gradients are compared with plain autograd's, bit for bit"] * compared
    missing = ["no times were taken"] * (not timed) + ["gradients were not compared"] * (
        not compared
    )
    sentences = [
        "Each subject is one training step, forward and backward, run by every method on the same work",
        done[0]
        if len(done) == 1
        else f"{', '.join(done[:-1])}{',' * (len(done) > 2)} and {done[-1]}",
        " and ".join(missing).capitalize(),
    ]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _timed(run: Run) -> bool:
    return any(cells.timed(subject) for subject in run.subjects)


def _compared(run: Run) -> bool:
    return any(cells.compared(subject) for subject in run.subjects)


def _section(anchor: str, subject: Subject) -> Section:
    columns = cells.columns(subject)
    best = set(cells.frontier(subject))
    shown = cells.shown(subject)
    names = cells.labels(subject)
    present = Counter(pareto.family_class(subject.rows[index].family) for index in shown)
    most = max((timeline.peak(each) for each in subject.timelines), default=0)
    pictures = [timeline.picture(each, most) for each in subject.timelines]
    rows = [
        TableRow(
            label=names[index],
            family=pareto.family_class(subject.rows[index].family),
            best=index in best,
            ours=cells.is_ours(subject.rows[index]),
            note=cells.note(subject.rows[index]),
            tone="bad" if subject.rows[index].error else "quiet",
            cells=[column.cells[index] for column in columns],
        )
        for index in shown
    ]
    plots = [pareto.plot(subject, cost) for cost in ("time", "GFLOP")]
    return Section(
        anchor,
        subject.key,
        subject.title,
        cells.sizes_text(subject),
        _sentence(subject),
        [(family, words) for family, words in FAMILIES.items() if present[family]],
        [plot for plot in plots if plot is not None],
        [picture for picture in pictures if picture is not None],
        columns,
        rows,
        cells.frontier_text(cells.frontier_cost(subject)),
        cells.not_run(subject),
    )


def least(subject: Subject, ours: bool) -> Row | None:
    """The row with the lowest peak, and of those the quickest, or the one with the fewest GFLOP: of
    Retape's with plain's bits, or of all others but plain with right gradients. Where none were
    compared, of those that promise them."""
    rows = [
        row
        for row in subject.rows
        if row.peak is not None
        and row.family != "plain"
        and cells.is_ours(row) is ours
        and _may_be_best(row, ours, cells.compared(subject))
    ]

    def cost(row: Row) -> tuple[float, ...]:
        paid = (cells.time_delta(row, subject.plain), row.gflop)
        return (row.peak, *(float("inf") if each is None else each for each in paid))

    return min(rows, key=cost, default=None)


def _may_be_best(row: Row, ours: bool, compared: bool) -> bool:
    if not compared:
        return not row.error and not (ours and row.rounds)
    return row.equal in ((BITWISE,) if ours else (BITWISE, CLOSE))


def _chosen_text(run: Run) -> str:
    right = " and right gradients" * _compared(run)
    return f"The row with the lowest peak{right}: of Retape, and of all others but plain."


def _chosen(subject: Subject, row: Row | None) -> Chosen:
    if row is None:
        return Chosen()
    return Chosen(
        _label(subject, row) + (", equal to rounding" if row.equal == CLOSE else ""),
        cells.saved_cell(row, subject.plain),
        cells.delta_cell(row, subject.plain),
    )


def _label(subject: Subject, row: Row) -> str:
    place = next(index for index, each in enumerate(subject.rows) if each is row)
    return cells.labels(subject)[place]


def _sentence(subject: Subject) -> str:
    row = least(subject, ours=True)
    less = saved(row, subject.plain) if row else None
    if row is None or less is None:
        return ""
    return f"{_memory_text(_label(subject, row), less)}{_time_text(row, subject.plain)}."


def _memory_text(name: str, less: float) -> str:
    if f"{less:z.1%}" == "0.0%":
        return f"Nothing is saved here: {name} needs plain's peak"
    part = f"{1 - less:.0%}"
    return f"{name} needs {f'{1 - less:.1%}' if part == '100%' else part} of plain's peak"


def _time_text(row: Row, plain: Row | None) -> str:
    more = cells.time_delta(row, plain)
    if more is None:
        return ""
    half = cells.half_spread(row.ratio)
    spread = "" if half is None else f" ± {half:.2f}"
    return f", in {1 + more:.2f}{spread} times its time"


def _overview(run: Run) -> list[Summary]:
    found = []
    for number, subject in enumerate(run.subjects, 1):
        plain = subject.plain
        peak = ""
        if plain is not None and plain.peak is not None:
            unit = cells.bytes_unit([plain.peak])
            peak = f"{unit.number(plain.peak)} {unit.name}"
        ours = _chosen(subject, least(subject, ours=True))
        others = _chosen(subject, least(subject, ours=False))
        found.append(Summary(f"s{number}", subject.key, peak, ours, others))
    return found


def _cards(run: Run) -> list[Card]:
    rows = [row for subject in run.subjects for row in subject.rows]
    ran = [row for row in rows if not row.skipped]
    cards = [Card("subjects", str(len(run.subjects)), f"{len(ran)} rows in all", "quiet")]
    best = _best(run)
    if best is not None:
        subject, row, less = best
        text = f"{_label(subject, row)}, {subject.key}"
        cards.append(Card("most memory saved", f"{less:.0%}", text, "good" if less > 0 else "loud"))
    made = (_bits_card(ran), _missing_card(rows))
    return cards + [card for card in made if card is not None]


def _bits_card(rows: list[Row]) -> Card | None:
    ours = [row for row in rows if cells.is_ours(row) and row.equal is not None]
    compared = [row for row in ours if not row.rounds]
    if not compared:
        return None
    same = sum(row.equal == BITWISE for row in compared)
    others = f"; {len(ours) - len(compared)} more sum in another order"
    text = "of Retape's rows have plain's gradients" + others * (len(ours) > len(compared))
    tone = "good" if same == len(compared) else "bad"
    return Card("bitwise equal", f"{same} of {len(compared)}", text, tone)


def _missing_card(rows: list[Row]) -> Card | None:
    failed, skipped = [row for row in rows if row.error], sum(bool(row.skipped) for row in rows)
    if not failed and not skipped:
        return None
    told = [f"{len(failed)} failed"] * bool(failed) + [f"{skipped} not run"] * bool(skipped)
    text = f"row{'s' * (len(failed) + skipped != 1)}: {', '.join(told)}"
    broken = any(row.breaks_promise for row in failed)
    tone = "bad" if broken else "loud" if failed else "quiet"
    return Card("not measured", str(len(failed) + skipped), text, tone)


def _best(run: Run) -> tuple[Subject, Row, float] | None:
    found = []
    for subject in run.subjects:
        row = least(subject, ours=True)
        less = saved(row, subject.plain) if row is not None else None
        if less is not None:
            found.append((subject, row, less))
    return max(found, key=lambda each: each[2], default=None)
