"""What an op costs in graphs of growing length: `retape bench overhead --growth`.

Recording and replay should cost the same per op however many ops came before and however many of their
results the program holds. Four graphs of ops on 16 floats, in plain autograd and under two policies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape._table import Column, fitted, leaving_out
from retape.bench.timing import quiet_process, thread_ns, with_bar

if TYPE_CHECKING:
    from rich.console import Console

Tensor = torch.Tensor

SIZES = (1_000, 4_000, 16_000, 64_000, 200_000)
FLOATS = 16
WAYS = ("plain", "full", "cheap")
ROUNDS = 3  # of the smaller sizes; one of the largest takes as long as all the others
_LEAST_ROUND = 50_000  # ops: from this size on, one round


def _chain(x: Tensor, ops: int) -> list[Tensor]:
    for _ in range(ops):
        x = torch.sin(x)
    return [x]


def _wide(x: Tensor, ops: int) -> list[Tensor]:
    """Every result is held by the program."""
    made = [x]
    for _ in range(ops):
        made.append(torch.sin(made[-1]))
    return made


def _residual(x: Tensor, ops: int) -> list[Tensor]:
    for _ in range(ops // 2):
        x = x + torch.sin(x)
    return [x]


def _dense(x: Tensor, ops: int) -> list[Tensor]:
    """Every result is held, and read again later."""
    made = [x]
    for i in range(ops):
        made.append(made[-1] * made[i // 2].detach())
    return made


GRAPHS: dict[str, Callable[[Tensor, int], list[Tensor]]] = {
    "chain": _chain,
    "wide": _wide,
    "residual": _residual,
    "dense": _dense,
}


def _timed(graph: Callable[[Tensor, int], list[Tensor]], way: str, ops: int) -> tuple[float, float]:
    """Microseconds per op, forward and backward."""
    x = torch.ones(FLOATS, requires_grad=True)
    start = thread_ns()
    with nullcontext() if way == "plain" else retape.recompute(way):
        made = graph(x, ops)
    middle = thread_ns()
    made[-1].sum().backward()
    end = thread_ns()
    return (middle - start) / 1e3 / ops, (end - middle) / 1e3 / ops


def measure(most: int, on_round: Callable[[], None]) -> list[dict[str, Any]]:
    """A row for each graph, way and size; the quickest of a few rounds."""
    rows = []
    with quiet_process():
        for (name, graph), way, ops in product(GRAPHS.items(), WAYS, _sizes(most)):
            rounds = ROUNDS if ops < _LEAST_ROUND else 1
            times = [_timed(graph, way, ops) for _ in range(rounds)]
            forward, backward = (min(each) for each in zip(*times, strict=True))
            row = {"graph": name, "way": way, "ops": ops}
            rows.append({**row, "forward_us": forward, "backward_us": backward})
            on_round()
    return rows


def _sizes(most: int) -> list[int]:
    return [size for size in SIZES if size <= most]


def show(rows: list[dict[str, Any]], console: Console) -> None:
    found = {(row["graph"], row["way"], row["ops"]): row for row in rows}
    lines = list(dict.fromkeys((row["graph"], row["way"]) for row in rows))
    shortest, *sizes = dict.fromkeys(row["ops"] for row in rows)
    first = [found[*line, shortest] for line in lines]

    def ratios(line: tuple[str, str], ops: int) -> str:
        one, this = found[*line, shortest], found[*line, ops]
        return " ".join(f"{this[name] / one[name]:.2f}" for name in ("forward_us", "backward_us"))

    columns = [
        Column("graph", [f"{graph}, {way}" for graph, way in lines], "", justify="left", least=0),
        Column("us/op", [f"{row['forward_us']:.1f} + {row['backward_us']:.1f}" for row in first]),
        *(Column(f"{n}", [ratios(line, n) for line in lines], f"{n:,}") for n in sizes),
    ]
    layouts = leaving_out(columns, ("us/op", *map(str, sizes[:-1])))
    ends = [i for i, (_, way) in enumerate(lines) if way == WAYS[-1]]
    title = "Cost of an op in a graph of so many ops, over the shortest graph's: forward, backward"
    caption = f"us/op: forward + backward of {shortest:,} ops. Ratios near 1: linear."
    console.print(fitted(layouts, console, lambda layout: caption, ends, title=title))


def run(console: Console, most: int) -> dict[str, Any]:
    rounds = len(GRAPHS) * len(WAYS) * len(_sizes(most))
    rows = with_bar(partial(measure, most), rounds, console)
    show(rows, console)
    return {"floats": FLOATS, "growth": rows}
