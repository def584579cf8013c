"""A program as data, as source, and at work.

What runs is what is printed: the interpreter compiles the printed source, so that a failing program
can be pasted into a file and run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.python.bits import explain_difference

import retape

from . import prelude
from .steps import KINDS

INPLACE = "modified by an inplace operation"
BLOCKS = {
    "scope": "with R.recompute({policy}, name={name!r}):",
    "no_grad": "with torch.no_grad():",
    "autocast": 'with torch.autocast("cpu", dtype=torch.bfloat16):',
    "checkpoint": "def {name}({args}):",
}
BACKWARDS = {
    "sum": "torch.stack(losses).sum().backward()",
    "each": "for loss in losses:\n    loss.backward(retain_graph=True)",
    "reversed": "for loss in reversed(losses):\n    loss.backward(retain_graph=True)",
    "twice": "total = torch.stack(losses).sum()\ntotal.backward(retain_graph=True)\n"
    "total.backward()",
    "grad": 'seen.grads("grad", torch.autograd.grad(\n'
    "    losses, with_grad(seen.leaves.values()), allow_unused=True))",
    "double": "first = torch.autograd.grad(\n"
    "    losses, with_grad(seen.leaves.values()), create_graph=True, allow_unused=True)\n"
    'seen.grads("first", first)\n'
    "torch.stack([losses[0]] + [g.square().sum() for g in with_grad(first)]).sum().backward()",
    "thread": "on_another_thread(torch.stack(losses).sum().backward)",
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


def _start(program: Program, name: str) -> list[str]:
    """A function up to where it has its leaves and `forward()`."""
    return [
        f"def {name}(R, seen):",
        f"    torch.manual_seed({program.seed % 2**31})",
        f'    gen = seen.generator("gen", {program.seed % 2**31 + 1})',
        *(f"    {line}" for line in program.leaves),
        "    def forward():",
        *(f"        {'    ' * indent}{line}" for indent, line in _body(program)),
        *(f"        seen.value({name!r}, {name})" for name in program.outputs),
        "        return [",
        *(f"            {' + '.join(terms)}," for terms in program.losses),
        "        ]",
    ]


def source(program: Program) -> str:
    """The function `program(R, seen)`: R is `retape` or a stand-in that does nothing."""
    lines = [
        *_start(program, "program"),
        "    losses = forward()",
        "    for i, loss in enumerate(losses):",
        '        seen.value(f"loss {i}", loss)',
        "    seen.forward_done = True",
        *(f"    {line}" for line in BACKWARDS[program.backward].split("\n")),
    ]
    return "\n".join(lines) + "\n"


def printed(program: Program) -> str:
    """A file that shows the difference: no import but torch and retape."""
    head = (
        Path(prelude.__file__)
        .read_text()
        .replace("import torch\n", "import retape\nimport torch\n", 1)
    )
    tail = """
def run(R):
    seen = Seen()
    try:
        program(R, seen)
    except RuntimeError as error:
        print(type(R).__name__, "raises", error)
    return seen.finish()


def bits(t):
    return torch.where(t != t, 0, t).contiguous().view(-1).view(torch.uint8)


torch.set_num_threads(1)
plain, recomputed = run(Plain()), run(retape)
for name in plain:
    a, b = plain[name], recomputed.get(name)
    if (a is None) != (b is None) or a is not None and not torch.equal(bits(a), bits(b)):
        print("differs:", name, a, b, sep="\\n")
