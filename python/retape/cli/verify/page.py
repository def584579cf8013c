"""Results as one HTML page: nothing is loaded, no script runs, every name is escaped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retape import _artefact, _html
from retape._html import Card
from retape._text import format_seconds
from retape.cli.verify import table
from retape.cli.verify.case import DIFFERENT, EQUAL, NOT_BUILT, VACUOUS, Result
from retape.cli.verify.faults import CAUGHT, MISNAMED, MISSED, NOT_STRUCK, FaultVerdict
from retape.hazards import table as hazard_table
from retape.hazards.compare import Row as HazardRow
from retape.hazards.hazard import addresses
from retape.hazards.ways import WAYS

FAULT_TONES = {CAUGHT: "good", MISNAMED: "bad", MISSED: "bad", NOT_STRUCK: "loud"}
FAULT_SYMBOLS = {CAUGHT: "✓", MISNAMED: "✗", MISSED: "✗", NOT_STRUCK: "○"}
TONES = {EQUAL: "good", DIFFERENT: "bad", VACUOUS: "loud", NOT_BUILT: "quiet"}


@dataclass(frozen=True)
class Cell:
    label: str  # of its column, for narrow screens
    word: str
    symbol: str = ""
    detail: str = ""
    more: str = ""  # folded under the detail
    tone: str = ""  # none: plain text
    ours: bool = False


@dataclass(frozen=True)
class Row:
    title: str
    cells: list[Cell]
    story: str = ""
    sources: list[tuple[str, str]] = field(default_factory=list)
    details: str = ""
    command: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    lead: str
    cards: list[Card]
    headings: list[str]
    rows: list[Row]
    notes: list[str]
    command: str
    environment: str = ""


def write(path: str, page: Page) -> None:
    _html.write(path, render(page))


def render(page: Page) -> str:
    return _html.render(Path(__file__).with_name("page.html.j2"), page=page)


def of_hazards(rows: Sequence[HazardRow]) -> Page:
    cards = []
    for way, (label, _, _) in zip(WAYS[1:], hazard_table.summary(list(rows)), strict=True):
        tones = [hazard_table.shown(row, way.key).tone for row in rows]
        wrong, stopped = tones.count("bad"), tones.count("loud")
        text = "wrong without a word" + (f", {stopped} stopped with an error" if stopped else "")
        tone = "bad" if wrong else "good"
        cards.append(Card(label, f"{wrong} of {len(rows)}", text, tone))
    return Page(
        title="What a second call of your code does to gradients",
        lead="Activation checkpointing forgets what forward computed and gets it back for backward. "
        "torch.utils.checkpoint gets it back by calling your code again. Each row is a small model "
        "that is right when its code runs once. Gradients, buffers, generators and outputs are "
        "compared with plain autograd's, bit for bit.",
        cards=cards,
        headings=["", *(way.label for way in WAYS)],
        rows=[_hazard_row(number, row) for number, row in enumerate(rows, 1)],
        notes=[hazard_table.LEGEND, hazard_table.WHAT_THE_WAYS_ARE],
        command="retape verify --hazards --html hazards.html",
        environment=_environment(),
    )


def _hazard_row(number: int, row: HazardRow) -> Row:
    cells = []
    for way in WAYS:
        shown = hazard_table.shown(row, way.key)
        cells.append(
            Cell(
                way.label,
                shown.word,
                shown.symbol,
                shown.detail,
                shown.error,
                shown.tone,
                way.key == "replay",
            )
        )
    hazard = row.hazard
    return Row(f"{number}. {hazard.title}", cells, hazard.story, addresses(hazard.sources))


def of_results(results: Sequence[Result], named: Collection[str] = ()) -> Page:
    counts = table.counts(results)
    what = {
        EQUAL: "every bit the same",
        DIFFERENT: "a bit is not the same",
        VACUOUS: "nothing was proved",
        NOT_BUILT: "could not run",
    }
    cards = [
        Card(kind, str(counts[kind]), text, TONES[kind] if counts[kind] else "quiet")
        for kind, text in what.items()
    ]
    headings = ["subject", "recomputed", "dtype", "verdict", "tensors", "replayed", "time"]
    return Page(
        title="Plain against recomputed, bit for bit",
        lead="Each row is a training step, run plain and recomputed from the same parameters, buffers "
        "and generators. Outputs, losses, gradients, buffers and generators are compared.",
        cards=cards,
        headings=headings,
        rows=[_result_row(result, named) for result in results],
        notes=[],
        command=results[0].command if len(results) == 1 else "",
        environment=_environment(),
    )


def _result_row(result: Result, named: Collection[str]) -> Row:
    case, verdict = result.case, result.verdict
    failed = result.is_failure(named)
    symbol = table.SYMBOLS[result.kind]
    again = (verdict.ops_replayed or verdict.reruns) if verdict is not None else ""
    cells = [
        Cell("recomputed", case.how),
        Cell("dtype", case.dtype or ""),
        Cell("verdict", result.kind, symbol, tone=TONES[result.kind]),
        Cell("tensors", str(verdict.tensors_compared) if verdict is not None else ""),
        Cell("replayed", str(again)),
        Cell("time", format_seconds(result.seconds)),
    ]
    return Row(
        case.subject,
        cells,
        story=result.cause,
        details=result.explanation if failed else "",
        command=result.command if failed else "",
    )


def of_faults(found: Sequence[FaultVerdict]) -> Page:
    """What became of each fault: that a row with one is not equal is as it should be."""
    kinds = [each.kind for each in found]
    texts = {
        CAUGHT: "the first thing told",
        MISNAMED: "found, and told as something else",
        MISSED: "it struck, and nobody noticed",
        NOT_STRUCK: "nothing here does what it breaks",
    }
    cards = []
    for kind, text in texts.items():
        tone = FAULT_TONES[kind] if kinds.count(kind) else "quiet"
        cards.append(Card(kind, f"{kinds.count(kind)} of {len(found)}", text, tone))
    return Page(
        title="Faults injected on purpose",
        lead="A proof that cannot fail proves nothing. Each row breaks one thing inside Retape; wherever "
        "that strikes, verify must notice, and tell it first and by its name.",
        cards=cards,
        headings=["fault", "verdict", "struck", "by"],
        rows=[_fault_row(each) for each in found],
        notes=[],
        command="",
        environment=_environment(),
    )


def _fault_row(found: FaultVerdict) -> Row:
    cells = [
        Cell("verdict", found.kind, FAULT_SYMBOLS[found.kind], tone=FAULT_TONES[found.kind]),
        Cell("struck", str(found.hits)),
        Cell("by", found.by),
    ]
    command = "" if found.kind == CAUGHT else found.command
    return Row(found.name, cells, story=found.text, details=found.cause, command=command)


def _environment() -> str:
    facts = _artefact.environment()
    return f"retape {facts['retape']}, torch {facts['torch']}, Python {facts['python']}, {facts['cpu']}"
