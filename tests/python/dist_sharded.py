"""What four ranks do with parameters that are cut, for tests/python/test_dist_sharded.py."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as torch_dist
from tests.python import ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

import retape.dist as rd

RANKS = 4
MESHES = {"fsdp": (4,), "hsdp": (2, 2)}  # all cut; two replicas, each cut in two
LIMIT = 0.1  # of the norm: below what it is
TIMEOUT = 20.0


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def rows_of(rank: int) -> torch.Tensor:
    return torch.randn(
        rank + 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(rank)
    )


def reference() -> nn.Module:
    model, rows = net(), torch.cat([rows_of(rank) for rank in range(RANKS)])
    (model(rows).square().sum() / len(rows)).backward()
    return model


def sharded(mesh: DeviceMesh, group: rd.Group) -> nn.Module:
    """With gradients."""
    model = rd.fsdp_sums(fully_shard(net(), mesh=mesh))
    rows = rows_of(group.rank)
    count = rd.count_global("rows", len(rows), group)
    rd.normalize(model(rows).square().sum(), count).value.backward()
    return model


def off(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.full_tensor() for parameter in model.parameters()]


def sums_and_norms(shape: tuple[int, ...], group: rd.Group) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    model, right = sharded(mesh, group), reference()
    gradients = [parameter.grad for parameter in right.parameters()]
    found = {"off": off(whole(model), gradients)}
    found["torch"] = float(
        nn.utils.get_total_norm([p.grad for p in model.parameters()]).full_tensor()
    )
    largest = rd.clip_grad_norm([(model.parameters(), group)], 9.0, group, float("inf"))
    found["largest"] = largest / max(float(each.abs().max()) for each in gradients)
    found["expected"] = float(nn.utils.clip_grad_norm_(right.parameters(), LIMIT))
    tied = [*model.parameters(), *model.parameters()]
    found["norm"] = rd.clip_grad_norm([(tied, group)], LIMIT, group)
    found["clipped"] = off(whole(model), gradients)
    return found


def beside_what_is_not_sharded(group: rd.Group) -> dict[str, Any]:
    """A shard of it, a parameter that the mesh replicates, one that all hold, and one of each rank's own."""
    mesh = init_device_mesh("cpu", (RANKS,))
    cut = sharded(mesh, group)
    replicated = nn.Parameter(distribute_tensor(torch.ones(3).double(), mesh, [Replicate()]))
    replicated.grad = distribute_tensor(torch.full((3,), 2.0).double(), mesh, [Replicate()])
    held, own = nn.Parameter(torch.ones(2).double()), nn.Parameter(torch.ones(1).double())
    held.grad, own.grad = torch.full((2,), 3.0).double(), torch.full((1,), 4.0).double()
    alone = rd.Group.alone("own", group.rank)
    given = [([*cut.parameters(), replicated, held], group), ([own], alone)]
    norm = rd.clip_grad_norm(given, LIMIT, group)
    squares = sum(float(p.grad.square().sum()) for p in reference().parameters())
    expected = (squares + 3 * 4 + 2 * 9 + RANKS * 16) ** 0.5
    factor = LIMIT / (norm + 1e-6)
    scaled = [replicated.grad.full_tensor()[0] / 2, held.grad[0] / 3, own.grad[0] / 4]
    return {"norm": norm, "expected": expected, "scaled": [float(each) / factor for each in scaled]}


def refused(call: Callable[[], Any]) -> dict[str, str]:
    try:
        call()
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": "", "text": ""}


def what_is_refused(group: rd.Group) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("data",))
    parameter = nn.Parameter(distribute_tensor(torch.ones(3), mesh, [Replicate()]))
    parameter.grad = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    reducer = rd.SumReducer(group)
    return {
        "clip": refused(lambda: rd.clip_grad_norm([([parameter], group)], 1.0, group)),
        "add": refused(lambda: reducer.add("w", rd.Partial(parameter.grad))),
        "gradients": refused(lambda: reducer.add_gradients([("w", parameter)])),
        "left": parameter.grad.to_local().tolist(),
    }


def main() -> None:
    group = rd.Group(timeout=TIMEOUT)
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        name: lambda shape=shape: sums_and_norms(shape, group) for name, shape in MESHES.items()
    }
    calls["beside"] = lambda: beside_what_is_not_sharded(group)
    calls["refused"] = lambda: what_is_refused(group)
    for name, call in calls.items():
        try:
            found = call()
        except Exception:
            found = {"failed": traceback.format_exc()}
        ranks.tell(scenario=name, **found)
        torch_dist.barrier()
