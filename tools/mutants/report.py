"""The table, the list of survivors and the JSON artefact."""

import collections
import json
import pathlib

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .mutant import Mutant
from .results import Reasons
from .run import Result

STATUSES = ["killed", "survived", "unreached"]


def share(results: dict[int, Result]) -> float:
    return sum(r.status == "killed" for r in results.values()) / max(1, len(results))


def counts(
    mutants: dict[int, Mutant], results: dict[int, Result]
) -> list[tuple[str, collections.Counter[str]]]:
    """How many of each status, by file, and of all."""
    files: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for number, result in results.items():
        files[mutants[number].file][result.status] += 1
    return [*sorted(files.items()), ("all", sum(files.values(), collections.Counter()))]


def percent(count: collections.Counter[str]) -> str:
    return f"{100 * count['killed'] / max(1, count.total()):.1f}"


def table(mutants: dict[int, Mutant], results: dict[int, Result]) -> Table:
    shown = Table(title="Mutants", title_justify="left")
    shown.add_column("file")
    for column in ["mutants", "killed", "survived", "not reached", "%"]:
        shown.add_column(column, justify="right")
    for name, count in counts(mutants, results):
        if name == "all":
            shown.add_section()
        shown.add_row(name, str(count.total()), *(str(count[s]) for s in STATUSES), percent(count))
    return shown


def show(
    console: Console, mutants: dict[int, Mutant], results: dict[int, Result], reasons: Reasons
) -> None:
    console.print(table(mutants, results))
    alive = {n: r for n, r in sorted(results.items()) if r.status != "killed"}
    new = {n: r for n, r in alive.items() if not reasons.of(mutants[n])}
    for number, result in new.items():
        mutant = mutants[number]
        note = (
            "not reached by C++ tests" if result.status == "unreached" else f"{result.tests} tests"
        )
        console.print(
            f"[bold]{mutant.file}:{mutant.line}[/] {escape(mutant.function)} ({mutant.kind}, {note})\n"
            f"  [red]- {escape(mutant.original)}[/]\n  [green]+ {escape(mutant.mutated or 'nothing')}[/]",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    console.print(
        f"{100 * share(results):.1f} % of {len(results)} killed. {len(alive)} survivors, "
        f"{len(alive) - len(new)} with a reason, {len(new)} new."
    )


def save(
    path: pathlib.Path,
    mutants: dict[int, Mutant],
    results: dict[int, Result],
    reasons: Reasons,
    **more,
) -> None:
    rows = [
        {
            "file": mutants[number].file, "line": mutants[number].line,
            "function": mutants[number].function, "kind": mutants[number].kind,
            "original": mutants[number].original, "mutated": mutants[number].mutated,
            "status": result.status, "by": result.by, "how": result.how,
            "reason": reasons.of(mutants[number]) if result.status != "killed" else "",
        }
        for number, result in sorted(results.items())
    ]  # fmt: skip
    summary = collections.Counter(result.status for result in results.values())
    path.write_text(
        json.dumps(
            {"summary": dict(summary), "killed": share(results), **more, "mutants": rows}, indent=1
        )
    )
