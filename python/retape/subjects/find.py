"""What a subject's name on the command line stands for.

    demo:gpt                  built in
    cpp:transformer           built in, in C++; cpp:moe and cpp:pi05 too
    fault:one-ulp             built in: where that fault strikes
    hf:GPTBigCode             Hugging Face, tiny and random, from the package retape_hf
    package.module:factory    a function of yours that makes (model, inputs) or a retape.Step

A kind of subject is one line in KINDS, or a module that a package registers as an entry point in the
group `retape.subjects`, with the functions architectures(), version(), knows(name) and
make(name, dtype, seed).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retape._C import UsageError
from retape._text import offer, told_by_a_verb
from retape.subjects import raised

if TYPE_CHECKING:
    from rich.console import Console


class NotBuilt(RuntimeError):
    """This subject cannot be built here; `reason` says why, in a few words."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"[subjects] {name} was not built: {reason}")
        self.name, self.reason = name, reason


Made = tuple[Any, Any, dict[str, Any]]
Make = Callable[[torch.dtype | None, int], Made]


@dataclass(frozen=True)
class Subject:
    """`make(dtype, seed)` gives what `retape.verify` takes, its inputs, and options for it."""

    name: str
    make: Make
    is_users: bool = field(default=False)  # its code is run


def find(name: str, options: Mapping[str, Any] | None = None) -> Subject:
    """UsageError, with the closest spelling, if there is no such subject. options: arguments for a factory of
    the user's."""
    kind, _, rest = name.partition(":")
    if not rest:
        raise UsageError(
            f"[verify] expected a subject like demo:gpt, hf:Llama or package.module:factory, "
            f"got {name!r}.{_offer(name, [*demos(), *cpp_names(), 'hf:'])}"
        )
    is_plugged = kind in entry_points(group="retape.subjects").names
    if kind not in KINDS and not is_plugged:
        return _imported(name, rest, options or {})
    if options:
        raise UsageError(
            f"[verify] {name}: expected no options, got {', '.join(options)}. Fix: a factory of yours takes them."
        )
    return _plugged(name, kind, rest) if is_plugged else KINDS[kind](name, rest)


def announce(subjects: Sequence[Subject], console: Console) -> None:
    """Whose code is going to be run."""
    users = list(dict.fromkeys(subject.name for subject in subjects if subject.is_users))
    if users:
        console.print(f"Running the code of {', '.join(users)}.", markup=False)


def demos() -> list[str]:
    from retape.subjects import demo

    return [f"demo:{name}" for name in demo.DEMOS]


def plugged(kind: str) -> Any:
    """The module that a package registered for subjects of this kind. UsageError if it cannot be imported."""
    point = next(iter(entry_points(group="retape.subjects", name=kind)), None)
    if point is None:
        raise UsageError(f"[verify] no package registered subjects of the kind {kind!r}.")
    return point.load()


def names_of(kind: str) -> list[str]:
    with _usage_errors():
        return [f"{kind}:{name}" for name in plugged(kind).architectures()]


def _demo(name: str, rest: str) -> Subject:
    from retape.subjects import demo

    return _named(name, {f"demo:{each}": _seeded(made) for each, made in demo.DEMOS.items()})


def _fault(name: str, rest: str) -> Subject:
    from retape.subjects import faults

    programs = faults.PROGRAMS.items()
    made = {f"fault:{each}": _seeded(lambda _, p=program: p.build()) for each, program in programs}
    return _named(name, made)


def _cpp(name: str, rest: str) -> Subject:
    from retape.subjects import cpp

    return _named(name, {f"cpp:{each}": cpp.maker(build) for each, build in cpp.MODELS.items()})


def _named(name: str, known: Mapping[str, Make]) -> Subject:
    if name not in known:
        raise UsageError(f"[verify] no such subject: {name!r}.{_offer(name, list(known))}")
    return Subject(name, known[name])


def _seeded(build: Callable[[int], tuple[Any, Any]]) -> Make:
    def make(dtype: torch.dtype | None, seed: int) -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, inputs = build(seed)
        return model, inputs, {"dtype": dtype}

    return make


def _plugged(name: str, kind: str, rest: str) -> Subject:
    with _usage_errors():
        module = plugged(kind)
        if not module.knows(rest):
            offered = _offer(rest, module.architectures(), f"{kind}:")
            raise UsageError(f"[verify] no such subject: {name!r}.{offered}")
    return Subject(name, functools.partial(module.make, rest))


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """A package that is missing is a usage error: nothing has run."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"[verify] {told_by_a_verb(error)}.") from error


def _imported(name: str, rest: str, options: Mapping[str, Any]) -> Subject:
    module_name = name.partition(":")[0]
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    factory: Any = _module(module_name, name)
    for part in rest.split("."):
        if not hasattr(factory, part):
            names = [each for each in dir(factory) if not each.startswith("_")]
            raise UsageError(f"[verify] {module_name} has no {rest!r}.{_offer(part, names)}")
        factory = getattr(factory, part)
    if not callable(factory) or isinstance(factory, torch.nn.Module):
        raise UsageError(
            f"[verify] {name}: expected a function without arguments, got "
            f"{type(factory).__name__}. Fix: def factory(): return model, inputs."
        )
    _check_options(factory, name, options)

    def make(dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        def seeded() -> Any:
            torch.manual_seed(seed)
            return factory(**options)

        return seeded, None, {"dtype": dtype}

    return Subject(name, make, is_users=True)


def _check_options(factory: Callable[..., Any], name: str, options: Mapping[str, Any]) -> None:
    """UsageError if it cannot be called with them."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # not written in Python
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [each for each, parameter in signature.parameters.items() if parameter.kind in by_name]
    try:
        signature.bind(**options)
    except TypeError as error:
        unknown = [each for each in options if each not in known]
        offered = _offer(unknown[0], known) if unknown else " Fix: give all of them defaults."
        got = f", got {', '.join(options)}" if options else ""
        raise UsageError(
            f"[verify] {name}: expected options of {name.partition(':')[2]}({', '.join(known)}){got}: "
            f"{error}.{offered}"
        ) from error


def _module(module_name: str, name: str) -> Any:
    """UsageError, whatever importing it raises: nothing has run."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _not_imported(
                module_name, name, error
            ) from error  # it is there; what it needs is not
        kinds = [*KINDS, *(path.stem for path in Path.cwd().glob("*.py"))]
        raise UsageError(
            f"[verify] no module {module_name!r} for the subject {name!r}, here or installed."
            f"{_offer(module_name, kinds)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise _not_imported(module_name, name, error) from error


def _not_imported(module_name: str, name: str, error: BaseException) -> UsageError:
    return UsageError(
        f"[verify] {name}: expected a module that can be imported, got {raised.in_short(error)}. "
        f'Fix: make this run: python -c "import {module_name}"'
    )


def cpp_names() -> list[str]:
    from retape.subjects import cpp

    return [f"cpp:{name}" for name in cpp.MODELS]


KINDS: dict[str, Callable[[str, str], Subject]] = {
    "cpp": _cpp,
    "demo": _demo,
    "fault": _fault,
}


def _offer(word: str, known: Sequence[str], prefix: str = "") -> str:
    return f" {offer(word, known, lambda name: prefix + name, most=8)}" if known else ""
