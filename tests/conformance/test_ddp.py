"""The checkpoint tests of test/distributed/test_c10d_common.py: DDP on Gloo, two real processes.

Each runs ten rows on a plain model in one process, and half of them in each rank on a model under
DDP whose layers are checkpointed: five steps, with and without views of buckets as gradients.
"""

from __future__ import annotations

import fcntl
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .support import RUNS, assert_same, checkpoint

RANKS = 2
STEPS = 5
WIDTH = 24


class Toy(nn.Module):
    """Two layers; `calls` of the second; a third that nobody uses, if asked for."""

    def __init__(self, how: str | None, calls: int = 1, unused: bool = False) -> None:
        super().__init__()
        self.how, self.calls = how, calls
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        if unused:
            self.third = nn.Linear(WIDTH, WIDTH, bias=False)

    def run(self, layer: Callable, x: torch.Tensor) -> torch.Tensor:
        return layer(x) if self.how is None else checkpoint(self.how, layer, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.calls):
            x = self.run(lambda v: self.second(v).tanh(), x)
        return x


class Dynamic(Toy):
    """Uses its third layer in some steps only, the same ones in every process."""

    def __init__(self, how: str | None) -> None:
        super().__init__(how, unused=True)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        x = super().forward(x)
        return self.run(self.third, x) if self.step % 2 else x


class Shared(Toy):
    """One weight in both layers; checkpointed together or one by one."""

    def __init__(self, how: str | None, calls: int = 1, dynamic: bool = False) -> None:
        super().__init__(how, calls)
        self.second.weight = self.first.weight
        self.dynamic, self.step = dynamic, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if self.dynamic and self.step % 2:
            return self.run(self.first, x)
        for _ in range(self.calls):
            x = self.run(lambda v: self.second(self.first(v)).tanh(), x)
        return x


CASES: dict[str, tuple[Callable[[str | None], nn.Module], dict]] = {
    "once": (lambda how: Toy(how), {}),
    "unused_params": (lambda how: Toy(how, unused=True), {"find_unused_parameters": True}),
    "twice": (lambda how: Toy(how, calls=2), {}),
    "twice_static_graph": (lambda how: Toy(how, calls=2), {"static_graph": True}),
    "dynamic_module": (Dynamic, {"find_unused_parameters": True}),
    "dynamic_weight_sharing": (
        lambda how: Shared(how, dynamic=True),
        {"find_unused_parameters": True},
    ),
    "weight_sharing": (lambda how: Shared(how), {}),
    "twice_weight_sharing": (lambda how: Shared(how, calls=2), {}),
}
STATIC_TOO = ("once", "weight_sharing", "twice_weight_sharing")


def _gradients(model: nn.Module, data: torch.Tensor) -> Iterator[list[torch.Tensor | None]]:
    for _ in range(STEPS):
        model.zero_grad()
        model(data).square().sum().backward()
        yield [p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]


def _compare(rank: int, case: str, how: str, **options: bool) -> None:
    make, extra = CASES[case]
    torch.manual_seed(0)
    plain = make(None)
    ours, eager = make(how), make(None)
    ours.load_state_dict(plain.state_dict())
    eager.load_state_dict(plain.state_dict())
    data = torch.randn(RANKS * 5, WIDTH)
    part = data.chunk(RANKS)[rank]
    settings = {"bucket_cap_mb": 1, **extra, **options}
    calls = {ours: 0, eager: 0}
    for model in calls:
        model.second.register_forward_hook(lambda *_, m=model: calls.update({m: calls[m] + 1}))
    runs = [
        _gradients(plain, data),
        _gradients(DistributedDataParallel(eager, **settings), part),
        _gradients(DistributedDataParallel(ours, **settings), part),
    ]
    for alone, under_ddp, found in zip(*runs, strict=True):
        assert_same(found, under_ddp, f"{case} {how} {options}")
        for a, b in zip(found, alone, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b / RANKS, rtol=1.3e-6, atol=5e-5)
    assert 0 < calls[eager] * RUNS[how] == calls[ours]


