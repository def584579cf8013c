"""A kind of step: a line of Python with holes, and a filler that fills them from the values there are.

Holes of one letter are tensors (a, b, c, d), `r`, `r0`, `r1` are results, all others plain attributes.
A filling that eager refuses is thrown away by the maker, so fillers may be rough.
"""

from __future__ import annotations

from dataclasses import dataclass

from .fillers import Filler


@dataclass(frozen=True)
class Kind:
    name: str
    text: str
    fill: Filler
    results: int
    weight: float
    writes: tuple[str, ...] = ()  # operands that it writes to
    unseen: bool = False  # no version counter of the operands shows that write
    aliases: tuple[str, ...] = ()  # operands whose memory has another version counter from now on


KINDS: dict[str, Kind] = {}


def add(
    name: str,
    text: str,
    fill: Filler,
    *,
    writes: str = "",
    weight: float = 1.0,
    unseen: bool = False,
    aliases: str = "",
) -> None:
    assert name not in KINDS, name
    results = 0
    if "{r}" in text:
        results = 1
    while f"{{r{results}}}" in text:
        results += 1
    KINDS[name] = Kind(name, text, fill, results, weight, tuple(writes), unseen, tuple(aliases))
