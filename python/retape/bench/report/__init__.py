"""The report of `retape bench`, from a `retape.bench.result.Run`: what a verb does with one.

    def add_arguments(parser):
        report.add_arguments(parser)             # --markdown, --csv, --html, --compare, --fail, --judge

    def run(args, console):
        asked = report.check(args)               # exits with 2 before minutes of work
        run = measure(...)                       # under retape._progress.progress: what, how long still
                                                 # terminal.print_subject(subject) as each one ends
        return report.finish(run, asked, args, console)

The renderers are `terminal`, `markdown`, `csv` and `page`. What they share is in
`retape.bench.cells`: one table, the same columns, units and digits everywhere.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retape import UsageError, _artefact
from retape._text import Exit
from retape.bench import compare, judge
from retape.bench.report import csv, markdown, page, terminal
from retape.bench.result import VACUOUS, Run

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Asked",
    "add_arguments",
    "check",
    "csv",
    "finish",
    "markdown",
    "page",
    "terminal",
    "write",
]


@dataclass(frozen=True)
class Asked:
    """What the options of `add_arguments` mean."""

    baseline: compare.Baseline | None = None
    rules: list[compare.Rule] | None = None  # None: compare, and fail on nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for option, text in (
        ("--markdown", "the tables as Markdown"),
        ("--csv", "a line for each row, in bytes and seconds"),
        ("--html", "one page with plots, timelines, tables and the machine in it"),
    ):
        parser.add_argument(option, metavar="PATH", help=text)
    compare.add_arguments(parser)
    parser.add_argument(
        "--judge",
        action="store_true",
        help="times of blocks beside their limits (docs/bench.md): exit with 3 where one is broken",
    )


def check(args: argparse.Namespace) -> Asked:
    """Refuses what cannot be read, written or understood, with 2."""
    try:
        if args.fail and args.compare is None:
            raise UsageError("--fail without --compare. Fix: add --compare OLD.json.")
        rules = compare.parse_rules(args.fail) if args.fail else None
        baseline = compare.load(args.compare) if args.compare is not None else None
    except UsageError as error:
        args.parser.print_usage(sys.stderr)
        args.parser.exit(Exit.USAGE, f"[{args.parser.prog}] {error}\n")
    for name, path in (("markdown", args.markdown), ("csv", args.csv), ("html", args.html)):
        if path == "-":
            args.parser.error(f"--{name} -: expected the name of a file")
        if path is not None:
            try:
                _artefact.prepare(path)
            except OSError as error:
                args.parser.error(f"cannot write {path} ({error.strerror})")
    return Asked(baseline, rules)


def finish(
    run: Run, asked: Asked, args: argparse.Namespace, console: Console
) -> tuple[Exit, dict[str, Any]]:
    """Writes the files that were asked for, compares; the tables are printed. The exit code, and what
    goes into the artefact."""
    facts = args.environment()
    terminal.print_rest(run, console)
    for path in write(run, args, facts, args.command_line):
        console.print(f"Written: {path}", markup=False)
    code, result = exit_code(run), run.to_dict()
    if asked.baseline is not None:
        new = compare.Baseline(run, facts)
        found = compare.compare(asked.baseline, new, asked.rules or compare.SHOWN)
        compare.print_comparison(found, console)
        result["compare"] = found.to_dict()
        if asked.rules:
            code = judge.worst([code, found.exit_code()])
    if args.judge:
        judged = judge.judge(run)
        judge.print_judgement(judged, console)
        result["judge"] = judged.to_dict()
        code = judge.worst([code, judged.exit_code()])
    return code, result


def exit_code(run: Run) -> Exit:
    """Wrong gradients of Retape's, or none, or what proves nothing; what others get wrong is in the table."""
    rows = [row for subject in run.subjects for row in subject.rows]
    if any(row.breaks_promise for row in rows):
        return Exit.DIFFERENT
    return Exit.VACUOUS if any(row.equal in VACUOUS for row in rows) else Exit.OK


def write(
    run: Run, args: argparse.Namespace, environment: dict[str, Any], command: str
) -> list[str]:
    """The files that were asked for; their paths."""
    written = []
    for path, render in (
        (args.markdown, lambda: markdown.render(run, environment, command)),
        (args.csv, lambda: csv.render(run)),
        (args.html, lambda: page.render(run, environment, command)),
    ):
        if path is not None:
            text = render()
            try:
                Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                args.parser.error(f"cannot write {path} ({error.strerror})")
            written.append(path)
    return written
