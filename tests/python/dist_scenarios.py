"""What three ranks do with retape.dist, for tests/python/test_dist.py: each tells what it saw.

A scenario has a group of its own: after a CollectiveError a group is broken.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist
from tests.python import ranks
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.utils.checkpoint import checkpoint

import retape
import retape.dist as rd
from retape.dist import _ddp

RANKS = 3
TIMEOUT = 60.0
SHORT = 3.0  # where a rank is meant to be missing
COUNTS = (1, 4, 7)  # items of each rank
SCENARIOS: list[Callable[[Any, int], dict[str, Any]]] = []


def scenario(run: Callable[[Any, int], dict[str, Any]]) -> Callable[[Any, int], dict[str, Any]]:
    SCENARIOS.append(run)
    return run


def rows_of(rank: int, width: int = 3) -> torch.Tensor:
    return torch.randn(
        COUNTS[rank], width, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)
    )


def all_rows() -> torch.Tensor:
    return torch.cat([rows_of(rank) for rank in range(RANKS)])


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


class PartlyUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = net()
        self.unused = nn.Linear(64, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.used(rows)


def error_of(call: Callable[[], Any]) -> dict[str, Any]:
    """What it raised; fails if nothing."""
    try:
        call()
    except Exception as error:
        kinds = [each.__name__ for each in type(error).__mro__]
        return {"kinds": kinds, "text": str(error), "ranks": getattr(error, "ranks", None)}
    raise AssertionError("nothing was raised")


def difference(model: nn.Module, reference: nn.Module) -> float:
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)


def reference_of_mean() -> nn.Module:
    """One process with the rows of all ranks."""
    reference = net()
    (reference(all_rows()).square().sum() / sum(COUNTS)).backward()
    return reference


# ---- groups ----------------------------------------------------------------------------------------


@scenario
def sums(group: Any, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {"size": len(group), "index": group.index, "repr": repr(group)}
    found["is one"] = isinstance(group, rd.Group)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        tensor = torch.full((3,), rank + 1, dtype=dtype)
        group.sum("t", tensor)
        found[str(dtype)] = tensor.tolist()
    later = torch.ones(2) * rank
    pending = group.sum_async("later", later)
    pending.wait()
    pending.wait()
    found["async"] = later.tolist()
    found["endless"] = error_of(lambda: rd.Group(timeout=float("inf")))
    found["none"] = error_of(lambda: rd.Group(timeout=0))
    return found


@scenario
def broadcast_gather_agree(group: Any, rank: int) -> dict[str, Any]:
    tensor = torch.tensor([rank])
    gathered = [each.tolist() for each in group.gather("g", tensor)]
    group.broadcast("b", tensor, 2)
    group.barrier("here")
    group.agree("settings", "the same")
    group.agree(rd.Topology(6, [rd.Pool("all", [0, 1, 2])]))
    return {"broadcast": tensor.tolist(), "gathered": gathered}


@scenario
def another_name(group: Any, rank: int) -> dict[str, Any]:
    tensor = torch.full((2,), float(rank))
    found = error_of(lambda: group.sum("bias" if rank == 1 else "weight", tensor))
    again = error_of(lambda: group.sum("weight", tensor))
    return {**found, "after": tensor.tolist(), "again": again}


@scenario
def another_dtype(group: Any, rank: int) -> dict[str, Any]:
    tensor = torch.ones(2, dtype=torch.int32 if rank == 2 else torch.float32)
    return {**error_of(lambda: group.sum("w", tensor)), "after": tensor.tolist()}


@scenario
def another_topology(group: Any, rank: int) -> dict[str, Any]:
    topology = rd.Topology(6 + (rank == 0), [rd.Pool("all", [0, 1, 2])])
    return error_of(lambda: group.agree(topology))


@scenario
def a_placement(group: Any, rank: int) -> dict[str, Any]:
    topology = rd.Topology(7, [rd.Pool("a", [0, 1]), rd.Pool("b", [2])], {"ends": [0, 2]})
    placement = rd.Placement(topology, group)
    total = torch.tensor([rank + 1.0])
    mine = placement.group("a" if rank == 1 else "ends")
    mine.sum("total", total)
    if rank == 0:
        placement.group("a").sum("total", torch.ones(1))
    pool = "b" if rank == 2 else "a"
    other = rd.Topology(7, topology.pools, {"ends": [int(rank == 1), 2]})
    unsorted = rd.Placement(rd.Topology(7, topology.pools, {"ends": [2, 0]}))
    first = torch.tensor([rank])
    if rank != 1:
        unsorted.group("ends").broadcast("first", first, 0)
    return {
        "total": total.item(),
        "index": mine.index,
        "rows": placement.rows(pool),
        "leads": placement.leads(pool),
        "has": placement.has("ends"),
        "outside": error_of(lambda: placement.group("a" if rank == 2 else "b")) if rank else None,
        "first": [unsorted.group("ends").index, first.item()] if rank != 1 else None,
        "differs": error_of(lambda: rd.Placement(other, group)),
    }


@scenario
def a_placement_of_fewer_ranks(group: Any, rank: int) -> dict[str, Any]:
    """By them alone, twice, as in a step of GradCheck; and with a rank that does not come."""
    topology = rd.Topology(7, [rd.Pool("two", [2, 1])])
    found: dict[str, Any] = {}
    if rank != 0:
        first, second = rd.Placement(topology), rd.Placement(topology)
        total = torch.tensor([float(rank)])
        second.group("two").sum("total", total)
        shared = first.group("two") is second.group("two")
        found = {"total": total.item(), "leads": first.leads("two"), "shared": shared}
    group.barrier("without the others")
    if rank == 0:
        found["has"] = rd.Placement(topology).has("two")
    if rank == 1:
        found["late"] = error_of(lambda: rd.Placement(topology, timeout=timedelta(seconds=0.5)))
    return found


@scenario
def a_complaint(group: Any, rank: int) -> dict[str, Any]:
    return error_of(lambda: group.agree("data", "x", "no data left" if rank == 2 else ""))


@scenario
def two_groups_of_one_process_group(group: Any, rank: int) -> dict[str, Any]:
    """Calls under way in both: the transport pairs them by their order alone."""
    own = torch_dist.new_group()
    one, two = (rd.Group(own, name=name, timeout=TIMEOUT) for name in ("one", "two"))
    wrong = 0
    for _ in range(100):
        a, b = torch.full((1000,), 1.0), torch.full((1000,), 100.0)
        calls = [one.sum_async("x", a), two.sum_async("x", b)]
        for call in calls:
            call.wait()
        wrong += a[0] != RANKS or b[0] != 100 * RANKS
    first, second = (one, two) if rank else (two, one)
    mixed = error_of(lambda: (first.sum("x", a), second.sum("x", b)))
    return {"wrong": int(wrong), "mixed": mixed}


@scenario
def a_group_made_again(group: Any, rank: int) -> dict[str, Any]:
    """Ranks need not let go of a Group at the same time: another one of the process group goes on."""
    own = torch_dist.new_group()
    kept, total = [], torch.ones(1)
    for i in range(4):
        each = rd.Group(own, name="again", timeout=TIMEOUT)
        if rank == 1:
            kept.append(each)
        each.sum(f"x{i}", total)
        del each
    kept.clear()

    def agree(name: str) -> dict[str, Any]:
        return error_of(lambda: rd.Group(own, name="again", timeout=TIMEOUT).barrier(name))

    found, broken = agree("odd" if rank == 1 else "even"), agree("later")
    return {"total": float(total), "found": found, "broken": broken}


@scenario
def groups_end_with_calls_nobody_waits_for(group: Any, rank: int) -> dict[str, Any]:
    own = torch_dist.new_group()
    for i in range(20):
        rd.Group(own, name="brief", timeout=TIMEOUT).sum_async(f"x{i}", torch.ones(1000))
    last = torch.ones(1)
    rd.Group(own, name="brief", timeout=TIMEOUT).sum("last", last)
    return {"last": float(last)}


@scenario
def a_rank_that_does_not_come(group: Any, rank: int) -> dict[str, Any]:
    short = rd.Group(torch_dist.new_group(), name="short", timeout=SHORT)
    tensor = torch.ones(2)
    found = {} if rank == 1 else error_of(lambda: short.sum("w", tensor))
    group.barrier("both have raised")
    return {**found, "after": tensor.tolist()}


# ---- reducers --------------------------------------------------------------------------------------


@scenario
def reducer(group: Any, rank: int) -> dict[str, Any]:
    small = rd.SumReducer(group, bucket_bytes=16)
    tensors = {
        "a": torch.full((5,), float(rank)),
        "b": torch.full((2, 2), rank + 1, dtype=torch.float64),
        "c": torch.full((3,), 2.0 * rank),
        "d": torch.full((2, 6), float(rank)).t(),  # not contiguous
    }
    for name, tensor in tensors.items():
        small.add(name, rd.Partial(tensor))
    small.reduce_async()
    small.wait()
    return {name: sorted(set(tensor.flatten().tolist())) for name, tensor in tensors.items()}


@scenario
def reducer_wire(group: Any, rank: int) -> dict[str, Any]:
    narrow = rd.SumReducer(group, wire=torch.bfloat16)
    tensor = torch.tensor([1.0 + 2**-12])  # bfloat16 does not have it
    narrow.add("t", rd.Partial(tensor))
    narrow.reduce()
    return {"sum": tensor.tolist(), "dtype": str(tensor.dtype)}


@scenario
def gradients_that_are_none(group: Any, rank: int) -> dict[str, Any]:
    model = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in ("all", "one", "none")})
    model["all"].weight.grad = torch.full((1, 2), float(rank + 1))
    if rank == 1:
        model["one"].weight.grad = torch.full((1, 2), 7.0)
    summing = rd.SumReducer(group)
    summing.add_gradients(model)
    summing.reduce()
    found = {name: layer.weight.grad for name, layer in model.items()}
    return {name: None if grad is None else grad.flatten().tolist() for name, grad in found.items()}


@scenario
def after_an_error_in_one_bucket(group: Any, rank: int) -> dict[str, Any]:
    first, last = torch.ones(2), torch.ones(2)
    model = nn.Linear(2, 1, bias=False)
    if rank == 0:
        model.weight.grad = torch.ones(1, 2)
    small = rd.SumReducer(group, bucket_bytes=1)
    small.add("first", rd.Partial(first))
    small.add("last" if rank == 0 else "least", rd.Partial(last))
    small.add_gradients(model)
    found = error_of(small.reduce)
    return {
        **found,
        "after": [*first.tolist(), *last.tolist()],
        "gradient": model.weight.grad is not None,
    }


@scenario
def not_finite(group: Any, rank: int) -> dict[str, Any]:
    tensors = {"first": torch.ones(2), "second": torch.ones(2)}
    if rank == 1:
        tensors["second"][1] = torch.nan
    careful = rd.SumReducer(group, check_finite=True)
    for name, tensor in tensors.items():
        careful.add(name, rd.Partial(tensor))
    return {**error_of(careful.reduce), "after": tensors["first"].tolist()}


@scenario
def once(group: Any, rank: int) -> dict[str, Any]:
    value = torch.full((2,), 5.0)
    totals = []
    for owner in range(RANKS):
        part = rd.contribute_once(f"p{owner}", rd.Replicated(value), group, owner).value.clone()
        group.sum("p", part)
        totals.append(part.tolist())
    called = []

    def compute() -> rd.Replicated:
        called.append(rank)
        return rd.Replicated(value.clone().requires_grad_())

    part = rd.contribute_once("c", compute, group, 1, like=torch.zeros(2, requires_grad=True)).value
    part.sum().backward()  # on every rank
    computed = part.detach().clone()
    group.sum("c", computed)
    return {
        "totals": totals,
        "computed": [called, part.requires_grad, computed.tolist()],
        "no owner": error_of(lambda: rd.contribute_once("p", rd.Replicated(value), group, 3)),
    }


# ---- counts, residuals, norms ----------------------------------------------------------------------


@scenario
def ragged_mean(group: Any, rank: int) -> dict[str, Any]:
    model = net()
    rows = rows_of(rank)
    count = rd.count_global("rows", len(rows), group)
    rd.normalize(model(rows).square().sum(), count).value.backward()
    summing = rd.SumReducer(group)
    summing.add_gradients(model.named_parameters())
    summing.reduce()
    return {
        "count": int(count),
        "value": count.value,
        "off": difference(model, reference_of_mean()),
    }


@scenario
def count_of_nothing(group: Any, rank: int) -> dict[str, Any]:
    return error_of(lambda: rd.count_global("rows", 0, group))


@scenario
def count_below_zero(group: Any, rank: int) -> dict[str, Any]:
    return error_of(lambda: rd.count_global("rows", -1 if rank == 2 else 5, group))


@scenario
def residual(group: Any, rank: int) -> dict[str, Any]:
    local = torch.tensor([rank + 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    total = rd.global_residual("t", local, group)
    total.square().sum().backward()  # every rank computes it
    return {"total": total.tolist(), "gradient": local.grad.tolist()}


def sharded() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What all ranks hold, and a parameter for each rank alone; gradients are set."""
    held = [torch.full((2,), 3.0, dtype=torch.float64)]
    alone = [torch.full((rank + 1,), 2.0, dtype=torch.float64) for rank in range(RANKS)]
    for each in [*held, *alone]:
        each.requires_grad_()
        each.grad = each.detach().clone()
    return held, alone


