"""`retape demo`: a small transformer trained plain and with Retape, side by side.

The copies start from the same weights and generator state and take turns, step by step, so that
times compare. After each step every gradient is compared with the plain copy's, bit for bit; at
the end the weights and the generator states too.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

import retape
from retape import _artefact
from retape._bits import same_bits
from retape._numbers import INT64, LAYERS, SIZE, THREADS, whole_number
from retape._text import MIB, Exit, format_bytes, format_seconds, quartiles, sparkline
from retape.bench.report.markdown import table_of
from retape.bench.timing import threads
from retape.subjects.gpt import GPT, Size, Sums

if TYPE_CHECKING:
    from rich.console import Console

PLAIN, TORCH = "plain", "torch"
LABELS = {
    PLAIN: "plain",
    "full": 'recompute("full")',
    "cheap": 'recompute("cheap")',
    TORCH: "torch, per layer",
}
COLUMNS = 60  # of the drawn timeline


@dataclass
class Copy:
    """One of the models that train side by side, and what was seen of it."""

    name: str
    model: GPT
    optimizer: torch.optim.Optimizer
    generator: torch.Tensor  # the default generator's state before this copy's next step
    losses: list[torch.Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    helds: list[int] = field(default_factory=list)
    ops_replayed: int = 0
    ops_recorded: int = 0
    bytes_dropped: int = 0
    identical: int = 0  # gradients of all steps that equal the plain copy's
    compared: int = 0
    differences: list[str] = field(default_factory=list)
    timeline: list[int] = field(default_factory=list)

    @property
    def ours(self) -> bool:
        return self.name not in (PLAIN, TORCH)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The loss, and the scope it was computed in, if any."""
        if self.name == PLAIN:
            return self.model(ids), None
        if self.name == TORCH:
            return self.model(ids, call=partial(checkpoint, use_reentrant=False)), None
        with retape.recompute(self.name, name="gpt") as scope:
            return self.model(ids), scope


def make_copies(names: list[str], size: Size, seed: int) -> list[Copy]:
    torch.manual_seed(seed)
    first = GPT(len(Sums.alphabet), size)
    state = torch.get_rng_state()
    copies = []
    for name in names:
        model = copy.deepcopy(first)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        copies.append(Copy(name, model, optimizer, state.clone()))
    return copies


def train_step(trained: Copy, ids: torch.Tensor, kind: str = "timed") -> None:
    """One step, metered. Gradients stay in place for the comparison. A "timed" one is also timed,
    a "drawn" one leaves its timeline, whose recording costs time."""
    trained.optimizer.zero_grad(set_to_none=True)
    torch.set_rng_state(trained.generator)
    start = time.perf_counter()
    with retape.memory.Meter(timeline=kind == "drawn") as meter:
        loss, scope = trained.forward(ids)
        loss.backward()
    trained.optimizer.step()
    seconds = time.perf_counter() - start
    trained.generator = torch.get_rng_state()
    if kind == "drawn":
        trained.timeline = downsample([event.current for event in meter.timeline], COLUMNS)
    if kind == "timed":
        trained.seconds.append(seconds)
    trained.losses.append(loss.detach())
    trained.peaks.append(meter.peak)
    trained.helds.append(meter.held)
    if scope is not None:
        trained.ops_recorded += scope.stats.ops_recorded
        trained.ops_replayed += scope.stats.ops_replayed
        trained.bytes_dropped = scope.stats.bytes_dropped


