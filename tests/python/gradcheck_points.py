"""A step of two pools, right, and wrong in each way that GradCheck has a point against.

    retape gradcheck tests.python.gradcheck_points:right --ranks 4         # equal
    retape gradcheck tests.python.gradcheck_points:reseeded --ranks 4      # different

Each pool has a parameter and a loss of its own over all rows: "fit" over tokens, "noise" with random
numbers, and a "penalty" that its ranks all compute in full. Rows are taken in microbatches, gradients are
clipped over both pools, and AdamW steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as torch_dist
from tests.python import ranks

import retape.dist as rd

RANKS, ROWS, WIDTH = 4, 24, 3
LIMIT = 0.1  # of the norm: below what it is
TERMS = [rd.Term("fit", 1.0), rd.Term("noise", 0.7, random=True), rd.Term("penalty", 0.3)]
Split = tuple[tuple[int, ...], tuple[int, ...]]
SPLITS: dict[str, Split] = {
    "1, 1": ((0,), (1,)),
    "1, 3": ((0,), (1, 2, 3)),
    "3, 1": ((0, 1, 2), (3,)),
}
SQUARE: dict[str, Split] = {"2, 2": ((0, 1), (2, 3))}
# Where the question is not what a topology shows.
ONES_AND_FAN = {name: SPLITS[name] for name in ("1, 1", "1, 3")}
FAN = {"1, 3": SPLITS["1, 3"]}


def topologies(splits: dict[str, Split]) -> dict[str, rd.Topology]:
    names = ("left", "right")
    return {
        name: rd.Topology(
            ROWS, [rd.Pool(pool, list(members)) for pool, members in zip(names, split, strict=True)]
        )
        for name, split in splits.items()
    }


def weight(case: rd.Case, pool: str) -> torch.nn.Parameter:
    begin = -1.0 if pool == "left" else 0.5
    return torch.nn.Parameter(torch.linspace(begin, 2, WIDTH, dtype=case.dtype))


def tokens(begin: int, end: int) -> torch.Tensor:
    return 1 + torch.arange(begin, end) % 3


def fit(case: rd.Case, w: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    x = rd.row_uniform(case.seed, "x", (begin, end), [WIDTH], case.dtype)
    return ((x @ w - 1).square() * tokens(begin, end)).sum()


def noise(case: rd.Case, w: torch.Tensor, begin: int, end: int, seed: int) -> torch.Tensor:
    drawn = rd.row_uniform(seed, "noise", (begin, end), [WIDTH], case.dtype)
    return (drawn @ w).square().sum()


def adam(w: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.AdamW([w], lr=0.05)


def reference(case: rd.Case) -> rd.Outcome:
    weights = {pool: weight(case, pool) for pool in ("left", "right")}
    optimizers = [adam(w) for w in weights.values()]
    for _ in range(max(1, case.steps)):
        for w in weights.values():
            w.grad = None
            loss = case.terms["fit"] * fit(case, w, 0, ROWS) / tokens(0, ROWS).sum()
            loss = loss + case.terms["noise"] * noise(case, w, 0, ROWS, case.seed) / ROWS
            (loss + case.terms["penalty"] * w.square().sum()).backward()
        gradients = {pool: w.grad.clone() for pool, w in weights.items()}
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), LIMIT)
        for optimizer in optimizers if case.steps else ():
            optimizer.step()
    return rd.Outcome(gradients, {pool: w.detach() for pool, w in weights.items()}, {"both": norm})


@functools.cache
def groups_of(left: tuple[int, ...], right: tuple[int, ...]) -> dict[str, rd.Group]:
    """Those that this rank is in. By all ranks, in one order."""
    found = {}
    for name, members in (("left", left), ("right", right), ("both", left + right)):
        made = torch_dist.new_group(list(members))
        if torch_dist.get_rank() in members:
            found[name] = rd.Group(made, name=name)
    return found


class Trainer:
    """`wrong`: what is."""

    def __init__(self, splits: dict[str, Split], wrong: str = "") -> None:
        self.wrong = wrong
        self.groups = {split: groups_of(*split) for split in splits.values()}

    def __call__(self, case: rd.Case) -> rd.Outcome:
        rank = torch_dist.get_rank()
        (pool,) = [each for each in case.topology.pools if rank in each.ranks]
        groups = self.groups[tuple(tuple(each.ranks) for each in case.topology.pools)]
        group, both = groups[pool.name], groups["both"]
        w = weight(case, pool.name)
        optimizer = adam(w)
        for _ in range(max(1, case.steps)):
            w.grad = None
            self._backward(case, w, pool.shards[pool.ranks.index(rank)], group, both)
            self._reduce(case, w, group)
            gradient = w.grad.clone()
            replicas = rd.Group.alone("own") if self.wrong == "every replica" else group
            norm = rd.clip_grad_norm([([w], replicas)], LIMIT, both)
            if self.wrong == "forgetful":
                optimizer = adam(w)
            if case.steps:
                optimizer.step()
        return rd.Outcome({pool.name: gradient}, {pool.name: w.detach()}, {"both": norm})

    def _backward(self, case: rd.Case, w: torch.Tensor, rows: tuple[int, int], group, both) -> None:
        total = rd.count_global("tokens", int(tokens(*rows).sum()), group)
        all_rows = rd.count_global("rows", rows[1] - rows[0], group)
        parts = case.cut(rows)
        seed = case.seed + torch_dist.get_rank() if self.wrong == "reseeded" else case.seed
        for begin, end in parts:
            loss = fit(case, w, begin, end)
            if self.wrong == "mean of microbatches":
                share = loss / (tokens(begin, end).sum() * len(parts) * len(group))
            elif self.wrong == "other pool":
                share = loss / total.value * (len(both) - len(group)) / len(group)
            else:
                share = rd.normalize(loss, total).value
            some = rd.normalize(noise(case, w, begin, end, seed), all_rows).value
            (case.terms["fit"] * share + case.terms["noise"] * some).backward()
        once = rd.contribute_once("penalty", rd.Replicated(w.square().sum()), group)
        (case.terms["penalty"] * once.value).backward()

    def _reduce(self, case: rd.Case, w: torch.Tensor, group) -> None:
        reducer = rd.SumReducer(group, wire=case.wire)
        reducer.add("w", rd.Partial(w.grad))
        reducer.reduce()
        if self.wrong == "coarse" and case.dtype == torch.float32:
            w.grad.copy_(w.grad.half())
        if self.wrong == "not the same" and group.index == len(group) - 1:
            w.grad[0] = torch.nextafter(w.grad[0], w.grad[1])


def check(wrong: str = "", splits: dict[str, Split] = SPLITS, **options) -> rd.GradCheck:
    options = {"terms": TERMS, "self_test": False, "dtypes": (), **options}
    return rd.GradCheck(reference, Trainer(splits, wrong), topologies=topologies(splits), **options)


def right() -> rd.GradCheck:
    return check(
        steps=3,
        microbatches=3,
        dtypes=(torch.float32,),
        wire=torch.bfloat16,
        self_test=True,
    )


def too_small() -> rd.GradCheck:
    return check(terms=[*TERMS[:2], rd.Term("penalty", 1e-14)], ragged=False)


def square() -> rd.GradCheck:
    return check(splits=SQUARE, ragged=False, self_test=True)


def other_pool_in_a_square() -> rd.GradCheck:
    return check("other pool", SQUARE)


def other_pool() -> rd.GradCheck:
    return check("other pool", ragged=False)


def mean_of_microbatches() -> rd.GradCheck:
    return check("mean of microbatches", ONES_AND_FAN, microbatches=3)


def reseeded() -> rd.GradCheck:
    return check("reseeded", FAN)


def not_the_same() -> rd.GradCheck:
    return check("not the same", FAN)


def every_replica() -> rd.GradCheck:
    return check("every replica", ONES_AND_FAN)


def forgetful() -> rd.GradCheck:
    return check("forgetful", FAN, steps=3)


def coarse() -> rd.GradCheck:
    return check("coarse", FAN, ragged=False, dtypes=(torch.float32,))


# ---- a parameter that both pools hold --------------------------------------------------------------


def shared_loss(case: rd.Case, w: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    x = rd.row_uniform(case.seed, "shared", (begin, end), [WIDTH], case.dtype)
    return (x @ w).square().sum() / ROWS


def shared_reference(case: rd.Case) -> dict[str, torch.Tensor]:
    weights = {name: weight(case, name) for name in ("left", "right", "shared")}
    for w in weights.values():
        shared_loss(case, w, 0, ROWS).backward()
    return {name: w.grad for name, w in weights.items()}


class Shared(Trainer):
    """Each pool has all rows, and gives half of the gradient of what both hold. `wrong`: "left out", where the
    right pool loses that gradient and returns only names that have one."""

    def __call__(self, case: rd.Case) -> dict[str, torch.Tensor]:
        rank = torch_dist.get_rank()
        (pool,) = [each for each in case.topology.pools if rank in each.ranks]
        groups = self.groups[tuple(tuple(each.ranks) for each in case.topology.pools)]
        rows = pool.shards[pool.ranks.index(rank)]
        weights = {name: weight(case, name) for name in (pool.name, "shared")}
        for name, w in weights.items():
            (shared_loss(case, w, *rows) / (2 if name == "shared" else 1)).backward()
            groups["both" if name == "shared" else name].sum(name, w.grad)
        if self.wrong == "left out" and pool.name == "right":
            weights["shared"].grad = None
        return {name: w.grad for name, w in weights.items() if w.grad is not None}


def shared_check(wrong: str = "") -> rd.GradCheck:
    options = {"terms": {"fit": 1.0}, "dtypes": (), "self_test": False, "empty": False}
    split = {name: SPLITS[name] for name in ("1, 1", "1, 3", "3, 1")}
    return rd.GradCheck(
        shared_reference, Shared(split, wrong), topologies=topologies(split), **options
    )


def shared() -> rd.GradCheck:
    return shared_check()


def shared_left_out_by_a_pool() -> rd.GradCheck:
    return shared_check("left out")


# ---- one pool of all ranks -------------------------------------------------------------------------

TOKENS = int(tokens(0, ROWS).sum())


def mean(case: rd.Case) -> dict[str, torch.Tensor]:
    w = weight(case, "left")
    (fit(case, w, 0, ROWS) / TOKENS).backward()
    return {"w": w.grad}


class Mean:
    """`wrong`: what rank 1 does; where it counts too many tokens, which only a mutant makes it do, if it
    leaves the others alone."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        # A process group for each, because some break theirs, and one for sums of torch's own.
        self.group = rd.Group(torch_dist.new_group(), name="ranks")
        self.plain = torch_dist.new_group(timeout=timedelta(seconds=5))

    def __call__(self, case: rd.Case) -> dict[str, torch.Tensor | None]:
        rank = torch_dist.get_rank()
        rows = case.topology.pool("ranks").shards[rank]
        w = weight(case, "left")
        if self.wrong == "nothing here":
            (fit(case, w, *rows) / TOKENS).backward()
        else:
            own = int(tokens(*rows).sum())
            own = max(own, 1) if self.wrong == "at least one" else own
            count = rd.count_global("tokens", own, self.group)
            if rank == 1 and count.value > TOKENS:
                self._leave()
            rd.normalize(fit(case, w, *rows), count).value.backward()
        if self.wrong in ("nothing here", "raises"):
            torch_dist.all_reduce(w.grad, group=self.plain)
        else:
            self.group.sum("w", w.grad)
        if rank == 1 and self.wrong == "leaves it out":
            return {}
        return {"w": None if rank == 1 and self.wrong == "none" else w.grad}

    def _leave(self) -> None:
        if self.wrong == "raises":
            raise ValueError("too many tokens")
        if self.wrong == "another call":
            self.group.sum("another", torch.ones(2))


