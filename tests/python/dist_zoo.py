"""A zoo of steps that are wrong across ranks, each beside the same step done right.

All are classes of mistakes that shipped in real trainers; `seen_in` names one. An animal is a step with a
switch, which makes two checks:

    retape gradcheck tests.python.dist_zoo:token_means.broken --ranks 4      # different
    retape gradcheck tests.python.dist_zoo:token_means.clean --ranks 4       # equal

Four ranks have 24 rows, 6 each with 18 tokens each; then a ragged cut of 1, 4, 7 and 12 rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.distributed.nn.functional as autograd_dist
from tests.python import ranks
from torch.nn import functional

import retape.dist as rd

RANKS, ROWS, WIDTH, FEATURES = 4, 24, 3, 2
MICROBATCHES = 2
EXPERTS = 2  # one for each rank of a pair
Parameters = dict[str, torch.Tensor]
Step = Callable[[rd.Case], Any]

# ---- batches, parameters and reductions ------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    tokens: torch.Tensor  # of each row
    row: torch.Tensor  # its number in the whole batch

    @property
    def count(self) -> int:
        return int(self.tokens.sum())

    @property
    def first(self) -> int:
        """0 where there are no rows."""
        return int(self.row[0]) if len(self.row) else 0

    def where(self, mask: torch.Tensor) -> Batch:
        return Batch(self.x[mask], self.tokens[mask], self.row[mask])

    def split(self, parts: int) -> list[Batch]:
        """Microbatches; a rank with one row has one."""
        cut = zip(
            *(each.tensor_split(parts) for each in (self.x, self.tokens, self.row)), strict=True
        )
        return [Batch(*each) for each in cut if each[0].numel()]


def batch(case: rd.Case, begin: int = 0, end: int = ROWS) -> Batch:
    x = rd.row_uniform(case.seed, "x", (begin, end), [WIDTH], case.dtype)
    row = torch.arange(begin, end)
    return Batch(x, 2 + row % 3, row)


def own(case: rd.Case) -> Batch:
    return batch(case, *case.topology.pool("ranks").shards[torch_dist.get_rank()])


def leaves(case: rd.Case, **more: tuple[int, ...]) -> Parameters:
    """The same on every rank, and no two numbers alike."""
    sizes = {"w": (WIDTH, FEATURES), "b": (FEATURES,), **more}
    return {
        name: torch.linspace(-0.9 - 0.1 * i, 1.3, torch.Size(size).numel(), dtype=case.dtype)
        .sin()
        .view(size)
        .requires_grad_()
        for i, (name, size) in enumerate(sizes.items())
    }


def gradients(p: Parameters) -> Parameters:
    return {name: each.grad for name, each in p.items() if each.grad is not None}


@functools.cache
def world() -> Any:
    return rd.Group(name="world")


@functools.cache
def everyone() -> Any:
    return rd.Group(torch_dist.new_group(backend="gloo"), name="gradcheck")


def summed(p: Parameters, group: Any = None) -> Parameters:
    reducer = rd.SumReducer(group or world())
    reducer.add_gradients(p.items())
    reducer.reduce()
    return gradients(p)


def averaged(p: Parameters, group: Any = None) -> Parameters:
    """What DistributedDataParallel does."""
    group = group or world()
    for name, each in p.items():
        group.sum(name, each.grad)
        each.grad /= group.size
    return gradients(p)


def token_sum(p: Parameters, given: Batch) -> torch.Tensor:
    """Of every token of every row, an error."""
    errors = ((given.x @ p["w"] + p["b"]).tanh().sum(1) - 1) ** 2
    return (errors * given.tokens).sum()


def token_mean(case: rd.Case) -> Parameters:
    """One process, the whole batch: what most animals are compared with."""
    p, whole = leaves(case), batch(case)
    (token_sum(p, whole) / whole.count).backward()
    return gradients(p)


# ---- animals ---------------------------------------------------------------------------------------

ANIMALS: list[Animal] = []


@dataclass(frozen=True)
class Animal:
    name: str
    seen_in: str
    step: Callable[[rd.Case, bool], Any]
    reference: Step
    terms: Any
    pools: Sequence[rd.Pool]

    def clean(self) -> rd.GradCheck:
        return self._check(False)

    def broken(self) -> rd.GradCheck:
        return self._check(True)

    def _check(self, wrong: bool) -> rd.GradCheck:
        pools = [rd.Pool("ranks", list(range(RANKS))), *self.pools]
        return rd.GradCheck(
            self.reference,
            lambda case: self.step(case, wrong),
            terms=self.terms,
            topologies={str(RANKS): rd.Topology(ROWS, pools)},
            dtypes=(),  # float64 decides
            self_test=False,
            everyone=everyone(),
        )


def animal(
    seen_in: str, reference: Step = token_mean, terms: Any = None, pools: Sequence[rd.Pool] = ()
) -> Callable[[Callable[[rd.Case, bool], Any]], Animal]:
    def make(step: Callable[[rd.Case, bool], Any]) -> Animal:
        made = Animal(step.__name__, seen_in, step, reference, terms or {"loss": 1.0}, pools)
        ANIMALS.append(made)
        return made

    return make


@animal("transformers#34191")
def microbatch_means(case: rd.Case, broken: bool) -> Parameters:
    """Each microbatch's mean, averaged: a token of a short microbatch weighs more."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    parts = mine.split(MICROBATCHES)
    for part in parts:
        weight = mine.count / len(parts) / part.count if broken else 1
        rd.normalize(weight * token_sum(p, part), count).value.backward()
    return summed(p)


