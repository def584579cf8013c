"""`retape bench`: Retape and what people use instead, on the same work, in one run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from retape._progress import Part, Remaining, progress
from retape._text import Exit, first_line, make_console, offer
from retape.bench import measure, methods, report, timing
from retape.bench.blocks import BLOCKS, BlockTask, Size
from retape.bench.methods import METHODS, Method
from retape.bench.models import MODELS
from retape.bench.result import Row, Run, Subject, Timeline, vacuity_warnings
from retape.bench.task import Make, seeded

if TYPE_CHECKING:
    from rich.console import Console

DTYPES = ("float32", "bfloat16")
# By the dtype of products, which many CPUs make ten times slower or worse in bfloat16: seconds a step, and
# still more arithmetic than calls of ops. The same everywhere, so that runs can be compared.
_BFLOAT16 = {"d_model": 256, "d_ff": 512, "sequence": 64}
TIME = {"float32": {"d_model": 512, "d_ff": 2048, "sequence": 512}, "bfloat16": _BFLOAT16}
QUICK = {"float32": {"d_model": 256, "d_ff": 1024, "sequence": 256}, "bfloat16": _BFLOAT16}
QUICK_METHODS = ("plain", "retape cheap", "retape full", "torch checkpoint", "selective")
SIZES = {
    "d_model": "width of the stream",
    "d_ff": "width inside",
    "batch": "sequences",
    "sequence": "tokens of each sequence",
}
TIME_SIZES = {f"time_{name}": name for name in SIZES}
# Stages of the bar; the first, memory and gradients, has no name.
TIME_OF, TIMELINE_OF = "time of ", "timeline of "
TIMELINES = ("plain", "retape cheap", "retape full", "torch checkpoint")


class _List(argparse.Action):
    """Ends before anything is written: a list is no run."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        _print_list(make_console())
        parser.exit(Exit.OK)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--subject",
        action="append",
        metavar="NAME",
        help="a block, a model, or all of them: blocks, models; --list shows them; repeat for more (all)",
    )
    parser.add_argument(
        "--method", action="append", metavar="NAME", help="repeat for more; --list shows them (all)"
    )
    parser.add_argument("--list", action=_List, nargs=0, help="show subjects and methods, and stop")
    parser.add_argument(
        "--layers", action="append", type=int, metavar="N", help="of a block; repeat for more (1 and 8)"
    )
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help=f"{', '.join(DTYPES)}; repeat (both for blocks)"
    )
    for name, help_text in SIZES.items():
        parser.add_argument(
            _option(name),
            type=int,
            metavar="N",
            help=f"{help_text} of a block, for memory ({getattr(Size(), name)})",
        )
    for option, name in TIME_SIZES.items():
        parser.add_argument(
            _option(option),
            type=int,
            metavar="N",
            help=f"the same, for times and gradients ({_time_default(name)})",
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
    parser.add_argument("--memory-only", action="store_true", help="no gradients compared either")
    parser.add_argument("--rounds", type=int, default=7, help="of times (%(default)s)")
    parser.add_argument(
        "--frontier",
        action=argparse.BooleanOptionalAction,
        help="of a block: a row for every k of the last layers cheap and the rest full (yes, unless "
        "--method or --quick choose rows)",
    )
    report.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="few methods, small sizes: a minute")


def _time_default(name: str) -> str:
    given = {dtype: size.get(name) for dtype, size in TIME.items()}
    if None in given.values():
        return f"as {_option(name)}"
    return f"at most {given['float32']}; in bfloat16 {given['bfloat16']}"


@dataclass(frozen=True)
class Entry:
    """A subject that is to be measured: on which tasks, by which methods."""

    subject: Subject
    memory: Make
    times: Make | None  # smaller; None: memory only
    methods: list[Method]
    dry: bool
    rounds: int  # 0: no times

    def part(self, stage: str, method: str) -> Part:
        return Part(self.subject.key, stage, method)

    def parts(self) -> list[Part]:
        """For the progress bar. A method that runs is timed once to warm up, and once in each round."""
        runs = [method.name for method in self.methods if not method.missing]
        timed = [self.part(TIME_OF, name) for name in runs] * (1 + self.rounds)
        drawn = [self.part(TIMELINE_OF, name) for name in runs if name in TIMELINES]
        first = [self.part("", method.name) for method in self.methods]
        return first + timed * bool(self.rounds) + drawn


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    asked = report.check(args)
    _refuse_what_needs_times(args)
    entries = _plan(args)
    if any(entry.rounds for entry in entries):
        args.environment = timing.environment
    result = Run()
    measured: list[timing.Times] = []

    parts = [part for entry in entries for part in entry.parts()]
    remaining = Remaining(parts)

    def all_of_it(advance: Callable[[str], None]) -> None:
        def begin(part: Part) -> None:
            remaining.begin(part)
            advance(f"{part.subject}: {part.stage}{part.method}")

        for number, entry in enumerate(entries, 1):
            measured.extend(_measure(entry, begin))
            result.subjects.append(entry.subject)
            report.terminal.print_subject(entry.subject, console)
            unfinished = f"not finished: {number} of {len(entries)} subjects were measured"
            args.save(report.exit_code(result), Run(result.subjects, [unfinished]).to_dict())

    with torch.random.fork_rng(devices=[]):
        progress(all_of_it, len(parts), console, remaining)
    noise = timing.noise_warnings(measured) if measured else []
    result.warnings = vacuity_warnings(result) + noise
    return report.finish(result, asked, args, console)


