"""The command line: options, their limits, and what is said about wrong ones."""

import argparse
import contextlib
import difflib
import re
from collections.abc import Callable, Iterable
from typing import NoReturn

POLICIES = ("none", "cheap", "full")
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MOST_BYTES = 10**15
_INT64 = 2**63 - 1
_COUNTS = {  # default, minimum, maximum
    "layers": (4, 1, 10_000, "transformer blocks"),
    "width": (64, 1, 1_000_000, "of the residual stream"),
    "heads": (4, 1, 1_000_000, "attention heads"),
    "context": (64, 1, 1_000_000, "characters that the model sees"),
    "batch": (8, 1, 1_000_000, "windows in a step"),
    "steps": (100, 1, _INT64, "to train, counted from the very start"),
    "seed": (0, 0, _INT64, "of weights, dropout and the order of the text"),
    "threads": (1, 1, 1024, "of torch; another number may round differently"),
    "save-every": (10, 0, _INT64, "steps between saves; 0: only at the end"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"[train] {message}\n")


def offer(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else f"There is: {', '.join(known)}."


def policy(text: str) -> str:
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(
            f"no such value for --policy: {text!r}. {offer(text, POLICIES)}"
        )
    return text


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {text}")
        if number > most:
            raise argparse.ArgumentTypeError(f"expected at most {most}, got {text}")
        return number

    return parse


def real_number(low: str, high: float) -> Callable[[str], float]:
    """low: "from 0" or "above 0"."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            number = float(text)
            if 0 < number < high or (number == 0 and low == "from 0"):
                return number
        raise argparse.ArgumentTypeError(f"expected a number {low} and below {high}, got {text!r}")

    return parse


def size_in_bytes(text: str) -> int:
    """`256MiB`, `1.5 GiB`, or bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?) *([A-Za-z]*)", text)
    size = float(found[1]) * _UNITS.get(found[2], 0) if found else 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"expected a size like 256MiB (B, KiB, MiB or GiB), got {text!r}"
        )
    if size > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_BYTES} bytes, got {text!r}")
    return int(size)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="train.py",
        description="Trains a character-level transformer on a text.",
        epilog="example:\n  python train.py --steps 200 --policy full --out build/train --resume",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--policy", type=policy, default="full", help="none (plain autograd), cheap or full (full)")
    for name, (default, least, most, what) in _COUNTS.items():
        kind = whole_number(least, most)
        add(f"--{name}", metavar="N", type=kind, default=default, help=f"{what} ({default})")
    share, rate = real_number("from 0", 1), real_number("above 0", 10)
    add("--dropout", metavar="P", type=share, default=0.1, help="share of values dropped (0.1)")
    add("--lr", metavar="RATE", type=rate, default=1e-3, help="AdamW's learning rate (0.001)")
    add("--text", metavar="FILE", help="to learn from (a small generated corpus)")
    add("--out", metavar="FOLDER", default="build/train", help="for the saved run (build/train)")
    add("--resume", action="store_true", help="continue the saved run in FOLDER, if there is one")
    add("--memory-limit", metavar="BYTES", type=size_in_bytes, help="hard limit: 256MiB (none)")
    add("--quiet", action="store_true", help="no progress")
    add("--json", metavar="PATH", help="for the report, - for stdout (FOLDER/report.json)")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        word = unknown[0].partition("=")[0]
        parser.error(f"unknown argument {word}. {offer(word, parser._option_string_actions)}")
    if args.width % args.heads:
        parser.error(f"--width: expected a multiple of {args.heads} (--heads), got {args.width}")
    args.json = args.json or f"{args.out}/report.json"
    return args
