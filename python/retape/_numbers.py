"""Whole numbers of the command line, and what they are at most, so that a slip of the finger is told at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable

# What no model or bench is meant to have more of.
LAYERS = 10_000
SIZE = 1_000_000  # of a dimension
THREADS = 1024
ROUNDS = 100_000
INT64 = 2**63 - 1


def whole_number(least: int, most: int = INT64) -> Callable[[str], int]:
    """For argparse."""

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
