"""Results of `retape verify` as one HTML page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from retape._html import Card
from retape._text import format_seconds
from retape.cli.page import TONES, Cell, Page, Row, Section, render, write
from retape.cli.verify import table
from retape.cli.verify.case import DIFFERENT, EQUAL, NOT_BUILT, VACUOUS, Result
from retape.cli.verify.faults import CAUGHT, MISNAMED, MISSED, NOT_STRUCK, FaultVerdict
from retape.hazards import table as hazard_table
from retape.hazards.compare import Row as HazardRow
from retape.hazards.hazard import addresses
from retape.hazards.ways import WAYS

__all__ = ["of_faults", "of_hazards", "of_results", "render", "write"]

FAULT_TONES = {CAUGHT: "good", MISNAMED: "bad", MISSED: "bad", NOT_STRUCK: "loud"}
FAULT_SYMBOLS = {CAUGHT: "✓", MISNAMED: "✗", MISSED: "✗", NOT_STRUCK: "○"}


def of_hazards(rows: Sequence[HazardRow]) -> Page:
    cards = []
    for way in WAYS[1:]:
        tones = [hazard_table.shown(row, way.key).tone for row in rows]
        wrong, stopped = tones.count("bad"), tones.count("loud")
        text = "silently wrong" + (f", {stopped} stopped with an error" if stopped else "")
        cards.append(Card(way.label, f"{wrong} of {len(rows)}", text, "bad" if wrong else "good"))
    made = [_hazard_row(number, row) for number, row in enumerate(rows, 1)]
    return Page(
        "What a second call of your code does to gradients",
        "Activation checkpointing forgets what forward computed and restores it for backward. "
        "torch.utils.checkpoint restores it by calling your code again. Each row is a small model "
        "that is right when its code runs once. Gradients, buffers, generators and outputs are "
        "compared with plain autograd's, bit for bit.",
        cards,
        [Section(["", *(way.label for way in WAYS)], made)],
        notes=[hazard_table.LEGEND, hazard_table.WHAT_THE_WAYS_ARE],
        command="retape verify --hazards --html hazards.html",
    )


def _hazard_row(number: int, row: HazardRow) -> Row:
    cells = []
    for way in WAYS:
        cell, ours = hazard_table.shown(row, way.key), way.key == "replay"
        cells.append(
            Cell(way.label, cell.word, cell.symbol, cell.tone, cell.detail, cell.error, ours)
        )
    hazard = row.hazard
    return Row(f"{number}. {hazard.title}", cells, hazard.story, addresses(hazard.sources))


def of_results(results: Sequence[Result], named: Collection[str] = ()) -> Page:
    texts = {
        EQUAL: "every bit the same",
        DIFFERENT: "a bit is not the same",
        VACUOUS: "nothing was proved",
        NOT_BUILT: "could not run",
    }
    headings = ["subject", "recomputed", "dtype", "verdict", "tensors", "replayed", "time"]
    return Page(
        "Plain against recomputed, bit for bit",
        "Each row is a training step, run plain and recomputed from the same parameters, buffers "
        "and generators. Outputs, losses, gradients, buffers and generators are compared.",
        _counted([result.kind for result in results], texts, TONES),
        [Section(headings, [_result_row(result, named) for result in results])],
        command=results[0].command if len(results) == 1 else "",
    )


def _counted(
    kinds: Sequence[str], texts: Mapping[str, str], tones: Mapping[str, str], of: str = ""
) -> list[Card]:
    counts = {kind: kinds.count(kind) for kind in texts}
    return [
        Card(kind, f"{counts[kind]}{of}", text, tones[kind] if counts[kind] else "quiet")
        for kind, text in texts.items()
    ]


def _result_row(result: Result, named: Collection[str]) -> Row:
    case, verdict = result.case, result.verdict
    again = (verdict.ops_replayed or verdict.reruns) if verdict is not None else ""
    cells = [
        Cell("recomputed", case.how),
        Cell("dtype", case.dtype or ""),
        Cell("verdict", result.kind, table.SYMBOLS[result.kind], TONES[result.kind]),
        Cell("tensors", str(verdict.tensors_compared) if verdict is not None else ""),
        Cell("replayed", str(again)),
        Cell("time", format_seconds(result.seconds)),
    ]
    failed = {"details": result.explanation, "command": result.command}
    return Row(case.subject, cells, result.cause, **(failed if result.is_failure(named) else {}))


def of_faults(found: Sequence[FaultVerdict]) -> Page:
    """The verdict on each fault. A row with a fault should not be equal."""
    texts = {
        CAUGHT: "reported first",
        MISNAMED: "found, and reported as something else",
        MISSED: "it struck, and nothing noticed",
        NOT_STRUCK: "nothing here does what it breaks",
    }
    return Page(
        "Faults injected on purpose",
        "A proof that cannot fail proves nothing. Each row breaks one thing inside Retape; wherever "
        "that strikes, verify must notice it, and report it first and by its name.",
        _counted([each.kind for each in found], texts, FAULT_TONES, f" of {len(found)}"),
        [Section(["fault", "verdict", "struck", "by"], [_fault_row(each) for each in found])],
    )


def _fault_row(found: FaultVerdict) -> Row:
    cells = [
        Cell("verdict", found.kind, FAULT_SYMBOLS[found.kind], FAULT_TONES[found.kind]),
        Cell("struck", str(found.hits)),
        Cell("by", found.by),
    ]
    command = "" if found.kind == CAUGHT else found.command
    return Row(found.name, cells, found.text, details=found.cause, command=command)
