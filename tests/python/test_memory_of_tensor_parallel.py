"""Tensor-parallel models under one scope peak no higher than plain.

The group is torch's fake one: two ranks, this process is the first, collectives move nothing. Memory is
that of a real rank; numbers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

import retape

DEPTH, TOKENS, WIDTH, HIDDEN = 8, 256, 128, 512
# Of one block on one rank: norm, up, GELU, dropout and its mask, down, dropout, sum.
WINDOW = 4 * TOKENS * (4 * WIDTH + 4 * HIDDEN // 2)


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,))
    finally:
        torch.distributed.destroy_process_group()


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(self.dropout(nn.functional.gelu(self.up(self.norm(x))))))


def tensor_parallel(mesh: DeviceMesh, dropout: float) -> nn.Module:
    blocks = [Block(dropout) for _ in range(DEPTH)]
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return nn.Sequential(*blocks)


def sequence_parallel(mesh: DeviceMesh, dropout: float) -> nn.Module:
    blocks = [Block(dropout) for _ in range(DEPTH)]
    for block in blocks:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
        parallelize_module(block, mesh, plan)
    model = nn.Sequential(*blocks)
    layouts = {"input_layouts": (Shard(0),), "desired_input_layouts": (Shard(0),)}
    return parallelize_module(model, mesh, PrepareModuleInput(**layouts))


def peak_and_held(model: nn.Module, x: Tensor, scope: AbstractContextManager) -> tuple[int, int]:
    torch.manual_seed(0)
    with retape.memory.Meter() as meter:
        with scope:
            y = model(x)
            loss = (y.to_local() if hasattr(y, "to_local") else y).square().mean()
        del y
        held = meter.current
        loss.backward()
        return meter.peak, held


@pytest.mark.parametrize("policy", ["none", "full", "cheap"])
@pytest.mark.parametrize("make", [tensor_parallel, sequence_parallel])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_parallel_model_peaks_no_higher_than_plain_plus_one_block(
    mesh: DeviceMesh, make: Callable[..., nn.Module], dropout: float, policy: str
) -> None:
    torch.manual_seed(0)
    model = make(mesh, dropout)
    tokens = TOKENS // 2 if make is sequence_parallel else TOKENS
    x = torch.randn(tokens, WIDTH)
    peak_and_held(model, x, nullcontext())  # gradients, and what torch allocates once
    plain_peak, plain_held = peak_and_held(model, x, nullcontext())
    peak, held = peak_and_held(model, x, retape.recompute(policy))
    assert held <= plain_held, (held, plain_held)
    assert peak <= plain_peak + WINDOW, (peak, plain_peak)
