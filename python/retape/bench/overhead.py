"""What Retape costs per op when the ops are so small that nothing else is left to measure.

A Python loop of 1,000 ops on 16 floats, forward and backward, one thread, thread CPU time.
Beside it the fixed cost of a region (`retape.bench.regions`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import retape
from retape._bits import same_bits
from retape._numbers import ROUNDS, whole_number
from retape._table import Column, Layout, fitted, leaving_out
from retape._text import Exit
from retape.bench import growth, regions
from retape.bench.timing import (
    Phases,
    Times,
    environment,
    interleave,
    noise_warnings,
    quiet_process,
    thread_ns,
    with_bar,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Tensor = torch.Tensor
Body = Callable[[Tensor, Tensor], Tensor]

OPS = 1000
FLOATS = 16
_DISPENSABLE = ("tape", "us/op")  # in a narrow terminal


def _sin(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(OPS):
        x = torch.sin(x)
    return x


def _mul(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(OPS):
        x = x * w
    return x


def _add(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(OPS):
        x = x + 1
    return x


@dataclass(frozen=True)
class Workload:
    name: str
    body: Body
    saves: int  # tensors that autograd saves per op


WORKLOADS = (Workload("sin", _sin, 1), Workload("x*w", _mul, 2), Workload("x+1", _add, 0))


@dataclass(frozen=True)
class Variant:
    name: str
    label: str
    forward: Callable[[Body, Tensor, Tensor], Tensor]
    ours: bool = False
    target: float | None = None  # times eager, on workloads that save something
    policy: Any = None  # of Retape's variants: opened once more, untimed, to read its stats


def _within(scope: Callable[[], Any], body: Body, x: Tensor, w: Tensor) -> Tensor:
    with scope():
        return body(x, w)


def variants() -> tuple[Variant, ...]:
    kept = retape.Policy.full().keep_ops(["aten::sin", "aten::mul", "aten::add"])
    dropped, anchored = retape.Policy.full().anchors(False), retape.Policy.full()

    def ours(name: str, label: str, policy: Any, target: float) -> Variant:
        way = partial(_within, partial(retape.recompute, policy))
        return Variant(name, f"retape {label}", way, True, target, policy)

    def peer(name: str, label: str, reentrant: bool = False, **how: Any) -> Variant:
        way = partial(checkpoint, use_reentrant=reentrant, **how)
        return Variant(name, f"torch {label}", way)

    def selective(choice: CheckpointPolicy) -> Callable[[], Any]:
        return partial(create_selective_checkpoint_contexts, lambda *_, **__: choice)

    identity = partial(torch.autograd.graph.saved_tensors_hooks, lambda t: t, lambda t: t)
    recompute, save = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.MUST_SAVE
    return (
        Variant("eager", "eager", partial(_within, nullcontext)),
        ours("none", "none", retape.Policy.none(), 1.15),
        ours("kept", "full, all in keep_ops", kept, 1.15),
        ours("dropped", "full, all replayed", dropped, 1.5),
        ours("anchored", "full, with anchors", anchored, 1.5),
        Variant("hooks", "identity saved_tensors_hooks", partial(_within, identity)),
        peer("non-reentrant", "non-reentrant"),
        peer("reentrant", "reentrant", True),
        peer("selective-recompute", "selective, recompute", context_fn=selective(recompute)),
        peer("selective-save", "selective, save", context_fn=selective(save)),
    )


def _inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(FLOATS, generator=generator) + 0.5
    w = torch.rand(FLOATS, generator=generator) * 0.01 + 0.995
    return x.requires_grad_(), w.requires_grad_()


def _timed(variant: Variant, body: Body) -> Phases:
    x, w = _inputs()
    seed = torch.ones(FLOATS)
    start = thread_ns()
    y = variant.forward(body, x, w)
    middle = thread_ns()
    y.backward(seed)
    return middle - start, thread_ns() - middle


def _gradients(variant: Variant, body: Body) -> tuple[Tensor | None, ...]:
    x, w = _inputs()
    y = variant.forward(body, x, w)
    y.backward(torch.linspace(0.5, 1.5, FLOATS))
    return y.detach(), x.grad, w.grad


def _ops_counted(variant: Variant, body: Body) -> tuple[int | None, int | None]:
    """Ops recorded with a recipe, ops replayed."""
    if not variant.ours:
        return None, None
    x, w = _inputs()
    with retape.recompute(variant.policy) as scope:
        y = body(x, w)
    y.backward(torch.ones(FLOATS))
    return scope.stats.ops_recorded, scope.stats.ops_replayed


def _row(
    variant: Variant, workload: Workload, times: Times, eager: Times, expected: tuple
) -> dict[str, Any]:
    low, middle, high = times.ratio()
    target = variant.target if workload.saves else None
    recorded, replayed = _ops_counted(variant, workload.body)
    found = _gradients(variant, workload.body)
    return {
        "variant": variant.name,
        "label": variant.label,
        "workload": workload.name,
        "saves_per_op": workload.saves,
        "forward_us_per_op": times.median_ns(0) / 1e3 / OPS,
        "backward_us_per_op": times.median_ns(1) / 1e3 / OPS,
        "total_us_per_op": times.median_ns() / 1e3 / OPS,
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "ratio_of_quickest": times.least_ns() / eager.least_ns(),
        "target": target,
        "target_met": None if target is None else middle <= target,
        "ops_recorded": recorded,
        "ops_replayed": replayed,
        "gradients_identical": all(map(same_bits, expected, found)),
    }


def measure(rounds: int, warmup: int, on_round: Callable[[], None]) -> dict[str, Any]:
    """All rows, the fixed cost of a region, and warnings about noise."""
    rows: list[dict[str, Any]] = []
    all_times: list[Times] = []
    with quiet_process():
        for workload in WORKLOADS:
            table = variants()
            expected = _gradients(table[0], workload.body)
            runs = {v.name: partial(_timed, v, workload.body) for v in table}
            times = interleave(runs, "eager", rounds, warmup, on_round)
            rows += [_row(v, workload, times[v.name], times["eager"], expected) for v in table]
            all_times += times.values()
        fixed = regions.measure(rounds, warmup, on_round)
    about = {"ops": OPS, "floats": FLOATS, "rounds": rounds}
    return {**about, "rows": rows, "regions": fixed, "warnings": noise_warnings(all_times)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for option, least, usual, what in (
        ("--rounds", 1, 21, "timed rounds"),
        ("--warmup", 0, 3, "untimed rounds"),
    ):
        number, text = whole_number(least, ROUNDS), f"{what} (%(default)s)"
        parser.add_argument(option, type=number, metavar="N", default=usual, help=text)
    for option, text in (
        ("--quick", "7 rounds after 1: seconds, noisier"),
        ("--check", "exit with 3 when a target is missed"),
        ("--growth", "instead: cost per op in graphs of 1,000 to 200,000 ops"),
    ):
        parser.add_argument(option, action="store_true", help=text)


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    rounds, warmup = (7, 1) if args.quick else (args.rounds, args.warmup)
    args.environment = environment
    if args.growth:
        return Exit.OK, growth.run(console, growth.SIZES[1 if args.quick else -1])
    total = (rounds + warmup) * (len(WORKLOADS) + 1)
    result = with_bar(partial(measure, rounds, warmup), total, console)
    _print(result, console)
    return _verdict(result, args.check), result


def _verdict(result: dict[str, Any], check: bool) -> Exit:
    ours = {variant.name for variant in variants() if variant.ours}
    rows = [row for row in result["rows"] if row["variant"] in ours]
    if not all(row["gradients_identical"] for row in rows):
        return Exit.DIFFERENT
    dropped = [row for row in rows if row["variant"] == "dropped" and row["saves_per_op"]]
    if any(row["ops_replayed"] == 0 for row in dropped):
        return Exit.VACUOUS
    if check and any(row["target_met"] is False for row in rows + result["regions"]):
        return Exit.REGRESSION
    return Exit.OK


def _print(result: dict[str, Any], console: Console) -> None:
    title = f"{result['ops']} ops on {result['floats']} floats, forward and backward"
    ends = [i for i, variant in enumerate(variants()) if variant.name in ("eager", "anchored")]
    layouts = _layouts(result)
    console.print(fitted(layouts, console, partial(_caption, result), ends, title=title))
    console.print()
    regions.show(result["regions"], console)
    for warning in result["warnings"]:
        console.print(f"Warning: {warning}", style="yellow")


def _layouts(result: dict[str, Any]) -> Iterator[Layout]:
    """What is shown of one workload goes first, then spreads."""
    whole = list(leaving_out(_columns(result, spreads=True), _DISPENSABLE))
    bare = [c for c in _columns(result, spreads=False) if c.name not in _DISPENSABLE]
    yield from whole
    yield from leaving_out(bare, ("target", *(workload.name for workload in WORKLOADS[:0:-1])))


def _columns(result: dict[str, Any], spreads: bool) -> list[Column]:
    from rich.text import Text

    found = {(row["variant"], row["workload"]): row for row in result["rows"]}
    table = variants()
    rows = [[found[variant.name, workload.name] for workload in WORKLOADS] for variant in table]
    tape = [f"{row['ops_recorded']}/{row['ops_replayed']}" for row, *_ in rows]
    micros = [f"{r['forward_us_per_op']:.2f} + {r['backward_us_per_op']:.2f}" for r, *_ in rows]
    different = Text("DIFFERENT", style="bold red")
    same = [all(row["gradients_identical"] for row in each) for each in rows]
    return [
        Column("way", [variant.label for variant in table], "", justify="left", least=0),
        Column("tape", [text * v.ours for text, v in zip(tape, table, strict=True)]),
        Column("us/op", micros),
        *(
            Column(w.name, [_ratio_cell(each[i], spreads) for each in rows])
            for i, w in enumerate(WORKLOADS)
        ),
        Column("target", ["" if v.target is None else f"<= {v.target}" for v in table]),
        Column("bits", ["same" if each else different for each in same], justify="left"),
    ]


def _caption(result: dict[str, Any], layout: Layout) -> str:
    """What the columns that are there mean."""
    there = {column.name for column in layout}
    told = {
        "tape": "tape: ops recorded with a recipe / replayed, of sin.",
        "us/op": "us/op: forward + backward, of sin.",
    }
    has_spreads = any("±" in str(cell) for column in layout for cell in column.cells)
    rest = (
        f"{'The rest' if there & set(told) else 'Figures'}: thread CPU time over eager's, median of "
        f"{result['rounds']} interleaved rounds{' ± half the interquartile range' * has_spreads}."
    )
    return " ".join([*(text for name, text in told.items() if name in there), rest])


def _ratio_cell(row: dict[str, Any], spread: bool) -> Text:
    from rich.text import Text

    low, high = row["ratio_quartiles"]
    text = f"{row['ratio']:.2f}" + f" ± {(high - low) / 2:.2f}" * spread
    if row["target_met"] is None:
        return Text(text)
    return (
        Text(text, style="green") if row["target_met"] else Text(f"{text} !", style="bold yellow")
    )