def _plan(args: argparse.Namespace) -> list[Entry]:
    groups = {"blocks": list(BLOCKS), "models": list(MODELS)}
    for option, values, known in (
        ("--subject", args.subject or [], [*BLOCKS, *MODELS, *groups]),
        ("--method", args.method or [], list(METHODS)),
        ("--dtype", args.dtype or [], DTYPES),
    ):
        for value in values:
            if value not in known:
                _refuse(args, option, value, known)
    asked = args.subject or (["blocks"] if args.quick else ["blocks", "models"])
    names = list(dict.fromkeys(name for each in asked for name in groups.get(each, [each])))
    usual = QUICK_METHODS if args.quick else [name for name, m in METHODS.items() if m.is_eager]
    compiled = [name for name, m in METHODS.items() if not m.is_eager and args.compiled]
    chosen = [METHODS[name] for name in dict.fromkeys(["plain", *(args.method or usual), *compiled])]
    if args.rounds < 1:
        args.parser.error(f"--rounds {args.rounds}: expected at least 1")
    blocks = [name for name in names if name in BLOCKS]
    if not blocks:
        _refuse_options_of_blocks(args)
    models = [name for name in names if name in MODELS]
    return [*_blocks(blocks, chosen, args), *_models(models, chosen, args)]


def _refuse_what_needs_times(args: argparse.Namespace) -> None:
    for option, is_given in (("--memory-only", args.memory_only), ("--no-time", args.no_time)):
        if args.judge and is_given:
            args.parser.error(f"--judge is of times, and {option} takes none")
    for name in TIME_SIZES:
        if args.memory_only and getattr(args, name) is not None:
            args.parser.error(f"{_option(name)} is of times and gradients, and --memory-only takes none")


def _refuse_options_of_blocks(args: argparse.Namespace) -> None:
    for name in ("layers", "frontier", "compiled", *SIZES, *TIME_SIZES):
        if getattr(args, name):
            args.parser.error(f"{_option(name)} is of blocks, and --subject names none of them")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _rounds(args: argparse.Namespace) -> int:
    if args.no_time or args.memory_only:
        return 0
    return min(args.rounds, 3) if args.quick else args.rounds


def _blocks(names: Sequence[str], chosen: list[Method], args: argparse.Namespace) -> list[Entry]:
    layers = args.layers or ([2] if args.quick else [1, 8])
    dtypes = args.dtype or (["float32"] if args.quick else DTYPES)
    given = {name: getattr(args, name) for name in SIZES}
    numbers = {name: getattr(Size(), name) if n is None else n for name, n in given.items()}
    frontier = not (args.quick or args.method) if args.frontier is None else args.frontier
    timed = {each: n for each in TIME_SIZES if (n := getattr(args, each)) is not None}
    for name, value in [*numbers.items(), *timed.items(), *(("layers", n) for n in layers)]:
        if value < 1:
            args.parser.error(f"{_option(name)} {value}: expected at least 1")
    entries = []
    for size in (Size(n, dtype, **numbers) for dtype in dtypes for n in layers):
        more = methods.frontier(size.layers) if frontier else []
        for name in names:
            usual = (QUICK if args.quick else TIME)[BLOCKS[name].multiplies or size.dtype]
            time_size = _time_size(size, usual, timed)
            entries.append(
                Entry(
                    Subject(
                        name,
                        BLOCKS[name].title,
                        "blocks",
                        size.to_dict(),
                        None if args.memory_only else time_size.to_dict(),
                    ),
                    block_task(name, size, scaled=args.compute),
                    None if args.memory_only else block_task(name, time_size, scaled=True),
                    [*chosen, *more],
                    dry=not args.compute,
                    rounds=_rounds(args),
                )
            )
    return entries


def _time_size(size: Size, usual: dict[str, int], given: dict[str, int]) -> Size:
    """What was given for it, else the usual, and not above what memory is measured at."""
    small = {name: min(value, getattr(size, name)) for name, value in usual.items()}
    return replace(size, **{**small, **{TIME_SIZES[option]: n for option, n in given.items()}})


