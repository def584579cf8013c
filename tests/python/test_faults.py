"""Every fault that can be injected is caught, and by its name; without it there is nothing to tell."""

from __future__ import annotations

from pathlib import Path

import pytest

import retape
from retape import _C
from retape.subjects.faults import PROGRAMS
from retape.verifying import faults
from retape.verifying.case import Case, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proofs.md"
FAULTS = {fault.id: fault for fault in _C.faults()}


def test_this_build_has_them() -> None:
    assert set(FAULTS) == set(PROGRAMS), "make test builds with RETAPE_FAULTS=ON"
    assert len({fault.kind for fault in FAULTS.values()}) == len(FAULTS) == 25


@pytest.fixture(params=sorted(PROGRAMS))
def case(request: pytest.FixtureRequest) -> Case:
    return faults.programs([request.param])[0]


def test_its_model_is_equal_without_it(case: Case) -> None:
    result = run(Case(**{**vars(case), "fault": None}))
    assert result.kind == "equal", result.explanation
    assert result.verdict.findings == []


def test_it_is_the_first_thing_told(case: Case) -> None:
    result = run(case)
    assert result.hits > 0
    assert result.kind == "different", result.explanation
    assert result.verdict.findings[0].kind == FAULTS[case.fault].kind, result.explanation


def test_it_is_off_again_afterwards(case: Case) -> None:
    run(case)
    assert not any(_C.is_injected(name) for name in FAULTS)


def test_the_page_has_a_line_for_each() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, fault in FAULTS.items():
        assert f"| `{name}` | {fault.breaks} | ✓ caught | {fault.kind}: " in page, "make proofs"


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(retape.UsageError, match="no such fault"):
        _C.inject("gremlin")
