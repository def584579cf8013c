"""`retape bench --subject package.module:factory`: a model of yours, as one of the bench's own.

A name with a colon is what `retape verify` takes too: demo:gpt, hf:Llama, cpp:moe.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from retape._C import UsageError
from retape._choice import NoLayers, some
from retape._text import Exit, told_by_a_verb
from retape.bench.entry import Entry
from retape.bench.measure import maybe_dry
from retape.bench.methods import Method, fitting
from retape.bench.own_task import OwnTask, make_task
from retape.bench.result import Subject
from retape.bench.task import Make, plain
from retape.subjects import find, raised

if TYPE_CHECKING:
    from rich.console import Console

FORM = "package.module:factory"
NO_LAYERS = "no layers were found"
CHOOSE = "Fix: choose layers by name: --layer 'encoder.layers.*'."
NO_GROUPS = "the model's own code calls its layers, which cannot be cut into groups from outside"


def is_own(name: str) -> bool:
    return ":" in name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(f"of a model of yours, --subject {FORM}")
    group.add_argument(
        "--layer",
        action="append",
        metavar="NAME",
        help='what methods are wrapped around: names of modules, "encoder.layers.*"; repeat for more (the '
        "layers that retape.enable finds)",
    )
    for option, text in (
        ("--size", "an argument of the factory, for memory; repeat for more (its defaults)"),
        ("--time-size", "the same, for times and gradients (as --size)"),
    ):
        group.add_argument(option, action="append", metavar="NAME=VALUE", type=_option, help=text)
    text = "compute nothing while memory is measured: for a model that does not look at values (computes)"
    group.add_argument("--dry", action="store_true", help=text)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):  # a word
        return name, value


def refuse_options(args: argparse.Namespace, there_is_one: bool) -> None:
    """Those that would do nothing."""
    for option in ("layer", "size", "time_size", "dry"):
        if getattr(args, option) and not there_is_one:
            words = f"--{option.replace('_', '-')}"
            args.parser.error(f"{words} is of a model of yours, and --subject names none ({FORM})")
    if args.dry and args.compute:
        args.parser.error("--dry with --compute: expected one of them")
    if args.time_size and args.memory_only:
        args.parser.error("--time-size is of times and gradients, and --memory-only takes none")


def plan(
    names: Sequence[str], chosen: Sequence[Method], args: argparse.Namespace, console: Console
) -> list[Entry]:
    """Makes each model once: what is wrong with it is reported before anything is measured."""
    small = {**dict(args.size or []), **dict(args.time_size or [])}
    size = small if args.quick else dict(args.size or [])
    found = []
    for name in names:
        with told(args, name):
            found.append((find.find(name, size), find.find(name, small)))
    find.announce([big for big, _ in found], console)
    entries = []
    for big, few in found:
        for dtype in dict.fromkeys(args.dtype or [None]):
            with told(args, big.name, "its factory raises"):
                entries.append(_entry((big, size), (few, small), dtype, chosen, args))
    return entries


Sized = tuple[find.Subject, Mapping[str, Any]]  # a subject, and the options of its factory


def _entry(
    big: Sized, few: Sized, dtype: str | None, chosen: Sequence[Method], args: argparse.Namespace
) -> Entry:
    called: set[str] = set()
    memory = times = _make(big[0], dtype, args.layer or [], called)
    with maybe_dry(args.dry):  # a large model takes long to be filled
        task = memory()
    subject = Subject(big[0].name, _title(task), "models", _size(task, big[1]))
    subject.layers = [name for name, _ in task.layers]
    methods = [
        replace(m, unfit=m.unfit or _unfit(m, task)) for m in fitting(chosen, args.method or [])
    ]
    warnings = partial(_warnings, subject, task.no_layers, called)
    del task
    if not args.memory_only:
        subject.time_size = subject.size
        if big[1] != few[1]:
            times = _make(few[0], dtype, args.layer or [], called)
            subject.time_size = _size(times(), few[1])
    times = None if args.memory_only else times
    return Entry(subject, memory, times, methods, args.dry, is_own=True, warnings=warnings)


def _warnings(subject: Subject, no_layers: str, called: set[str]) -> list[str]:
    """Of rows around layers that prove nothing, once it was run."""
    if no_layers:
        return [f"{subject.name}: {no_layers} Nothing was wrapped around layers."]
    idle = [name for name in subject.layers if name not in called]
    told = f"{subject.name}: never called with gradients, so that nothing stood around them: {some(idle)}."
    return [f"{told} {CHOOSE}"] if idle else []


def _unfit(method: Method, task: OwnTask) -> str:
    """Why these layers cannot take it; empty if they can."""
    if method.apply is plain:  # it does nothing to them
        return ""
    if not task.layers:
        return NO_LAYERS
    return NO_GROUPS if method.groups_layers and not task.in_sequentials else ""


def _make(
    subject: find.Subject, dtype: str | None, wanted: Sequence[str], called: set[str]
) -> Make:
    last: list[weakref.ref[nn.Module]] = []

    def make() -> OwnTask:
        task = make_task(subject, None if dtype is None else getattr(torch, dtype), called)
        # What a method does to a model would be there for the next one.
        if any(each() is module for each in last for module in task.modules):
            raise UsageError(
                "[bench] expected a new model at every call of the factory, got the one of the call before. "
                "Fix: make it inside the function."
            )
        last[:] = [weakref.ref(module) for module in task.modules]
        try:
            task.wrap(wanted)
        except NoLayers as error:
            if wanted:
                raise UsageError(
                    f"[bench] --layer: {error.found}. {error.instead}. {CHOOSE}"
                ) from error
            task.no_layers = (
                f"{error.found}. {error.instead}. {CHOOSE}" if error.instead else f"{error.found}."
            )
        return task

    return make


def _title(task: OwnTask) -> str:
    """ "Net, around 6 x Block: layers.0, layers.1, layers.2 and 3 more"."""
    model = " and ".join(type(module).__name__ for module in task.modules) or "a retape.Step"
    classes = Counter(type(layer).__name__ for _, layer in task.layers)
    around = ", ".join(f"{count} x {name}" for name, count in classes.items())
    return (
        f"{model}, around {around}: {some([name for name, _ in task.layers], 3)}"
        if around
        else model
    )


def _size(task: OwnTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of its parameters; what the factory was given has the last word."""
    trained = [leaf for name, leaf in task.leaves.items() if not name.startswith("input ")]
    elements: Counter[torch.dtype] = Counter()
    for leaf in trained:
        elements[leaf.dtype] += leaf.numel()
    dtype = max(elements, key=elements.__getitem__, default=None)
    known = {
        "layers": len(task.layers),
        "dtype": str(dtype or "").removeprefix("torch."),
        "parameters": elements.total(),
    }
    return {**{name: value for name, value in known.items() if value}, **options}


@contextlib.contextmanager
def told(args: argparse.Namespace, name: str, what: str = "", fix: str = "") -> Iterator[None]:
    """Whatever keeps a subject from being measured ends the program with 2, in a line that names it."""
    try:
        yield
        return
    except find.NotBuilt as error:
        text = f"{name} was not built: {error.reason}"
    except UsageError as error:
        text = told_by_a_verb(error)
        text = text if name in text else f"{name}: {text}"
    except (Exception, SystemExit) as error:
        if not what:
            raise
        text = f"{name}: {what} {raised.in_short(error)}.{fix}"
    args.parser.exit(Exit.USAGE, f"[retape bench] {text}\n")
