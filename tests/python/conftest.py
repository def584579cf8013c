"""One thread per process (gradients are compared bitwise; xdist splits the work), and tallies.

A test may `record_property(name, flag)`; the terminal summary says how many tests set each flag, so
that a run shows how much of it was more than a comparison of eager with itself.
"""

from __future__ import annotations

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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call":
        return
    for name, flag in report.user_properties:
        if isinstance(flag, bool):
            _tallies.setdefault(name, Counter())[flag] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, counter in sorted(_tallies.items()):
        terminalreporter.write_line(f"{name}: {counter[True]} of {counter.total()}")
