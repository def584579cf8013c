"""Results on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from retape._text import format_seconds
from retape.cli.verify.case import DIFFERENT, EQUAL, KINDS, NOT_BUILT, VACUOUS, Result

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {EQUAL: "green", DIFFERENT: "bold red", VACUOUS: "yellow", NOT_BUILT: "dim"}
SYMBOLS = {EQUAL: "✓", DIFFERENT: "✗", VACUOUS: "○", NOT_BUILT: "–"}
_CAUSE = 90  # characters


def counts(results: Sequence[Result]) -> dict[str, int]:
    found = Counter(result.kind for result in results)
    return {kind: found[kind] for kind in KINDS}


def sentence(results: Sequence[Result]) -> str:
    """`12 cases: 11 equal, 1 vacuous`."""
    parts = [f"{n} {kind}" for kind, n in reversed(counts(results).items()) if n]
    return f"{len(results)} case{'s' * (len(results) != 1)}: {', '.join(parts)}"


def print_results(results: Sequence[Result], console: Console, named: Collection[str] = ()) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title="retape verify", title_style="bold")
    with_fault = any(result.case.fault for result in results)
    headings = ["subject", "recomputed", "dtype", "verdict", "tensors", "replayed", "time", "cause"]
    for heading in headings:
        right = heading in ("tensors", "replayed", "time")
        if heading == "cause" and not any(result.cause for result in results):
            continue
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
        if heading == "dtype" and with_fault:
            table.add_column("fault")
    for result in results:
        verdict = result.verdict
        again = f"{verdict.ops_replayed or verdict.reruns}" if verdict is not None else ""
        cells = [result.case.subject, result.case.how, result.case.dtype or ""]
        cells += [f"{result.case.fault or ''}"] if with_fault else []
        cells += [
            f"{SYMBOLS[result.kind]} {result.kind}",
            str(verdict.tensors_compared) if verdict is not None else "",
            again,
            format_seconds(result.seconds),
            shortened(result.cause),
        ]
        style = STYLES[result.kind]
        place = cells.index(f"{SYMBOLS[result.kind]} {result.kind}")
        table.add_row(
            *(
                Text(cell, style=style if i == place else "")
                for i, cell in enumerate(cells[: len(table.columns)])
            )
        )
    console.print(table)
    for result in results:
        if result.is_failure(named):
            print_failure(result, console)
    worst = next((kind for kind in KINDS if counts(results)[kind]), EQUAL)
    console.print(sentence(results), style=STYLES[worst], markup=False)


def print_failure(result: Result, console: Console) -> None:
    """What is wrong, and the command that shows it again."""
    console.print(
        f"{SYMBOLS[result.kind]} {result.case.subject}, {result.case.how}: {result.kind}",
        style="red" if result.kind == NOT_BUILT else STYLES[result.kind],
        markup=False,
        soft_wrap=True,
    )
    for line in result.explanation.splitlines():
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print(f"  Again: {result.command}", style="cyan", markup=False, soft_wrap=True)


def shortened(text: str) -> str:
    return text if len(text) <= _CAUSE else text[: _CAUSE - 1] + "…"
