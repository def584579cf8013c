"""What `retape gradcheck` found, shown again: from its artefact, from that of a report of it, or from the JSON
that `retape::dist::GradReport::json()` gives, which has nothing around it."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retape import UsageError, _artefact
from retape._text import Exit
from retape.bench.report.csv import text as csv_text
from retape.bench.report.markdown import code, escape, table_of
from retape.cli.gradcheck import page, table
from retape.cli.gradcheck.messages import RankError
from retape.cli.gradcheck.table import DIFFERENT, EQUAL
from retape.cli.page import Page

if TYPE_CHECKING:
    from rich.console import Console

_REPORT = {"kind", "exit_code", "vacuous", "notes", "rows", "self_test"}
_FAILED = {"ranks", "kind", "errors"}
_COLUMNS = (
    "topology",
    "dtype",
    "terms",
    "what",
    "tensor",
    "kind",
    "error",
    "tolerance",
    "alpha",
    "residual",
)
_OF_BENCH = ("compare", "fail", "judge")


@dataclass(frozen=True)
class Found:
    result: dict[str, Any]  # of the artefact
    environment: dict[str, Any]  # empty: the JSON does not say
    command: str

    @property
    def failed(self) -> bool:
        return self.result["kind"] is None

    @property
    def text(self) -> str:
        return self.result.get("text") or text_of(self.result)


def load(path: str) -> Found | None:
    """None: it is something else. UsageError where it is not as this version writes it."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("format", _artefact.FORMAT) != _artefact.FORMAT:
        return None
    result = content.get("result", content)
    if not isinstance(result, dict) or not (_REPORT <= result.keys() or _FAILED <= result.keys()):
        return None
    try:
        found = Found(
            result, dict(content.get("environment") or {}), str(content.get("command", ""))
        )
        _try(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path}: expected comparisons as this version of Retape writes them, got "
            f"{type(error).__name__}: {error}. Fix: use the version that wrote it, or run that check again."
        ) from None
    return found


def _try(found: Found) -> None:
    """Whatever is shown; raises where something is not there."""
    if found.failed:
        _errors(found.result)
    else:
        Exit(found.result["exit_code"])
        page_of(found)
        markdown(found)
        render_csv(found.result)


def show(found: Found, args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    for name in _OF_BENCH:
        if getattr(args, name):
            raise UsageError(
                f"--{name} is for what a bench measured, and {args.artefact} is of a gradcheck. Fix: leave it out."
            )
    made = {"markdown": lambda: markdown(found), "csv": lambda: render_csv(found.result)}
    made["html"] = lambda: page.render(page_of(found))
    asked = [name for name in made if getattr(args, name) is not None]
    if found.failed:
        if asked:
            raise UsageError(
                f"--{asked[0]}: ranks failed, and nothing was compared. Fix: leave it out."
            )
        from retape.cli.gradcheck.command import print_errors  # which imports torchrun

        print_errors(_errors(found.result), console)
        return Exit.RANK, found.result
    table.print_report(found.result, found.text, console)
    for name in asked:
        path = getattr(args, name)
        Path(path).write_text(made[name](), encoding="utf-8")
        console.print(f"Written: {path}", markup=False)
    return Exit(found.result["exit_code"]), found.result


def _errors(result: Mapping[str, Any]) -> list[RankError]:
    return [
        RankError(each["rank"], str(each["kind"]), str(each["text"])) for each in result["errors"]
    ]


def text_of(report: Mapping[str, Any]) -> str:
    """Lines for people, where the JSON has none: C++ writes numbers, and its text apart."""
    rows, test = report["rows"], report["self_test"]
    topologies = "; ".join(dict.fromkeys(row["topology"] for row in rows))
    wrong = sum(row["kind"] == DIFFERENT for row in rows)
    of = f"{wrong} of {len(rows)}" if report["kind"] == DIFFERENT else str(len(rows))
    lines = [f"{report['kind']}: {of} comparisons ({topologies})"]
    for row in rows:
        if row["kind"] != EQUAL and not row["follows"]:
            run = f"[{row['topology']}; {row['dtype']}; {row['terms']}]"
            lines.append(f'{run} {row["what"]} "{row["tensor"]}": {row["reason"]}')
    lines += [f"vacuous: {reason}" for reason in report["vacuous"]]
    if test["rows"]:
        lines.append(
            f"self-test at {test['topology']}: {test['killed']} of {test['mutants']} mutants noticed"
        )
    return "\n  ".join([*lines, *(f"note: {note}" for note in report["notes"])])


def page_of(found: Found) -> Page:
    return page.of_report(found.result, found.result.get("ranks"), found.command, found.environment)


def markdown(found: Found) -> str:
    matrix = table.matrix_of(found.result["rows"])
    lines = [
        [
            *map(escape, line),
            *(each.text if (each := matrix.cells.get((*line, t))) else "–" for t in matrix.columns),
        ]
        for line in matrix.lines
    ]
    first, *others = found.text.splitlines()
    parts = [
        "# retape gradcheck",
        f"Made by {code(found.command)}" if found.command else "",
        f"**{escape(first)}**",
    ]
    parts.append(table_of(["topology", "dtype", *map(escape, matrix.columns)], lines))
    parts.append("How far ranks are off, of the largest number of one process.")
    parts.append("\n".join(f"- {escape(line)}" for line in others))
    return "\n\n".join(part for part in parts if part) + "\n"


def render_csv(report: Mapping[str, Any]) -> str:
    """A line for each comparison; what is not finite is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_COLUMNS, "guesses", "reason"])
    writer.writerows(_line(row) for row in report["rows"])
    return out.getvalue()


def _line(row: Mapping[str, Any]) -> Sequence[Any]:
    names = [csv_text(row[name]) for name in _COLUMNS[:6]]
    numbers = [None if row[name] is None else float(row[name]) for name in _COLUMNS[6:]]
    return [*names, *numbers, csv_text("; ".join(row["guesses"])), csv_text(row["reason"])]
