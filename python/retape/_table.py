"""Tables that fit their terminal: the richest of several layouts that does, every cell of it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_WIDE = 10_000  # characters: a table is measured as if there were no end of room
_LONG = 25  # characters that a word of a name has in any case; longer ones go on below


@dataclass(frozen=True)
class Column:
    name: str
    cells: Sequence[Text | str]
    heading: str | None = None  # its name, unless given; may have several lines
    justify: str = "right"
    least: int | None = (
        None  # of names, which go on below: characters that they have in any case. None: one line
    )

    @property
    def title(self) -> str:
        return self.name if self.heading is None else self.heading

    def widths(self) -> tuple[int, int]:
        """At least, and as many as it can use."""
        texts = [*self.title.splitlines(), *map(str, self.cells)]
        longest = max(map(_cells, texts), default=0)
        if self.least is None:
            return longest, longest
        words = max((_cells(word) for text in texts for word in text.split()), default=0)
        return min(longest, max(self.least, min(words, _LONG))), longest


Layout = Sequence[Column]


def without(layout: Layout, name: str) -> list[Column]:
    return [column for column in layout if column.name != name]


def leaving_out(layout: Layout, names: Iterable[str]) -> Iterator[Layout]:
    """All of it, then without the first of `names`, and so on."""
    yield layout
    for name in names:
        layout = without(layout, name)
        yield layout


def fitted(
    layouts: Iterable[Layout],
    console: Console,
    caption: Callable[[Layout], str] = lambda layout: "",
    sections: Sequence[int] = (),
    **look: Any,
) -> Table:
    """The first of them that fits, else the last. `caption(layout)` stands below, and behind it what the first
    has and this one has not; `sections`: rows that end with a line; `look`: what rich's Table takes."""
    first: Layout | None = None
    for layout in layouts:
        first = layout if first is None else first
        least = [column.widths()[0] for column in layout]
        gone = _told(first, layout)
        text = "\n".join(filter(None, [caption(layout), gone]))
        spare = console.width - _measured(_made(layout, least, text, sections, look), console)
        if spare >= 0:
            break
    for place, column in enumerate(layout):
        more = min(max(spare, 0), column.widths()[1] - least[place])
        least[place] += more
        spare -= more
    return _made(layout, least, text, sections, look)


def _told(first: Layout, layout: Layout) -> str:
    there = {column.name for column in layout}
    absent = [column.name for column in first if column.name not in there]
    return f"Only in a wider terminal: {', '.join(absent)}" if absent else ""


def _measured(table: Table, console: Console) -> int:
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(width=_WIDE), table).minimum


def _made(
    layout: Layout,
    widths: Sequence[int],
    caption: str,
    sections: Sequence[int],
    look: dict[str, Any],
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(
        caption=Text(caption) if caption else None,
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
        **look,
    )
    tall = any("\n" in column.title for column in layout)
    for column, width in zip(layout, widths, strict=True):
        # A width of its own: no column gives way to another, a layout leaves out whole ones instead.
        made.add_column(
            Text(column.title),
            justify=column.justify,
            no_wrap=column.least is None,
            overflow="fold" if column.least is not None else "ellipsis",
            vertical="bottom" if tall and column.least is not None else "top",
            width=width,
        )
    for place, row in enumerate(zip(*(column.cells for column in layout), strict=True)):
        cells = (Text(cell) if isinstance(cell, str) else cell for cell in row)
        made.add_row(*cells, end_section=place in sections)
    return made


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
