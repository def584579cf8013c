"""`retape bench`: Retape and what people use instead, on the same work, in one run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from retape._numbers import LAYERS
from retape._numbers import ROUNDS as MOST_ROUNDS
from retape._progress import Part, Remaining, progress
from retape._step import same_python_numbers
from retape._text import Exit, make_console, offer
from retape.bench import cells, methods, own_model, report, timing
from retape.bench.blocks import BLOCKS, Block, BlockTask, Size
from retape.bench.entry import Entry, fill_in
from retape.bench.methods import METHODS, Method
from retape.bench.models import MODELS
from retape.bench.own_model import is_own
from retape.bench.result import Run, Subject, vacuity_warnings
from retape.bench.task import Make, seeded
from retape.training.limit import is_out_of_memory

if TYPE_CHECKING:
    from rich.console import Console

DTYPES = ("float32", "bfloat16")
# By the dtype of products, which many CPUs make ten times slower or worse in bfloat16: seconds a step, and
# still more arithmetic than calls of ops. The same everywhere, so that runs can be compared.
_BFLOAT16 = {"d_model": 256, "d_ff": 512, "sequence": 64}
TIME = {"float32": {"d_model": 512, "d_ff": 2048, "sequence": 512}, "bfloat16": _BFLOAT16}
# Of blocks of one product, which would take a tenth of the others' time: as wide as for memory, of fewer tokens.
TIME_OF_ONE_PRODUCT = {
    "float32": {"d_model": 2048, "d_ff": 2048, "sequence": 128},
    "bfloat16": {"d_model": 1024, "d_ff": 512, "sequence": 64},
}
QUICK = {"float32": {"d_model": 256, "d_ff": 1024, "sequence": 256}, "bfloat16": _BFLOAT16}
_MOST = 10**12  # of a dimension: dry runs are of any size that can be allocated
ROUNDS = 7  # the fewest but one that tell something of a median
QUICK_METHODS = ("plain", "retape cheap", "retape full", "torch checkpoint", "selective")
SIZES = {
    "d_model": "width of the stream",
    "d_ff": "width inside",
    "batch": "sequences",
    "sequence": "tokens of each sequence",
}
TIME_SIZES = {f"time_{name}": name for name in SIZES}
TIMELINES = ("plain", "retape cheap", "retape full", "retape full, one scope", "torch checkpoint")


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
        help="a block, a model, or all of them: blocks, models; --list shows them; or "
        f"{own_model.FORM}, a function of yours that makes (model, inputs) or a retape.Step: its code is run; "
        "demo:, hf: and cpp: of retape verify too; repeat for more (all)",
    )
    parser.add_argument(
        "--method", action="append", metavar="NAME", help="repeat for more; --list shows them (all)"
    )
    parser.add_argument("--list", action=_List, nargs=0, help="show subjects and methods, and stop")
    parser.add_argument(
        "--layers",
        action="append",
        type=_layers,
        metavar="N",
        help="of a block; repeat for more (1 and 8)",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        metavar="DTYPE",
        help=f"{', '.join(DTYPES)}; repeat (both for blocks)",
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
        help="torch.compile too, at three budgets: compiling takes minutes",
    )
    parser.add_argument("--no-time", action="store_true", help="memory and gradients only")
    parser.add_argument("--memory-only", action="store_true", help="no gradients compared either")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"of times ({ROUNDS})")
    parser.add_argument(
        "--frontier",
        action=argparse.BooleanOptionalAction,
        help="of a block: a row for every k of the last layers cheap and the rest full (yes, unless "
        "--method or --quick choose rows)",
    )
    parser.add_argument(
        "--timeline",
        action="append",
        metavar="NAME",
        help=f"a method whose live bytes are drawn; repeat for more ({'; '.join(TIMELINES)})",
    )
    own_model.add_arguments(parser)
    report.add_arguments(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few methods, small sizes: less than a minute for the blocks, two for the models",
    )


def _layers(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a number, got {text!r}; names of layers, of a model of yours, are --layer {text!r}"
        ) from None


def _time_default(name: str) -> str:
    given = {dtype: size.get(name) for dtype, size in TIME.items()}
    if None in given.values():
        return f"as {_option(name)}"
    one = TIME_OF_ONE_PRODUCT["float32"][name]
    of_one = f", of blocks of one product {one}" if one != given["float32"] else ""
    return f"at most {given['float32']}{of_one}; less in bfloat16"


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    asked = report.check(args)
    _refuse_what_needs_times(args)
    with torch.random.fork_rng(devices=[]), same_python_numbers():
        return _run(asked, args, console)


def _run(
    asked: report.Asked, args: argparse.Namespace, console: Console
) -> tuple[Exit, dict[str, Any]]:
    entries = _plan(args, console)
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
            with _whose_fault_it_is(entry, args):
                measured.extend(fill_in(entry, begin))
            result.subjects.append(entry.subject)
            unfinished = f"not finished: {number} of {len(entries)} subjects were measured"
            args.save(report.exit_code(result), Run(result.subjects, [unfinished]).to_dict())
            report.terminal.print_subject(entry.subject, console)  # whose reader may have gone

    progress(all_of_it, len(parts), console, remaining)
    noise = timing.noise_warnings(measured) if measured else []
    told = [warning for entry in entries for warning in entry.warnings()]
    result.warnings = told + vacuity_warnings(result) + noise
    return report.finish(result, asked, args, console)


def _whose_fault_it_is(
    entry: Entry, args: argparse.Namespace
) -> contextlib.AbstractContextManager[None]:
    """A plain step that raises is the user's, if the model is, or if the size is too large; else ours."""
    if not entry.is_own:
        return _told_too_large(entry, args)
    fix = " Fix: leave out --dry, where code looks at values." if entry.dry else ""
    return own_model.told(args, entry.subject.name, "the plain step raises", fix)