@scenario
def clipping(group: Any, rank: int) -> dict[str, Any]:
    held, alone = sharded()
    mine = [alone[rank]]
    only_me = rd.Group.alone("me", rank)
    twice = [*held, *held]  # tied: counts once
    norm = rd.clip_grad_norm([(twice, group), (mine, only_me)], 1.0, group)
    expected_held, expected_alone = sharded()
    expected = torch.nn.utils.clip_grad_norm_([*expected_held, *expected_alone], 1.0)
    pairs = [(held[0], expected_held[0]), (mine[0], expected_alone[rank])]
    off = max(float((a.grad - b.grad).abs().max()) for a, b in pairs)
    largest = rd.clip_grad_norm([(held, group), (mine, only_me)], 9.0, group, float("inf"))
    return {
        "norm": norm,
        "expected": float(expected),
        "off": off,
        "largest": largest,
        "left": float(held[0].grad[0]),
    }


# ---- edges -----------------------------------------------------------------------------------------


def over_edge(group: Any, rank: int, source: rd.Pool, target: rd.Pool) -> dict[str, Any]:
    """Rows i hold i; the loss of a row is its square times the receiver's rank and one."""
    topology = rd.Topology(7, [source, target])
    edge = rd.Edge("e", topology, source.name, target.name, group)
    pool = topology.pool(source.name if rank in source.ranks else target.name)
    begin, end = pool.shards[pool.index_of(rank)]
    mine = torch.arange(begin, end, dtype=torch.float64).view(-1, 1)
    if rank in source.ranks:
        edge.send("x", mine)
        edge.send("unused", mine)
        return {
            "rows": [begin, end],
            "gradient": edge.receive_gradient("x", mine).flatten().tolist(),
            "unused": edge.receive_gradient("unused", mine).flatten().tolist(),
        }
    leaf, unused = edge.receive("x", mine), edge.receive("unused", mine)
    (leaf.square().sum() * (rank + 1)).backward()
    edge.send_gradient("x", leaf.grad, leaf)
    edge.send_gradient("unused", unused.grad, unused)
    return {
        "rows": [begin, end],
        "received": leaf.flatten().tolist(),
        "leaf": leaf.is_leaf and leaf.requires_grad,
    }


