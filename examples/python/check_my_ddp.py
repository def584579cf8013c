"""Is my data-parallel gradient right? A DDP script whose ranks have different numbers of tokens.

torchrun --rdzv-backend=retape --nproc-per-node 4 check_my_ddp.py       # trains
retape gradcheck check_my_ddp:as_it_was --ranks 4                       # different
retape gradcheck check_my_ddp:factory --ranks 4                         # equal
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import retape.dist as rd

ROWS, LENGTH, WORDS, WIDTH, PAD = 24, 12, 20, 8, -100

# ---- the script ----------------------------------------------------------------------------------


def sentences(begin: int, end: int) -> torch.Tensor:
    """Some rows of the batch, the same whoever asks: between 2 and 12 words each."""
    rows = torch.full((end - begin, LENGTH), PAD)
    for i, row in enumerate(range(begin, end)):
        length = 2 + row * row % (LENGTH - 1)
        rows[i, :length] = torch.randint(
            WORDS, (length,), generator=torch.Generator().manual_seed(row)
        )
    return rows


def build(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS)).to(dtype)


def errors(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The sum over all next words, and how many there are."""
    target = ids[:, 1:]
    logits = model(ids[:, :-1].clamp(min=0))
    total = cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD, reduction="sum")
    return total, int((target != PAD).sum())


def step_as_it_was(ids: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    model = DDP(build(dtype))
    total, tokens = errors(model, ids)
    (total / tokens).backward()  # this rank's mean, which DDP averages
    return model


# ---- what makes it right: three lines ------------------------------------------------------------


def step(ids: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    model = DDP(build(dtype))
    hook = rd.SumHook(model)  # 1: DDP sums
    total, tokens = errors(model, ids)
    count = rd.count_global("tokens", tokens, hook.group)  # 2: of all ranks
    rd.normalize(total, count).value.backward()  # 3: this rank's part of the mean
    return model


def step_half_way(ids: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    """Without the first of the three."""
    model = DDP(build(dtype))
    total, tokens = errors(model, ids)
    count = rd.count_global("tokens", tokens, rd.Group())
    rd.normalize(total, count).value.backward()
    return model


# ---- what shows it -------------------------------------------------------------------------------


def reference(case):
    """One process, the whole batch, no DDP."""
    model = build(case.dtype)
    total, tokens = errors(model, sentences(0, ROWS))
    (total / tokens).backward()
    return rd.gradients_of(model)


def check(step) -> rd.GradCheck:
    def distributed(case):
        """What this rank does with its rows, and what it has afterwards."""
        begin, end = case.topology.pool("ranks").shards[dist.get_rank()]
        return rd.gradients_of(step(sentences(begin, end), case.dtype))

    return rd.GradCheck(reference, distributed, terms={"loss": 1.0}, rows=ROWS)


def factory():
    return check(step)


def as_it_was():
    return check(step_as_it_was)


def half_way():
    return check(step_half_way)


# ---- the same under FSDP2 ------------------------------------------------------------------------


def sharded():
    def distributed(case):
        begin, end = case.topology.pool("ranks").shards[dist.get_rank()]
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = rd.fsdp_sums(fully_shard(build(case.dtype), mesh=mesh))  # 1: FSDP sums
        total, tokens = errors(model, sentences(begin, end))
        count = rd.count_global("tokens", tokens, rd.Group())  # 2
        rd.normalize(total, count).value.backward()  # 3
        return rd.gradients_of(model)  # DTensors, which the check makes whole

    return rd.GradCheck(reference, distributed, terms={"loss": 1.0}, rows=ROWS)


# ---- training ------------------------------------------------------------------------------------


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # without torchrun: one rank
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ids = sentences(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    model = DDP(build())
    hook = rd.SumHook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for number in range(5):
        optimizer.zero_grad()
        total, tokens = errors(model, ids)
        count = rd.count_global("tokens", tokens, hook.group)
        part = rd.normalize(total, count).value  # parts of all ranks add up to the loss
        part.backward()
        optimizer.step()
        loss = part.detach().clone()
        hook.group.sum("loss", loss)
        if rank == 0:
            print(f"step {number}: loss {loss:.4f} over {count.value} tokens")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
