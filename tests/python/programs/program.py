"""A program as data, as source, and at work.

What runs is what is printed: the interpreter compiles the printed source, so that a failing program
can be pasted into a file and run as it is.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from tests.python.bits import explain_difference

import retape

from . import extensions, prelude
from .kinds import KINDS

INPLACE = "modified by an inplace operation"
BLOCKS = {
    "scope": "with R.recompute({policy}, name={name!r}):",
    "no_grad": "with torch.no_grad():",
    "autocast": 'with torch.autocast("cpu", dtype=torch.bfloat16):',
    "frozen": "with contextlib.nullcontext():  # nothing here requires grad",
    "mode": "with Redispatch():",
    "flop_counter": "with FlopCounterMode(display=False):",
    "checkpoint": "def {name}({args}):",
}
# What a program does besides the backward that verify runs: nothing, or a backward of its own before.
BACKWARDS = {
    "sum": "",
    "orders": "",  # verify runs one loss after the other in each order, backward twice, two forwards
    "grad": 'seen.grads("grad", torch.autograd.grad(\n'
    "    losses, with_grad(seen.leaves.values()), retain_graph=True, allow_unused=True))",
    "double": "first = torch.autograd.grad(\n"
    "    losses, with_grad(seen.leaves.values()), create_graph=True, allow_unused=True)\n"
    'seen.grads("first", first)\n'
    "losses = [losses[0] + sum(g.square().sum() for g in with_grad(first))]",
    "thread": "on_another_thread(lambda: sum(losses).backward(retain_graph=True))\n"
    'seen.grads("thread", [leaf.grad for leaf in seen.leaves.values() if leaf.is_leaf])',
}


@dataclass(frozen=True)
class Step:
    """`kind` of KINDS with its holes filled; or "open"/"close" of the block with that `name`."""

    kind: str
    holes: dict[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ()

    @property
    def operands(self) -> list[str]:
        return [v for k, v in self.holes.items() if len(k) == 1]

    def text(self) -> str:
        names = {f"r{i}": name for i, name in enumerate(self.results)}
        if len(self.results) == 1:
            names["r"] = self.results[0]
        return KINDS[self.kind].text.format(**self.holes, **names)


@dataclass(frozen=True)
class Program:
    seed: int
    leaves: tuple[str, ...]  # lines that make the leaves
    steps: tuple[Step, ...]
    losses: tuple[tuple[str, ...], ...]  # terms of each, such as "v3.float().sum()"
    outputs: tuple[str, ...]  # values that outlive forward
    backward: str
    writes_behind: bool = False  # outside of scopes, to a tensor that a scope has seen
    writes_behind_roots: bool = False  # ... and that no recorded op of a scope has made
    writes_given: bool = (
        False  # to a leaf: where there are two forwards, behind the first one's scopes
    )


# ---- from data to source


def _body(program: Program) -> Iterator[tuple[int, str]]:
    """(indent, line) of forward. Blocks left empty hold a `pass`."""
    empty = False
    open_blocks: list[tuple[Step, list[str]]] = []  # with the names made in each and still there
    for step in program.steps:
        if step.kind == "open":
            yield len(open_blocks), BLOCKS[step.holes["block"]].format(**step.holes)
            open_blocks.append((step, []))
            empty = True
            continue
        if step.kind == "close":
            opened, made = open_blocks.pop()
            if empty:
                yield len(open_blocks) + 1, "pass"
            if opened.holes["block"] == "checkpoint":
                name, args = opened.holes["name"], opened.holes["args"]
                results = "".join(f"{n}, " for n in made)
                yield len(open_blocks) + 1, f"return ({results})"
                call = f"R.checkpoint({', '.join(filter(None, (name, args)))})"
                yield len(open_blocks), f"({results}) = {call}" if made else call
            if open_blocks:
                open_blocks[-1][1].extend(made)
        else:
            for line in step.text().split("\n"):
                yield len(open_blocks), line
            if open_blocks:
                open_blocks[-1][1].extend(step.results)
            if step.kind == "delete":
                for _, made in open_blocks:
                    if step.holes["a"] in made:
                        made.remove(step.holes["a"])
        empty = False


def source(program: Program) -> str:
    """The function `program(R, seen)`, which makes forward: R is `retape`, or stands in for it."""
    lines = [
        "def program(R, seen):",
        f"    torch.default_generator.manual_seed({program.seed % 2**31})",
        f'    gen = seen.generator("gen", {program.seed % 2**31 + 1})',
        *(f"    {line}" for line in program.leaves),
        "    def forward():",
        *(f"        {'    ' * indent}{line}" for indent, line in _body(program)),
        *(f"        seen.value({name!r}, {name})" for name in program.outputs),
        "        losses = [",
        *(f"            {' + '.join(terms)}," for terms in program.losses),
        "        ]",
        '        seen.value("losses", torch.stack(losses))',
        *(f"        {line}" for line in BACKWARDS[program.backward].split("\n") if line),
        "        return losses",
        "    return forward",
    ]
    return "\n".join(lines) + "\n"


def printed(program: Program) -> str:
    """A file that shows what is found: no import but torch, numpy and retape."""
    tail = f"""