@animal("transformers#34242, speculators#942, prime-rl#2562")
def token_means(case: rd.Case, broken: bool) -> Parameters:
    """Each rank's mean over its own tokens, averaged: plain DistributedDataParallel."""
    p, mine = leaves(case), own(case)
    if broken:
        (token_sum(p, mine) / mine.count).backward()
        return averaged(p)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(token_sum(p, mine), count).value.backward()
    return summed(p)


@animal("verl#3332")
def missing_world_size(case: rd.Case, broken: bool) -> Parameters:
    """Divided by everybody's tokens, and then averaged too."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(token_sum(p, mine), count).value.backward()
    return averaged(p) if broken else summed(p)


@animal("sparseml#135, xtuner#1968")
def world_size_too_many(case: rd.Case, broken: bool) -> Parameters:
    """The factor that undoes an average, left in when the average became a sum."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    factor = world().size if broken else 1
    rd.normalize(factor * token_sum(p, mine), count).value.backward()
    return summed(p)


@animal("unsloth-zoo#1023")
def normalised_twice(case: rd.Case, broken: bool) -> Parameters:
    """By the tokens of all microbatches, and by how many microbatches there are."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    for part in mine.split(MICROBATCHES):
        loss = rd.normalize(token_sum(p, part), count).value
        (loss / MICROBATCHES if broken else loss).backward()
    return summed(p)


@animal("transformers#40799")
def count_summed_twice(case: rd.Case, broken: bool) -> Parameters:
    """A count that is everybody's already, summed over everybody."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    if broken:
        count = rd.count_global("tokens again", count.value, world())
    rd.normalize(token_sum(p, mine), count).value.backward()
    return summed(p)


def usage(p: Parameters, given: Batch) -> torch.Tensor:
    return (given.x @ p["w"] + p["b"]).sigmoid().sum(0)


def usage_loss(total: torch.Tensor) -> torch.Tensor:
    return (total / ROWS * torch.log2(1 + total)).sum()


def usage_reference(case: rd.Case) -> Parameters:
    p = leaves(case)
    usage_loss(usage(p, batch(case))).backward()
    return gradients(p)


@animal("param-decomp#546", usage_reference)
def local_log(case: rd.Case, broken: bool) -> Parameters:
    """The log of a sum over all rows, taken of each rank's own rows."""
    p = leaves(case)
    local = usage(p, own(case))
    usage_loss(local if broken else rd.global_residual("usage", local, world())).backward()
    return summed(p)


@animal("param-decomp#546", usage_reference)
def autograd_all_reduce(case: rd.Case, broken: bool) -> Parameters:
    """torch's differentiable all_reduce sums gradients too, of a loss that every rank computes."""
    p = leaves(case)
    local = usage(p, own(case))
    if broken:
        total = autograd_dist.all_reduce(local)
    else:
        total = rd.global_residual("usage", local, world())
    usage_loss(total).backward()
    return summed(p)


@functools.cache
def expert_replicas() -> Any:
    """The ranks that hold the same expert as this one: 0 and 2, or 1 and 3."""
    groups = [torch_dist.new_group([expert, expert + EXPERTS]) for expert in range(EXPERTS)]
    return rd.Group(groups[torch_dist.get_rank() % EXPERTS], name="replicas")


