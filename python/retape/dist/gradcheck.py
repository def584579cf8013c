"""GradCheck: do ranks together compute what one process would have computed?

For data parallelism over all ranks:

    def reference(case):                       # the whole batch in one process
        model, x, y = make(case)
        loss_of(model, x, y, case.terms).backward()
        return retape.dist.gradients_of(model)

    def distributed(case):                     # what this rank does, and what it holds afterwards
        ...
        return retape.dist.gradients_of(model)

    def factory():                             # retape gradcheck mymodule:factory --ranks 4
        return retape.dist.GradCheck(reference, distributed, terms={"loss": 1.0}, rows=24)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn

from retape import _C, _dist
from retape.dist._dtensor import is_dtensor
from retape.dist._group import Group, timeout_of

Case = _dist.Case
Term = _dist.Term
row_generator = _dist.row_generator
row_uniform = _dist.row_uniform

__all__ = [
    "Case",
    "GradCheck",
    "GradReport",
    "Outcome",
    "Term",
    "gradients_of",
    "row_generator",
    "row_uniform",
]

Tensors = Mapping[str, torch.Tensor | None]
Progress = Callable[[int, int, str], None]


@dataclass
class Outcome:
    """What a step has come to. The reference has all tensors, a rank those that it holds.

    With `topologies` a rank leaves out the names of what it does not hold; a note lists the pools and ranks
    that leave out what others return. With `rows` every rank holds all of them, and a name that is missing on
    one is different. None, where another rank has a gradient, is a replica without it.
    DTensors, as FSDP2 has them, are made whole, and sparse tensors dense."""

    gradients: Tensors  # after every reduction, before clipping
    # After `case.steps`; the reference's also after 0: as they begin.
    parameters: Tensors = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)  # as clipping computed them
    losses: Mapping[str, float] = field(default_factory=dict)  # as they are logged: of all ranks together


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """The gradient of every parameter, by its name; of a DistributedDataParallel those of its module."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return {name: parameter.grad for name, parameter in inner.named_parameters()}


Step = Callable[[Case], Outcome | Tensors]


