"""Three ranks train under DDP until one is killed or stopped, for tests/python/test_dist_faults.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as torch_dist
from tests.python import ranks
from torch import nn

import retape.dist as rd

RANKS = 3
LOST = (1,)
TIMEOUT = 3.0
STRIKES = 3  # the step in which it happens
LAUNCHES = [("SIGKILL", "backward"), ("SIGSTOP", "backward"), ("SIGKILL", "forward")]


def strike(name: str, where: str) -> None:
    ranks.tell(fault=name, where=where, at=time.monotonic())
    os.kill(os.getpid(), signal.Signals[name])


def step(model: nn.Module, hook: rd.SumHook) -> None:
    model.zero_grad()
    count = rd.count_global("rows", 4, hook.group)
    rd.normalize(model(torch.ones(4, 64)).square().sum(), count).value.backward()


def main(name: str, where: str) -> None:
    torch.manual_seed(0)
    own = torch_dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    model = nn.parallel.DistributedDataParallel(layers, process_group=own, bucket_cap_mb=0.02)
    hook = rd.SumHook(model)
    begun = 0

    def perhaps(*_: object) -> None:
        if torch_dist.get_rank() in LOST and begun == STRIKES:
            strike(name, where)

    if where == "forward":
        layers[3].register_forward_pre_hook(perhaps)
    else:  # when the buckets of layers after it are on their way
        layers[3].weight.register_hook(perhaps)
    try:
        while True:
            begun += 1
            step(model, hook)
    except rd.CollectiveError as error:
        told = {"blamed": error.ranks, "text": str(error), "step": begun, "at": time.monotonic()}
        ranks.tell(fault=name, where=where, **told)
    sys.exit(0)