def block_task(name: str, size: Size, scaled: bool) -> Make:
    return seeded(BlockTask, name, size, scaled)


def _models(names: Sequence[str], chosen: list[Method], args: argparse.Namespace) -> list[Entry]:
    """What a model's layers cannot take is left out; a row that says so, where it was asked for."""
    fitting = [
        replace(method, unfit=unfit) if unfit else method
        for method in chosen
        if not (unfit := _unfit(method)) or method.name in (args.method or [])
    ]
    entries = []
    for dtype in args.dtype or ["float32"]:
        for model in (MODELS[name] for name in names):
            size = model.small if args.quick else model.size
            entries.append(
                Entry(
                    Subject(
                        model.name,
                        model.title,
                        "models",
                        {"dtype": dtype, **size},
                        None if args.memory_only else {"dtype": dtype, **model.small},
                    ),
                    model.at(size, dtype),
                    None if args.memory_only else model.at(model.small, dtype),
                    [replace(each, needs=model.needs) if model.missing else each for each in fitting],
                    dry=model.dry and not args.compute,
                    rounds=_rounds(args),
                )
            )
    return entries


def _unfit(method: Method) -> str:
    """Why a model's layers cannot take it; empty if they can."""
    if method.around == "inner":
        return "a model's layers have no inner part"
    if method.in_rows:
        return "a model's layers mix tokens"
    return "" if method.is_eager else "a model's layers are not compiled one by one"


def _refuse(args: argparse.Namespace, option: str, value: str, known: Sequence[str]) -> NoReturn:
    is_well_spelt = isinstance(getattr(torch, value, None), torch.dtype)
    there_is = (
        f"There is: {', '.join(known)}."
        if is_well_spelt
        else offer(value, known, show=repr)  # names of methods have spaces in them
    )
    args.parser.exit(Exit.USAGE, f"[retape bench] no such value for {option}: {value!r}. {there_is}\n")


def _measure(entry: Entry, begin: Callable[[Part], None]) -> list[timing.Times]:
    """Fills in the subject. Times, for what they say about the machine."""
    subject = entry.subject
    expected: measure.After | None = None
    rows: dict[str, Row] = {}
    for method in entry.methods:
        begin(entry.part("", method.name))
        row = Row(
            method.name,
            method.family,
            method.around,
            rounds=method.in_rows,
            skipped=method.missing,
        )
        rows[method.name] = row
        if row.skipped:
            continue
        try:
            if entry.times is not None:
                after = measure.after_step(entry.times, method)
                expected = after if expected is None else expected  # plain is the first
                row.equal, row.differs = measure.equality(after, expected)
            if method.is_eager or not entry.dry:  # compiled code computes, dry or not
                measure.memory(entry.memory, method, row, entry.dry)
        except Exception as error:  # a peer's failure is a result of this bench
            if method.family == "plain":
                raise
            row.error = _error_text(error)
    subject.rows = list(rows.values())
    times: list[timing.Times] = []
    if entry.rounds and (runs := _running(entry, rows)):
        times = measure.times(
            entry.times,
            runs,
            rows,
            entry.rounds,
            lambda name: begin(entry.part(TIME_OF, name)),
            lambda name, error: setattr(rows[name], "error", _error_text(error)),
        )
    subject.timelines = list(_timelines(entry, rows, begin))
    return times


def _running(entry: Entry, rows: dict[str, Row]) -> list[Method]:
    """Those that did not fail until now."""
    return [m for m in entry.methods if not rows[m.name].skipped and not rows[m.name].error]


def _timelines(
    entry: Entry, rows: dict[str, Row], begin: Callable[[Part], None]
) -> Iterator[Timeline]:
    for method in _running(entry, rows):
        if method.name not in TIMELINES:
            continue
        begin(entry.part(TIMELINE_OF, method.name))
        try:
            yield measure.timeline(entry.memory, method, entry.dry)
        except Exception as error:
            if method.family == "plain":
                raise
            rows[method.name].error = _error_text(error)


def _error_text(error: Exception) -> str:
    kind, first = type(error).__name__, first_line(error)
    return kind if first == kind else f"{kind}: {first[:200]}"


def _print_list(console: Console) -> None:
    for group, subjects in (("blocks", BLOCKS), ("models", MODELS)):
        console.print(f"{group}:", markup=False, highlight=False)
        for name, subject in subjects.items():
            state = f"  ({missing})" if (missing := getattr(subject, "missing", "")) else ""
            console.print(f"  {name:14} {subject.title}{state}", markup=False, highlight=False)
    console.print("methods:")
    for method in METHODS.values():
        state = f"  ({method.missing})" if method.missing else ""
        console.print(f"  {method.name}{state}", markup=False, highlight=False)