def expert_sum(p: Parameters, expert: int, given: Batch) -> torch.Tensor:
    given = given.where(given.row % EXPERTS == expert)
    return (((given.x * p["dense"]) @ p[f"expert{expert}"]).tanh() * given.tokens).sum()


def expert_leaves(case: rd.Case) -> Parameters:
    p = leaves(case, dense=(WIDTH,), **{f"expert{i}": (WIDTH,) for i in range(EXPERTS)})
    return {name: each for name, each in p.items() if name not in ("w", "b")}


def expert_reference(case: rd.Case) -> Parameters:
    p, whole = expert_leaves(case), batch(case)
    total = sum(expert_sum(p, expert, whole) for expert in range(EXPERTS))
    (total / whole.count).backward()
    return gradients(p)


@animal(
    "pytorch#160285, megablocks#86, DeepSpeed#5259",
    expert_reference,
    pools=[rd.Pool("expert0", [0, 1]), rd.Pool("expert1", [2, 3])],
)
def expert_scale(case: rd.Case, broken: bool) -> Parameters:
    """Experts see the rows of all ranks of their group, and are averaged over fewer ranks than the rest."""
    p, rank = expert_leaves(case), torch_dist.get_rank()
    expert = rank % EXPERTS
    shards = case.topology.pool("ranks").shards
    first = rank - expert
    routed = batch(case, shards[first][0], shards[first + EXPERTS - 1][1])  # to this rank's group
    count = rd.count_global("tokens", own(case).count, world())
    factor = world().size if broken else 1  # undoes the average of what every rank holds
    rd.normalize(factor * expert_sum(p, expert, routed), count).value.backward()
    dense, held = {"dense": p["dense"]}, {f"expert{expert}": p[f"expert{expert}"]}
    reduce = averaged if broken else summed
    return {**reduce(dense), **reduce(held, expert_replicas())}


def tied_sum(p: Parameters, given: Batch) -> torch.Tensor:
    """w as it is and w transposed, as embeddings and heads are tied."""
    errors = ((given.x @ p["w"]).tanh() @ p["w"].T - given.x).square().sum(1)
    return (errors * given.tokens).sum()


def tied_reference(case: rd.Case) -> Parameters:
    p, whole = leaves(case), batch(case)
    (tied_sum(p, whole) / whole.count).backward()
    return gradients(p)


@animal("pytorch#180952", tied_reference)
def tied_twice(case: rd.Case, broken: bool) -> Parameters:
    """The gradient of a tied weight has both uses in it; both of its names bring it along."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(tied_sum(p, mine), count).value.backward()
    if broken:
        p["w"].grad = sum(p[name].grad for name in ("w", "w"))  # embedding and head
    return summed(p)


def contrast(queries: torch.Tensor, keys: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Each query's own key is the right one among all."""
    target = torch.arange(first, first + len(queries))
    return functional.cross_entropy(4 * queries @ keys.T, target, reduction="sum") / ROWS


