"""`package.module:factory`: a function of the user's that makes a `retape.dist.GradCheck`."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retape._C import UsageError
from retape._text import offer

if TYPE_CHECKING:
    from retape.dist.gradcheck import GradCheck

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def check_name(name: str) -> None:
    """Nothing is imported."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"[gradcheck] expected package.module:factory, got {name!r}. Fix: the name of a module, a "
            "colon, and a function in it that returns a retape.dist.GradCheck."
        )


def make(name: str) -> GradCheck:
    """Imports the module, also from the current folder, and calls the function."""
    from retape.dist.gradcheck import GradCheck

    check_name(name)
    module_name, _, rest = name.partition(":")
    made = _find(module_name, rest)
    check: Any = made() if callable(made) else made
    if not isinstance(check, GradCheck):
        raise UsageError(
            f"[gradcheck] {name}: expected a function that returns a retape.dist.GradCheck, got "
            f"{type(check).__name__}."
        )
    return check


def _find(module_name: str, rest: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module is there; something that it needs is not
        names = [path.stem for path in Path.cwd().glob("*.py")]
        raise UsageError(
            f"[gradcheck] no module {module_name!r}, here or installed. "
            f"{offer(module_name, names) if names else ''}".rstrip()
        ) from error
    for part in rest.split("."):
        if not hasattr(found, part):
            names = [each for each in dir(found) if not each.startswith("_")]
            raise UsageError(f"[gradcheck] {module_name} has no {rest!r}. {offer(part, names)}")
        found = getattr(found, part)
    return found
