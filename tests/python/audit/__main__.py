"""`python -m tests.python.audit`: the whole audit, in child processes, one batch at a time.

Raw overloads trust their callers: arguments made from a schema may end the process. A batch whose
child dies is run again, one job per child, so that one op hides no other.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from . import database, schemas
from .check import CALLS, Checker, Report
from .variants import is_out, overloads

PATIENCE = 20  # seconds of a batch, in a child
BATCH = 12
OFTEN = 10  # times as many calls, where something is special


def in_child(work: Callable[[Checker], None], checker: Checker) -> Report | None:
    """The report of what `work` did with a copy of `checker`; None if the process died of it."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            _child(work, checker, file)
        _, status = os.waitpid(pid, 0)
        if status != 0:
            return None
        file.seek(0)
        return pickle.load(file)


def _child(work: Callable[[Checker], None], checker: Checker, file: Any) -> None:
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        signal.alarm(PATIENCE)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        work(checker)
        pickle.dump(checker.report, file)
        file.flush()
        status = 0
    finally:
        os._exit(status)


def over_database(entries: list[str], total: Report) -> list[str]:
    """Adds what all entries show to `total`; returns those that ended their process."""

    def run(some: list[str]) -> Report | None:
        checker = Checker(total.signatures)
        return in_child(
            lambda c: [database.audit_entry(name, c) for name in some] and None, checker
        )

    died = []
    for batch in _batches(entries, "entries of the database"):
        report = run(batch)
        if report is not None:
            total.add(report)
            continue
        for name in batch:
            report = run([name])
            if report is None:
                died.append(name)
            else:
                total.add(report)
    return died


def over_schemas(families: list[list[str]], total: Report, often: int = 1) -> set[tuple[str, int]]:
    """The same of overloads; returns the calls, by number, that ended their process."""
    progress = schemas.Progress()
    fatal: set[tuple[str, int]] = set()

    def run(some: list[list[str]]) -> Report | None:
        wanted = schemas.WANTED * often
        return in_child(
            lambda c: [schemas.audit_family(f, c, progress, fatal, wanted) for f in some] and None,
            Checker(total.signatures, CALLS * often),
        )

    for batch in _batches(families, "families of overloads"):
        report = run(batch)
        if report is not None:
            total.add(report)
            continue
        for family in batch:
            while family and (report := run([family])) is None:
                call = progress.get()
                if (
                    call in fatal
                ):  # what it did to the heap shows later: without this overload, then
                    family = [name for name in family if name != call[0]]
                fatal.add(call)
            if family:
                total.add(report)
    return fatal


def _batches(jobs: list[Any], what: str) -> Iterator[list[Any]]:
    for start in range(0, len(jobs), BATCH):
        print(f"{start} of {len(jobs)} {what}", file=sys.stderr, flush=True)
        yield jobs[start : start + BATCH]


def run(part: int, parts: int, only: set[str]) -> dict[str, Any]:
    """Every `parts`-th entry and family, from `part` on: all of them with 0 of 1, or `only` these entries and
    the families of these overloads. A run that is not a part calls those families again and more often that
    have something special: few calls may show one overload and miss another."""
    begun = sum(os.times()[:4])
    total = Report()
    entries = [name for name in database.entries() if name in only or not only]
    died = over_database(entries[part::parts], total)
    print(f"database: {sum(os.times()[:4]) - begun:.0f} s", file=sys.stderr)
    every = schemas.families(set(overloads()))
    if only:
        rest = [family for family in every if only.intersection(family)]
    else:
        rest = schemas.families(set(overloads()) - set(total.calls)) if parts == 1 else every
    fatal = over_schemas(rest[part::parts], total)
    if parts == 1:
        special = total.special()
        fatal |= over_schemas(
            [family for family in every if special.intersection(family)], total, OFTEN
        )
    ran = set(total.calls) | total.composites
    return {
        "torch": torch.__version__,
        "died": died,
        "fatal": sorted(f"{name}, call {number}" for name, number in fatal),
        "overloads": len(overloads()),
        "ran": sorted(ran),
        "not called": {n: total.errors.get(n, "") for n in sorted(set(overloads()) - ran)},
        "composites": sorted(total.composites - set(total.calls)),
        "calls": sum(total.calls.values()),
        "counts": dict(total.counts),
        "findings": total.findings,
        "notes": total.notes,
        "hidden": {
            name: {"arguments": sorted(arguments), "recipe": any(arguments.values())}
            for name, arguments in sorted(total.hidden.items())
        },
        "written": {
            name: {
                argument: {"out": is_out(name, argument), "kinds": sorted(kinds)}
                for argument, kinds in sorted(arguments.items())
            }
            for name, arguments in sorted(total.written.items())
        },
        "uninitialized": sorted(total.uninitialized),
        "replaced": sorted(total.replaced - total.survives),
        "seconds": round(sum(os.times()[:4]) - begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.python.audit", description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th job, from I on")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="overloads, entries of the database"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    found = run(part, parts, set(options.only))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.exit(1 if found["findings"] or found["died"] else 0)


if __name__ == "__main__":
    main()