def mean_check(wrong: str, **options) -> rd.GradCheck:
    options = {"terms": {"fit": 1.0}, "dtypes": (), **options}
    return rd.GradCheck(mean, Mean(wrong), rows=ROWS, **options)


def none_on_one_rank() -> rd.GradCheck:
    return mean_check("none", self_test=False)


def left_out_on_one_rank() -> rd.GradCheck:
    return mean_check("leaves it out", self_test=False)


def left_out_on_one_rank_of_a_pool() -> rd.GradCheck:
    pool = {"4": rd.Topology(ROWS, [rd.Pool("ranks", list(range(RANKS)))])}
    options = {"terms": {"fit": 1.0}, "dtypes": (), "self_test": False}
    return rd.GradCheck(mean, Mean("leaves it out"), topologies=pool, **options)


def counts_at_least_one() -> rd.GradCheck:
    return mean_check("at least one", self_test=False)


def alike(case: rd.Case, w: torch.Tensor, rows: int) -> torch.Tensor:
    """Every row is the same."""
    return (torch.ones(rows, WIDTH, dtype=case.dtype) @ w - 1).square().sum()


def alike_mean(case: rd.Case) -> dict[str, torch.Tensor]:
    w = weight(case, "left")
    (alike(case, w, ROWS) / ROWS).backward()
    return {"w": w.grad}