@contextlib.contextmanager
def _told_too_large(entry: Entry, args: argparse.Namespace) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # More bytes than there are, or than can be counted.
        if not is_out_of_memory(error) and "overflow" not in str(error):
            raise
        of_block = entry.subject.name in BLOCKS
        fix = (
            "a smaller size, --d-model and its like"
            if of_block
            else "--quick, which takes its small size"
        )
        text = f"{entry.subject.key}: the plain step does not fit into memory, at {cells.sizes_text(entry.subject)}"
        args.parser.exit(Exit.USAGE, f"[retape bench] {text}. Fix: {fix}.\n")


def _plan(args: argparse.Namespace, console: Console) -> list[Entry]:
    groups = {"blocks": list(BLOCKS), "models": list(MODELS)}
    for option, values, known in (
        (
            "--subject",
            [each for each in args.subject or [] if not is_own(each)],
            [*BLOCKS, *MODELS, *groups],
        ),
        ("--method", args.method or [], list(METHODS)),
        ("--dtype", args.dtype or [], DTYPES),
    ):
        for value in values:
            if value not in known:
                _refuse(args, option, value, known)
    asked = args.subject or (["blocks"] if args.quick else ["blocks", "models"])
    names = _once([name for each in asked for name in groups.get(each, [each])])
    usual = QUICK_METHODS if args.quick else [name for name, m in METHODS.items() if m.is_eager]
    compiled = [name for name, m in METHODS.items() if not m.is_eager and args.compiled]
    chosen = [METHODS[name] for name in _once(["plain", *(args.method or usual), *compiled])]
    if args.rounds is not None:
        _refuse_beyond(args, "rounds", args.rounds, MOST_ROUNDS)
    blocks = [name for name in names if name in BLOCKS]
    if not blocks:
        _refuse_options_of_blocks(args)
    models, own = (
        [name for name in names if name in MODELS],
        [name for name in names if is_own(name)],
    )
    own_model.refuse_options(args, bool(own))
    others = [*_blocks(blocks, chosen, args), *_models(models, chosen, args)]
    # First: what is wrong with code that nobody here knows is told at once, not after an hour.
    entries = [
        *own_model.plan(own, chosen, args, console, _rounds(args), args.timeline or TIMELINES),
        *others,
    ]
    _refuse_timelines_of_nothing(entries, args)
    return entries


def _refuse_timelines_of_nothing(entries: Sequence[Entry], args: argparse.Namespace) -> None:
    there_are = list(dict.fromkeys(method.name for entry in entries for method in entry.methods))
    for name in args.timeline or []:
        if name in METHODS and name not in there_are:
            option = "--method" if METHODS[name].is_eager else "--compiled or --method"
            args.parser.error(
                f"--timeline {name!r}: no subject has that row. Fix: {option} chooses it."
            )
        if name not in there_are:
            _refuse(args, "--timeline", name, there_are)


def _refuse_what_needs_times(args: argparse.Namespace) -> None:
    for option, is_given in (("--memory-only", args.memory_only), ("--no-time", args.no_time)):
        if args.judge and is_given:
            args.parser.error(f"--judge is of times, and {option} takes none")
    for name in TIME_SIZES:
        if args.memory_only and getattr(args, name) is not None:
            args.parser.error(
                f"{_option(name)} is of times and gradients, and --memory-only takes none"
            )


