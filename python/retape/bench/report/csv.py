"""A run as CSV: a line for each row of each subject, in bytes and seconds."""

from __future__ import annotations

import csv
import io
from typing import Any

from retape._text import printable
from retape.bench import cells
from retape.bench.result import Row, Run, Subject, saved

_SPREADS = {"forward": "_seconds", "backward": "_seconds", "total": "_seconds", "ratio": ""}
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet takes these for the start of one


def render(run: Run) -> str:
    lines = [_line(subject, row) for subject in run.subjects for row in subject.rows]
    names = list(_line(Subject("", "", "", {}), Row("", "")))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _line(subject: Subject, row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {
        "group": subject.group,
        "subject": subject.key,
        "size": cells.size_text(subject.size),
        "time_size": cells.size_text(subject.time_size or subject.size),
        "method": row.method,
        "family": row.family,
        "around": row.around,
        "peak_bytes": row.peak,
        "held_bytes": row.held,
    }
    for name, unit in _SPREADS.items():
        low, middle, high = getattr(row, name) or (None, None, None)
        line |= {f"{name}{unit}": middle, f"{name}_low{unit}": low, f"{name}_high{unit}": high}
    line |= {
        "memory_saved": None if row is subject.plain else saved(row, subject.plain),
        "gflop": row.gflop,
        "bits": row.equal or "",
        "ops_replayed": row.replayed,
        "skipped": row.skipped,
        "error": row.error,
    }
    return {name: text(cell) if isinstance(cell, str) else cell for name, cell in line.items()}


def text(value: str) -> str:
    """A name, and never a formula."""
    shown = printable(value)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