def views(p: Parameters, given: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return (given.x @ p["w"] + p["b"]).tanh(), (given.x @ p["keys"]).sin()


def contrastive_leaves(case: rd.Case) -> Parameters:
    return leaves(case, keys=(WIDTH, FEATURES))


def contrastive_reference(case: rd.Case) -> Parameters:
    p = contrastive_leaves(case)
    contrast(*views(p, batch(case))).backward()
    return gradients(p)


def gathered(name: str, local: torch.Tensor, first: int) -> torch.Tensor:
    """Of all ranks; only this rank's rows have a gradient."""
    whole = local.new_zeros(ROWS, local.shape[1])
    whole[first : first + len(local)] = local.detach()
    world().sum(name, whole)
    return torch.cat([whole[:first], local, whole[first + len(local) :]])


@animal("tevatron#30, DeCLUTR#212", contrastive_reference)
def contrastive_average(case: rd.Case, broken: bool) -> Parameters:
    """all_gather has no gradient for other ranks' rows: theirs come by the sum, of which this is a part."""
    p, mine = contrastive_leaves(case), own(case)
    first = mine.first
    queries, keys = (
        gathered(name, each, first)
        for name, each in zip(("queries", "keys"), views(p, mine), strict=True)
    )
    contrast(queries, keys).backward()
    return averaged(p) if broken else summed(p)


@animal("pytorch-metric-learning#363, ms-swift#10150", contrastive_reference)
def contrastive_own_queries(case: rd.Case, broken: bool) -> Parameters:
    """A rank's queries against keys of all: keys get nothing from the queries of other ranks."""
    p, mine = contrastive_leaves(case), own(case)
    first = mine.first
    queries, keys = views(p, mine)
    keys = gathered("keys", keys, first)
    if broken:
        contrast(queries, keys, first).backward()
    else:
        contrast(gathered("queries", queries, first), keys).backward()
    return summed(p)


def clipped_reference(case: rd.Case) -> rd.Outcome:
    p, whole = leaves(case), batch(case)
    (token_sum(p, whole) / whole.count).backward()
    before = {name: each.clone() for name, each in gradients(p).items()}
    return rd.Outcome(before, norms={"all": float(torch.nn.utils.clip_grad_norm_(p.values(), 0.1))})


@animal("Megatron-LM#7227, DeepSpeed#8478", clipped_reference)
def clip_counts_replicas(case: rd.Case, broken: bool) -> rd.Outcome:
    """Squares summed over ranks that all hold the same parameters."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(token_sum(p, mine), count).value.backward()
    before = {name: each.clone() for name, each in summed(p).items()}
    if broken:
        square = sum(each.grad.square().sum() for each in p.values())
        world().sum("square", square)
        norm = float(square.sqrt())
    else:
        norm = rd.clip_grad_norm([(p.values(), world())], 0.1, world())
    return rd.Outcome(before, norms={"all": norm})


def scaled_sum(p: Parameters, given: Batch) -> torch.Tensor:
    return token_sum(p, Batch(given.x * p["norm"], given.tokens, given.row))


def scaled_reference(case: rd.Case) -> Parameters:
    p, whole = leaves(case, norm=(WIDTH,)), batch(case)
    (scaled_sum(p, whole) / whole.count).backward()
    return gradients(p)


@animal("Megatron-LM#1446", scaled_reference)
def norm_not_reduced(case: rd.Case, broken: bool) -> Parameters:
    """Norms are replicated where the rest is sharded, and are left out of the reduction."""
    p, mine = leaves(case, norm=(WIDTH,)), own(case)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(scaled_sum(p, mine), count).value.backward()
    summed({name: each for name, each in p.items() if not (broken and name == "norm")})
    return gradients(p)


def next_tokens(given: Batch) -> Batch:
    """One fewer of each row: the last has nothing to predict two tokens ahead."""
    return Batch(given.x.flip(1), given.tokens - 1, given.row)


def two_losses(case: rd.Case, p: Parameters, given: Batch, count: Any, other: Any) -> torch.Tensor:
    """`count`, `other`: what each of the two is divided by."""
    total = p["w"].new_zeros(())
    if case.terms["loss"]:
        total = total + case.terms["loss"] * token_sum(p, given) / count
    if case.terms["next"]:
        total = total + case.terms["next"] * token_sum(p, next_tokens(given)) / other
    return total


def two_losses_reference(case: rd.Case) -> Parameters:
    p, whole = leaves(case), batch(case)
    two_losses(case, p, whole, whole.count, next_tokens(whole).count).backward()
    return gradients(p)


@animal("Megatron-LM#2417, OpenNMT-py#2209", two_losses_reference, {"loss": 1.0, "next": 1e-3})
def count_of_another_loss(case: rd.Case, broken: bool) -> Parameters:
    """A small second loss, divided by the tokens of the first."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world()).value
    other = rd.count_global("next tokens", next_tokens(mine).count, world()).value
    two_losses(case, p, mine, count, count if broken else other).backward()
    return summed(p)


@animal("made for this")
def rank_left_out(case: rd.Case, broken: bool) -> Parameters:
    """A rank skips its batch, and the others divide as if it had not."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    if not (broken and torch_dist.get_rank() == 1):
        rd.normalize(token_sum(p, mine), count).value.backward()
    return summed(p)


def penalised_reference(case: rd.Case) -> Parameters:
    p, whole = leaves(case), batch(case)
    fit = case.terms["loss"] * token_sum(p, whole) / whole.count
    (fit + case.terms["penalty"] * p["w"].square().sum()).backward()
    return gradients(p)


@animal(
    "param-decomp#546, Megatron-LM#1652",
    penalised_reference,
    [rd.Term("loss", 1.0), rd.Term("penalty", 0.1, live=["w"])],
)
def penalty_on_every_rank(case: rd.Case, broken: bool) -> Parameters:
    """What every rank has in full, in a sum over ranks."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    fit = case.terms["loss"] * rd.normalize(token_sum(p, mine), count)
    penalty = rd.Replicated(case.terms["penalty"] * p["w"].square().sum())
    if broken:
        (fit.value + penalty.value).backward()
    else:
        (fit + rd.contribute_once("penalty", penalty, world())).value.backward()
    return summed(p)


def noisy_sum(p: Parameters, given: Batch, noise: torch.Tensor) -> torch.Tensor:
    return token_sum(p, Batch(given.x * noise, given.tokens, given.row))


def noisy_reference(case: rd.Case) -> Parameters:
    p, whole = leaves(case), batch(case)
    noise = rd.row_uniform(case.seed, "noise", (0, ROWS), [WIDTH], case.dtype)
    (noisy_sum(p, whole, noise) / whole.count).backward()
    return gradients(p)


@animal("param-decomp#546", noisy_reference, [rd.Term("loss", 1.0, random=True)])
def reseeded_noise(case: rd.Case, broken: bool) -> Parameters:
    """Every rank seeds alike and draws for its shard: all have the first rows' numbers."""
    p, mine = leaves(case), own(case)
    first = 0 if broken else mine.first
    rows = (first, first + len(mine.row))
    noise = rd.row_uniform(case.seed, "noise", rows, [WIDTH], case.dtype)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(noisy_sum(p, mine, noise), count).value.backward()
    return summed(p)


def normed(h: torch.Tensor, total: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
    """As a batch norm does it, with the sums of all rows."""
    mean = total / ROWS
    return (h - mean) / (square / ROWS - mean.square() + 0.1).sqrt()


def normed_sum(
    given: Batch, h: torch.Tensor, total: torch.Tensor, square: torch.Tensor
) -> torch.Tensor:
    errors = (normed(h, total, square).sin().sum(1) - 1) ** 2
    return (errors * given.tokens).sum()


def normed_leaves(case: rd.Case) -> Parameters:
    return {"w": leaves(case)["w"]}  # a norm takes a bias away


def normed_reference(case: rd.Case) -> Parameters:
    p, whole = normed_leaves(case), batch(case)
    h = whole.x @ p["w"]
    (normed_sum(whole, h, h.sum(0), h.square().sum(0)) / whole.count).backward()
    return gradients(p)


@animal("made for this", normed_reference)
def residual_in_batch_norm(case: rd.Case, broken: bool) -> Parameters:
    """Every rank's loss depends on the sums, and global_residual has this rank's gradient alone."""
    p, mine = normed_leaves(case), own(case)
    h = mine.x @ p["w"]
    local = torch.stack([h.sum(0), h.square().sum(0)])
    total = (
        rd.global_residual("sums", local, world()) if broken else autograd_dist.all_reduce(local)
    )
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(normed_sum(mine, h, *total), count).value.backward()
    return summed(p)


@animal("made for this")
def rows_dropped(case: rd.Case, broken: bool) -> Parameters:
    """Batches of two rows, where a row that is left over is dropped: none is in an even cut."""
    p, mine = leaves(case), own(case)
    if broken:
        mine = mine.where(torch.arange(len(mine.row)) < len(mine.row) // 2 * 2)
    count = rd.count_global("tokens", mine.count, world())
    rd.normalize(token_sum(p, mine), count).value.backward()
    return summed(p)


_mean_of_rows = torch.zeros(WIDTH, dtype=torch.float64)  # of the last step that was broken


@animal("made for this")
def state_left_over(case: rd.Case, broken: bool) -> Parameters:
    """Rows are centered by a mean that the step before has left: zero in the first."""
    p, mine = leaves(case), own(case)
    count = rd.count_global("tokens", mine.count, world())
    if broken:
        centered = Batch(mine.x - _mean_of_rows, mine.tokens, mine.row)
        if len(mine.row):
            _mean_of_rows.copy_(mine.x.mean(0))
        mine = centered
    rd.normalize(token_sum(p, mine), count).value.backward()
    return summed(p)


def main() -> None:
    """Every animal, both ways."""
    for each in ANIMALS:
        for broken in (False, True):
            report = (each.broken() if broken else each.clean()).run()
            if torch_dist.get_rank() == 0:
                ranks.tell(animal=each.name, broken=broken, **report.to_dict())
