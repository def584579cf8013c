"""`retape bench check`: what a checked step (RETAPE_CHECK) costs, on the demo's GPT."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape._numbers import LAYERS, ROUNDS, whole_number
from retape._table import Column, fitted, leaving_out
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
from retape.subjects.gpt import GPT, Size, Sums

if TYPE_CHECKING:
    from rich.console import Console

POLICIES = ("full", "cheap")
INTERVALS = (1, 10, 100, 1000)
_CAPTION = "Checked: a checked step's time over that of one that is not. 1 in N: the mean of all steps, with RETAPE_CHECK=N."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for option, most, usual, what in (
        ("--rounds", ROUNDS, 15, "timings of each"),
        ("--layers", LAYERS, 4, "of the model"),
    ):
        number, text = whole_number(1, most), f"{what} (%(default)s)"
        parser.add_argument(option, type=number, metavar="N", default=usual, help=text)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 layer")


def _step(model: GPT, batch: Any, policy: str, every: int) -> Phases:
    model.zero_grad()
    before = retape.check_every()
    retape.check_every(every)
    try:
        start = thread_ns()
        with retape.recompute(policy):
            loss = model(batch)
        middle = thread_ns()
        loss.backward()
        return middle - start, thread_ns() - middle
    finally:
        retape.check_every(before)


def measure(layers: int, rounds: int) -> dict[str, dict[str, Times]]:
    """By policy: times of a step that is not checked, and of one that is."""
    size = Size(layers=layers)
    torch.manual_seed(0)
    model, batch = GPT(len(Sums.alphabet), size), Sums(0).batch(size)
    found = {}
    with quiet_process():
        for policy in POLICIES:
            step = partial(_step, model, batch, policy)
            runs = {"off": partial(step, 0), "on": partial(step, 1)}
            found[policy] = interleave(runs, "off", rounds, warmup=2)
    return found


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    args.environment = environment
    layers, rounds = (1, 3) if args.quick else (args.layers, args.rounds)
    measured = measure(layers, rounds)
    ratios = {policy: times["on"].ratio()[1] for policy, times in measured.items()}
    rows = [
        {
            "policy": policy,
            "ratio": ratio,
            "mean_ratio": {str(n): 1 + (ratio - 1) / n for n in INTERVALS},
        }
        for policy, ratio in ratios.items()
    ]
    _print(rows, measured, layers, console)
    warnings = noise_warnings([each["on"] for each in measured.values()])
    for warning in warnings:
        console.print(warning, style="yellow", markup=False)
    return Exit.OK, {"layers": layers, "rounds": rounds, "rows": rows, "warnings": warnings}


def _print(
    rows: list[dict[str, Any]], measured: dict[str, dict[str, Times]], layers: int, console: Console
) -> None:
    times = list(measured.values())
    columns = [
        Column("policy", [row["policy"] for row in rows], justify="left"),
        Column("step", [format_seconds(each["off"].median_ns() / 1e9) for each in times]),
        Column("checked", [format_spread(each["on"].ratios) for each in times]),
        *(
            Column(f"1 in {n}", [f"{row['mean_ratio'][str(n)]:.4f}" for row in rows])
            for n in INTERVALS[1:]
        ),
    ]
    layouts = leaving_out(columns, ("1 in 10", "1 in 1000", "step"))
    title = f"A step of a GPT with {layers} layer{'s' * (layers != 1)}, checked"
    console.print(fitted(layouts, console, lambda layout: _CAPTION, title=title))
    console.print()
