"""`retape bench`: Retape and what people use instead, on the same work, in one run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from retape._progress import progress
from retape._text import Exit, offer
from retape.bench import blocks, measure, methods, report, timing
from retape.bench.blocks import BLOCKS, Size
from retape.bench.methods import METHODS, Method
from retape.bench.result import Row, Run, Subject

if TYPE_CHECKING:
    from rich.console import Console

DTYPES = ("float32", "bfloat16")
TIME = {"d_model": 512, "d_ff": 2048, "sequence": 512}  # seconds a step, not minutes
QUICK = {"d_model": 256, "d_ff": 1024, "sequence": 256}
QUICK_METHODS = ("plain", "retape cheap", "retape full", "torch checkpoint", "selective")
TIMELINES = ("plain", "retape cheap", "retape full", "torch checkpoint")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--subject",
        action="append",
        metavar="NAME",
        help=f"{', '.join(BLOCKS)}; repeat for more (all)",
    )
    parser.add_argument(
        "--method", action="append", metavar="NAME", help="repeat for more; --list shows them (all)"
    )
    parser.add_argument("--list", action="store_true", help="show subjects and methods, and stop")
    parser.add_argument(
        "--layers", action="append", type=int, metavar="N", help="repeat for more (1 and 8)"
    )
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help=f"{', '.join(DTYPES)}; repeat (both)"
    )
    for name, help_text in (
        ("d-model", "width of the stream"),
        ("d-ff", "width inside a block"),
        ("batch", "sequences"),
        ("sequence", "tokens of each"),
    ):
        default = getattr(Size(), name.replace("-", "_"))
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{help_text}, for memory (%(default)s)"
        )
    parser.add_argument(
        "--compute",
        action="store_true",
        help="compute while memory is measured; else ops allocate and do nothing",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="torch.compile too, at three budgets: takes minutes. Its memory needs --compute",
    )
    parser.add_argument("--no-time", action="store_true", help="memory and gradients only")
    parser.add_argument("--rounds", type=int, default=7, help="of times (%(default)s)")
    parser.add_argument("--frontier", action="store_true", help="also every k of the last layers kept")
    report.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="few methods, small sizes: a minute")


@dataclass
class Plan:
    sizes: list[tuple[str, Size]]
    methods: list[Method]
    rounds: int
    time_size: dict[str, int] | None  # None: no times
    dry: bool
    frontier: bool

    def methods_for(self, size: Size) -> list[Method]:
        return [*self.methods, *(methods.frontier(size.layers) if self.frontier else [])]

    def parts(self, size: Size) -> int:
        """Of one subject, for the progress bar: a method each, then rounds of times."""
        return len(self.methods_for(size)) + (self.rounds if self.time_size is not None else 0)


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    if args.list:
        _print_list(console)
        return Exit.OK, {"subjects": list(BLOCKS), "methods": list(METHODS)}
    asked = report.check(args)
    plan = _plan(args)
    result = Run()
    measured: list[timing.Times] = []

    def all_of_it(advance: Callable[[str], None]) -> None:
        for name, size in plan.sizes:
            subject, times = _block(name, size, plan, advance)
            result.subjects.append(subject)
            measured.extend(times)

    with torch.random.fork_rng(devices=[]):
        progress(all_of_it, sum(plan.parts(size) for _, size in plan.sizes), console)
    result.warnings = timing.noise_warnings(measured) if measured else []
    return report.finish(result, asked, args, console)


def _plan(args: argparse.Namespace) -> Plan:
    names = args.subject or list(BLOCKS)
    for option, values, known in (
        ("--subject", names, list(BLOCKS)),
        ("--method", args.method or [], list(METHODS)),
        ("--dtype", args.dtype or [], DTYPES),
    ):
        for value in values:
            if value not in known:
                _refuse(args, option, value, known)
    layers = args.layers or ([2] if args.quick else [1, 8])
    dtypes = args.dtype or (["float32"] if args.quick else list(DTYPES))
    usual = QUICK_METHODS if args.quick else [name for name, m in METHODS.items() if m.is_eager]
    compiled = [name for name, m in METHODS.items() if not m.is_eager and args.compiled]
    chosen = args.method or [*usual, *compiled]
    numbers = {"d_model": args.d_model, "d_ff": args.d_ff, "batch": args.batch, "sequence": args.sequence}
    for option, value in [*numbers.items(), ("rounds", args.rounds), *(("layers", n) for n in layers)]:
        if value < 1:
            args.parser.error(f"--{option.replace('_', '-')} {value}: expected at least 1")
    sizes = [
        (name, Size(layers=n, dtype=dtype, **numbers))
        for dtype in dtypes
        for n in layers
        for name in names
    ]
    small = QUICK if args.quick else TIME
    time_size = {name: min(value, numbers[name]) for name, value in small.items()}
    picked = [METHODS[name] for name in dict.fromkeys(["plain", *chosen])]
    rounds = min(args.rounds, 3) if args.quick else args.rounds
    return Plan(sizes, picked, rounds, None if args.no_time else time_size, not args.compute, args.frontier)


def _refuse(args: argparse.Namespace, option: str, value: str, known: Sequence[str]) -> NoReturn:
    there_is = offer(value, known, show=repr)  # names of methods have spaces in them
    args.parser.exit(Exit.USAGE, f"[retape bench] no such value for {option}: {value!r}. {there_is}\n")


def _work(name: str, size: Size, scaled: bool) -> measure.Work:
    def make() -> tuple[torch.nn.ModuleList, torch.Tensor]:
        torch.manual_seed(0)
        stack = blocks.make_stack(name, size)
        x = blocks.make_input(size)
        if scaled:
            blocks.scale(stack, x)
        return stack, x

    return measure.Work(make, blocks.loss_of)


def _block(
    name: str, size: Size, plan: Plan, advance: Callable[[str], None]
) -> tuple[Subject, list[timing.Times]]:
    subject = Subject(name, BLOCKS[name].title, "blocks", size.to_dict())
    chosen = plan.methods_for(size)
    big = _work(name, size, scaled=not plan.dry)
    small_size = replace(size, **(plan.time_size or QUICK))
    small = _work(name, small_size, scaled=True)
    expected = measure.gradients(small, METHODS["plain"])
    rows: dict[str, Row] = {}
    for method in chosen:
        advance(f"{subject.key}: {method.name}")
        row = Row(method.name, method.family, method.around, skipped=method.missing)
        rows[method.name] = row
        if row.skipped:
            continue
        try:
            row.equal = measure.equality(measure.gradients(small, method), expected)
            if method.is_eager or not plan.dry:  # compiled code computes, dry or not
                measure.memory(big, method, row, plan.dry)
        except Exception as error:  # a peer's failure is a result of this bench
            row.error = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    times: list[timing.Times] = []
    if plan.time_size is not None:
        subject.time_size = small_size.to_dict()
        runs = [m for m in chosen if not rows[m.name].skipped and not rows[m.name].error]
        times = measure.times(
            small, runs, rows, plan.rounds, lambda: advance(f"{subject.key}: times")
        )
    subject.rows = list(rows.values())
    subject.timelines = [
        measure.timeline(big, METHODS[each], plan.dry) for each in TIMELINES if each in rows
    ]
    return subject, times


def _print_list(console: Console) -> None:
    for name, block in BLOCKS.items():
        console.print(f"{name:14} {block.title}", markup=False, highlight=False)
    console.print()
    for method in METHODS.values():
        state = f"  ({method.missing})" if method.missing else ""
        console.print(f"{method.name}{state}", markup=False, highlight=False)
