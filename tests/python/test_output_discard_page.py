"""docs/output_discard.md: its code runs as shown, its numbers and the tests that it names are real."""

from __future__ import annotations

import re
from pathlib import Path

from tests.python import discard_scenarios
from tests.python import test_output_discard_memory as memory

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/output_discard.md").read_text(encoding="utf-8")


def table() -> list[list[str]]:
    rows = PAGE.split("| probe |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_code_runs_as_shown(capsys) -> None:
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    assert (
        capsys.readouterr().out
        == f"{names['h'].nbytes} bytes were free between forward and backward\n"
    )


def test_bytes_of_the_page_are_those_that_the_memory_test_asserts() -> None:
    held = memory.LAYERS * memory.H + (memory.LAYERS - 1) * memory.X
    assert PAGE.count(f"{held:,} bytes") == 2


def test_every_probe_names_tests_that_exist() -> None:
    assert len(table()) == 40
    cpp = (ROOT / "tests/cpp/output_discard_test.cpp").read_text(encoding="utf-8")
    python = "".join(
        path.read_text(encoding="utf-8")
        for path in Path(__file__).parent.glob("test_output_discard*.py")
    )
    scenarios = {scenario.__name__ for scenario in discard_scenarios.FREED}
    for row in table():
        named = re.findall(r"`(\w+)`", row[-1])
        assert named or row[-1] == "same; same", row
        for name in named:
            found = (
                name in scenarios
                or f"def {name}(" in python
                or f"TEST(OutputDiscard, {name})" in cpp
            )
            assert found, name