def alike_check(mean_of_means: bool, by_torch: bool = False, **options) -> rd.GradCheck:
    made = torch_dist.new_group()
    group = rd.Group(made, name="ranks")

    def distributed(case: rd.Case) -> dict[str, torch.Tensor]:
        begin, end = case.topology.pool("ranks").shards[torch_dist.get_rank()]
        w = weight(case, "left")
        loss = alike(case, w, end - begin)
        (loss / (end - begin) / RANKS if mean_of_means else loss / ROWS).backward()
        if by_torch:
            torch_dist.all_reduce(w.grad, group=made)
        else:
            group.sum("w", w.grad)
        return {"w": w.grad}

    options = {"terms": {"fit": 1.0}, "dtypes": (), "empty": False, **options}
    return rd.GradCheck(alike_mean, distributed, rows=ROWS, **options)


def alike_rows() -> rd.GradCheck:
    return alike_check(mean_of_means=False)


def mean_of_means_of_alike_rows() -> rd.GradCheck:
    return alike_check(mean_of_means=True)


def alike_rows_without_self_test() -> rd.GradCheck:
    return alike_check(mean_of_means=False, self_test=False)


def mean_of_means_of_alike_rows_without_self_test() -> rd.GradCheck:
    return alike_check(mean_of_means=True, self_test=False)


