"""A run as CSV: a line for each row of each subject, in bytes and seconds."""

from __future__ import annotations

import csv
import io
from typing import Any

from retape._text import printable
from retape.bench import cells
from retape.bench.result import Row, Run, Subject, saved

_SPREADS = ("forward", "backward", "total", "ratio")
# A spreadsheet would take these for the start of a formula.
_FORMULA = ("=", "+", "-", "@")


def render(run: Run) -> str:
    lines = [_line(subject, row) for subject in run.subjects for row in subject.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(_line(_EMPTY, Row("", ""))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


_EMPTY = Subject("", "", "", {})


def _line(subject: Subject, row: Row) -> dict[str, Any]:
    line: dict[str, Any] = {
        "group": text(subject.group),
        "subject": text(subject.key),
        "size": text(cells.size_text(subject.size)),
        "time_size": text(cells.size_text(subject.time_size or subject.size)),
        "method": text(row.method),
        "family": text(row.family),
        "around": text(row.around),
        "peak_bytes": row.peak,
        "held_bytes": row.held,
    }
    for name in _SPREADS:
        unit = "" if name == "ratio" else "_seconds"
        low, middle, high = getattr(row, name) or (None, None, None)
        line |= {f"{name}{unit}": middle, f"{name}_low{unit}": low, f"{name}_high{unit}": high}
    return {
        **line,
        "memory_saved": None if row is subject.plain else saved(row, subject.plain),
        "gflop": row.gflop,
        "bits": text(row.equal or ""),
        "ops_replayed": row.replayed,
        "skipped": text(row.skipped),
        "error": text(row.error),
    }


def text(value: str) -> str:
    """A name, and never a formula."""
    shown = printable(value)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