"""
    return f"{head}\n\n{source(program)}{tail}"


# ---- running


@dataclass
class Outcome:
    values: dict[str, Any]
    error: RuntimeError | None
    forward_done: bool
    ops_replayed: int = 0


class Recomputing:
    """`retape` as a program sees it, keeping the scopes for their statistics.

    `policy`, when given, replaces what the program asks for.
    """

    def __init__(self, policy: Any = None) -> None:
        self.Policy = retape.Policy
        self.policy = policy
        self.scopes: list[Any] = []

    def recompute(self, policy: Any, name: str = "") -> Any:
        self.scopes.append(retape.recompute(self.policy or policy, name=name))
        return self.scopes[-1]

    def checkpoint(self, function: Callable[..., Any], *args: Any) -> Any:
        return retape.checkpoint(function, *args)

    def ops_replayed(self) -> int:
        return sum(scope.stats.ops_replayed for scope in self.scopes)


def compiled(program: Program) -> Callable[[Any, Any], None]:
    return _function(program, source(program), "program")


def _function(program: Program, text: str, name: str) -> Callable[..., Any]:
    names = dict(vars(prelude))
    exec(compile(text, f"program {program.seed}", "exec"), names)
    return names[name]


def verify(program: Program, **options: Any) -> Any:
    """The verdict of Retape's own verify, on the program's own scopes. Its backward is verify's."""
    lines = [*_start(program, "start"), "    return forward"]
    start = _function(program, "\n".join(lines) + "\n", "start")

    def make_start() -> SimpleNamespace:
        seen = prelude.Seen()
        forward = start(retape, seen)

        def outcome() -> tuple[list, list]:
            losses = [(f"loss {i}", loss) for i, loss in enumerate(forward())]
            return losses, [(k, v) for k, v in seen.values.items() if v is not None]

        return SimpleNamespace(
            forward=outcome,
            leaves=[(k, v) for k, v in seen.leaves.items() if v.requires_grad and v.is_leaf],
            buffers=lambda: [(k, v) for k, v in seen.leaves.items() if not v.requires_grad],
            optimize=None,
            generators=list(seen.generators.values()),
        )

    return retape._C.verify(make_start, scope=False, may_be_dead=["*"], **options)


def run(program: Program, recompute: Recomputing | None = None) -> Outcome:
    """Runs it plain, or with `recompute`'s scopes. Anything but a RuntimeError passes through."""
    seen = prelude.Seen()
    seen.forward_done = False
    error = None
    try:
        compiled(program)(recompute or prelude.Plain(), seen)
    except RuntimeError as raised:
        error = raised.with_traceback(None)
    replayed = recompute.ops_replayed() if recompute else 0
    return Outcome(seen.finish(), error, seen.forward_done, replayed)


def difference(plain: Outcome, recomputed: Outcome) -> str | None:
    """None when both runs agree: the same bits everywhere, or the same error."""
    if (plain.error is None) != (recomputed.error is None):
        return f"plain {plain.error!r}, recomputed {recomputed.error!r}"
    a, b = plain.values, recomputed.values
    if plain.error is not None:
        if INPLACE not in str(recomputed.error):
            return f"plain raises {plain.error!r}, recomputed {recomputed.error!r}"
        # How far backward came before it raised is not promised; everything else is.
        a = {k: v for k, v in a.items() if "grad" not in k and "first" not in k}
        b = {k: v for k, v in b.items() if "grad" not in k and "first" not in k}
    return explain_difference(a, b, "seen")


def refused(program: Program, plain: Outcome, recomputed: Outcome) -> bool:
    """A tensor changed after its scope, where eager had not saved it: Retape may raise, not guess."""
    error = recomputed.error
    told = isinstance(error, retape.ReplayMismatch) or INPLACE in str(error)
    return program.writes_behind and plain.error is None and error is not None and told


def check(program: Program) -> tuple[str | None, Outcome, Outcome]:
    """What differs from the plain run, if anything, and both outcomes.

    Recomputed twice: under the program's own policies, and with everything dropped; both times
    observed, and an observer that finds what is not there counts as a difference.
    """
    plain = run(program)
    replayed = 0
    for policy in (None, retape.Policy.full().anchors(False)):
        with retape._C.Observer() as observer:
            recomputed = run(program, Recomputing(policy))
        recomputed.ops_replayed = replayed = replayed + recomputed.ops_replayed
        found = difference(plain, recomputed)
        if found is not None and not refused(program, plain, recomputed):
            return f"{found}{' (everything dropped)' if policy else ''}", plain, recomputed
        if observer.findings and recomputed.error is None:
            finding = observer.findings[0]
            text = f"nothing differs, but was found: {finding.kind}, {finding.op}: {finding.what}"
            return text, plain, recomputed
    return None, plain, recomputed
