"""The HTML page of `retape verify` and `retape gradcheck`: cards, tables with chips, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retape import _artefact, _html
from retape._html import Card

TONES = {"equal": "good", "different": "bad", "vacuous": "loud", "not built": "quiet"}


@dataclass(frozen=True)
class Cell:
    label: str  # of its column, for narrow screens
    word: str
    symbol: str = ""
    tone: str = ""  # a chip; none: plain text
    detail: str = ""
    more: str = ""  # folded under the detail
    ours: bool = False
    inner: list[list[str]] = field(default_factory=list)  # rows of a table folded into the cell


@dataclass(frozen=True)
class Row:
    title: str
    cells: list[Cell]
    story: str = ""
    sources: list[tuple[str, str]] = field(default_factory=list)
    details: str = ""
    command: str = ""


@dataclass(frozen=True)
class Section:
    headings: list[str]
    rows: list[Row]
    title: str = ""
    lead: str = ""
    more: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    lead: str
    cards: list[Card]
    sections: list[Section]
    vacuous: Sequence[str] = ()
    limits: Sequence[str] = ()  # what the page does not show
    notes: Sequence[str] = ()
    command: str = ""
    facts: Mapping[str, Any] | None = None  # of the machine; this one's, unless given
    inner_headings: Sequence[str] = ()

    @property
    def environment(self) -> str:
        facts = _artefact.environment() if self.facts is None else self.facts
        if not facts:
            return "Where it ran is not in what this was made from."
        return (
            f"retape {facts['retape']}, torch {facts['torch']}, Python {facts['python']}, "
            f"{facts['cpu']}"
        )


def render(page: Page) -> str:
    return _html.render(Path(__file__).with_name("page.html.j2"), page=page)


def write(path: str, page: Page) -> None:
    _html.write(path, render(page))
