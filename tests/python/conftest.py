"""One thread per process (gradients are compared bitwise; xdist splits the work), tallies and samples.

A test may `record_property(name, flag)`; the terminal summary says how many tests set each flag, so
that a run shows how much of it was more than a comparison of eager with itself.

`@pytest.mark.sweep` is for tests with hundreds of cases that rarely fail alone: every op, every seed.
`--sweep-share 4` runs a quarter of their cases, always the same quarter, and the summary counts them.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import retape

sys.path.insert(0, str(Path(__file__).parents[2]))  # tests.python.bits, tests.python.programs
# c10d looks up the name of either end of each connection, loopback's too: a name server that does not
# answer costs a second then, and not five.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
torch.set_num_threads(1)
retape._C.set_least_lean_bytes(0)  # small tensors too

_tallies: dict[str, Counter[bool]] = {}
_sweeps: Counter[bool] = Counter()  # cases: taken, left out


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run one of N cases of each test that is marked as a sweep (default: all)"
    parser.addoption("--sweep-share", type=int, default=1, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sweep: hundreds of cases that rarely fail alone")


def sampled(cases: list[str], share: int) -> set[str]:
    """One of `share`, at least one, whatever the order. A new case leaves most of the choice as it was."""
    ranked = sorted(cases, key=lambda case: hashlib.sha256(case.encode()).digest())
    return set(ranked[: -(-len(ranked) // share)])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (share := config.getoption("--sweep-share")) <= 1:
        return
    sweeps: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("sweep"):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
    taken = {case for cases in sweeps.values() for case in sampled(cases, share)}
    left_out = [i for i in items if i.get_closest_marker("sweep") and i.nodeid not in taken]
    _sweeps.update({True: len(taken), False: len(left_out)})
    if hasattr(config, "workeroutput"):  # of xdist, whose summary is written elsewhere
        config.workeroutput["sweeps"] = (len(taken), len(left_out))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker has collected the same cases."""
    taken, left_out = getattr(node, "workeroutput", {}).get("sweeps", (0, 0))
    _sweeps.update({True: taken - _sweeps[True], False: left_out - _sweeps[False]})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call":
        return
    for name, flag in report.user_properties:
        if isinstance(flag, bool):
            _tallies.setdefault(name, Counter())[flag] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, counter in sorted(_tallies.items()):
        terminalreporter.write_line(f"{name}: {counter[True]} of {counter.total()}")
    if _sweeps[False]:
        text = f"sweeps: {_sweeps[True]} of {_sweeps.total()} cases, always the same; make test-all runs all"
        terminalreporter.write_line(text)