def downsample(values: list[int], columns: int) -> list[int]:
    """The highest value in each of `columns` equal stretches."""
    if len(values) <= columns:
        return values
    edges = [index * len(values) // columns for index in range(columns + 1)]
    return [max(values[a:b]) for a, b in itertools.pairwise(edges)]


def compare_gradients(reference: Copy, other: Copy, step: int) -> None:
    for (name, a), (_, b) in zip(
        reference.model.named_parameters(), other.model.named_parameters(), strict=True
    ):
        other.compared += 1
        if a.grad is not None and same_bits(a.grad, b.grad):
            other.identical += 1
        else:
            other.differences.append(f"step {step}: gradient of {name}")
    if not same_bits(reference.losses[-1], other.losses[-1]):
        other.differences.append(f"step {step}: loss")


def compare_ends(reference: Copy, other: Copy) -> None:
    other_state = other.model.state_dict()
    for name, value in reference.model.state_dict().items():
        if not same_bits(value, other_state[name]):
            other.differences.append(f"after training: weight {name}")
    if not same_bits(reference.generator, other.generator):
        other.differences.append("after training: state of the random generator")


def train(copies: list[Copy], size: Size, steps: int, seed: int, on_step: Callable) -> None:
    text = Sums(seed)
    kinds = ["warm-up"] + ["timed"] * steps + ["drawn"]
    for step, kind in enumerate(kinds):
        ids = text.batch(size)
        for index in range(len(copies)):
            trained = copies[(index + step) % len(copies)]
            train_step(trained, ids, kind)
            on_step(trained, step)
        for other in copies[1:]:
            compare_gradients(copies[0], other, step)
    for other in copies[1:]:
        compare_ends(copies[0], other)


def verdict(copies: list[Copy]) -> Exit:
    ours = [trained for trained in copies if trained.ours]
    if any(trained.differences for trained in ours):
        return Exit.DIFFERENT
    if any(trained.ops_replayed == 0 for trained in ours):
        return Exit.VACUOUS
    return Exit.OK


def verdict_text(trained: Copy) -> str:
    tensors = len(list(trained.model.parameters()))
    steps = trained.compared // tensors
    if trained.differences:
        return (
            f"DIFFERENT: {trained.compared - trained.identical} of {trained.compared} gradients; "
            f"first: {trained.differences[0]}"
        )
    if trained.ours and not trained.ops_replayed:
        return "VACUOUS: nothing was replayed, so nothing was proved"
    return f"every gradient bit-identical: {tensors} of {tensors} tensors, {steps} steps"


def summary(copies: list[Copy]) -> list[dict[str, Any]]:
    """One entry per copy: what the table shows and the JSON holds."""
    plain = copies[0]
    rows = []
    for trained in copies:
        pairs = zip(trained.seconds, plain.seconds, strict=True)
        low, ratio, high = quartiles([ours / theirs for ours, theirs in pairs])
        rows.append(
            {
                "name": trained.name,
                "ours": trained.ours,
                "label": LABELS[trained.name],
                "peak_bytes": max(trained.peaks),
                "held_bytes": max(trained.helds),
                "peak_to_plain": max(trained.peaks) / max(plain.peaks),
                "median_seconds": quartiles(trained.seconds)[1],
                "time_to_plain": ratio,
                "time_to_plain_quartiles": [low, high],
                "ops_recorded_per_step": trained.ops_recorded // len(trained.losses),
                "ops_replayed_per_step": trained.ops_replayed // len(trained.losses),
                "bytes_dropped": trained.bytes_dropped,
                "gradients_compared": trained.compared,
                "gradients_identical": trained.identical,
                "differences": trained.differences,
                "verdict": None if trained is plain else verdict_text(trained),
                "losses": [value.item() for value in trained.losses],
                "peaks": trained.peaks,
                "helds": trained.helds,
                "timeline_bytes": trained.timeline,
            }
        )
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["time_to_plain_quartiles"]
    return [
        row["label"],
        format_bytes(row["peak_bytes"]),
        f"{row['peak_to_plain']:.2f} x",
        format_bytes(row["held_bytes"]),
        format_seconds(row["median_seconds"]),
        f"{row['time_to_plain']:.2f} ± {(high - low) / 2:.2f} x",
        str(row["ops_replayed_per_step"]) if row["ours"] else "",
    ]


HEADINGS = ["", "peak", "to plain", "held", "step", "to plain", "ops replayed"]
WHAT_IS_MEASURED = (
    "Peak and held (when backward began): tensor bytes since forward began, weights and optimizer "
    "not counted, gradients counted. Step: median; to plain: median of interleaved pairs ± half the "
    "distance between the quartiles. torch: torch.utils.checkpoint of each block, non-reentrant."
)


def _memory(rows: list[dict[str, Any]]) -> list[str]:
    """Each copy's bytes over one step, as a line of blocks; first how high they are."""
    top = max(max(row["timeline_bytes"], default=0) for row in rows)
    lines = [f"{row['label']:<20} {sparkline(row['timeline_bytes'], top)}" for row in rows]
    return [f"Memory over one step, full height {top / MIB:.1f} MiB:", *lines] if top else []


def print_table(rows: list[dict[str, Any]], title: str, console: Console) -> None:
    from rich.table import Table

    table = Table(title=title, caption=WHAT_IS_MEASURED)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    console.print("\n  ".join(_memory(rows)), markup=False)
    for row in filter(lambda row: row["ours"], rows):
        good = not row["differences"] and row["ops_replayed_per_step"]
        style = "bold green" if good else "bold red"
        console.print(f"{row['label']}: {row['verdict']}", style=style)


def markdown(rows: list[dict[str, Any]], title: str, settings: dict[str, Any]) -> str:
    losses, facts = rows[0]["losses"], _artefact.environment()
    differences = [f"- `{row['label']}`: {text}" for row in rows for text in row["differences"]]
    parts = [
        f"# {title}",
        table_of(HEADINGS, [_cells(row) for row in rows]),
        "Verdict:",
        "\n".join(f"- `{row['label']}`: {row['verdict']}" for row in rows[1:]),
        "\n".join(["All differences:", "", *differences]) if differences else "",
        "\n".join(["```", *_memory(rows), "```"]),
        f"{WHAT_IS_MEASURED} Loss went from {losses[0]:.4f} to {losses[-1]:.4f}.",
        "Settings: " + ", ".join(f"{name} {value}" for name, value in settings.items()) + ".",
        "Machine: " + ", ".join(f"{k} {v}" for k, v in facts.items() if v is not None) + ".",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size = Size()
    for name, least, most, default, what in (
        ("steps", 1, INT64, 10, "timed steps "),
        ("seed", 0, INT64, 7, "of weights, data and dropout "),
        ("layers", 1, LAYERS, size.layers, ""),
        ("width", 1, SIZE, size.width, ""),
        ("context", 1, SIZE, size.context, ""),
        ("batch", 1, SIZE, size.batch, ""),
        ("threads", 1, THREADS, 1, "one gives the steadiest times "),
    ):
        kind = whole_number(least, most)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{what}(%(default)s)")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        default="build/demo",
        help="where report.md goes (%(default)s)",
    )


def _size(args: argparse.Namespace) -> Size:
    if args.width % Size.heads:
        args.parser.error(f"--width {args.width}: expected a multiple of {Size.heads}")
    return Size(args.layers, Size.heads, args.width, args.context, args.batch)


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    from rich.progress import Progress

    size = _size(args)
    report = Path(args.output) / "report.md"
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        args.parser.error(f"cannot write into {args.output} ({error.strerror})")
    copies = make_copies(list(LABELS), size, args.seed)
    weights = sum(parameter.numel() for parameter in copies[0].model.parameters())
    title = f"GPT of {size.layers} layers, {weights / 1e6:.1f} M weights, {args.steps} steps"
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=(args.steps + 2) * len(copies))

        def on_step(trained: Copy, step: int) -> None:
            progress.update(
                task,
                advance=1,
                description=f"step {step + 1}, {trained.name}, loss {trained.losses[-1]:.3f}",
            )

        if not console.is_terminal:
            console.print(f"Training: {title}, four copies side by side ...")
        with threads(args.threads):
            train(copies, size, args.steps, args.seed, on_step)
    rows = summary(copies)
    print_table(rows, title, console)
    settings = {**vars(size), "steps": args.steps, "seed": args.seed, "threads": args.threads}
    report.write_text(markdown(rows, title, settings), encoding="utf-8")
    console.print(f"Report: {report}")
    return verdict(copies), {"title": title, "settings": settings, "copies": rows}
