"""A run as Markdown: a section and a table for each subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from retape._text import printable
from retape.bench import cells
from retape.bench.result import Run, Subject


def render(run: Run, environment: dict[str, Any], command: str = "") -> str:
    parts = ["# retape bench"]
    if command:
        parts.append("Made by " + code(command))
    parts += [f"> Warning: {escape(warning)}" for warning in run.warnings]
    parts += [_section(subject) for subject in run.subjects] or ["Nothing was measured."]
    if run.subjects:
        parts += filter(None, (cells.legend(run), cells.mark_legend(run)))
    parts.append("## Machine\n\n" + _machine(environment))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that means nothing to Markdown or HTML, on one line."""
    text = re.sub(r"([\\`*_\[\]<>#|~&]|:(?=//))", r"\\\1", printable(text).strip())
    # At the start of a paragraph these would be a list or a heading.
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", text)


def code(text: str) -> str:
    """A code span; its fence is longer than any run of ticks in it."""
    text = printable(text)
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _section(subject: Subject) -> str:
    columns = cells.columns(subject)
    best = set(cells.frontier(subject))
    headings = ["method", *(f"{c.heading}, {c.unit}" if c.unit else c.heading for c in columns)]
    rows = []
    notes = []
    names = cells.labels(subject)
    for index in cells.shown(subject):
        name = escape(names[index])
        figures = [_cell(column.cells[index]) for column in columns]
        rows.append([f"{name} {cells.MARK}" if index in best else name, *figures])
        if cells.note(subject.rows[index]):
            notes.append(f"- {name}: {escape(cells.note(subject.rows[index]))}")
    parts = [f"## {escape(subject.key)}", escape(subject.title), escape(cells.sizes_text(subject))]
    parts += [
        table_of(headings, rows) if rows else "",
        "\n".join(notes),
        escape(cells.not_run(subject)),
    ]
    return "\n\n".join(part for part in parts if part)


def _cell(cell: cells.Cell) -> str:
    if not cell.text:
        return "–"
    return escape(cell.text) if cell.tone else str(cell)


def table_of(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---", *("---:" for _ in headings[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(environment: dict[str, Any]) -> str:
    facts = environment.items()
    rows = [[escape(name.replace("_", " ")), escape(str(found))] for name, found in facts]
    return table_of(["what", "found"], rows)
