"""What a check found, as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retape._html import Card
from retape.cli.gradcheck import table
from retape.cli.gradcheck.table import DIFFERENT, EQUAL, VACUOUS
from retape.cli.page import TONES, Cell, Page, Row, Section, render, write

__all__ = ["of_report", "render", "write"]

_VERDICTS = {
    EQUAL: "ranks compute what one process does, and the check could have failed",
    DIFFERENT: "ranks compute something else",
    VACUOUS: "nothing is proved",
}
_MOST = 300  # rows of a table of failures
_COLUMNS = ("what", "tensor", "kind", "error", "tolerance", "alpha", "residual")


def of_report(
    report: Mapping[str, Any],
    ranks: int | None,
    command: str,
    facts: Mapping[str, Any] | None = None,
) -> Page:
    """`ranks`: None if unknown. `facts`: of the machine; this one's, unless given."""
    rows = report["rows"]
    sections = [_runs(rows)]
    failures = [row for row in rows if row["kind"] != EQUAL and not row["follows"]]
    if failures:
        sections.append(_failures(failures, sum(row["follows"] for row in rows)))
    if report["self_test"]["rows"]:
        sections.append(_self_test(report["self_test"]))
    return Page(
        title="Do ranks compute what one process would have computed?",
        lead=f"A training step, run by {f'up to {ranks} ' if ranks else ''}ranks and by one process, from the same parameters, "
        "batch and random numbers. Every term of the loss alone, and all together. float64 decides; other "
        "dtypes may be off by what they round.",
        cards=_cards(report),
        sections=sections,
        vacuous=report["vacuous"],
        limits=report["notes"],
        command=command,
        facts=facts,
        inner_headings=_COLUMNS,
    )


def _cards(report: Mapping[str, Any]) -> list[Card]:
    rows, test = report["rows"], report["self_test"]
    exact = [table.error_of(row) for row in rows if row["dtype"] == "float64"]
    worst = table.error_text(max(exact, default=0.0))
    allowed = {
        row["tolerance"] for row in rows if row["dtype"] == "float64" and row["what"] == "gradient"
    }
    known = table.error_text(max(allowed, default=0.0))
    cards = [
        Card("verdict", report["kind"], _VERDICTS[report["kind"]], TONES[report["kind"]]),
        Card("worst in float64", worst, f"of the largest gradient; allowed {known}", "quiet"),
        Card("comparisons", str(len(rows)), "tensors and norms, of all runs", "quiet"),
    ]
    if test["rows"]:
        lives = test["mutants"] - test["killed"]
        figure = f"{test['killed']} of {test['mutants']}"
        text = (
            f"faults put in on purpose were noticed, {test['as_predicted']} of {test['predicted']} by "
            "the ratio that was predicted"
        )
        cards.append(Card("self-test", figure, text, "loud" if lives else "good"))
    else:
        cards.append(Card("self-test", "none", "no fault was put in on purpose", "quiet"))
    return cards


def _runs(rows: Sequence[Mapping[str, Any]]) -> Section:
    matrix = table.matrix_of(rows)
    dtypes = list(dict.fromkeys(dtype for _, dtype in matrix.lines))
    topologies = dict.fromkeys(topology for topology, _ in matrix.lines)
    lines = []
    for topology in topologies:
        for terms in matrix.columns:
            found = [matrix.cells.get((topology, dtype, terms)) for dtype in dtypes]
            cells = [_run(dtype, cell) for dtype, cell in zip(dtypes, found, strict=True)]
            lines.append(Row(topology, [Cell("terms", terms), *cells]))
    return Section(
        ["topology", "terms", *dtypes],
        lines,
        "Runs",
        "The largest difference in each run, divided by the largest number of the reference.",
    )


def _run(dtype: str, cell: table.Cell | None) -> Cell:
    if cell is None:
        return Cell(dtype, "")
    word = table.error_text(cell.error)
    tensors = [_tensor(row) for row in cell.rows]
    return Cell(dtype, word, table.SYMBOLS[cell.kind], TONES[cell.kind], inner=tensors)


def _tensor(row: Mapping[str, Any]) -> list[str]:
    numbers = [_number(row[name]) for name in _COLUMNS[3:]]
    return [row["what"], row["tensor"], row["kind"], *numbers]


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.6g}"


def _failures(rows: Sequence[Mapping[str, Any]], follow: int) -> Section:
    order = [DIFFERENT, VACUOUS]
    lines = []
    for row in sorted(rows, key=lambda row: order.index(row["kind"]))[:_MOST]:
        kind = row["kind"]
        cells = [
            Cell("run", f"{row['topology']}; {row['dtype']}; {row['terms']}"),
            Cell("verdict", kind, table.SYMBOLS[kind], TONES[kind]),
            Cell("off by", _number(row["error"])),
            Cell("alpha", _number(row["alpha"])),
            Cell("residual", _number(row["residual"])),
        ]
        lines.append(Row(f"{row['what']} {row['tensor']}", cells, row["reason"]))
    more = f"And {len(rows) - _MOST} more. " if len(rows) > _MOST else ""
    more += f"And {follow} that these explain: norms, parameters, sums of terms." if follow else ""
    return Section(
        ["tensor", "run", "verdict", "off by", "alpha", "residual"],
        lines,
        "What differs, or could not be judged",
        "alpha is the factor that fits best, residual what it leaves. A small residual is a wrong scale.",
        more,
    )


def _self_test(test: Mapping[str, Any]) -> Section:
    lines = []
    for row in sorted(test["rows"], key=lambda row: row["killed"]):
        killed = row["killed"]
        fitted = "" if row["fitted"] is None else f"{row['fitted']:.6g}"
        predicted = "" if row["predicted"] is None else f"{row['predicted']:.6g}"
        other = killed and predicted and not row["as_predicted"]
        noticed = "by another ratio" if other else "noticed" if killed else "not noticed"
        tone = "loud" if other else "good" if killed else "bad"
        cells = [
            Cell("at", f"{row['place']} {row['name']} of {row['group']}"),
            Cell("verdict", noticed, "✓" if killed else "✗", tone),
            Cell("predicted", predicted or "no one number"),
            Cell("fitted", f"{fitted} ({row['tensor']}, {row['terms']})" if fitted else ""),
        ]
        pool = f" of {row['pool']}" if row["pool"] else ""
        lines.append(Row(f"{row['mutation']}{pool}", cells, row["reason"]))
    return Section(
        ["broken", "at", "verdict", "predicted", "fitted"],
        lines,
        "Self-test",
        "Each number that a rank gives to a sum was broken in each way, one at a time, in the topology "
        f"“{test['topology']}”. The ratio is that of a gradient which is nothing but that contribution.",
    )
