"""The section of docs/proofs.md on what ops write, from what `python -m tests.python.audit` counted."""

from __future__ import annotations

from typing import Any

HANDLED = {
    "kept": "its results are kept, and what it writes counts as written",
    "replayed": "replayed without the write, which counts as one",
}


def markdown(found: dict[str, Any]) -> str:
    counts = found["counts"]
    rows = [
        ("aten overloads", found["overloads"]),
        ("... that were run", len(found["ran"])),
        ("... of these, composites, audited as the ops that they call", len(found["composites"])),
        ("... not run: other devices and layouts, or no rule makes their arguments", len(found["not called"])),
        ("calls", found["calls"]),
        ("arguments compared before and after, all bytes of their storage", counts["arguments compared"]),
        ("overloads that write to an argument that their schema calls read-only", len(found["hidden"])),
        ("calls in which all of an argument counts as overwritten, from two contents", counts["overwrites checked"]),
        ("calls whose results were compared from memory poisoned in two ways",
         counts["results checked for unwritten memory"]),
        ("overloads that return unwritten memory, none of them replayed", len(found["uninitialized"])),
        ("writes that Retape does not know of", _count(found, "written, not known")),
        ("old content that survives where Retape assumes that none does", _count(found, "old content survives")),
        ("unwritten memory in results that would be replayed", _count(found, "unwritten memory in a result")),
    ]
    lines = [f"torch {found['torch']}.", "", "| what was run and compared | |", "|---|---|"]
    lines += [f"| {what} | {count:,} |" for what, count in rows]
    lines += ["", "| writes without saying so | arguments | Retape |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {', '.join(hidden['arguments'])} | {HANDLED['replayed' if hidden['recipe'] else 'kept']} |"
        for name, hidden in sorted(found["hidden"].items())
    ]
    lines += ["", "Return unwritten memory: " + ", ".join(f"`{n}`" for n in found["uninitialized"]) + "."]
    return "\n".join(lines) + "\n"


def _count(found: dict[str, Any], what: str) -> int:
    return sum(finding["what"] == what for finding in found["findings"])
