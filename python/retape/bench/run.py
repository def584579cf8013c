"""`retape bench`: Retape and what people use instead, on the same work, in one run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from retape._numbers import LAYERS
from retape._numbers import ROUNDS as MOST_ROUNDS
from retape._out_of_memory import is_out_of_memory
from retape._progress import Part, Remaining, progress
from retape._step import same_python_numbers
from retape._text import Exit, make_console, offer
from retape.bench import cells, methods, own_model, report, timing
from retape.bench.blocks import BLOCKS, Block, BlockTask, Size
from retape.bench.entry import Entry
from retape.bench.methods import METHODS, Method
from retape.bench.models import MODELS
from retape.bench.own_model import is_own
from retape.bench.result import Run, Subject, vacuity_warnings
from retape.bench.task import Make, seeded

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
ROUNDS = 7  # one more than the fewest that a median can be judged by
QUICK_METHODS = ("plain", "retape cheap", "retape full", "torch checkpoint", "selective")
SIZES = {
    "d_model": "width of the stream",
    "d_ff": "width inside",
    "batch": "sequences",
    "sequence": "tokens of each sequence",
}
TIME_SIZES = {f"time_{name}": name for name in SIZES}
TIMELINES = ("plain", "retape cheap", "retape full", "retape full, one scope", "torch checkpoint")
_OF_BLOCKS = ("layers", "frontier", "compiled", *SIZES, *TIME_SIZES)  # options


class _List(argparse.Action):
    """Ends before anything is written: a list is no run."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        _print_list(make_console())
        parser.exit(Exit.OK)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--subject",
        action="append",
        metavar="NAME",
        help="a block, a model, or all of them: blocks, models; --list shows them; or "
        f"{own_model.FORM}, a function of yours that makes (model, inputs) or a retape.Step: its code is run; "
        "demo:, hf: and cpp: of retape verify too; repeat for more (all)",
    )
    methods_help = "repeat for more; --list shows them (all)"
    add("--method", action="append", metavar="NAME", help=methods_help)
    add("--list", action=_List, nargs=0, help="show subjects and methods, and stop")
    layers_help = "of a block; repeat for more (1 and 8)"
    add("--layers", action="append", type=_layers, metavar="N", help=layers_help)
    dtypes_help = f"{', '.join(DTYPES)}; repeat (both for blocks)"
    add("--dtype", action="append", metavar="DTYPE", help=dtypes_help)
    for name, words in SIZES.items():
        text = f"{words} of a block, for memory ({getattr(Size(), name)})"
        add(_option(name), type=int, metavar="N", help=text)
    for option, name in TIME_SIZES.items():
        text = f"the same, for times and gradients ({_time_default(name)})"
        add(_option(option), type=int, metavar="N", help=text)
    for option, text in (
        ("--compute", "compute while memory is measured; else ops allocate and do nothing"),
        ("--compiled", "torch.compile too, at three budgets: compiling takes minutes"),
        ("--no-time", "memory and gradients only"),
        ("--memory-only", "no gradients compared either"),
    ):
        add(option, action="store_true", help=text)
    add("--rounds", type=int, metavar="N", help=f"of times ({ROUNDS})")
    add(
        "--frontier",
        action=argparse.BooleanOptionalAction,
        help="of a block: a row for every k of the last layers cheap and the rest full (yes, unless "
        "--method or --quick choose rows)",
    )
    text = f"a method whose live bytes are drawn; repeat for more ({'; '.join(TIMELINES)})"
    add("--timeline", action="append", metavar="NAME", help=text)
    own_model.add_arguments(parser)
    report.add_arguments(parser)
    text = "few methods, small sizes: less than a minute for the blocks, two for the models"
    add("--quick", action="store_true", help=text)


def _layers(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a number, got {text!r}; names of layers, of a model of yours, are --layer {text!r}"
        ) from None


def _time_default(name: str) -> str:
    if name not in TIME["float32"]:
        return f"as {_option(name)}"
    many, one = TIME["float32"][name], TIME_OF_ONE_PRODUCT["float32"][name]
    of_one = f", of blocks of one product {one}" if one != many else ""
    return f"at most {many}{of_one}; less in bfloat16"


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    asked = report.check(args)
    _refuse_what_needs_times(args)
    with torch.random.fork_rng(devices=[]), same_python_numbers():
        return _run(asked, args, console)