class GradReport:
    """What was found. True if equal, and it could have come out otherwise.

    kind: "equal", "different" or "vacuous". exit_code: 0, 1, 6.
    rows: a dict for each tensor of each run: topology, dtype, terms, what, tensor, kind, error, tolerance,
        alpha (the factor that fits best), residual (what it leaves), guesses (sizes that make it), reason.
    self_test: topology, killed, mutants, kill_rate, and a dict in rows for each thing that was broken.
    vacuous, notes: why nothing is proved, and what was not shown.

    Ranks but the first have its kind, and where the report is.
    """

    def __init__(self, told: Mapping[str, Any], text: str) -> None:
        self._told = dict(told)
        self._text = text

    @property
    def kind(self) -> str:
        return self._told["kind"]

    @property
    def exit_code(self) -> int:
        return self._told["exit_code"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self._told["rows"]

    @property
    def self_test(self) -> dict[str, Any]:
        return self._told["self_test"]

    @property
    def vacuous(self) -> list[str]:
        return self._told["vacuous"]

    @property
    def notes(self) -> list[str]:
        return self._told["notes"]

    def explain(self) -> str:
        """Lines for people."""
        return self._text

    def to_dict(self) -> dict[str, Any]:
        """What goes into JSON."""
        return self._told

    def raise_if_different(self) -> None:
        """Error unless equal: only a proof passes."""
        if self.kind != "equal":
            raise _C.Error(f"[GradCheck] {self.explain()}")

    def __bool__(self) -> bool:
        return self.kind == "equal"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<retape.dist.GradReport {self.kind}: {len(self.rows)} comparisons>"


class GradCheck:
    """Compares what ranks compute together with what one process computes.

    reference: takes a `Case`, and is run by the first rank with the whole batch. distributed: takes a
        `Case`, and is run by every rank of its topology. Both return an `Outcome`, or a dict of gradients,
        and begin anew each time: the same case, the same outcome.
    terms: of the loss: names with coefficients, or a list of `Term`. A step computes those of `case.terms`
        that are not 0. Each is checked alone, and all together.
    topologies: by name. A step runs on the ranks of one alone, so that with several it needs a group for
        each. Of several pools one must have one rank in each, and of each two either must be larger in one.
        With `rows` in their place: data parallelism over all ranks, one pool "ranks". Every rank then
        holds every parameter, and must return each name.
    dtypes: of production, after float64, which decides. wire: dtype in which production sends.
    steps: of the optimizer, after which it is compared how far parameters have moved.
    microbatches: for a step that accumulates; `case.cut(rows)` gives them, of very different sizes. That no
        rank asks for them is noted.
    ragged: add a topology whose ranks have very different numbers of rows, and with `empty` one in which a
        rank has none: ranks that run out of batches continue with 0 rows. Rows must differ for it to show
        anything; a note says where they do not.
    self_test: break every contribution to every sum, one at a time, and see whether it is noticed.
    tolerance: by dtype, in place of the derived ones. may_be_dead: parameters that have no gradient.
    everyone: all ranks, a `retape.dist.Group` over Gloo; by default one of the check's own.
    """

    def __init__(
        self,
        reference: Step,
        distributed: Step,
        terms: Mapping[str, float] | Sequence[Term],
        topologies: Mapping[str, _dist.Topology] | None = None,
        *,
        rows: int | None = None,
        dtypes: Sequence[torch.dtype] = (torch.float32,),
        wire: torch.dtype | None = None,
        steps: int = 0,
        microbatches: int = 1,
        ragged: bool = True,
        empty: bool = True,
        self_test: bool = True,
        tolerance: Mapping[torch.dtype, float] | None = None,
        may_be_dead: Sequence[str] = (),
        seed: int = 0,
        everyone: _dist.Group | None = None,
    ) -> None:
        if (topologies is None) == (rows is None):
            raise _C.UsageError(
                "[GradCheck] expected topologies, or rows for data parallelism over all ranks, got "
                f"{'neither' if rows is None else 'both'}. Fix: rows=24."
            )
        self.reference = reference
        self.distributed = distributed
        self.terms = terms
        self.topologies = topologies
        self.rows = rows
        self.dtypes = tuple(dtypes)
        self.wire = wire
        self.steps = steps
        self.microbatches = microbatches
        self.ragged = ragged
        self.empty = empty
        self.self_test = self_test
        self.tolerance = dict(tolerance or {})
        self.may_be_dead = tuple(may_be_dead)
        self.seed = seed
        self.everyone = everyone

    def run(
        self, progress: Progress | None = None, raised: Callable[[str], None] | None = None
    ) -> GradReport:
        """By every rank. `progress(done, total, what)` is called before each run; `raised(text)` on the
        rank where a step raises, at once, while others may still wait for it."""
        given = contextlib.nullcontext(self.everyone)
        with given if self.everyone is not None else _all_ranks() as everyone:
            report = _dist.gradcheck(
                everyone,
                _parts_of(self.reference, "reference"),
                _parts_of(_with_hint(self.distributed, everyone.ranks[everyone.index]), "distributed"),
                self._options(everyone.size),
                progress,
                raised,
            )
            first, is_first = everyone.ranks[0], everyone.index == 0
            del everyone
        told = json.loads(report.json())
        text = report.text() if is_first else f"{told['kind']}: rank {first} has the report, with the reasons."
        return GradReport(told, text)

    def _options(self, ranks: int) -> _dist.GradCheckOptions:
        options = _dist.GradCheckOptions()
        options.terms = _terms(self.terms)
        topologies = self.topologies
        if topologies is None:
            pool = _dist.Pool("ranks", list(range(ranks)))
            topologies = {str(ranks): _dist.Topology(self.rows or 0, [pool])}
        options.topologies = list(topologies.items())
        options.replicated = self.topologies is None
        options.dtypes = list(self.dtypes)
        options.wire = self.wire
        options.steps = self.steps
        options.microbatches = self.microbatches
        options.ragged = self.ragged
        options.empty = self.empty
        options.mutations = self.self_test
        options.tolerance = self.tolerance
        options.may_be_dead = list(self.may_be_dead)
        options.seed = self.seed
        return options


def _terms(given: Mapping[str, float] | Sequence[Term]) -> list[Term]:
    if isinstance(given, Mapping):
        return [Term(name, float(coefficient)) for name, coefficient in given.items()]
    return list(given)


@contextlib.contextmanager
def _all_ranks() -> Iterator[_dist.Group]:
    """A group of the check's own, over Gloo: it moves CPU tensors, whatever the step's groups do, and
    outlives theirs: when one rank has raised, the others come to tell when theirs have timed out."""
    if not torch_dist.is_initialized():
        raise _C.UsageError(
            "[GradCheck] there are no ranks: torch.distributed is not initialized. Fix: `retape gradcheck "
            "package.module:factory --ranks 4`, or init_process_group first."
        )
    timeout = 2 * timeout_of(torch_dist.group.WORLD)
    ranks = torch_dist.new_group(backend="gloo", timeout=timeout, group_desc="gradcheck")
    yield Group(ranks, timeout=timeout)
    torch_dist.destroy_process_group(ranks)


def _with_hint(step: Step, rank: int) -> Step:
    """What raises on a rank without rows may raise because it has none."""

    def run(case: Case) -> Outcome | Tensors:
        try:
            return step(case)
        except Exception as error:
            shards = [dict(zip(pool.ranks, pool.shards, strict=True)) for pool in case.topology.pools]
            if any(begin == end for begin, end in (each[rank] for each in shards if rank in each)):
                error.add_note(
                    f"Rank {rank} has 0 rows here, as ranks have that run out of batches. Fix: a step that takes 0 "
                    "rows, or GradCheck(..., empty=False) if no rank runs out."
                )
            raise

    return run


def _parts_of(step: Step, which: str) -> Callable[[Case], tuple[Any, Any, Any, Any]]:
    def run(case: Case) -> tuple[Any, Any, Any, Any]:
        found = step(case)
        if isinstance(found, Mapping):
            found = Outcome(found)
        if not isinstance(found, Outcome):
            raise _C.UsageError(
                f"[GradCheck] {which}: expected an Outcome or a dict of gradients, got "
                f"{type(found).__name__}. Fix: return retape.dist.gradients_of(model)."
            )
        return (
            _tensors(found.gradients, which, "gradient"),
            _tensors(found.parameters, which, "parameter"),
            _numbers(found.norms, which, "norm"),
            _numbers(found.losses, which, "loss"),
        )

    return run


def _tensors(given: Tensors, which: str, what: str) -> dict[str, torch.Tensor | None]:
    """What is None in the reference is frozen. A rank's is told: another may have numbers there."""
    by_one = which == "reference"
    # By name, not as each rank has them: to make a DTensor whole is a call of all ranks of its mesh.
    return {
        name: _whole(tensor, f"{which}: {what} {name!r}", by_one)
        for name, tensor in _sorted(given, which, what)
        if tensor is not None or not by_one
    }


def _numbers(given: Mapping[str, Any], which: str, what: str) -> dict[str, float]:
    return {
        name: _number(number, f"{which}: {what} {name!r}") for name, number in _sorted(given, which, what)
    }


def _sorted(given: Any, which: str, what: str) -> list[tuple[str, Any]]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise _C.UsageError(
            f"[GradCheck] {which}: {what}: expected a dict by name, got {type(given).__name__}. Fix: "
            "retape.dist.gradients_of(model) gives one."
        )
    return sorted(given.items())


def _whole(tensor: Any, what: str, by_one: bool) -> torch.Tensor | None:
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor):
        raise _C.UsageError(
            f"[GradCheck] {what}: expected a tensor or None, got {type(tensor).__name__}. Fix: parameter.grad; "
            "numbers are norms or losses, Outcome(gradients, norms={...}, losses={...})."
        )
    if is_dtensor(tensor):
        if by_one and tensor.device_mesh.size() > 1:
            raise _C.UsageError(
                f"[GradCheck] {what} is a DTensor of {tensor.device_mesh.size()} ranks, and one rank alone runs "
                "the reference. Fix: a model without fully_shard there."
            )
        tensor = tensor.full_tensor()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _number(number: Any, what: str) -> float:
    if is_dtensor(number):  # a norm of DTensors: parts that are yet to be added
        number = number.full_tensor()
    try:
        return float(number)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _C.UsageError(
            f"[GradCheck] {what}: expected a number, got {type(number).__name__}. Fix: float(...)."
        ) from error
