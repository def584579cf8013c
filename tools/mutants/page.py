"""The result as two parts of a page: a table, and the survivors with their reasons."""

import collections
import pathlib

from . import report
from .mutant import Mutant
from .results import Reasons
from .run import Result


def write(
    path: pathlib.Path,
    mutants: dict[int, Mutant],
    results: dict[int, Result],
    reasons: Reasons,
    found: int,
) -> None:
    text = path.read_text(encoding="utf-8")
    text = put(text, "result", table(mutants, results, found))
    text = put(text, "survivors", survivors(mutants, results, reasons))
    path.write_text(text, encoding="utf-8")


def put(page: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = page.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def table(mutants: dict[int, Mutant], results: dict[int, Result], found: int) -> str:
    lines = [
        "| file | mutants | killed | survived | not reached | killed, % |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, count in report.counts(mutants, results):
        numbers = [count.total(), *(count[status] for status in report.STATUSES)]
        cells = [name, *map(str, numbers), report.percent(count)]
        lines.append(
            f"| {' | '.join(f'**{cell}**' if name == 'all' else cell for cell in cells)} |"
        )
    how = collections.Counter(r.how for r in results.values() if r.status == "killed")
    ways = ", ".join(f"{how[way]} {what}" for way, what in WAYS.items() if how[way])
    lines += ["", f"{len(results)} of {found} mutants were run. Of those killed, {ways}."]
    return "\n".join(lines) + "\n"


WAYS = {
    "failed": "failed a test",
    "crashed": "crashed it",
    "hung": "never ended",
}


def survivors(mutants: dict[int, Mutant], results: dict[int, Result], reasons: Reasons) -> str:
    groups: dict[tuple[str, str, str], list[Mutant]] = {}
    for number, result in sorted(results.items()):
        if result.status != "killed":
            mutant = mutants[number]
            reason = reasons.of(mutant) or "**no reason yet**"
            groups.setdefault((mutant.file, mutant.function, reason), []).append(mutant)
    lines: list[str] = []
    last = ""
    for (file, function, reason), members in groups.items():
        if file != last:
            lines += ["", f"### {file}"] if lines else [f"### {file}"]
            last = file
        changes = ", ".join(f"`{m.original}` → {code(m.mutated)}" for m in members)
        lines.append(f"- `{function}`: {changes}. {reason}")
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else "nothing"