def _run(
    asked: report.Asked, args: argparse.Namespace, console: Console
) -> tuple[Exit, dict[str, Any]]:
    entries = _plan(args, console)
    rounds, drawn = _rounds(args), args.timeline or TIMELINES
    if rounds:
        args.environment = timing.environment
    result = Run()
    measured: list[timing.Times] = []
    parts = [part for entry in entries for part in entry.parts(rounds, drawn)]
    remaining = Remaining(parts)

    def all_of_it(advance: Callable[[str], None]) -> None:
        def begin(part: Part) -> None:
            remaining.begin(part)
            advance(f"{part.subject}: {part.stage}{part.method}")

        for number, entry in enumerate(entries, 1):
            with _refused_if_not_ours(entry, args):
                measured.extend(entry.measure(rounds, drawn, begin))
            result.subjects.append(entry.subject)
            unfinished = f"not finished: {number} of {len(entries)} subjects were measured"
            args.save(report.exit_code(result), Run(result.subjects, [unfinished]).to_dict())
            report.terminal.print_subject(entry.subject, console)  # it may raise: | head

    progress(all_of_it, len(parts), console, remaining)
    noise = timing.noise_warnings(measured) if measured else []
    told = [warning for entry in entries for warning in entry.warnings()]
    result.warnings = told + vacuity_warnings(result) + noise
    return report.finish(result, asked, args, console)


@contextlib.contextmanager
def _refused_if_not_ours(entry: Entry, args: argparse.Namespace) -> Iterator[None]:
    """Exit code 2 where a plain step raises because of the user's model, or because the size is too large."""
    subject = entry.subject
    if entry.is_own:
        fix = " Fix: leave out --dry, where code looks at values." if entry.dry else ""
        with own_model.told(args, subject.name, "the plain step raises", fix):
            yield
        return
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # More bytes than there are, or than can be counted.
        if not is_out_of_memory(error) and "overflow" not in str(error):
            raise
        of_block = "a smaller size, --d-model and its like"
        fix = of_block if subject.name in BLOCKS else "--quick, which takes its small size"
        text = f"{subject.key}: the plain step does not fit into memory, at {cells.sizes_text(subject)}"
        args.parser.exit(Exit.USAGE, f"[retape bench] {text}. Fix: {fix}.\n")


def _plan(args: argparse.Namespace, console: Console) -> list[Entry]:
    groups = {"blocks": list(BLOCKS), "models": list(MODELS)}
    subjects = [name for name in args.subject or [] if not is_own(name)]
    _refuse_unknown(args, "--subject", subjects, [*BLOCKS, *MODELS, *groups])
    _refuse_unknown(args, "--method", args.method or [], list(METHODS))
    _refuse_unknown(args, "--dtype", args.dtype or [], DTYPES)
    if args.rounds is not None:
        _refuse_beyond(args, "rounds", args.rounds, MOST_ROUNDS)
    asked = args.subject or (["blocks"] if args.quick else ["blocks", "models"])
    names = _once([name for each in asked for name in groups.get(each, [each])])
    usual = QUICK_METHODS if args.quick else [name for name, m in METHODS.items() if m.is_eager]
    compiled = [name for name, m in METHODS.items() if not m.is_eager and args.compiled]
    chosen = [METHODS[name] for name in _once(["plain", *(args.method or usual), *compiled])]
    blocks = [name for name in names if name in BLOCKS]
    own = [name for name in names if is_own(name)]
    for option in (name for name in _OF_BLOCKS if getattr(args, name) and not blocks):
        args.parser.error(f"{_option(option)} is of blocks, and --subject names none of them")
    own_model.refuse_options(args, bool(own))
    others = [
        *_blocks(blocks, chosen, args),
        *_models([name for name in names if name in MODELS], chosen, args),
    ]
    # First: a mistake in the user's code is reported at once, not after an hour.
    entries = [*own_model.plan(own, chosen, args, console), *others]
    rows = _once([method.name for entry in entries for method in entry.methods])
    for name in args.timeline or []:
        if name in METHODS and name not in rows:
            option = "--method" if METHODS[name].is_eager else "--compiled or --method"
            args.parser.error(
                f"--timeline {name!r}: no subject has that row. Fix: {option} chooses it."
            )
    _refuse_unknown(args, "--timeline", args.timeline or [], rows)
    return entries


def _refuse_what_needs_times(args: argparse.Namespace) -> None:
    for option, is_given in (("--memory-only", args.memory_only), ("--no-time", args.no_time)):
        if args.judge and is_given:
            args.parser.error(f"--judge is of times, and {option} takes none")
    for name in TIME_SIZES:
        if args.memory_only and getattr(args, name) is not None:
            args.parser.error(
                f"{_option(name)} is of times and gradients, and --memory-only takes none"
            )


