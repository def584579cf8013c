"""Beside DistributedDataParallel: its reducer talks to the engine that Retape stands in front of."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import retape

RANKS = 2
STEPS = 3


def _train(rank: int, policy: str | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    block = [nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32)]
    model = nn.Sequential(nn.Linear(16, 32), *block, nn.Tanh(), nn.Linear(32, 16))
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    grads = []
    for _ in range(STEPS):
        data = torch.randn(8, 16)
        optimizer.zero_grad()
        if policy is None:
            loss = (ddp(data) - data).square().mean()
        else:
            with retape.recompute(policy) as rec:
                loss = (ddp(data) - data).square().mean()
        loss.backward()
        grads += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    if policy == "full":
        assert rec.stats.ops_replayed > 0
    return grads


def _rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    plain = _train(rank, None)
    for policy in ("none", "full", "cheap"):
        for i, (a, b) in enumerate(zip(plain, _train(rank, policy), strict=True)):
            assert torch.equal(a, b), f"{policy}: gradient {i} differs on rank {rank}"
    dist.destroy_process_group()


def test_gradients_under_ddp_are_those_of_plain_ddp(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path / "store"),), nprocs=RANKS)
