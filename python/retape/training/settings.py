"""Numbers and sizes on the command line, and the settings that a run depends on."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from retape._text import GIB, KIB, MIB
from retape.training.data import Text

_UNITS = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_MOST_BYTES = 1e15


class Refused(Exception):
    """The run cannot begin or go on; the text says why and what to do."""


def real_number(included: bool, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not (number >= 0 if included else number > 0) or not number < high:
            low = "from 0" if included else "above 0"
            raise argparse.ArgumentTypeError(
                f"expected a number {low} and below {high:g}, got {text!r}"
            )
        return number

    return parse


def size_in_bytes(text: str) -> int:
    """`256MiB`, `1.5 GiB`, or bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?) *([A-Za-z]*)", text)
    if not found or found[2] not in _UNITS or float(found[1]) * _UNITS[found[2]] < 1:
        raise argparse.ArgumentTypeError(
            f"expected a size like 256MiB (B, KiB, MiB or GiB), got {text!r}"
        )
    size = float(found[1]) * _UNITS[found[2]]
    if size > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_BYTES:.0f} bytes, got {text!r}")
    return int(size)


def shortest(number: float) -> str:
    """The fewest digits that read back as the same number, as C++ prints them."""
    for digits in range(1, 17):
        if float(text := f"{number:.{digits}g}") == number:
            return text
    return f"{number:.17g}"


def settings(args: argparse.Namespace, text: Text) -> dict[str, str]:
    """What must be the same for a run to go on. Policy, steps and limits are not among it: they
    do not change a bit."""
    names = "layers width heads context batch seed threads".split()
    return {
        **{name: str(getattr(args, name)) for name in names},
        "dropout": shortest(args.dropout),
        "lr": shortest(args.lr),
        "text": text.digest,
    }