@scenario
def edge_to_fewer(group: Any, rank: int) -> dict[str, Any]:
    return over_edge(group, rank, rd.Pool("many", [0, 1], [(0, 2), (2, 7)]), rd.Pool("one", [2]))


@scenario
def edge_to_more(group: Any, rank: int) -> dict[str, Any]:
    return over_edge(group, rank, rd.Pool("one", [2]), rd.Pool("many", [0, 1], [(0, 5), (5, 7)]))


# ---- beside torch's own ----------------------------------------------------------------------------


@scenario
def ddp(group: Any, rank: int) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    hook = rd.SumHook(model)
    rows = rows_of(rank)
    off = []
    for _ in range(2):  # buckets are made anew after the first
        model.zero_grad()
        count = rd.count_global("rows", len(rows), hook.group)
        rd.normalize(model(rows).square().sum(), count).value.backward()
        off.append(difference(model.module, reference_of_mean()))
    return {"off": max(off), "names": list(rd.gradients_of(model))}


@scenario
def ddp_with_parameters_that_are_not_used(group: Any, rank: int) -> dict[str, Any]:
    """DDP asks all ranks which, while sums are under way."""
    inner = PartlyUsed()
    model = nn.parallel.DistributedDataParallel(
        inner, bucket_cap_mb=1e-4, find_unused_parameters=True
    )
    hook = rd.SumHook(model)
    rows = rows_of(rank)
    off = []
    for _ in range(40):
        model.zero_grad()
        count = rd.count_global("rows", len(rows), hook.group)
        rd.normalize(model(rows).square().sum(), count).value.backward()
        off.append(difference(inner.used, reference_of_mean()))
    return {
        "off": max(off),
        "again": rd.SumHook(nn.parallel.DistributedDataParallel(net())).group is hook.group,
    }


