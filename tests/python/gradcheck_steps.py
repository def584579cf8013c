"""Steps for `retape gradcheck`: data parallelism over rows with token counts, right and wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import sys
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


def sizes() -> list[int]:
    return sorted({1, torch_dist.get_world_size()})


class Ranks:
    """`wrong`: "" or what is wrong: "average", "raises"."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.groups = {}
        for ranks in sizes():
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
        return retape.dist.gradients_of(model)

    def _loss(self, case, model, x, tokens, group) -> torch.Tensor:
        count = retape.dist.count_global("tokens", int(tokens.sum()), group)
        fit = retape.dist.normalize(loss_sum(model, x, tokens), count).value
        loss = case.terms["fit"] * fit
        if case.terms["penalty"]:
            once = retape.dist.Replicated(penalty(model))
            part = retape.dist.contribute_once("penalty", once, group)
            loss = loss + case.terms["penalty"] * part.value
        return loss


def check(wrong: str = "", weight: float = 0.5, **options):
    terms = [
        retape.dist.Term("fit", 1.0),
        retape.dist.Term("penalty", weight, live=["weight"]),
    ]
    pools = {n: retape.dist.Pool("ranks", list(range(n))) for n in sizes()}
    topologies = {str(n): retape.dist.Topology(ROWS, [pool]) for n, pool in pools.items()}
    return retape.dist.GradCheck(
        reference, Ranks(wrong), terms=terms, topologies=topologies, **options
    )


class Faulty:
    """A step in which rank 1 does `what`, and rank 0 waits for it in a collective of torch's own."""

    def __init__(self, what) -> None:
        self.what = what

    def __call__(self, case):
        if torch_dist.get_rank() == 1:
            print("as far as this")
            self.what()
        torch_dist.all_reduce(torch.ones(1))
        raise AssertionError("rank 1 came")


def faulty(what):
    return retape.dist.GradCheck(
        reference, Faulty(what), terms={"fit": 1.0, "penalty": 1.0}, rows=ROWS
    )


def is_killed():
    return faulty(lambda: os.kill(os.getpid(), signal.SIGKILL))


def is_stopped():
    return faulty(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def kills_torchrun():
    return faulty(lambda: os.kill(os.getppid(), signal.SIGKILL))


def exits():
    return faulty(lambda: sys.exit(0))


def exits_at_once():
    return faulty(lambda: os._exit(0))


def waits_for_a_signal():
    """Tells its process by a socket of this name, which is open as long as it lives."""
    alive = socket.socket(socket.AF_UNIX)
    alive.connect("alive")
    alive.sendall(str(os.getpid()).encode())
    signal.pause()


def right():
    return check()


def average():
    return check("average")


def cannot_do_without_rows():
    made = check()
    step = made.distributed

    def distributed(case):
        begin, end = case.topology.pool("ranks").shards[torch_dist.get_rank()]
        range(begin, end)[0]
        return step(case)

    made.distributed = distributed
    return made


def too_small():
    return check(weight=1e-14, dtypes=())


def raises():
    return check("raises")


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


def parent_of(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


class Quiet(Ranks):
    """Raises where this rank, torchrun, or the command listens beyond loopback, or others could read what
    they tell."""

    def __call__(self, case):
        rank, launcher = os.getpid(), os.getppid()
        heard = [listening(each) for each in (rank, launcher, parent_of(launcher))]
        if not heard[0] or not heard[1]:
            raise AssertionError(f"Gloo and the store listen somewhere: {heard}")
        if any(not each.startswith("127.0.0.1:") for each in sum(heard, [])):
            raise AssertionError(f"listens on {heard}")
        mode = Path(sys.argv[1]).stat().st_mode & 0o777
        if mode != 0o700:
            raise AssertionError(f"mode {mode:o}")
        return super().__call__(case)


def right_and_quiet():
    made = check()
    made.distributed = Quiet()
    return made


def not_a_check():
    return reference
