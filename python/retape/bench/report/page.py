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
    plot: pareto.Plot | None
    pictures: list[timeline.Picture]
    columns: list[cells.Column]
    rows: list[TableRow]


@dataclass(frozen=True)
class Chosen:
    """A row of a subject in the overview."""

    label: str = ""
    saved: str = ""
    time: str = ""


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
    groups: list[tuple[str, list[Section]]]
    legend: str
    marks: dict[str, str]
    machine: list[tuple[str, str]]
    command: str


def render(run: Run, environment: dict[str, Any], command: str = "") -> str:
    return _html.render(
        Path(__file__).with_name("page.html.j2"),
        page=of_run(run, environment, command),
        pareto=pareto,
        timeline=timeline,
    )


def of_run(run: Run, environment: dict[str, Any], command: str = "") -> Page:
    groups: dict[str, list[Section]] = {}
    for number, subject in enumerate(run.subjects, 1):
        group = groups.setdefault(printable(subject.group), [])
        group.append(_section(f"s{number}", subject))
    return Page(
        title="What recomputing saves, and what it costs",
        lead="Each subject is one training step, forward and backward, run by every method on the same "
        "work. Memory is counted byte by byte, time is taken in interleaved rounds, and gradients "
        "are compared with plain autograd's, bit for bit.",
        cards=_cards(run),
        warnings=run.warnings,
        overview=_overview(run) if len(run.subjects) > 1 else [],
        groups=list(groups.items()),
        legend=cells.legend(run),
        marks=pareto.MARKS,
        machine=[(name.replace("_", " "), str(found)) for name, found in environment.items()],
        command=command,
    )


def _section(anchor: str, subject: Subject) -> Section:
    columns = cells.columns(subject)
    best = set(cells.frontier(subject))
    present = Counter(pareto.family_class(row.family) for row in subject.rows)
    most = max((timeline.peak(each) for each in subject.timelines), default=0)
    pictures = [timeline.picture(each, most) for each in subject.timelines]
    rows = [
        TableRow(
            label=label,
            family=pareto.family_class(row.family),
            best=index in best,
            ours=row.family == "retape",
            note=cells.note(row),
            tone="bad" if row.error else "quiet",
            cells=[column.cells[index] for column in columns],
        )
        for index, (label, row) in enumerate(zip(cells.labels(subject), subject.rows, strict=True))
    ]
    return Section(
        anchor,
        subject.key,
        subject.title,
        cells.sizes_text(subject),
        _sentence(subject),
        [(family, words) for family, words in FAMILIES.items() if present[family]],
        pareto.plot(subject),
        [picture for picture in pictures if picture is not None],
        columns,
        rows,
    )


def least(subject: Subject, ours: bool) -> Row | None:
    """The row with the lowest peak, and of those the quickest: of Retape's with plain's bits, or of all
    others but plain with right gradients."""
    right = (BITWISE,) if ours else (BITWISE, CLOSE)
    rows = [
        row
        for row in subject.rows
        if row.peak is not None
        and row.family != "plain"
        and (row.family == "retape") is ours
        and row.equal in right
    ]

    def cost(row: Row) -> tuple[int, float]:
        slower = cells.time_delta(row, subject.plain)
        return row.peak, float("inf") if slower is None else slower

    return min(rows, key=cost, default=None)


def _chosen(subject: Subject, row: Row | None) -> Chosen:
    if row is None:
        return Chosen()
    less, more = saved(row, subject.plain), cells.time_delta(row, subject.plain)
    return Chosen(
        _label(subject, row) + (", equal to rounding" if row.equal == CLOSE else ""),
        "" if less is None else f"{less:z.1%}",
        "" if more is None else f"{more:+z.1%}",
    )


def _label(subject: Subject, row: Row) -> str:
    place = next(index for index, each in enumerate(subject.rows) if each is row)
    return cells.labels(subject)[place]


def _sentence(subject: Subject) -> str:
    row = least(subject, ours=True)
    less = saved(row, subject.plain) if row else None
    if row is None or less is None:
        return ""
    more = cells.time_delta(row, subject.plain)
    text = f"{_label(subject, row)} needs {1 - less:.0%} of plain's peak"
    return f"{text}, in {1 + more:.2f} times its time." if more is not None else f"{text}."


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
    ours = [row for row in rows if row.family == "retape" and row.equal is not None]
    compared = [row for row in ours if not row.rounds]
    same = sum(row.equal == BITWISE for row in compared)
    failed, skipped = [row for row in rows if row.error], sum(bool(row.skipped) for row in rows)
    cards = [Card("subjects", str(len(run.subjects)), f"{len(rows)} rows in all", "quiet")]
    best = _best(run)
    if best is not None:
        subject, row, less = best
        text = f"{_label(subject, row)}, {subject.key}"
        cards.append(Card("most memory saved", f"{less:.0%}", text, "good" if less > 0 else "loud"))
    if compared:
        tone = "good" if same == len(compared) else "bad"
        others = f"; {len(ours) - len(compared)} more sum in another order"
        text = "of Retape's rows have plain's gradients" + others * (len(ours) > len(compared))
        cards.append(Card("bitwise equal", f"{same} of {len(compared)}", text, tone))
    if failed or skipped:
        text = f"failed, {skipped} skipped" if skipped else "failed"
        broken = any(row.breaks_promise for row in failed)
        tone = "bad" if broken else "loud" if failed else "quiet"
        cards.append(Card("not measured", str(len(failed)), text, tone))
    return cards


def _best(run: Run) -> tuple[Subject, Row, float] | None:
    found = []
    for subject in run.subjects:
        row = least(subject, ours=True)
        less = saved(row, subject.plain) if row is not None else None
        if less is not None:
            found.append((subject, row, less))
    return max(found, key=lambda each: each[2], default=None)
