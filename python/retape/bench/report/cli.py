"""`retape report`: a bench or a gradcheck, shown again from its artefact; a bench also beside an older one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from retape import UsageError
from retape._text import Exit
from retape.bench import compare, report
from retape.cli.gradcheck import again

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artefact", metavar="RUN.json", help="the artefact of a bench, or of a gradcheck"
    )
    report.add_arguments(parser)


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    asked = report.check(args)
    try:
        found = again.load(args.artefact)
        if found is not None:
            args.environment = lambda: found.environment
            args.command_line = found.command or args.command_line
            return again.show(found, args, console)
        shown = compare.load(args.artefact)
    except UsageError as error:
        args.parser.print_usage(sys.stderr)
        args.parser.exit(Exit.USAGE, f"[{args.parser.prog}] {error}\n")
    args.environment = lambda: shown.environment
    args.command_line = shown.command or args.command_line
    for subject in shown.run.subjects:
        report.terminal.print_subject(subject, console)
    return report.finish(shown.run, asked, args, console)
