"""What an op costs in graphs of growing length: `retape bench overhead --growth`.

Recording and replay should cost the same per op however many ops came before and however many of their
results the program holds. Four graphs of ops on 16 floats, in plain autograd and under two policies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape._table import Column, fitted, leaving_out
from retape.bench.timing import quiet_process, thread_ns

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


def measure(
    most: int = SIZES[-1], on_round: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """A row for each graph, way and size; the quickest of a few rounds."""
    rows = []
    with quiet_process():
        for name, graph in GRAPHS.items():
            for way in WAYS:
                for ops in (size for size in SIZES if size <= most):
                    rounds = ROUNDS if ops < _LEAST_ROUND else 1
                    times = [_timed(graph, way, ops) for _ in range(rounds)]
                    forward, backward = (min(each) for each in zip(*times, strict=True))
                    rows.append(
                        {
                            "graph": name,
                            "way": way,
                            "ops": ops,
                            "forward_us": forward,
                            "backward_us": backward,
                        }
                    )
                    on_round()
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    found = {(row["graph"], row["way"], row["ops"]): row for row in rows}
    lines = list(dict.fromkeys((row["graph"], row["way"]) for row in rows))
    sizes = list(dict.fromkeys(row["ops"] for row in rows))

    def cell(line: tuple[str, str], ops: int, phase: str) -> str:
        first, this = (found[*line, size][phase] for size in (sizes[0], ops))
        return f"{this / first:.2f}"

    first = [found[*line, sizes[0]] for line in lines]
    columns = [
        Column("graph", [f"{graph}, {way}" for graph, way in lines], "", justify="left", least=0),
        Column("us/op", [f"{row['forward_us']:.1f} + {row['backward_us']:.1f}" for row in first]),
        *(
            Column(
                f"{ops}",
                [
                    f"{cell(line, ops, 'forward_us')} {cell(line, ops, 'backward_us')}"
                    for line in lines
                ],
                f"{ops:,}",
            )
            for ops in sizes[1:]
        ),
    ]
    layouts = leaving_out(columns, ("us/op", *(f"{ops}" for ops in sizes[1:-1])))
    ends = [i for i, (_, way) in enumerate(lines) if way == WAYS[-1]]
    title = "Cost of an op in a graph of so many ops, over the shortest graph's: forward, backward"
    caption = f"us/op: forward + backward of {sizes[0]:,} ops. Ratios near 1: linear."
    console.print(fitted(layouts, console, lambda layout: caption, ends, title=title))


def rounds(most: int = SIZES[-1]) -> int:
    return len(GRAPHS) * len(WAYS) * sum(size <= most for size in SIZES)


def run(console: Console, most: int) -> dict[str, Any]:
    from rich.progress import Progress

    bar = Progress(console=console, transient=True) if console.is_terminal else nullcontext()
    with bar as progress:
        if progress is None:
            rows = measure(most)
        else:
            task = progress.add_task("graphs", total=rounds(most))
            rows = measure(most, partial(progress.advance, task))
    show(rows, console)
    return {"floats": FLOATS, "growth": rows}