def alike_rows_summed_by_torch() -> rd.GradCheck:
    return alike_check(mean_of_means=False, by_torch=True, self_test=False)


def mean_of_means_of_alike_rows_summed_by_torch() -> rd.GradCheck:
    return alike_check(mean_of_means=True, by_torch=True, self_test=False)


# ---- precision -------------------------------------------------------------------------------------


def through_float32(factor: float = 1.0) -> rd.GradCheck:
    step = Mean()

    def distributed(case: rd.Case) -> dict[str, torch.Tensor]:
        return {"w": (factor * step(case)["w"]).float().to(case.dtype)}

    options = {"terms": {"fit": 1.0}, "dtypes": (), "self_test": False}
    return rd.GradCheck(mean, distributed, rows=ROWS, **options)


def average_through_float32() -> rd.GradCheck:
    return through_float32(1 / RANKS)


def third_through_float32() -> rd.GradCheck:
    return through_float32(1 / 3)


# ---- several parameters ----------------------------------------------------------------------------


def two_means(case: rd.Case) -> dict[str, torch.Tensor]:
    weights = {name: weight(case, name) for name in ("left", "right")}
    for w in weights.values():
        (case.terms["fit"] * fit(case, w, 0, ROWS) / TOKENS).backward()
    return {
        **{name: w.grad for name, w in weights.items()},
        "dead": torch.zeros(2, dtype=case.dtype),
    }


