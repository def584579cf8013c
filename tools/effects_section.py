"""The section of docs/proofs.md on what ops write, from what `python -m tests.python.audit` counted."""

from __future__ import annotations

from typing import Any

HANDLED = {
    "kept": "its results are kept, and what it writes counts as written",
    "replayed": "replayed without the write, which counts as one",
}
# What arguments count as: out= or not, and the kinds that calls showed (tests.python.audit.effects.Effects.kind).
CLASSES: dict[tuple[bool, tuple[str, ...]], str] = {
    (True, ("overwritten",)): "overwritten: replay does not need its old content",
    (False, ("overwritten",)): "overwritten, though not `out=`",
    (True, ("overwritten", "updated")): "overwritten in training, updated in evaluation",
    (
        False,
        ("overwritten", "updated"),
    ): "overwritten in training, updated in evaluation, though not `out=`",
    (False, ("updated",)): "updated: replay needs its old content",
    (True, ("updated",)): "updated, though `out=`",
    (False, ("read", "updated")): "updated in training, read in evaluation",
    (False, ("read",)): "read: only sizes and strides change",
}
USUAL = {
    (True, ("overwritten",)): "every other `out=` argument",
    (False, ("updated",)): "every other argument",
}


def markdown(found: dict[str, Any]) -> str:
    counts = found["counts"]
    rows = [
        ("aten overloads", found["overloads"]),
        ("... that were run", len(found["ran"])),
        ("... of these, composites, audited as the ops that they call", len(found["composites"])),
        (
            "... not run: other devices and layouts, or no rule makes their arguments",
            len(found["not called"]),
        ),
        ("calls", found["calls"]),
        (
            "arguments compared before and after, all bytes of their storage",
            counts["arguments compared"],
        ),
        (
            "overloads that write to an argument that their schema calls read-only",
            len(found["hidden"]),
        ),
        (
            "calls in which all of an argument counts as overwritten, from two contents",
            counts["overwrites checked"],
        ),
        (
            "calls whose results were compared from memory poisoned in two ways",
            counts["results checked for unwritten memory"],
        ),
        (
            "overloads that return unwritten memory, none of them replayed",
            len(found["uninitialized"]),
        ),
        ("writes that Retape does not know of", _count(found, "written, not known")),
        (
            "old content that survives where Retape assumes that none does",
            _count(found, "old content survives"),
        ),
        (
            "unwritten memory in results that would be replayed",
            _count(found, "unwritten memory in a result"),
        ),
    ]
    lines = [f"torch {found['torch']}.", "", "| what was run and compared | |", "|---|---|"]
    lines += [f"| {what} | {count:,} |" for what, count in rows]
    lines += [
        "",
        "| writes without saying so | arguments | Retape |",
        "|---|---|---|",
        *hidden_rows(found),
    ]
    lines += [
        "",
        "| an argument that an overload may write counts as | arguments | which |",
        "|---|---|---|",
    ]
    lines += overwrite_rows(found)
    return "\n".join([*lines, "", unwritten_line(found)]) + "\n"


def hidden_rows(found: dict[str, Any]) -> list[str]:
    return [
        f"| `{name}` | {', '.join(hidden['arguments'])} | {HANDLED['replayed' if hidden['recipe'] else 'kept']} |"
        for name, hidden in sorted(found["hidden"].items())
    ]


def overwrite_rows(found: dict[str, Any]) -> list[str]:
    """One for each class; the usual ones have a count alone, the others name every argument."""
    members: dict[tuple[bool, tuple[str, ...]], dict[str, list[str]]] = {key: {} for key in CLASSES}
    for name, arguments in sorted(found["written"].items()):
        for argument, seen in arguments.items():
            members[seen["out"], tuple(seen["kinds"])].setdefault(name, []).append(argument)
    return [
        f"| {what} | {sum(map(len, members[key].values())):,} | {USUAL.get(key) or _named(members[key])} |"
        for key, what in CLASSES.items()
    ]


def unwritten_line(found: dict[str, Any]) -> str:
    return "Return unwritten memory: " + ", ".join(f"`{n}`" for n in found["uninitialized"]) + "."


def _named(members: dict[str, list[str]]) -> str:
    return ", ".join(
        f"`{name}`" if arguments == ["self"] else f"`{name}` ({', '.join(arguments)})"
        for name, arguments in members.items()
    )


def _count(found: dict[str, Any], what: str) -> int:
    return sum(finding["what"] == what for finding in found["findings"])
