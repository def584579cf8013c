"""What `retape verify --all-hf` found, as a part of docs/proofs.md: counts, and every reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from retape.cli.verify.case import DIFFERENT, EQUAL, KINDS, NOT_BUILT, VACUOUS
from retape.cli.verify.table import SYMBOLS

# What a cause begins with, and what it is called in the table; None: up to the first colon.
_REASONS = {
    VACUOUS: (
        (r"the plain run differs from itself", "the plain run differs from itself"),
        (r'leaf "', "parameters have no gradient, or zeros"),
    ),
    DIFFERENT: ((r"values: [\w:.]+", None),),
    NOT_BUILT: (),
}


def markdown(artefact: Mapping[str, Any]) -> str:
    """From the JSON file of `retape verify --all-hf`."""
    result, environment = artefact["result"], artefact["environment"]
    lines = [
        f"transformers {result['transformers']}, torch {environment['torch']}. "
        f"`{artefact['command']}`: {len(result['rows'])} architectures, "
        f"{result['seconds'] / 60:.0f} minutes on {environment['cores']} cores.",
        "",
        "| verdict | architectures |",
        "|---|---|",
        *(
            f"| {SYMBOLS[kind]} {kind} | {result['counts'][kind]} |"
            for kind in (EQUAL, *KINDS[:-1])
        ),
        "",
        "| not equal | why | which |",
        "|---|---|---|",
    ]
    for kind in KINDS[:-1]:
        for reason, which in groups(kind, result["rows"]).items():
            lines.append(f"| {SYMBOLS[kind]} {kind} | {reason} | {', '.join(which)} |")
    return "\n".join(lines) + "\n"


def groups(kind: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of one verdict by what their causes have in common; the biggest group first."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["kind"] == kind:
            reason = reason_of(kind, row["cause"]).replace("|", "\\|")
            found.setdefault(reason, []).append(f"`{row['subject'].removeprefix('hf:')}`")
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def reason_of(kind: str, cause: str) -> str:
    for pattern, name in _REASONS[kind]:
        match = re.search(pattern, cause)
        if match:
            return name or match[0]
    return cause.partition(": ")[0]
