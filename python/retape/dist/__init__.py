"""Sums over ranks that are right.

    group = retape.dist.Group()                                   # of torch.distributed's ranks
    tokens = retape.dist.count_global("tokens", int(mask.sum()), group)
    retape.dist.normalize((losses * mask).sum(), tokens).value.backward()
    reducer = retape.dist.SumReducer(group)
    reducer.add_gradients(model.named_parameters())
    reducer.reduce()                                              # what one process would have computed

There is no average: a value is `Partial`, and the sum over ranks is the answer, or it is `Replicated`, and
one rank contributes it. Every call is agreed on by all ranks before data moves; where they differ, or one
is gone, all raise `CollectiveError`, which names it, and nothing that was given has changed.
"""

from retape.dist._ddp import SumHook, fsdp_sums
from retape.dist._group import Group
from retape.dist._placement import Placement, even_shards
from retape.dist._sums import (
    Partial,
    Replicated,
    StepCounts,
    SumReducer,
    clip_grad_norm,
    contribute_from,
    contribute_once,
    count_global,
    global_mean,
    global_residual,
    normalize,
)
from retape.dist.gradcheck import (
    Case,
    GradCheck,
    GradReport,
    Outcome,
    Term,
    gradients_of,
    row_generator,
    row_uniform,
)
from retape._dist import CollectiveError, Edge, GlobalCount, Pending, Pool, Topology

__all__ = [
    "Case",
    "CollectiveError",
    "Edge",
    "GlobalCount",
    "GradCheck",
    "GradReport",
    "Group",
    "Outcome",
    "Partial",
    "Pending",
    "Placement",
    "Pool",
    "Replicated",
    "StepCounts",
    "SumHook",
    "SumReducer",
    "Term",
    "Topology",
    "clip_grad_norm",
    "contribute_from",
    "contribute_once",
    "count_global",
    "even_shards",
    "fsdp_sums",
    "global_mean",
    "global_residual",
    "gradients_of",
    "normalize",
    "row_generator",
    "row_uniform",
]
