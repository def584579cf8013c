"""The hazard table on a terminal and in Markdown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retape._text import Exit
from retape.cli.verify.junit import TestCase
from retape.hazards.compare import (
    DIFFERENT,
    ERROR,
    Cell,
    Row,
    is_right,
    is_vacuous,
)
from retape.hazards.hazard import addresses
from retape.hazards.ways import WAYS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text


@dataclass(frozen=True)
class Shown:
    """A cell as people see it. `tone` is "good", "bad" or "loud"."""

    symbol: str
    word: str
    detail: str  # a few words more
    tone: str
    error: str = ""  # first line of what was raised


def shown(row: Row, key: str) -> Shown:
    cell = row.cells[key]
    if cell.outcome == ERROR:
        return _shown_error(row, key, cell)
    if cell.outcome == DIFFERENT:
        clauses = cell.detail.split("; ")
        if clauses[0].endswith(cell.short):  # is said already
            del clauses[0]
        clauses += ["no error, where plain raises"] if row.plain_raises else []
        return Shown("✗", cell.short, "; ".join(clauses), "bad")
    if row.plain_raises:
        return Shown("✗", "no error", "plain raises", "bad")
    idle = key != "plain" and not cell.again
    return Shown("✓", "equal", "nothing was recomputed" if idle else "", "good")


def _shown_error(row: Row, key: str, cell: Cell) -> Shown:
    kind = cell.error.partition(":")[0]
    if key == "plain":
        return Shown("!", "raises", kind, "loud", cell.error)
    if row.plain_raises:
        return Shown("✓", "raises too", kind, "good", cell.error)
    return Shown("!", "error", kind, "loud", cell.error)


LEGEND = (
    "✓ the bits of plain autograd, or its error. ! stops with an error. ✗ silently wrong; "
    "off by: largest difference over largest gradient."
)
WHAT_THE_WAYS_ARE = (
    "torch: torch.utils.checkpoint(use_reentrant=False); reentrant: use_reentrant=True. Retape: "
    "retape.checkpoint, which replays recorded ops and never calls the function again; rerun: "
    'method="rerun", which calls it again and compares.'
)


def summary(rows: list[Row]) -> list[tuple[str, str, str]]:
    """(way, sentence, tone) for each way but plain."""
    lines = []
    for way in WAYS[1:]:
        tones = Counter(shown(row, way.key).tone for row in rows)
        parts = [f"{tones['good']} right"] if tones["good"] else []
        parts += [f"{tones['loud']} stopped with an error"] if tones["loud"] else []
        parts += [f"{tones['bad']} silently wrong"]
        tone = "bad" if tones["bad"] else "loud" if tones["loud"] else "good"
        lines.append((way.label, f"{', '.join(parts)}, of {len(rows)}", tone))
    return lines


_STYLES = {"good": "green", "bad": "bold red", "loud": "yellow"}


def print_table(rows: list[Row], console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title="What a second call of your code does to gradients",
        caption=LEGEND,
        box=box.SIMPLE_HEAD,
        title_style="bold",
    )
    table.add_column("", justify="right", style="dim")
    table.add_column("")
    wide = console.width >= 100
    ways = WAYS if wide else WAYS[1:]  # what plain does is known
    for way in ways:
        table.add_column(way.label.replace(", ", "\n"), no_wrap=wide)
    for number, row in enumerate(rows, 1):
        cells = (_text(shown(row, way.key)) for way in ways)
        table.add_row(str(number), row.hazard.title, *cells)
    console.print(table)
    width = max(len(label) for label, _, _ in summary(rows))
    for label, sentence, tone in summary(rows):
        console.print(
            f"{label:<{width}}  {sentence}", style=_STYLES[tone], markup=False, highlight=False
        )
    for row in rows:
        for told in wrong(row):
            line = f"not as it should be: {row.hazard.name}, {told}"
            console.print(line, style=_STYLES["bad"], markup=False, highlight=False)
    console.print(WHAT_THE_WAYS_ARE, style="dim", markup=False, highlight=False)
    console.print()
    console.print(_stories(rows))


def _stories(rows: list[Row]) -> RichTable:
    from rich.table import Table
    from rich.text import Text

    stories = Table.grid(padding=(0, 2))
    stories.add_column(justify="right", style="dim")
    stories.add_column()
    for number, row in enumerate(rows, 1):
        text = Text(row.hazard.story)
        for source, address in addresses(row.hazard.sources):
            text.append(" ")
            text.append(source, style=f"cyan link {address}")
        stories.add_row(str(number), text)
    return stories


def _text(cell: Shown) -> Text:
    from rich.text import Text

    return Text(f"{cell.symbol} {cell.word}", style=_STYLES[cell.tone])


def markdown(rows: list[Row]) -> str:
    """The table, the stories under it, and what it adds up to."""
    head = ["| hazard | " + " | ".join(way.label for way in WAYS) + " |", "|---" * (len(WAYS) + 1)]
    lines = [head[0], head[1] + "|"]
    for number, row in enumerate(rows, 1):
        cells = (_cell_markdown(shown(row, way.key)) for way in WAYS)
        lines.append(f"| {number}. {row.hazard.title} | " + " | ".join(cells) + " |")
    lines += ["", LEGEND, WHAT_THE_WAYS_ARE, ""]
    lines += [f"- {label}: {sentence}." for label, sentence, _ in summary(rows)]
    lines += ["", "What happens in real life:", ""]
    for number, row in enumerate(rows, 1):
        links = ", ".join(f"[{name}]({url})" for name, url in addresses(row.hazard.sources))
        story = f"{number}. **{row.hazard.title}.** {row.hazard.story}"
        lines.append(story + (f" ({links})" if links else ""))
    return "\n".join(lines) + "\n"


def _cell_markdown(cell: Shown) -> str:
    word = f"**{cell.word}**" if cell.tone == "bad" else cell.word
    return f"{cell.symbol} {word}".replace("|", "\\|")


def wrong(row: Row) -> list[str]:
    """Ways of ours that did not do what they should, in words. What others get wrong is no failure of ours."""
    return [
        f"{way.label}: {_in_words(shown(row, way.key))}"
        for way in WAYS
        if way.ours and not is_right(row, way.key)
    ]


def vacuous(row: Row) -> list[str]:
    return [
        f"{way.label}: nothing was recomputed"
        for way in WAYS
        if way.ours and is_vacuous(row, way.key)
    ]


def _in_words(cell: Shown) -> str:
    return ": ".join(filter(None, (cell.word, cell.error or cell.detail)))


def exit_code(rows: list[Row]) -> Exit:
    """Of Retape's columns."""
    if any(wrong(row) for row in rows):
        return Exit.DIFFERENT
    return Exit.VACUOUS if any(vacuous(row) for row in rows) else Exit.OK


def test_case(row: Row) -> TestCase:
    told = wrong(row) or vacuous(row)
    failure = "different" if wrong(row) else "vacuous" if told else ""
    text = "\n".join([*told, "Again: retape verify --hazards"]) if told else ""
    return TestCase("hazards", row.hazard.name, failure=failure, text=text)
