"""A run as one HTML page: plots, timelines, tables, the machine and the command. See retape._html."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retape import _html
from retape._html import Card
from retape._text import listed, printable
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
class Chosen:
    """A row of a subject in the overview."""

    label: str = ""
    saved: cells.Cell = cells.Cell()
    time: cells.Cell = cells.Cell()


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
    subject: Subject
    size: str
    peak: str  # plain's
    ours: Chosen
    others: Chosen
    sentence: str
    families: list[tuple[str, str]]
    plots: list[pareto.Plot]
    pictures: list[timeline.Picture]
    columns: list[cells.Column]
    rows: list[TableRow]
    frontier: str  # what its mark means
    not_run: str


@dataclass(frozen=True)
class Page:
    title: str
    lead: str
    cards: list[Card]
    warnings: list[str]
    overview: list[Section]
    chosen: str  # which rows are in it
    timed: bool
    groups: list[tuple[str, list[Section]]]
    legend: str
    marks: dict[str, str]
    machine: list[tuple[str, str]]
    command: str


def render(run: Run, environment: dict[str, Any], command: str = "") -> str:
    page = of_run(run, environment, command)
    return _html.render(Path(__file__).with_name("page.html.j2"), page=page)


def of_run(run: Run, environment: dict[str, Any], command: str = "") -> Page:
    timed = any(cells.timed(subject) for subject in run.subjects)
    compared = any(cells.compared(subject) for subject in run.subjects)
    sections = [_section(f"s{i}", subject) for i, subject in enumerate(run.subjects, 1)]
    groups = dict.fromkeys(printable(section.subject.group) for section in sections)
    right = " and right gradients" * compared
    return Page(
        title="What recomputing saves, and what it costs",
        lead=_lead(timed, compared),
        cards=_cards(run),
        warnings=run.warnings,
        overview=sections if len(sections) > 1 else [],
        chosen=f"The row with the lowest peak{right}: of Retape, and of all others but plain.",
        timed=timed,
        groups=[
            (group, [s for s in sections if printable(s.subject.group) == group])
            for group in groups
        ],
        legend=" ".join(filter(None, (cells.legend(run), cells.mark_legend(run, "Frontier")))),
        marks=pareto.MARKS,
        machine=[(name.replace("_", " "), str(found)) for name, found in environment.items()],
        command=command,
    )


def _lead(timed: bool, compared: bool) -> str:
    """Of what was measured, and no more."""
    done = [
        "Memory is counted byte by byte",
        *["time is taken in interleaved rounds"] * timed,
        *["gradients are compared with plain autograd's, bit for bit"] * compared,
    ]
    missing = [
        *["no times were taken"] * (not timed),
        *["gradients were not compared"] * (not compared),
    ]
    sentences = [
        "Each subject is one training step, forward and backward, run by every method on the same work",
        ", and ".join([", ".join(done[:-1]), done[-1]]) if len(done) > 2 else listed(done),
        listed(missing).capitalize(),
    ]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _section(anchor: str, subject: Subject) -> Section:
    columns, names, shown = cells.columns(subject), cells.labels(subject), cells.shown(subject)
    best = set(cells.frontier(subject))
    plain, ours = subject.plain, least(subject, ours=True)
    rows = []
    for index in shown:
        row = subject.rows[index]
        rows.append(
            TableRow(
                names[index],
                pareto.family_class(row.family),
                index in best,
                cells.is_ours(row),
                cells.note(row),
                "bad" if row.error else "quiet",
                [column.cells[index] for column in columns],
            )
        )
    peak = ""
    if plain is not None and plain.peak is not None:
        unit = cells.bytes_unit([plain.peak])
        peak = f"{unit.number(plain.peak)} {unit.name}"
    most = max((timeline.peak(each) for each in subject.timelines), default=0)
    plots = (pareto.plot(subject, cost) for cost in ("time", "GFLOP"))
    pictures = (timeline.picture(each, most) for each in subject.timelines)
    there = {row.family for row in rows}
    return Section(
        anchor,
        subject,
        cells.sizes_text(subject),
        peak,
        _chosen(subject, ours),
        _chosen(subject, least(subject, ours=False)),
        _sentence(subject),
        [(family, words) for family, words in FAMILIES.items() if family in there],
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
    compared = cells.compared(subject)

    def may_be(row: Row) -> bool:
        if row.peak is None or row.family == "plain" or cells.is_ours(row) is not ours:
            return False
        if not compared:
            return not row.error and not (ours and row.rounds)
        return row.equal in ((BITWISE,) if ours else (BITWISE, CLOSE))

    def cost(row: Row) -> tuple[float, ...]:
        paid = (cells.time_delta(row, subject.plain), row.gflop)
        return (row.peak, *(float("inf") if each is None else each for each in paid))

    return min(filter(may_be, subject.rows), key=cost, default=None)


def _chosen(subject: Subject, row: Row | None) -> Chosen:
    if row is None:
        return Chosen()
    label = _label(subject, row) + ", equal to rounding" * (row.equal == CLOSE)
    plain = subject.plain
    return Chosen(label, cells.saved_cell(row, plain), cells.delta_cell(row, plain))


def _label(subject: Subject, row: Row) -> str:
    place = next(index for index, each in enumerate(subject.rows) if each is row)
    return cells.labels(subject)[place]


def _sentence(subject: Subject) -> str:
    """What the best of Retape's rows needs."""
    row, plain = least(subject, ours=True), subject.plain
    less = saved(row, plain) if row else None
    if row is None or less is None:
        return ""
    name = _label(subject, row)
    if f"{less:z.1%}" == "0.0%":
        text = f"Nothing is saved here: {name} needs plain's peak"
    else:
        part = f"{1 - less:.0%}"
        text = f"{name} needs {f'{1 - less:.1%}' if part == '100%' else part} of plain's peak"
    more = cells.time_delta(row, plain)
    if more is not None:
        half = cells.half_spread(row.ratio)
        spread = "" if half is None else f" ± {half:.2f}"
        text += f", in {1 + more:.2f}{spread} times its time"
    return f"{text}."


