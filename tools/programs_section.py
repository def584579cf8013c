"""The section of docs/proofs.md on random programs, from what `make fuzz` counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROWS = {
    "equal": "verdicts: equal",
    "vacuous": "vacuous: the program's own policies keep all that backward needs",
    "raised": "none, since plain autograd raises; Retape raises too",
    "refused": "none, since a tensor that a scope was given is changed after it: `ReplayMismatch`",
    "differences": "tensors that differ",
    "findings": "faults found, and none was injected",
    "orders": "orders of backward",
    "tensors_compared": "tensors compared",
    "values_checked": "replayed values compared with forward's",
    "ops_replayed": "ops replayed",
}


def added_up(paths: Iterable[Path]) -> tuple[range, Counter[str]]:
    """All seeds and all counts. The runs have to follow one another."""
    runs = sorted(
        (json.loads(path.read_text()) for path in paths), key=lambda r: r["seeds"]["first"]
    )
    counts: Counter[str] = Counter()
    first = end = runs[0]["seeds"]["first"]
    for run in runs:
        if run["seeds"]["first"] != end:
            raise SystemExit(
                f"[proofs] what make fuzz left has seed {run['seeds']['first']} next, expected {end}. "
                "Fix: remove the files of other runs."
            )
        end = run["seeds"]["last"] + 1
        counts.update(run["counts"])
    return range(first, end), counts


def markdown(seeds: range, counts: Counter[str]) -> str:
    lines = [
        f"| programs, seeds {seeds[0]:,} to {seeds[-1]:,} | {counts['programs']:,} |",
        "|---|---|",
    ]
    lines += [f"| {text} | {counts[name]:,} |" for name, text in ROWS.items()]
    return "\n".join(lines) + "\n"