class TwoMeans:
    """Two parameters with a gradient and one without, reduced together. `wrong`: "leaves one out" on rank 1, or
    "another name", by which the sum of the dead one goes."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.group = rd.Group(torch_dist.new_group(), name="ranks")

    def __call__(self, case: rd.Case) -> dict[str, torch.Tensor]:
        rank = torch_dist.get_rank()
        rows = case.topology.pool("ranks").shards[rank]
        weights = {name: weight(case, name) for name in ("left", "right")}
        count = rd.count_global("tokens", int(tokens(*rows).sum()), self.group)
        for w in weights.values():
            (case.terms["fit"] * rd.normalize(fit(case, w, *rows), count).value).backward()
        weights["dead"] = torch.nn.Parameter(torch.ones(2, dtype=case.dtype))
        weights["dead"].grad = torch.zeros(2, dtype=case.dtype)
        if self.wrong == "another name":
            self.group.sum("grad of dead", weights["dead"].grad)
        reducer = rd.SumReducer(self.group)
        reducer.add_gradients(
            (name, w)
            for name, w in weights.items()
            if not (self.wrong == "another name" and name == "dead")
        )
        reducer.reduce()
        left_out = {"right"} if self.wrong == "leaves one out" and rank == 1 else set()
        return {name: w.grad for name, w in weights.items() if name not in left_out}


def two_means_check(wrong: str, **options) -> rd.GradCheck:
    options = {"terms": {"fit": 1.0}, "dtypes": (), "may_be_dead": ["dead"], **options}
    return rd.GradCheck(two_means, TwoMeans(wrong), rows=ROWS, **options)


def one_of_several_left_out_on_one_rank() -> rd.GradCheck:
    return two_means_check("leaves one out", self_test=False)


def dead_and_reduced() -> rd.GradCheck:
    return two_means_check("", ragged=False)


def dead_and_summed_by_another_name() -> rd.GradCheck:
    return two_means_check("another name", ragged=False)


# ---- mutants ---------------------------------------------------------------------------------------


def another_call_in_a_mutant() -> rd.GradCheck:
    return mean_check("another call", ragged=False)


def raises_in_a_mutant() -> rd.GradCheck:
    return mean_check("raises", ragged=False)


def nothing_through_retape() -> rd.GradCheck:
    return mean_check("nothing here")


def nothing_through_retape_and_no_self_test() -> rd.GradCheck:
    return mean_check("nothing here", self_test=False)


FACTORIES: list[Callable[[], rd.GradCheck]] = [
    *(right, too_small, square, other_pool_in_a_square, other_pool, mean_of_microbatches),
    *(reseeded, not_the_same, every_replica, forgetful, coarse),
    *(none_on_one_rank, left_out_on_one_rank, left_out_on_one_rank_of_a_pool),
    *(one_of_several_left_out_on_one_rank, shared, shared_left_out_by_a_pool),
    *(counts_at_least_one, alike_rows, mean_of_means_of_alike_rows),
    *(alike_rows_without_self_test, mean_of_means_of_alike_rows_without_self_test),
    *(alike_rows_summed_by_torch, mean_of_means_of_alike_rows_summed_by_torch),
    *(through_float32, average_through_float32, third_through_float32),
    *(dead_and_reduced, dead_and_summed_by_another_name),
    *(another_call_in_a_mutant, raises_in_a_mutant),
    *(nothing_through_retape, nothing_through_retape_and_no_self_test),
]


def main() -> None:
    for factory in FACTORIES:
        report = factory().run()
        if torch_dist.get_rank() == 0:
            ranks.tell(name=factory.__name__, report=report.to_dict(), text=report.explain())
