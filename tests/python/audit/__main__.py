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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import database, schemas
from .check import Checker, Report
from .variants import overloads

PATIENCE = 60  # seconds of one child
BATCH = 12


def in_child(work: Callable[[Checker], None]) -> Report | None:
    """The report of what `work` did; None if the process died of it."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            _child(work, file)
        _, status = os.waitpid(pid, 0)
        if status != 0:
            return None
        file.seek(0)
        return pickle.load(file)


def _child(work: Callable[[Checker], None], file: Any) -> None:
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        signal.alarm(PATIENCE)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        checker = Checker()
        work(checker)
        pickle.dump(checker.report, file)
        file.flush()
        status = 0
    finally:
        os._exit(status)


def in_batches(
    jobs: list[Any], size: int, work: Callable[[Any, Checker], None], total: Report
) -> list[Any]:
    """Adds what all jobs found to `total`; returns those that ended their process."""

    def several(some: list[Any]) -> Report | None:
        return in_child(lambda checker: [work(job, checker) for job in some] and None)

    died = []
    for start in range(0, len(jobs), size):
        batch = jobs[start : start + size]
        report = several(batch)
        if report is not None:
            total.add(report)
            continue
        for job in batch:
            report = several([job])
            if report is None:
                died.append(job)
            else:
                total.add(report)
    return died


def run(part: int, parts: int) -> dict[str, Any]:
    """Every `parts`-th entry and family, from `part` on: all of them with 0 of 1."""
    begun = time.process_time() + sum(os.times()[2:4])
    total = Report()
    died = in_batches(database.entries()[part::parts], BATCH, database.audit_entry, total)
    rest = set(overloads()) - set(total.calls) if parts == 1 else set(overloads())
    families = schemas.families(rest)[part::parts]
    crashed = in_batches(families, BATCH, schemas.audit_family, total)
    for family in crashed:  # which overload of it?
        died += sum(in_batches([[n] for n in family], 1, schemas.audit_family, total), [])
    ran = set(total.calls) | total.composites
    return {
        "torch": torch.__version__,
        "died": sorted(set(died)),
        "overloads": len(overloads()),
        "ran": sorted(ran),
        "not called": {n: total.errors.get(n, "") for n in sorted(set(overloads()) - ran)},
        "composites": sorted(total.composites - set(total.calls)),
        "calls": sum(total.calls.values()),
        "counts": dict(total.counts),
        "findings": total.findings,
        "notes": total.notes,
        "hidden": {name: sorted(places) for name, places in sorted(total.hidden.items())},
        "uninitialized": sorted(total.uninitialized),
        "replaced": sorted(total.replaced - total.survives),
        "seconds": time.process_time() + sum(os.times()[2:4]) - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.python.audit", description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th job, from I on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, options.part.split("/"))
    found = run(part, parts)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.exit(1 if found["findings"] or found["died"] else 0)


if __name__ == "__main__":
    main()