torch.set_num_threads(1)
_, error = run(program, Plain())
for R in (retape, Dropping()):
    if error is None:
        print(verified(program, R, orders={program.backward == "orders"}))
    else:
        print("plain raises", error, "recomputed", run(program, R)[1])
"""
    front = "\n\n".join(Path(module.__file__).read_text() for module in (extensions, prelude))
    return f"{front}\n\n{source(program)}{tail}"


# ---- running


def names_of_programs() -> dict[str, Any]:
    return dict(vars(extensions)) | dict(vars(prelude))


def compiled(program: Program) -> Callable[[Any, Any], Callable[[], list]]:
    names = names_of_programs()
    exec(_code(source(program), f"program {program.seed}"), names)
    return names["program"]


@functools.lru_cache(maxsize=4)  # one program is run several times in a row
def _code(text: str, name: str) -> CodeType:
    return compile(text, name, "exec")


@dataclass
class Outcome:
    values: dict[str, Any]
    error: RuntimeError | None
    replayed: bool

    @property
    def forward_done(self) -> bool:
        return "losses" in self.values


def run(program: Program, R: Any = None) -> Outcome:
    """Runs it plain, or with R's scopes. Anything but a RuntimeError passes through."""
    with retape._C.Observer() as observer:
        values, error = prelude.run(compiled(program), R or prelude.Plain())
    replayed = any(region.ops_replayed for region in observer.regions)
    return Outcome(values, error, replayed)


def difference(plain: Outcome, recomputed: Outcome) -> str | None:
    """None when both runs agree: the same bits everywhere, or the same error."""
    a, b = plain.values, recomputed.values
    if plain.error is not None or recomputed.error is not None:
        if not all(INPLACE in str(error) for error in (plain.error, recomputed.error)):
            return f"plain raises {plain.error!r}, recomputed {recomputed.error!r}"
        # How far backward came before it raised is not promised; everything else is.
        a, b = (
            {k: v for k, v in values.items() if not re.match("grad|first|thread", k)}
            for values in (a, b)
        )
    return explain_difference(a, b, "seen")


@dataclass
class Checked:
    """What came of a program, under its own policies and with everything dropped."""

    found: str | None = None  # what is wrong
    kinds: tuple[
        str, ...
    ] = ()  # of verdicts; or "raised", as plain autograd does, "refused", "error"
    counts: Counter[str] = field(default_factory=Counter)


def check(program: Program) -> Checked:
    """Two verdicts, which are to be equal.

    Where the plain run raises there is none; then both recomputed runs are to raise as well. Vacuous
    is right only where the program's own policies keep everything: for those that replay nothing in
    any case are not made.
    """
    checked = Checked()
    for R in (retape, prelude.Dropping()):
        kind, found = _judged(program, R, checked.counts)
        checked.kinds += (kind,)
        if found is not None:
            checked.found = found if R is retape else f"{found} (everything dropped)"
            return checked
    return checked


def _judged(program: Program, R: Any, counts: Counter[str]) -> tuple[str, str | None]:
    """The kind of the verdict, and what is wrong."""
    orders, twice = program.backward == "orders", R is retape  # once equal to itself is enough
    try:
        verdict = prelude.verified(compiled(program), R, orders=orders, plain_twice=twice)
    except RuntimeError as error:  # of the plain run
        if INPLACE not in str(error):
            raise
        return "raised", difference(run(program), run(program, R))
    if refused(
        program, verdict, program.writes_behind if R is retape else program.writes_behind_roots
    ):
        return "refused", None
    for name in ("tensors_compared", "values_checked", "ops_replayed"):
        counts[name] += getattr(verdict, name)
    for name in ("orders", "differences", "findings"):
        counts[name] += len(getattr(verdict, name))
    if verdict or (R is retape and only_kept(verdict)):
        return verdict.kind, None
    return "error" if verdict.error else verdict.kind, verdict.explain()


def only_kept(verdict: retape.Verdict) -> bool:
    return len(verdict.vacuous) == 1 and "found all that it needed kept" in verdict.vacuous[0]


def refused(program: Program, verdict: retape.Verdict, behind: bool) -> bool:
    """A root changed after its scope, where eager had not saved it: Retape may raise, not guess."""
    second_forward = program.writes_given and verdict.orders[-1] == "two forwards"
    told = INPLACE in verdict.error and not verdict.differences
    return told and (behind or second_forward)
