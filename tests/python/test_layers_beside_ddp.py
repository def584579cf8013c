"""Enabled layers inside DistributedDataParallel, enabled before or after it wraps the model."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.python.stacks import build
from torch.nn.parallel import DistributedDataParallel

import retape

RANKS = 2


def _train(rank: int, when: str) -> list[torch.Tensor]:
    model = build()
    if when == "before":
        retape.enable(model)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    if when == "after":
        assert retape.enable(ddp).names[0] == "module.layers.0"
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    grads = []
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).backward()
        grads += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    if when:
        assert retape.enabled(ddp).stats.ops_replayed > 0
    return grads


def _rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    plain = _train(rank, "")
    for when in ("before", "after"):
        for a, b in zip(plain, _train(rank, when), strict=True):
            assert torch.equal(a, b), f"enabled {when} wrapping: a gradient differs on rank {rank}"
    dist.destroy_process_group()


def test_gradients_are_those_of_plain_ddp(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path / "store"),), nprocs=RANKS)