def _ready_only_once() -> str:
    """What DDP says when one weight is in two reentrant checkpoints."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Toy("reentrant", calls=2), bucket_cap_mb=1)
    try:
        next(_gradients(model, torch.randn(5, WIDTH)))
    except RuntimeError as error:
        return str(error)
    return "nothing"


def _verdict(*args: object, ways: list[dict]) -> str:
    try:
        for options in ways:
            _compare(*args, **options)
    except Exception:
        return traceback.format_exc()
    return "fine"


def _rank(rank: int, store: str, verdicts: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    views = [{"gradient_as_bucket_view": False}, {"gradient_as_bucket_view": True}]
    for case in CASES:
        static = [{**way, "static_graph": True} for way in views] if case in STATIC_TOO else []
        for how in ("replay", "rerun"):
            text = _verdict(rank, case, how, ways=views + static)
            Path(verdicts, f"{case}-{how}-{rank}").write_text(text)
    for case in ("once", "twice_static_graph"):
        text = _verdict(rank, case, "reentrant", ways=views)
        Path(verdicts, f"{case}-reentrant-{rank}").write_text(text)
    Path(verdicts, f"twice-reentrant-{rank}").write_text(_ready_only_once())
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, in one pair of processes: starting them is what takes time."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "conformance_ddp"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker runs them, the others read
        if not (folder / "verdicts").exists():
            (folder / "verdicts").mkdir()
            mp.spawn(_rank, args=(str(folder / "store"), str(folder / "verdicts")), nprocs=RANKS)
    return folder / "verdicts"


def _fine(verdicts: Path, case: str, how: str) -> None:
    for rank in range(RANKS):
        assert (verdicts / f"{case}-{how}-{rank}").read_text() == "fine"


both = pytest.mark.parametrize("how", ["replay", "rerun"])


@pytest.mark.parametrize("how", ["replay", "rerun", "reentrant"])
def test_ddp_checkpointing_once(verdicts: Path, how: str) -> None:
    """One checkpointed layer: bits of DDP without checkpoints, numbers of one process."""
    _fine(verdicts, "once", how)


@both
def test_ddp_checkpointing_unused_params(verdicts: Path, how: str) -> None:
    """A layer that nobody uses, with find_unused_parameters, which walks the graph: it is eager's."""
    _fine(verdicts, "unused_params", how)


@both
def test_ddp_checkpointing_twice(verdicts: Path, how: str) -> None:
    """One layer in two checkpoints: its gradient is ready once."""
    _fine(verdicts, "twice", how)


def test_ddp_checkpointing_twice_reentrant(verdicts: Path) -> None:
    """Reentrant makes it ready twice, and DDP refuses, as with torch's own."""
    for rank in range(RANKS):
        text = (verdicts / f"twice-reentrant-{rank}").read_text()
        assert "mark a variable ready only once" in text


@pytest.mark.parametrize("how", ["replay", "rerun", "reentrant"])
def test_ddp_checkpointing_twice_static_graph(verdicts: Path, how: str) -> None:
    """With a static graph reentrant works too."""
    _fine(verdicts, "twice_static_graph", how)


@both
def test_ddp_checkpointing_dynamic_module(verdicts: Path, how: str) -> None:
    """A layer that is used in every second step."""
    _fine(verdicts, "dynamic_module", how)


@both
def test_ddp_checkpointing_dynamic_weight_sharing(verdicts: Path, how: str) -> None:
    """A weight that two layers share, of which one is used in every second step."""
    _fine(verdicts, "dynamic_weight_sharing", how)


@both
def test_ddp_checkpointing_weight_sharing(verdicts: Path, how: str) -> None:
    """Two layers with one weight in one checkpoint, with a static graph and without."""
    _fine(verdicts, "weight_sharing", how)


@both
def test_ddp_checkpointing_twice_weight_sharing(verdicts: Path, how: str) -> None:
    """The same, checkpointed twice."""
    _fine(verdicts, "twice_weight_sharing", how)
