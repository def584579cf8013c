"""Makes the program of a seed: grows it step by step, running each step eagerly on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from . import extensions, prelude
from .fillers import LIMIT, NoFit, Values, storage, usable
from .kinds import KINDS, Kind
from .program import BACKWARDS, INPLACE, Program, Step, difference, names_of_programs, run

POLICIES = (
    '"full"',
    '"full"',
    "R.Policy.full().anchors(False)",
    "R.Policy.full().anchors(False)",
    '"cheap"',
    '"none"',
    "coin({seed}, 0.5)",
    "coin({seed}, 0.2)",
    "R.Policy.function(coin({seed}, 0.8))",
    'R.Policy.full().anchors(False).keep_ops(["aten::mul", "aten::mm", "aten::sin"])',
    'R.Policy.full().keep_ops(["aten::native_dropout", "aten::add", "aten::addmm"])',
    'R.Policy.none().drop_ops(["aten::mul", "aten::tanh", "aten::native_layer_norm"])',
    'R.Policy.cheap().drop_ops(["aten::mm", "aten::bmm", "aten::addmm"])',
)
BLOCKS_BY_CHANCE = (
    *("no_grad", "autocast", "autocast", "checkpoint", "checkpoint"),
    *("no_grad", "frozen", "mode", "flop_counter"),
)
# Steps that take memory which the scope has not made, or write past the tape: replay starts from what they make.
NOT_RECORDED = ("Wrapped", "apply", "numpy", "dlpack", "buffer", "placed", "set_(", ".data")
# What eager raises where a filling does not suit.
MISFITS = (RuntimeError, IndexError, TypeError, ValueError, AttributeError, BufferError)
LOSS_TERMS = (
    "{}.float().sum()",
    "{}.float().mul(0.3).sum()",
    "{}.float().mean()",
    "{}.float().sin().sum()",
)


@dataclasses.dataclass(frozen=True)
class _Block:
    kind: str
    number: int
    context: contextlib.ExitStack
    before: set[str]  # names of tensors when it was opened
    end: int  # closes when there are so many steps


class _Maker:
    """Grows a program step by step, running each one eagerly to learn shapes and to discard misfits."""

    def __init__(self, rng: random.Random, seed: int, length: int) -> None:
        self.rng = rng
        self.length = length
        self.seed = seed % 2**31
        self.env: dict[str, Any] = names_of_programs() | {"R": prelude.Plain()}
        self.steps: list[Step] = []
        self.count = 0
        self.writes_behind = False
        self.writes_behind_roots = False
        self.made_by: dict[int, int] = {}  # the scope whose recorded op has made a storage
        self.writes_given = False
        self.unseen_given = False
        self.undefined = False  # eager's own result is: it reads what was written without a trace
        self.blocks: list[_Block] = []
        self.leaves = self._leaves()
        self.values = Values(rng, self.env, set(self._tensors()))
        self.given = {storage(self.env[name]) for name in self._tensors()}

    def _tensors(self) -> list[str]:
        return [n for n, v in self.env.items() if isinstance(v, torch.Tensor)]

    def _leaves(self) -> tuple[str, ...]:
        b, t, d = (self.rng.choice(c) for c in ((2, 3), (2, 3, 5), (3, 4, 8)))
        wide = self.rng.choice((1, 1, 4))  # some programs work on tensors of a few KiB
        d *= wide
        t *= self.length
        shapes = {
            "x": (b, t, d),
            "y": (b, t, d),
            "flat": (b * t, d),
            "w": (d, d),
            "u": (d, d),
            "bias": (d,),
            "gain": (d,),
            "scale": (),
            "table": (5, d),
            "kernel1": (2, t, 3),
            "kernel2": (2, 1, 2, 2),
        }
        frozen = {"buffer": (b, t, d), "column": (d,), "state": (d, d), "cache": (b, t + 2, d)}
        lines = [self._leaf(name, shape, True) for name, shape in shapes.items()]
        lines += [self._leaf(name, shape, False) for name, shape in frozen.items()]
        lines.append(f'mean = seen.leaf("mean", ({d},), grad=False)')
        lines.append(f'var = seen.leaf("var", ({d},), grad=False, low=0.5)')
        lines.append(f'index = seen.indices("index", ({b}, {t}), {t})')
        lines.append('calls = seen.given("calls", count_from_zero())')
        self.env["seen"] = prelude.Seen()
        torch.default_generator.manual_seed(self.seed)
        self.env["gen"] = self.env["seen"].generator("gen", self.seed + 1)
        for line in lines:
            exec(line, self.env)
        return tuple(lines)

    def _leaf(self, name: str, shape: tuple[int, ...], grad: bool) -> str:
        """One in eight lies where no allocator of torch would put it."""
        if self.rng.random() < 0.875:
            return f'{name} = seen.leaf("{name}", {shape}{"" if grad else ", grad=False"})'
        where = self.rng.choice(("placed", "buffered")), self.rng.randrange(1, 16)
        values = f"{where[0]}(torch.empty({shape}).uniform_(-1, 1), {where[1]})"
        required = ".requires_grad_()" if grad else ""
        return f'{name} = seen.given("{name}", {values}{required})'

    def open(self, block: str, length: int) -> None:
        self.count += 1
        holes = {"block": block, "name": f"{block}_{self.count}"}
        stack = contextlib.ExitStack()
        if block == "scope":
            seed = self.rng.randrange(10**6)
            holes["policy"] = self.rng.choice(POLICIES).format(seed=seed)
        elif block == "checkpoint":
            holes["args"] = ", ".join(self.rng.sample(self._tensors(), 2))
        elif block == "no_grad":
            stack.enter_context(torch.no_grad())
        elif block == "autocast":
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        elif block == "mode":
            stack.enter_context(extensions.Redispatch())
        elif block == "flop_counter":
            stack.enter_context(extensions.FlopCounterMode(display=False))
        self.steps.append(Step("open", holes))
        end = len(self.steps) + length
        self.blocks.append(_Block(block, self.count, stack, set(self._tensors()), end))

    def close(self) -> None:
        self.blocks.pop().context.close()
        self.steps.append(Step("close"))

    def close_those_due(self) -> None:
        while self.blocks and self.blocks[-1].end <= len(self.steps):
            self.close()

    def _before_innermost_function(self) -> set[str]:
        """Names that a `del` here would make local to a function that did not make them."""
        functions = [block.before for block in self.blocks if block.kind == "checkpoint"]
        return functions[-1] if functions else set()

    def try_step(self) -> bool:
        kind = self.rng.choices(list(KINDS.values()), [k.weight for k in KINDS.values()])[0]
        scopes = (b.number for b in self.blocks if b.kind in ("scope", "checkpoint"))
        self.values.scope = next(scopes, 0)
        self.values.frozen_only = any(b.kind == "frozen" for b in self.blocks)
        try:
            holes = kind.fill(self.values)
        except NoFit:
            return False
        if kind.name == "delete" and holes["a"] in self._before_innermost_function() | {"?"}:
            return False
        written = [self.env[holes[letter]] for letter in kind.writes]
        versions = [tensor._version for tensor in written]
        frozen = any(map(self.values.frozen, written))
        hidden = kind.unseen or any(storage(t) in self.values.aliased for t in written)
        if hidden and frozen:
            return False  # eager would not notice either: it promises nothing
        behind = [storage(t) for t in written if self.values.behind_a_scope(t)]
        given = any(storage(tensor) in self.given for tensor in written)
        results = tuple(f"v{self.count + i}" for i in range(kind.results))
        step = Step(kind.name, holes, results)
        touched = [storage(self.env[name]) for name in step.operands]
        states = torch.get_rng_state(), self.env["gen"].get_state()
        hooks = torch.autograd.graph.saved_tensors_hooks(self.note_saved, lambda t: t)
        if kind.name == "func_grad":  # torch.func refuses them
            hooks = contextlib.nullcontext()
        try:
            with hooks:
                exec(step.text(), self.env)
            fits = all(map(self._fits, results))
        except MISFITS:
            fits = False
        if not fits:
            torch.set_rng_state(states[0])
            self.env["gen"].set_state(states[1])
            for name in results:
                self.env.pop(name, None)
            return False
        if self._in_handler(kind) and versions == [tensor._version for tensor in written]:
            # What a handler of a dispatch mode writes may move no version: scopes alone see it.
            hidden |= not self.values.scope
            self.undefined |= frozen
        self.writes_behind |= bool(behind)
        self.writes_behind_roots |= any(map(self._is_root, behind))
        self.writes_given |= given
        self.unseen_given |= given and hidden
        self.values.aliased.update(storage(self.env[holes[letter]]) for letter in kind.aliases)
        if self.values.scope or "R." in kind.text:
            scope = self.values.scope or -len(self.steps) - 1  # one of its own, which has closed
            made = {storage(self.env[name]) for name in results}
            if not any(word in kind.text for word in NOT_RECORDED):
                self.made_by.update((key, scope) for key in made - set(touched))
            touched += made
            for key in touched:
                self.values.recorded.setdefault(key, set()).add(scope)
        self.count += len(results)
        self.steps.append(step)
        return True

    def _is_root(self, key: int) -> bool:
        """Of a scope that has seen it, replay starts from it: another scope has made it, or none."""
        return bool(self.values.recorded[key] - {self.made_by.get(key)})

    def _in_handler(self, kind: Kind) -> bool:
        modes = any(block.kind in ("mode", "flop_counter") for block in self.blocks)
        return bool(kind.writes) and (modes or "FlopCounterMode" in kind.text)

    def _fits(self, name: str) -> bool:
        value = self.env[name]
        if not isinstance(value, torch.Tensor) or not 0 < value.numel() <= LIMIT * self.length:
            return False
        self.values.keep_alive.append(value.detach())
        if not value.is_floating_point():
            return True
        return bool(value.detach().abs().amax() < 100)

    def note_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_fake(tensor):  # of a branch that is traced
            return tensor
        self.values.saved.add(storage(tensor))
        self.values.keep_alive.append(tensor.detach())
        return tensor


def _grow(rng: random.Random, seed: int, length: int) -> Program | None:
    maker = _Maker(rng, seed, length)
    wanted = rng.choice((5, 10, 16, 24, 32, 45, 60))
    scope_starts = sorted(rng.sample(range(wanted), rng.choice((1, 1, 1, 2, 3))))
    if rng.random() < 0.7:
        scope_starts[0] = 0
    made = 0
    for _ in range(wanted * 12):
        maker.close_those_due()
        if made >= wanted:
            break
        if scope_starts and made >= scope_starts[0]:
            scope_starts.pop(0)
            maker.open("scope", 2 * wanted if rng.random() < 0.4 else rng.randrange(3, wanted + 6))
        if rng.random() < 0.03 and len(maker.blocks) < 5:
            block = rng.choice(BLOCKS_BY_CHANCE)
            maker.open(block, rng.randrange(2, 8))
        made += maker.try_step()
    while maker.blocks:
        maker.close()
    tensors = {n: v for n, v in maker.env.items() if usable(v)}
    live = [n for n, v in tensors.items() if n[0] == "v" and n[1:].isdigit() and v.requires_grad]
    if not live or maker.undefined:
        return None
    terms = [rng.choice(LOSS_TERMS).format(name) for name in live if rng.random() < 0.7]
    terms = terms or [f"{live[-1]}.sum()"]
    rng.shuffle(terms)
    count = min(len(terms), rng.choice((1, 2, 3)))
    losses = tuple(tuple(terms[i::count]) for i in range(count))
    made_here = [n for n in tensors if n[0] == "v" and n[1:].isdigit()]
    outputs = tuple(n for n in made_here if rng.random() < 0.15)
    backwards = ["sum", "sum", "orders", "orders", *BACKWARDS]
    if maker.unseen_given:  # behind the first of two forwards
        backwards = [each for each in backwards if each != "orders"]
    backward = rng.choice(backwards)
    steps = tuple(maker.steps)
    writes = maker.writes_behind, maker.writes_behind_roots, maker.writes_given
    return Program(seed, maker.leaves, steps, losses, outputs, backward, *writes)


def candidates(seed: int, length: int = 1) -> Iterator[Program]:
    """Programs that run plain; in a few percent eager raises in backward."""
    for attempt in range(50):
        rng = random.Random(seed * 1000 + attempt)
        program = _grow(rng, seed * 1000 + attempt, length)
        if program is None:
            continue
        plain = run(program)
        if plain.error is None or (plain.forward_done and INPLACE in str(plain.error)):
            yield program
        elif "derivative" in str(plain.error) or "not implemented" in str(plain.error):
            simple = dataclasses.replace(program, backward="sum")
            if run(simple).error is None:
                yield simple


def _idle(program: Program) -> bool:
    """With everything dropped nothing is replayed, and rightly: no verdict can come of it."""
    dropped = run(program, prelude.Dropping())
    return not dropped.replayed and dropped.error is None and not difference(run(program), dropped)


def make(seed: int, length: int = 1) -> Program:
    """The program of that seed. It runs plain, and gives replay something to do.

    length: of sequences, as a multiple. Tensors are a few hundred bytes large without it.
    """
    for program in candidates(seed, length):
        if not _idle(program):
            return program
    raise AssertionError(f"no program for seed {seed}")