def _refuse_beyond(args: argparse.Namespace, name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        expected = "at least 1" if value < 1 else f"at most {most}"
        args.parser.error(f"{_option(name)} {value}: expected {expected}")


def _refuse_unknown(
    args: argparse.Namespace, option: str, values: Sequence[str], known: Sequence[str]
) -> None:
    for value in values:
        if value not in known:
            # A dtype that is spelt like another is not meant by it. Names of methods have spaces in them.
            offered = offer(value, known, repr, cutoff=1.0 if known is DTYPES else 0.5)
            text = f"[retape bench] no such value for {option}: {value!r}. {offered}\n"
            args.parser.exit(Exit.USAGE, text)


def _once(values: Sequence[Any]) -> list[Any]:
    """Each of them, in their order: what is asked for twice is measured once."""
    return list(dict.fromkeys(values))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _rounds(args: argparse.Namespace) -> int:
    usual = ROUNDS if args.rounds is None else args.rounds
    return 0 if args.no_time or args.memory_only else usual


def _blocks(names: Sequence[str], chosen: list[Method], args: argparse.Namespace) -> list[Entry]:
    layers = _once(args.layers or ([2] if args.quick else [1, 8]))
    dtypes = _once(args.dtype or (["float32"] if args.quick else DTYPES))
    given = {name: n for name in SIZES if (n := getattr(args, name)) is not None}
    timed = {option: n for option in TIME_SIZES if (n := getattr(args, option)) is not None}
    for name, value in [*given.items(), *timed.items(), *(("layers", n) for n in layers)]:
        _refuse_beyond(args, name, value, LAYERS if name == "layers" else _MOST)
    frontier = not (args.quick or args.method) if args.frontier is None else args.frontier
    entries = []
    for size in (Size(n, dtype, **given) for dtype in dtypes for n in layers):
        more = methods.frontier(size.layers) if frontier else []
        for name in names:
            title, time_size = BLOCKS[name].title, _time_size(BLOCKS[name], size, args.quick)
            time_size = replace(time_size, **{TIME_SIZES[option]: n for option, n in timed.items()})
            subject = Subject(name, title, "blocks", asdict(size))
            times = None
            if not args.memory_only:
                subject.time_size = asdict(time_size)
                times = block_task(name, time_size, scaled=True)
            memory = block_task(name, size, scaled=args.compute)
            entries.append(Entry(subject, memory, times, [*chosen, *more], dry=not args.compute))
    return entries


def _time_size(block: type[Block], size: Size, quick: bool) -> Size:
    """The usual one, and not above what memory is measured at."""
    by_dtype = QUICK if quick else TIME_OF_ONE_PRODUCT if block.has_one_product else TIME
    usual = by_dtype[block.multiplies or size.dtype]
    return replace(size, **{name: min(n, getattr(size, name)) for name, n in usual.items()})


def block_task(name: str, size: Size, scaled: bool) -> Make:
    return seeded(BlockTask, name, size, scaled)


def _models(names: Sequence[str], chosen: list[Method], args: argparse.Namespace) -> list[Entry]:
    fitting = methods.fitting(chosen, args.method or [])
    entries = []
    for dtype in _once(args.dtype or ["float32"]):
        for model in (MODELS[name] for name in names):
            size = model.small if args.quick else model.size
            subject = Subject(model.name, model.title, "models", {"dtype": dtype, **size})
            times = None
            if not args.memory_only:
                subject.time_size = {"dtype": dtype, **model.small}
                times = model.at(model.small, dtype)
            rows = [replace(m, needs=model.needs) if model.missing else m for m in fitting]
            dry = model.dry and not args.compute
            entries.append(Entry(subject, model.at(size, dtype), times, rows, dry))
    return entries


def _print_list(console: Console) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    usual = cells.size_text({name: getattr(Size(), name) for name in SIZES})
    line(f"blocks, at {usual}:")
    for name, block in BLOCKS.items():
        line(f"  {name:15} {block.title}")
    line("models, at the size below each:")
    for name, model in MODELS.items():
        line(f"  {name:15} {model.title}" + f"  ({model.missing})" * bool(model.missing))
        line(f"{'':18}{cells.size_text(model.size)}")
    line(f"yours:\n  {own_model.FORM}, a function that makes (model, inputs) or a retape.Step")
    line("methods:")
    for method in METHODS.values():
        line(f"  {method.name}" + f"  ({method.missing})" * bool(method.missing))
