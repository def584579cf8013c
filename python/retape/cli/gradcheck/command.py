"""`retape gradcheck`: do ranks together compute what one process would have computed?"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retape._C import UsageError
from retape._text import Exit, printable, told_by_a_verb
from retape.cli.gradcheck import factory, launch, table
from retape.cli.gradcheck.bar import bar
from retape.cli.gradcheck.launch import Ended
from retape.cli.gradcheck.messages import RankError, Settings

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "factory",
        metavar="package.module:factory",
        help="a function of yours, run on every rank, that returns a retape.dist.GradCheck",
    )
    parser.add_argument(
        "--ranks", type=int, required=True, metavar="N", help="how many to start here"
    )
    parser.add_argument("--seed", type=int, help="of cases (what the factory gives)")
    parser.add_argument(
        "--no-self-test",
        action="store_true",
        help="do not break contributions to see whether that is noticed",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="for which ranks wait for one another (%(default)g)",
    )
    parser.add_argument(
        "--show-output",
        action="store_true",
        help="what ranks print, as it comes, on standard error",
    )
    parser.add_argument("--html", metavar="PATH", help="one page with everything in it")
    codes = "0 equal, 1 different, 2 a mistake in the call, 5 a rank failed, 6 vacuous"
    parser.epilog = f"exit codes: {codes}\n\n{parser.epilog}"


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    _check(args)
    console.print(f"Running the code of {args.factory} on {args.ranks} ranks.", markup=False)
    settings = Settings(args.factory, args.timeout, args.seed, not args.no_self_test)
    with bar(console, shown=not args.show_output) as advance:  # what ranks print would cut it up
        ended = launch.run(settings, args.ranks, advance, args.show_output)
    if ended.told is None:
        return _failed(args, ended, console)
    report = ended.told["report"]
    table.print_report(report, ended.told["text"], console)
    if args.html:
        from retape.cli.gradcheck import page

        page.write(args.html, page.of_report(report, args.ranks, args.command_line))
    text = ended.told["text"]  # for `retape report`
    return Exit(report["exit_code"]), {"ranks": args.ranks, **report, "text": text, "errors": []}


def _check(args: argparse.Namespace) -> None:
    try:
        factory.check_name(args.factory)
    except UsageError as error:
        args.parser.refuse(told_by_a_verb(error))
    if args.ranks < 1:
        args.parser.error(f"--ranks {args.ranks}: expected at least 1")
    if args.timeout <= 0:
        args.parser.error(f"--timeout {args.timeout:g}: expected more than 0")
    args.parser.check_writable(args.html)


def _failed(
    args: argparse.Namespace, ended: Ended, console: Console
) -> tuple[Exit, dict[str, Any]]:
    if all(error.usage for error in ended.errors):
        args.parser.refuse(re.sub(r"^\[\w+\] ", "", ended.errors[0].text))
    print_errors(ended.errors, console)
    if ended.output and not args.show_output:
        console.print(f"The last lines of {_who(ended.errors[:1])}:", markup=False)
        console.print(printable(ended.output, lines=True), markup=False, soft_wrap=True)
    elif not args.show_output:
        console.print("Fix: --show-output shows where it was raised.", markup=False)
    errors = [{"rank": e.rank, "kind": e.kind, "text": e.text} for e in ended.errors]
    return Exit.RANK, {"ranks": args.ranks, "kind": None, "errors": errors}


def print_errors(errors: Sequence[RankError], console: Console) -> None:
    for ranks, said in _together(errors):
        console.print(
            printable(f"✗ {ranks}: {said}", lines=True),
            style="bold red",
            markup=False,
            soft_wrap=True,
        )


def _together(errors: Sequence[RankError]) -> list[tuple[str, str]]:
    """Ranks that raised the same, with it: ("ranks 0, 2", "ValueError: no data")."""
    said: dict[str, list[RankError]] = {}
    for error in errors:
        text = f"{error.kind}: {error.text}" if error.kind else error.text
        said.setdefault(text, []).append(error)
    return [(_who(by), text) for text, by in said.items()]


def _who(errors: Sequence[RankError]) -> str:
    ranks = sorted(error.rank for error in errors if error.rank is not None)
    if not ranks:
        return "torchrun"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
