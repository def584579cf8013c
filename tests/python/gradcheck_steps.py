"""Steps for `retape gradcheck`: data parallelism over rows with token counts, right and wrong."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from pathlib import Path

import torch
import torch.distributed as torch_dist

import retape.dist

ROWS, WIDTH = 12, 3


def data(case, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the batch, and how many tokens each has."""
    x = retape.dist.row_uniform(case.seed, "data", (begin, end), [WIDTH], case.dtype)
    tokens = torch.tensor([1 + row % 3 for row in range(begin, end)])
    return x, tokens


def make(case) -> torch.nn.Module:
    model = torch.nn.Linear(WIDTH, 1, dtype=case.dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 2, parameter.numel()).view_as(parameter))
    return model


def loss_sum(model, x, tokens) -> torch.Tensor:
    return ((model(x).squeeze(1) - 1) ** 2 * tokens).sum()


def penalty(model) -> torch.Tensor:
    return model.weight.square().sum()


def reference(case):
    model = make(case)
    x, tokens = data(case, 0, ROWS)
    loss = case.terms["fit"] * loss_sum(model, x, tokens) / tokens.sum()
    if case.terms["penalty"]:
        loss = loss + case.terms["penalty"] * penalty(model)
    loss.backward()
    return retape.dist.gradients_of(model)


class Ranks:
    """`wrong`: "" or what is wrong: "average", "own mean", "raises", "returns"."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.groups = {}
        for ranks in sorted({1, torch_dist.get_world_size()}):
            made = torch_dist.new_group(list(range(ranks)))
            if torch_dist.get_rank() < ranks:
                self.groups[ranks] = retape.dist.Group(made, name=f"ranks of {ranks}")

    def __call__(self, case):
        rank = torch_dist.get_rank()
        pool = case.topology.pool("ranks")
        group = self.groups[len(pool)]
        model = make(case)
        x, tokens = data(case, *pool.shards[rank])
        if rank == 1 and self.wrong == "raises":
            raise ValueError("no <data> & here")
        self._loss(case, model, x, tokens, group).backward()
        reducer = retape.dist.SumReducer(group, wire=case.wire)
        reducer.add_gradients(model)
        reducer.reduce()
        if self.wrong == "average":
            for parameter in model.parameters():
                parameter.grad /= len(pool)
        return None if self.wrong == "returns" else retape.dist.gradients_of(model)

    def _loss(self, case, model, x, tokens, group) -> torch.Tensor:
        total = loss_sum(model, x, tokens)
        if self.wrong == "own mean":
            fit = total / (tokens.sum() * len(group))
        else:
            count = retape.dist.count_global("tokens", int(tokens.sum()), group)
            fit = retape.dist.normalize(total, count).value
        loss = case.terms["fit"] * fit
        if case.terms["penalty"]:
            once = retape.dist.Replicated(penalty(model))
            part = retape.dist.contribute_once("penalty", once, group)
            loss = loss + case.terms["penalty"] * part.value
        return loss


def check(wrong: str = "", **options):
    terms = [
        retape.dist.Term("fit", 1.0),
        retape.dist.Term("penalty", 0.5, live=["weight"]),
    ]
    return retape.dist.GradCheck(reference, Ranks(wrong), terms=terms, rows=ROWS, **options)


def right():
    return check()


def average():
    return check("average")


def own_mean():
    return check("own mean", dtypes=())


def raises():
    return check("raises")


def returns():
    return check("returns")


def listening(process: int) -> list[str]:
    """Addresses on which a process listens: "127.0.0.1:29500"."""
    inodes = set()
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = re.match(r"socket:\[(\d+)\]", os.readlink(file))
            inodes |= {found[1]} if found else set()
    addresses = []
    for family, kind in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{process}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A" or fields[9] not in inodes:
                continue
            host, port = fields[1].split(":")
            words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
            packed = struct.pack(f"={len(words)}I", *words)
            addresses.append(f"{socket.inet_ntop(kind, packed)}:{int(port, 16)}")
    return addresses


class Quiet(Ranks):
    """Raises where this rank, torchrun, or what started it listens beyond loopback."""

    def __call__(self, case):
        torchrun = os.getppid()
        command = int(re.search(r"PPid:\s*(\d+)", Path(f"/proc/{torchrun}/status").read_text())[1])
        heard = [
            each for process in (os.getpid(), torchrun, command) for each in listening(process)
        ]
        if not heard or any(not each.startswith("127.0.0.1:") for each in heard):
            raise AssertionError(f"listens on {heard}")
        return super().__call__(case)


def right_and_quiet():
    made = check()
    made.distributed = Quiet()
    return made


def not_a_check():
    return reference
