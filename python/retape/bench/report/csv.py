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
        "group": _text(subject.group),
        "subject": _text(subject.key),
        "size": _text(cells.size_text(subject.size)),
        "time_size": _text(cells.size_text(subject.time_size or subject.size)),
        "method": _text(row.method),
        "family": _text(row.family),
        "around": _text(row.around),
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
        "bits": _text(row.equal or ""),
        "ops_replayed": row.replayed,
        "skipped": _text(row.skipped),
        "error": _text(row.error),
    }


def _text(value: str) -> str:
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