def _cards(run: Run) -> list[Card]:
    rows = [row for subject in run.subjects for row in subject.rows]
    ran = [row for row in rows if not row.skipped]
    cards = [Card("subjects", str(len(run.subjects)), f"{len(ran)} rows in all", "quiet")]
    best = [(saved(row, s.plain), s, row) for s in run.subjects if (row := least(s, ours=True))]
    best = [each for each in best if each[0] is not None]
    if best:
        less, subject, row = max(best, key=lambda each: each[0])
        text = f"{_label(subject, row)}, {subject.key}"
        cards.append(Card("most memory saved", f"{less:.0%}", text, "good" if less > 0 else "loud"))
    return [*cards, *_bits_card(ran), *_missing_card(rows)]


def _bits_card(rows: list[Row]) -> list[Card]:
    ours = [row for row in rows if cells.is_ours(row) and row.equal is not None]
    compared = [row for row in ours if not row.rounds]
    if not compared:
        return []
    same = sum(row.equal == BITWISE for row in compared)
    others = f"; {len(ours) - len(compared)} more sum in another order"
    text = "of Retape's rows have plain's gradients" + others * (len(ours) > len(compared))
    tone = "good" if same == len(compared) else "bad"
    return [Card("bitwise equal", f"{same} of {len(compared)}", text, tone)]


def _missing_card(rows: list[Row]) -> list[Card]:
    failed, skipped = [row for row in rows if row.error], sum(bool(row.skipped) for row in rows)
    count = len(failed) + skipped
    if not count:
        return []
    told = [*[f"{len(failed)} failed"] * bool(failed), *[f"{skipped} not run"] * bool(skipped)]
    tone = "loud" if failed else "quiet"
    tone = "bad" if any(row.breaks_promise for row in failed) else tone
    text = f"row{'s' * (count != 1)}: {', '.join(told)}"
    return [Card("not measured", str(count), text, tone)]