@scenario
def ddp_with_parameters_that_are_not_used_and_not_looked_for(
    group: Any, rank: int
) -> dict[str, Any]:
    """DDP starts no bucket from the first that is not complete on, and raises in the next forward."""
    found = {}
    for first in (True, False):
        used, unused = net(), nn.Linear(64, 64)
        inner = nn.ModuleList([unused, used] if first else [used, unused])
        inner.forward = used.forward
        model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=1e-4)
        hook = rd.SumHook(model)
        count = rd.count_global("rows", COUNTS[rank], hook.group)
        loss = rd.normalize(model(rows_of(rank)).square().sum(), count).value
        found[f"first {first}"] = error_of(loss.backward)
    return found


@scenario
def ddp_with_reentrant_checkpoints(group: Any, rank: int) -> dict[str, Any]:
    """Each has a backward of its own, which reaches some parameters only."""
    off = []
    for last in (
        False,
        True,
    ):  # one of all, so that no parameter is outside; and all but the last layer
        inner = net()
        parts = [inner[:2], inner[2:]]
        model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=1e-4)
        hook = rd.SumHook(model)

        def forward(
            rows: torch.Tensor, parts: list[nn.Module] = parts, last: bool = last
        ) -> torch.Tensor:
            hidden = checkpoint(parts[0].forward, rows, use_reentrant=True)
            return (
                checkpoint(parts[1].forward, hidden, use_reentrant=True)
                if last
                else parts[1](hidden)
            )

        inner.forward = forward
        for _ in range(2):
            model.zero_grad()
            count = rd.count_global("rows", COUNTS[rank], hook.group)
            rows = rows_of(rank).requires_grad_()
            rd.normalize(model(rows).square().sum(), count).value.backward()
            off.append(difference(inner, reference_of_mean()))
    return {"off": max(off)}


