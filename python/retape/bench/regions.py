"""The fixed cost of a region: one op on 16 floats, forward and backward, with and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import retape
from retape._table import Column, fitted, leaving_out
from retape.bench.timing import Phases, interleave, thread_ns

if TYPE_CHECKING:
    from rich.console import Console

Tensor = torch.Tensor

COUNT = 200  # regions per timing, so that the clock's resolution does not matter
REFERENCE = "torch non-reentrant"
TARGET = 0.25  # of what the reference adds


class _Sin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def _enabled(**how: Any) -> nn.Module:
    model = nn.Sequential(_Sin())
    retape.enable(model, ["0"], **how)
    return model[0]


def runs() -> dict[str, Callable[[Tensor], Tensor]]:
    sin = _Sin()
    rerun = partial(retape.checkpoint, sin, method="rerun")
    return {
        "eager": sin,
        "retape.checkpoint": partial(retape.checkpoint, sin),
        "retape.checkpoint rerun": rerun,
        "retape.enable": _enabled(),
        "retape.enable rerun": _enabled(method="rerun"),
        "retape.checkpoint rerun, reentrant": partial(rerun, use_reentrant=True),
        REFERENCE: partial(checkpoint, sin, use_reentrant=False),
        "torch reentrant": partial(checkpoint, sin, use_reentrant=True),
    }


def _timed(run: Callable[[Tensor], Tensor]) -> Phases:
    x = torch.linspace(0.5, 1.5, 16, requires_grad=True)
    seed = torch.ones(16)
    start = thread_ns()
    for _ in range(COUNT):
        run(x).backward(seed)
    return (thread_ns() - start,)


def measure(rounds: int, warmup: int, on_round: Callable[[], None]) -> list[dict[str, Any]]:
    """One row per way to make a region. Reentrant, which runs a backward of its own, has no target."""
    timed = {name: partial(_timed, run) for name, run in runs().items()}
    times = interleave(timed, "eager", rounds, warmup, on_round)
    cost = {name: entry.median_ns() / 1e3 / COUNT for name, entry in times.items()}
    rows = []
    for name, microseconds in cost.items():
        added = microseconds - cost["eager"]
        share = added / (cost[REFERENCE] - cost["eager"])
        target = TARGET if name.startswith("retape") and "reentrant" not in name else None
        rows.append(
            {
                "variant": name,
                "us_per_region": microseconds,
                "added_us": added,
                "share_of_torch": share,
                "target": target,
                "target_met": None if target is None else share <= target,
            }
        )
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    from rich.text import Text

    def share(row: dict[str, Any]) -> Text:
        text = f"{row['share_of_torch']:.2f}"
        return Text(f"{text} !", style="bold yellow") if row["target_met"] is False else Text(text)

    columns = [
        Column("way", [row["variant"] for row in rows], "", justify="left", least=0),
        Column("us", [f"{row['us_per_region']:.1f}" for row in rows]),
        Column("added us", [f"{row['added_us']:+.1f}" for row in rows]),
        Column("of torch's", [share(row) for row in rows]),
        Column("target", ["" if row["target"] is None else f"<= {row['target']}" for row in rows]),
    ]
    layouts = leaving_out(columns, ("target", "added us", "us"))
    console.print(fitted(layouts, console, title="Cost of a region: one op, both ways"))
    console.print()
