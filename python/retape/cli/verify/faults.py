"""`--inject`: breaks one thing inside Retape on purpose. A proof that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retape import _C
from retape._text import Exit
from retape.cli.verify import junit
from retape.cli.verify.case import DIFFERENT, NOT_BUILT, Case, Result, run
from retape.cli.verify.table import shortened
from retape.subjects.faults import PROGRAMS

if TYPE_CHECKING:
    from rich.console import Console

# Missed: it struck, and the verdict was not "different". Misnamed: different, for another reason.
CAUGHT, MISNAMED, MISSED, NOT_STRUCK = "caught", "misnamed", "missed", "did not strike"


def known() -> dict[str, _C.FaultInfo]:
    """What can be injected, by id. UsageError in a build that has none."""
    faults = {fault.id: fault for fault in _C.faults()}
    if not faults:
        raise _C.UsageError(
            "[verify] this build has no faults to inject. Fix: pip install . --no-build-isolation "
            "-C cmake.define.RETAPE_FAULTS=ON"
        )
    return faults


def names() -> list[str]:
    return list(known())


def print_list(console: Console) -> tuple[Exit, dict[str, Any]]:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("fault", style="bold", no_wrap=True)
    table.add_column("what it breaks")
    table.add_column("told as")
    for name, fault in known().items():
        table.add_row(name, fault.breaks, fault.kind)
    console.print(table)
    return Exit.OK, {
        "faults": {n: {"breaks": f.breaks, "kind": f.kind} for n, f in known().items()}
    }


@dataclass(frozen=True)
class FaultVerdict:
    """What all cases together say of one fault."""

    name: str
    text: str
    kind: str  # one of the words above
    by: str = ""  # the subject that caught it, and how it was recomputed
    cause: str = ""  # as it was told there; or why nothing ran
    hits: int = 0
    command: str = ""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def test_case(self) -> junit.TestCase:
        failure = {CAUGHT: "", NOT_STRUCK: "vacuous"}.get(self.kind, "different")
        text = f"{self.name}: {self.kind}, struck {self.hits} times {self.cause}".rstrip()
        text += f"\nAgain: {self.command}"
        return junit.TestCase("faults", self.name, failure=failure, text=text if failure else "")


def verdicts(results: Sequence[Result]) -> list[FaultVerdict]:
    """One for each fault that was tried."""
    tried = {result.case.fault for result in results}
    return [
        verdict(fault, [result for result in results if result.case.fault == name])
        for name, fault in known().items()
        if name in tried
    ]


def verdict(fault: _C.FaultInfo, results: Sequence[Result]) -> FaultVerdict:
    """Wherever it struck it must be caught, and be the first thing told."""
    rows: dict[str, list[Result]] = {}
    for result in results:
        rows.setdefault(_kind(result, fault), []).append(result)
    kind = next(kind for kind in (MISSED, MISNAMED, CAUGHT, NOT_STRUCK) if kind in rows)
    shown = rows[kind][0]
    case = shown.case
    different = shown.kind == DIFFERENT
    is_told = different or shown.kind == NOT_BUILT
    return FaultVerdict(
        fault.id,
        fault.breaks,
        kind,
        by=f"{case.subject}, {case.how}" if different else "",
        cause=shown.cause if is_told else "",
        hits=sum(result.hits for result in results),
        command=shown.command,
    )


def _kind(result: Result, fault: _C.FaultInfo) -> str:
    if result.kind != DIFFERENT:
        return MISSED if result.hits else NOT_STRUCK
    findings = result.verdict.findings if result.verdict is not None else []
    return CAUGHT if findings and findings[0].kind == fault.kind else MISNAMED


def programs(names: Sequence[str], seed: int = 0) -> list[Case]:
    """Of each fault, the model that is built in for it."""
    rows = []
    for name in names:
        program = PROGRAMS[name]
        rows.append(
            Case(
                f"fault:{name}",
                layers=("inner",) if program.rerun else (),
                method="rerun" if program.rerun else "replay",
                steps=program.steps,
                orders=program.orders,
                seed=seed,
                fault=name,
            )
        )
    return rows


def run_all() -> list[FaultVerdict]:
    """Each fault, in its own model."""
    return verdicts([run(case) for case in programs(names())])


def markdown(found: Sequence[FaultVerdict]) -> str:
    """The table of docs/proofs.md."""
    lines = ["| fault | what it breaks | caught by | message |", "|---|---|---|---|"]
    lines += [row(each) for each in found]
    caught = sum(each.kind == CAUGHT for each in found)
    return "\n".join([*lines, "", f"{caught} of {len(found)} caught."]) + "\n"


def row(found: FaultVerdict) -> str:
    by = f"✓ {found.by}" if found.kind == CAUGHT else f"✗ {found.kind}"
    message = found.cause.replace("|", "\\|")
    return f"| `{found.name}` | {found.text} | {by} | {message} |"


def exit_code(found: Sequence[FaultVerdict]) -> Exit:
    kinds = {each.kind for each in found}
    if kinds & {MISSED, MISNAMED}:
        return Exit.DIFFERENT
    return Exit.VACUOUS if NOT_STRUCK in kinds else Exit.OK


def print_verdicts(found: Sequence[FaultVerdict], console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    styles = {CAUGHT: "green", MISNAMED: "red", MISSED: "bold red", NOT_STRUCK: "yellow"}
    table = Table(box=box.SIMPLE_HEAD, title="Faults injected on purpose", title_style="bold")
    for heading in ("fault", "verdict", "struck", "by", "cause"):
        table.add_column(heading, justify="right" if heading == "struck" else "left")
    for each in found:
        table.add_row(
            each.name,
            Text(each.kind, style=styles[each.kind]),
            str(each.hits),
            each.by,
            Text(shortened(each.cause)),
        )
    console.print(table)
    for each in found:
        if each.kind != CAUGHT:
            console.print(f"{each.name}: {each.kind}. Again: {each.command}", markup=False)
    caught = sum(each.kind == CAUGHT for each in found)
    console.print(f"{caught} of {len(found)} faults caught")