@scenario
def ddp_beside_its_module(group: Any, rank: int) -> dict[str, Any]:
    """A backward of the module itself is not DDP's to reduce, and no mistake."""
    model = nn.parallel.DistributedDataParallel(net())
    hook = rd.SumHook(model)
    count = rd.count_global("rows", COUNTS[rank], hook.group)
    rd.normalize(model(rows_of(rank)).square().sum(), count).value.backward()
    off = difference(model.module, reference_of_mean())
    model.zero_grad()
    model.module[2](torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    return {"off": off, "local": model.module[2].bias.grad.tolist()}


@scenario
def ddp_and_gradients_that_are_asked_for(group: Any, rank: int) -> dict[str, Any]:
    """autograd.grad runs hooks of tensors, accumulates nothing, and is not DDP's to reduce."""
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    hook = rd.SumHook(model)
    off = []
    for _ in range(2):
        model.zero_grad()
        count = rd.count_global("rows", COUNTS[rank], hook.group)
        loss = rd.normalize(model(rows_of(rank)).square().sum(), count).value
        torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        loss.backward()
        off.append(difference(model.module, reference_of_mean()))
        torch.autograd.grad(
            model(rows_of(rank)).sum(), list(model.parameters())
        )  # on top of what was summed
    return {"off": max(off)}


@scenario
def ddp_and_a_retained_graph(group: Any, rank: int) -> dict[str, Any]:
    """DDP reduces one backward after each forward: another would leave this rank's gradients."""
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    hook = rd.SumHook(model)
    count = rd.count_global("rows", COUNTS[rank], hook.group)
    off, errors = [], []
    for _ in range(2):
        loss = rd.normalize(model(rows_of(rank)).square().sum(), count).value
        loss.backward(retain_graph=True)
        off.append(difference(model.module, reference_of_mean()))
        torch.autograd.grad(
            loss, list(model.parameters()), retain_graph=True
        )  # accumulates nothing
        model.zero_grad()
        errors.append(error_of(loss.backward))
        model.zero_grad()
    return {"off": max(off), "errors": errors}


@scenario
def ddp_of_fewer_ranks(group: Any, rank: int) -> dict[str, Any]:
    """Who are in different numbers of process groups."""
    two, _ = torch_dist.new_group([0, 1]), torch_dist.new_group([0, 2])
    if rank == 2:
        return {"off": 0.0}
    model = nn.parallel.DistributedDataParallel(net(), process_group=two)
    hook = rd.SumHook(model)
    count = rd.count_global("rows", COUNTS[rank], hook.group)
    rd.normalize(model(rows_of(rank)).square().sum(), count).value.backward()
    reference, rows = net(), torch.cat([rows_of(0), rows_of(1)])
    (reference(rows).square().sum() / len(rows)).backward()
    return {"off": difference(model.module, reference)}


@scenario
def ddp_microbatches(group: Any, rank: int) -> dict[str, Any]:
    """DDP reduces what has accumulated: all microbatches but the last are left to add up first."""
    model = nn.parallel.DistributedDataParallel(net())
    hook = rd.SumHook(model)
    rows = rows_of(rank)
    count = rd.count_global("rows", len(rows), hook.group)
    first, last = rows[:1], rows[1:]  # the first rank's last one is empty
    off = []
    for set_to_none in (True, False):  # two steps
        with model.no_sync():
            rd.normalize(model(first).square().sum(), count).value.backward()
        rd.normalize(model(last).square().sum(), count).value.backward()
        off.append(difference(model.module, reference_of_mean()))
        model.zero_grad(set_to_none=set_to_none)
    rd.normalize(model(rows).square().sum(), count).value.backward()
    off.append(difference(model.module, reference_of_mean()))
    error = ""
    loss = model(last).square().sum()
    try:
        loss.backward()  # on top of what was summed
    except retape.UsageError as raised:
        error = str(raised)
    return {"off": max(off), "error": error}


@scenario
def ddp_average(group: Any, rank: int) -> dict[str, Any]:
    """Without the hook: each rank's own mean, averaged."""
    model = nn.parallel.DistributedDataParallel(net())
    rows = rows_of(rank)
    (model(rows).square().sum() / len(rows)).backward()
    return {"off": difference(model.module, reference_of_mean())}


@scenario
def ddp_self_test(group: Any, rank: int) -> dict[str, Any]:
    """A sum of the hook is a contribution that GradCheck can break."""

    def gradients(model: nn.Module, rows: torch.Tensor, divide: Callable) -> dict:
        divide(model(rows).square().sum()).backward()
        return rd.gradients_of(model)

    def reference(case: rd.Case) -> dict:
        rows = all_rows()
        return gradients(net().to(case.dtype), rows.to(case.dtype), lambda loss: loss / len(rows))

    def distributed(case: rd.Case) -> dict:
        begin, end = case.topology.pool("ranks").shards[rank]
        model = nn.parallel.DistributedDataParallel(net().to(case.dtype))
        hook = rd.SumHook(model)
        count = rd.count_global("rows", end - begin, hook.group)
        rows = all_rows()[begin:end].to(case.dtype)
        return gradients(model, rows, lambda loss: rd.normalize(loss, count, hook.group).value)

    pool = rd.Pool("ranks", list(range(RANKS)))
    report = rd.GradCheck(
        reference,
        distributed,
        terms={"loss": 1.0},
        topologies={"ranks": rd.Topology(sum(COUNTS), [pool])},
    ).run()
    if rank > 0:
        return {"kind": report.kind}
    broken = [row for row in report.self_test["rows"] if row["place"] == "sum"]
    return {
        "kind": report.kind,
        "names": sorted({row["name"] for row in broken}),
        "mutations": [row["mutation"] for row in broken],
        "killed": all(row["killed"] for row in broken),
    }


@scenario
def ddp_and_an_error_of_its_own(group: Any, rank: int) -> dict[str, Any]:
    """Whatever a sum raises reaches backward."""

    class Pending:
        def wait(self) -> None:
            raise ValueError("not collective")

    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    hook = rd.SumHook(model)
    with mock.patch.object(_ddp._dist, "sum_async", lambda *given: Pending()):
        found = error_of(model(rows_of(rank)).sum().backward)
    model.zero_grad()
    count = rd.count_global("rows", COUNTS[rank], hook.group)
    rd.normalize(model(rows_of(rank)).square().sum(), count).value.backward()
    return {**found, "again": difference(model.module, reference_of_mean())}


@scenario
def ddp_and_a_call_too_many(group: Any, rank: int) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(net())
    hook = rd.SumHook(model, group)
    loss = model(rows_of(rank)).sum()

    def step() -> None:
        if rank == 1:
            hook.group.sum("odd", torch.ones(1))
        loss.backward()

    return error_of(step)


@scenario
def ddp_and_a_call_in_between(group: Any, rank: int) -> dict[str, Any]:
    """Others raise in backward, with several buckets; the odd one too, whose call was not the first."""
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    hook = rd.SumHook(model, group)
    model(rows_of(rank)).sum().backward()
    model.zero_grad()
    loss = model(rows_of(rank)).sum()
    if rank == 1:
        with contextlib.suppress(rd.CollectiveError):
            hook.group.sum("odd", torch.ones(1))
    found = error_of(loss.backward)
    model.zero_grad()
    return {**found, "again": error_of(model(rows_of(rank)).sum().backward)}


@scenario
def ddp_join(group: Any, rank: int) -> dict[str, Any]:
    """Rank 0 has no batch at all: it would be the first to wait."""

    def train(model: nn.Module, context: Any) -> None:
        with context():
            for _ in range(rank):
                model(rows_of(rank)).sum().backward()

    model = nn.parallel.DistributedDataParallel(net())
    hook = rd.SumHook(model)
    refused = [
        error_of(lambda: train(model, model.join)),
        error_of(lambda: train(model, lambda: Join([model]))),
    ]
    late = nn.parallel.DistributedDataParallel(net())
    with late.join():
        refused.append(error_of(lambda: rd.SumHook(late)))
    off = []
    with model.join(enable=False):
        for number in range(
            int(max(hook.group.gather("steps", torch.tensor([rank]))))
        ):  # what the fix says
            model.zero_grad()
            rows = all_rows()[rank - 1 : rank] if number < rank else all_rows()[:0]
            count = rd.count_global("rows", len(rows), hook.group)
            rd.normalize(model(rows).square().sum(), count).value.backward()
            reference, present = net(), all_rows()[number : RANKS - 1]
            (reference(present).square().sum() / len(present)).backward()
            off.append(difference(model.module, reference))
    plain, second = (error_of(lambda given=given: rd.SumHook(given)) for given in (net(), model))
    return {"refused": refused, "off": off, "plain": plain, "second": second}


@scenario
def ddp_not_finite(group: Any, rank: int) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    hook = rd.SumHook(model, group, check_finite=True)
    count = rd.count_global("rows", COUNTS[rank], hook.group)
    rd.normalize(model(rows_of(rank)).square().sum(), count).value.backward()
    before = difference(model.module, reference_of_mean())
    model.zero_grad()
    if rank == 1:
        model.module[2].bias.register_hook(lambda g: g.index_fill(0, torch.tensor([1]), torch.nan))
    found = error_of(model(rows_of(rank)).square().sum().backward)
    return {**found, "before": before}


@scenario
def ddp_wire(group: Any, rank: int) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    rd.SumHook(model, group, wire=torch.bfloat16)
    plain = net()
    for each in (model, plain):
        (each(rows_of(rank)).square().sum() / sum(COUNTS)).backward()
    reducer = rd.SumReducer(group, wire=torch.bfloat16)
    reducer.add_gradients(plain)
    reducer.reduce()
    other = nn.parallel.DistributedDataParallel(net())
    return {
        "off": difference(model.module, reference_of_mean()),
        "same": difference(model.module, plain) == 0,
        "refused": error_of(lambda: rd.SumHook(other, group, wire=torch.int32)),
    }


@scenario
def fsdp(group: Any, rank: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert rd.fsdp_sums(model) is model
    rows = rows_of(rank)
    count = rd.count_global("rows", len(rows), group)
    rd.normalize(model(rows).square().sum(), count).value.backward()
    reference = reference_of_mean()
    whole = [parameter.grad.full_tensor() for parameter in model.parameters()]
    pairs = zip(whole, reference.parameters(), strict=True)
    return {"off": max(float((a - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)}


@scenario
def gradcheck_of_dtensors(group: Any, rank: int) -> dict[str, Any]:
    """Gradients, parameters and norms as FSDP2 has them; one rank gives them in another order."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (RANKS,))

    def outcome(case: rd.Case, model: nn.Module, loss: torch.Tensor) -> rd.Outcome:
        loss.backward()
        gradients = rd.gradients_of(model)
        norm = torch.nn.utils.get_total_norm(gradients.values())
        if rank == 1:
            gradients = dict(reversed(gradients.items()))
        torch.optim.SGD(model.parameters(), lr=float(case.steps)).step()
        return rd.Outcome(gradients, dict(model.named_parameters()), {"all": norm})

    def reference(case: rd.Case) -> rd.Outcome:
        model, rows = net(), all_rows()
        return outcome(case, model, model(rows).square().sum() / len(rows))

    def distributed(case: rd.Case) -> rd.Outcome:
        begin, end = case.topology.pool("ranks").shards[rank]
        model = rd.fsdp_sums(fully_shard(net(), mesh=mesh))
        count = rd.count_global("rows", end - begin, group)
        return outcome(
            case, model, rd.normalize(model(all_rows()[begin:end]).square().sum(), count).value
        )

    given = {"terms": {"loss": 1.0}, "rows": sum(COUNTS), "dtypes": (), "self_test": False}
    report = rd.GradCheck(reference, distributed, **given, steps=1).run()
    sharded = DTensor.from_local(torch.ones(1), mesh)
    alone = error_of(rd.GradCheck(lambda case: {"w": sharded}, distributed, **given).run)
    wrong = rd.GradCheck(
        lambda case: {"w": torch.ones(1)}, lambda case: {"w": torch.zeros(1)}, **given
    ).run()
    return {
        "kind": report.kind,
        "text": report.explain(),
        "compared": sorted({row["what"] for row in report.rows}),
        "by one": alone,
        "wrong": error_of(wrong.raise_if_different),
    }


@scenario
def what_pickles(group: Any, rank: int) -> dict[str, Any]:
    """Calls of torch's own that do, on either side: that `no_pickle` bites."""
    received = torch.frombuffer(bytearray(b"N."), dtype=torch.uint8)  # None
    return {
        "send": error_of(lambda: torch_dist.all_gather_object([None] * RANKS, rank)),
        "receive": error_of(lambda: distributed_c10d._tensor_to_object(received, 2, None)),
        "own": error_of(lambda: pickle.dumps(rank)),
    }


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("pickled")


@contextlib.contextmanager
def no_pickle() -> Iterator[None]:
    """Out of order, also by the names that torch has given it when it was imported."""
    names = ("dump", "dumps", "load", "loads", "Pickler", "Unpickler")
    with (
        mock.patch.multiple(pickle, **dict.fromkeys(names, refuse)),
        mock.patch.multiple(distributed_c10d, _pickler=refuse, _unpickler=refuse),
    ):
        yield


def main() -> None:
    """With pickle out of order: nothing here needs it, on any wire."""
    rank = torch_dist.get_rank()
    for run in SCENARIOS:
        own = torch_dist.new_group(group_desc=run.__name__)
        try:
            with no_pickle():
                found = run(rd.Group(own, timeout=TIMEOUT), rank)
        except Exception:
            found = {"failed": traceback.format_exc()}
        ranks.tell(scenario=run.__name__, **found)
        torch_dist.barrier()