def _refuse_options_of_blocks(args: argparse.Namespace) -> None:
    for name in ("layers", "frontier", "compiled", *SIZES, *TIME_SIZES):
        if getattr(args, name):
            args.parser.error(f"{_option(name)} is of blocks, and --subject names none of them")


def _refuse_beyond(args: argparse.Namespace, name: str, value: int, most: int) -> None:
    for limit, is_beyond in (("at least 1", value < 1), (f"at most {most}", value > most)):
        if is_beyond:
            args.parser.error(f"{_option(name)} {value}: expected {limit}")


def _once(values: Sequence[Any]) -> list[Any]:
    """Each of them, in their order: what is asked for twice is measured once."""
    return list(dict.fromkeys(values))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _rounds(args: argparse.Namespace) -> int:
    if args.no_time or args.memory_only:
        return 0
    return ROUNDS if args.rounds is None else args.rounds


def _blocks(names: Sequence[str], chosen: list[Method], args: argparse.Namespace) -> list[Entry]:
    layers = _once(args.layers or ([2] if args.quick else [1, 8]))
    dtypes = _once(args.dtype or (["float32"] if args.quick else DTYPES))
    given = {name: getattr(args, name) for name in SIZES}
    numbers = {name: getattr(Size(), name) if n is None else n for name, n in given.items()}
    frontier = not (args.quick or args.method) if args.frontier is None else args.frontier
    timed = {each: n for each in TIME_SIZES if (n := getattr(args, each)) is not None}
    for name, value in [*numbers.items(), *timed.items(), *(("layers", n) for n in layers)]:
        _refuse_beyond(args, name, value, LAYERS if name == "layers" else _MOST)
    entries = []
    for size in (Size(n, dtype, **numbers) for dtype in dtypes for n in layers):
        more = methods.frontier(size.layers) if frontier else []
        for name in names:
            time_size = _time_size(size, _usual_time_size(BLOCKS[name], size, args.quick), timed)
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
                    drawn=args.timeline or TIMELINES,
                )
            )
    return entries


def _usual_time_size(block: type[Block], size: Size, quick: bool) -> dict[str, int]:
    by_dtype = QUICK if quick else TIME_OF_ONE_PRODUCT if block.has_one_product else TIME
    return by_dtype[block.multiplies or size.dtype]


def _time_size(size: Size, usual: dict[str, int], given: dict[str, int]) -> Size:
    """What was given for it, else the usual, and not above what memory is measured at."""
    small = {name: min(value, getattr(size, name)) for name, value in usual.items()}
    return replace(size, **{**small, **{TIME_SIZES[option]: n for option, n in given.items()}})


def block_task(name: str, size: Size, scaled: bool) -> Make:
    return seeded(BlockTask, name, size, scaled)


def _models(names: Sequence[str], chosen: list[Method], args: argparse.Namespace) -> list[Entry]:
    fitting = methods.fitting(chosen, args.method or [])
    entries = []
    for dtype in _once(args.dtype or ["float32"]):
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
                    [
                        replace(each, needs=model.needs) if model.missing else each
                        for each in fitting
                    ],
                    dry=model.dry and not args.compute,
                    rounds=_rounds(args),
                    drawn=args.timeline or TIMELINES,
                )
            )
    return entries


def _refuse(args: argparse.Namespace, option: str, value: str, known: Sequence[str]) -> NoReturn:
    # A dtype that is spelt like another is not meant by it. Names of methods have spaces in them.
    offered = offer(value, known, repr, cutoff=1.0 if known is DTYPES else 0.5)
    args.parser.exit(
        Exit.USAGE,
        f"[retape bench] no such value for {option}: {value!r}. {offered}\n",
    )


def _print_list(console: Console) -> None:
    block = {name: getattr(Size(), name) for name in SIZES}
    of_blocks, of_models = f", at {cells.size_text(block)}", ", at the size below each"
    for group, subjects in ((f"blocks{of_blocks}", BLOCKS), (f"models{of_models}", MODELS)):
        console.print(f"{group}:", markup=False, highlight=False)
        for name, subject in subjects.items():
            state = f"  ({missing})" if (missing := getattr(subject, "missing", "")) else ""
            console.print(f"  {name:15} {subject.title}{state}", markup=False, highlight=False)
            if size := getattr(subject, "size", None):
                console.print(
                    f"{'':18}{cells.size_text(size)}", markup=False, highlight=False, soft_wrap=True
                )
    console.print(
        f"yours:\n  {own_model.FORM}, a function that makes (model, inputs) or a retape.Step",
        markup=False,
    )
    console.print("methods:")
    for method in METHODS.values():
        state = f"  ({method.missing})" if method.missing else ""
        console.print(f"  {method.name}{state}", markup=False, highlight=False)
