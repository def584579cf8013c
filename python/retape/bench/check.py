"""`retape bench check`: what a checked step (RETAPE_CHECK) costs, on the demo's GPT."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape._gpt import GPT, Size, Sums
from retape._text import Exit, format_seconds, format_spread
from retape.bench.timing import (
    Phases,
    Times,
    environment,
    interleave,
    noise_warnings,
    quiet_process,
    thread_ns,
)

if TYPE_CHECKING:
    from rich.console import Console

POLICIES = ("full", "cheap")
INTERVALS = (1, 10, 100, 1000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15, help="timings of each (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="of the model (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 layer")


@contextmanager
def _every(n: int) -> Iterator[None]:
    before = retape.check_every()
    retape.check_every(n)
    try:
        yield
    finally:
        retape.check_every(before)


def _step(model: GPT, batch: Any, policy: str, every: int) -> Callable[[], Phases]:
    def run() -> Phases:
        model.zero_grad()
        with _every(every):
            start = thread_ns()
            with retape.recompute(policy):
                loss = model(batch)
            middle = thread_ns()
            loss.backward()
            return middle - start, thread_ns() - middle

    return run


def measure(layers: int, rounds: int) -> dict[str, dict[str, Times]]:
    """By policy: times of a step that is not checked, and of one that is."""
    size = Size(layers=layers)
    torch.manual_seed(0)
    model, batch = GPT(len(Sums.alphabet), size), Sums(0).batch(size)
    found = {}
    with quiet_process():
        for policy in POLICIES:
            runs = {"off": _step(model, batch, policy, 0), "on": _step(model, batch, policy, 1)}
            found[policy] = interleave(runs, "off", rounds, warmup=2)
    return found


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    from rich.box import SIMPLE
    from rich.table import Table

    args.environment = environment
    layers, rounds = (1, 3) if args.quick else (args.layers, args.rounds)
    measured = measure(layers, rounds)
    table = Table(title=f"A step of a GPT with {layers} layers, checked", box=SIMPLE)
    table.add_column("policy")
    table.add_column("step", justify="right")
    table.add_column("checked step, ratio", justify="right")
    for n in INTERVALS[1:]:
        table.add_column(f"RETAPE_CHECK={n}", justify="right")
    rows = []
    for policy, times in measured.items():
        ratio = times["on"].ratio()[1]
        means = {str(n): 1 + (ratio - 1) / n for n in INTERVALS}
        table.add_row(
            policy,
            format_seconds(times["off"].median_ns() / 1e9),
            format_spread(times["on"].ratios),
            *(f"{means[str(n)]:.4f}" for n in INTERVALS[1:]),
        )
        rows.append({"policy": policy, "ratio": ratio, "mean_ratio": means})
    console.print(table)
    warnings = noise_warnings([each["on"] for each in measured.values()])
    for warning in warnings:
        console.print(f"[yellow]{warning}[/]")
    return Exit.OK, {"layers": layers, "rounds": rounds, "rows": rows, "warnings": warnings}
