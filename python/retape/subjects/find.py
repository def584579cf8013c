"""What a subject's name on the command line stands for.

    demo:gpt                  built in
    cpp:transformer           built in, in C++; cpp:moe and cpp:pi05 too
    fault:one-ulp             built in: where that fault strikes
    hf:GPTBigCode             Hugging Face, tiny and random
    package.module:factory    a function of yours that makes (model, inputs) or a retape.Step

A kind of subject is one line in KINDS.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retape._C import UsageError
from retape._text import offer
from retape.subjects import raised

if TYPE_CHECKING:
    from rich.console import Console


class NotBuilt(Exception):
    """A subject that cannot be made here, and why."""


@dataclass(frozen=True)
class Subject:
    """`make(dtype, seed)` gives what `retape.verify` takes, its inputs, and options for it."""

    name: str
    make: Callable[[torch.dtype | None, int], tuple[Any, Any, dict[str, Any]]]
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
    if kind not in KINDS:
        return _imported(name, rest, options or {})
    if options:
        raise UsageError(
            f"[verify] {name}: expected no options, got {', '.join(options)}. Fix: a factory of yours takes them."
        )
    return KINDS[kind](name, rest)


def announce(subjects: Sequence[Subject], console: Console) -> None:
    """Whose code is going to be run."""
    users = list(dict.fromkeys(subject.name for subject in subjects if subject.is_users))
    if users:
        console.print(f"Running the code of {', '.join(users)}.", markup=False)


def demos() -> list[str]:
    from retape.subjects import demo

    return [f"demo:{name}" for name in demo.DEMOS]


def hf_names() -> list[str]:
    """Every architecture of the installed transformers, as subjects."""
    from retape.subjects import hf

    with _transformers():
        return [f"hf:{name}" for name in hf.architectures()]


def hf_version() -> str:
    """Of the installed transformers."""
    from retape.subjects import hf

    return hf.version()


def _demo(name: str, rest: str) -> Subject:
    from retape.subjects import demo

    factory = demo.DEMOS.get(rest)
    if factory is None:
        raise UsageError(f"[verify] no such subject: {name!r}.{_offer(name, demos())}")

    def make(dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, inputs = factory(seed)
        return model, inputs, {"dtype": dtype}

    return Subject(name, make)


def _hf(name: str, rest: str) -> Subject:
    from retape.subjects import hf

    with _transformers():
        known = hf.architectures()
        is_known = rest in known or _is_model_class(rest)
    if not is_known:
        raise UsageError(f"[verify] no such subject: {name!r}.{_offer(rest, known, 'hf:')}")

    def make(dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        try:
            model, inputs = hf.build(rest, dtype or torch.float32, seed)
        except hf.NotBuilt as error:
            raise NotBuilt(error.reason) from error
        patterns = hf.expected_dead(rest, model)
        dead = [n for n, _ in model.named_parameters() if any(re.search(p, n) for p in patterns)]
        options: dict[str, Any] = {"may_be_dead": tuple(dead)}
        return model, inputs, options | ({"loss": hf.loss} if hf.has_loss_per_sample(rest) else {})

    return Subject(name, make)


def _is_model_class(name: str) -> bool:
    import transformers

    found = getattr(transformers, name, None)
    return isinstance(found, type) and issubclass(found, torch.nn.Module)


@contextlib.contextmanager
def _transformers() -> Iterator[None]:
    """Whatever it does not let us import is a usage error: nothing has run."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, ImportError) and error.__cause__ else error
        raise UsageError(
            f"[verify] hf: expected the package transformers, got {cause}. Fix: pip install transformers."
        ) from error


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


def _cpp(name: str, rest: str) -> Subject:
    from retape.subjects import cpp

    build = cpp.MODELS.get(rest)
    if build is None:
        raise UsageError(f"[verify] no such subject: {name!r}.{_offer(name, cpp_names())}")

    def make(dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        def seeded() -> Any:
            torch.manual_seed(seed)
            return build(dtype or torch.float32)

        return seeded, None, {"loss": cpp.losses}

    return Subject(name, make)


def _fault(name: str, rest: str) -> Subject:
    from retape.subjects import faults

    program = faults.PROGRAMS.get(rest)
    if program is None:
        raise UsageError(
            f"[verify] no such subject: {name!r}.{_offer(rest, list(faults.PROGRAMS), 'fault:')}"
        )

    def make(dtype: torch.dtype | None, seed: int) -> tuple[Any, Any, dict[str, Any]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, inputs = program.build()
        return model, inputs, {"dtype": dtype}

    return Subject(name, make)


KINDS: dict[str, Callable[[str, str], Subject]] = {
    "cpp": _cpp,
    "demo": _demo,
    "fault": _fault,
    "hf": _hf,
}


def _offer(word: str, known: Sequence[str], prefix: str = "") -> str:
    return f" {offer(word, known, lambda name: prefix + name, most=8)}" if known else ""
