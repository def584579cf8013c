"""Every fault that can be injected is caught, and by its name; without it there is nothing to tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import retape
from retape import _C
from retape.cli.verify import faults
from retape.cli.verify.case import Case, injected, run
from retape.subjects.faults import PROGRAMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "proofs.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"
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


def test_it_is_the_first_thing_told_and_the_page_has_the_message(case: Case) -> None:
    """Numbers may be another machine's. To write the page anew: make proofs."""
    found = faults.verdict(FAULTS[case.fault], [run(case)])
    assert found.kind == faults.CAUGHT, found
    assert found.hits > 0
    row = without_numbers(faults.row(found))
    assert row in [without_numbers(line) for line in rows_of_the_page()], "make proofs"


def test_it_is_off_again_afterwards(case: Case) -> None:
    run(case)
    assert not any(_C.is_injected(name) for name in FAULTS)


def test_the_page_has_a_row_for_each_and_no_other() -> None:
    names = [line.split("`")[1] for line in rows_of_the_page()]
    assert names == list(FAULTS), "make proofs"
    assert "| fault | what it breaks | caught by | message |" in PAGE.read_text(encoding="utf-8")


def rows_of_the_page() -> list[str]:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    return [line for line in shown.splitlines() if line.startswith("| `")]


def without_numbers(row: str) -> str:
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", "#", row)


@pytest.mark.parametrize("name", ["stops-early", "stops-late", "default-device"])
def test_what_goes_wrong_in_a_second_run_is_told_with_op_region_and_line(name: str) -> None:
    finding = run(faults.programs([name])[0]).verdict.findings[0]
    assert finding.op.startswith("aten::")
    assert finding.region == "inner"
    assert finding.source.startswith("faults.py:")


def test_another_result_of_a_second_run_is_told_with_op_region_and_line() -> None:
    x = torch.rand(4, requires_grad=True)
    calls = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x.sin() * len(calls)).exp()

    with _C.Observer() as observer:
        out = retape.checkpoint(function, x, method="rerun", name="block")
        with pytest.raises(retape.ReplayMismatch):
            out.sum().backward()
    finding = observer.findings[0]
    assert (finding.kind, finding.op, finding.region) == ("values", "aten::exp", "block")
    assert finding.source.startswith("test_faults.py:")
    assert finding.source.endswith("in function")


def test_a_message_has_the_region() -> None:
    result = run(faults.programs(["one-ulp"])[0])
    assert f'region "{result.verdict.findings[0].region}"' in result.cause


# ---- in models that were not made for them -------------------------------------------------------

WAYS = [("replay", ()), ("rerun", ()), ("rerun", ("auto",))]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_in_any_model_it_is_caught_or_does_not_strike(name: str) -> None:
    cases = [
        Case("demo:gpt", method=method, layers=layers, steps=2, orders=True, fault=name)
        for method, layers in WAYS
    ]
    found = faults.verdict(FAULTS[name], [run(case) for case in cases])
    assert found.kind in (faults.CAUGHT, faults.NOT_STRUCK), found
    assert (found.kind == faults.NOT_STRUCK) == (found.hits == 0)


@pytest.mark.parametrize("name", ["leak", "nan-payload"])
def test_a_finding_alone_makes_it_different(name: str) -> None:
    """As docs/verify.md says: a gradient that came out right all the same is luck."""
    verdict = run(faults.programs([name])[0]).verdict
    assert verdict.differences == []
    assert not verdict.error
    assert verdict.findings
    assert verdict.kind == "different"


def test_where_it_does_not_strike_nothing_is_proved() -> None:
    result = run(
        Case("demo:gpt", fault="private-generator")
    )  # which draws from the default one only
    assert (result.kind, result.hits) == ("vacuous", 0)
    assert result.cause.startswith("the fault private-generator did not strike")


class Scaled(torch.nn.Module):
    """A layer that makes a tensor of its own, where the default device says or where it says itself."""

    def __init__(self, device: str | None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin() * torch.tensor([1.0, 2.0, 3.0, 4.0], device=self.device)


@pytest.mark.parametrize(("device", "kinds"), [(None, ["default device"]), ("cpu", [])])
def test_another_default_device_strikes_where_a_tensor_is_made_there(device, kinds) -> None:
    fault = injected("default-device")
    with fault:
        verdict = retape.verify(
            torch.nn.Sequential(Scaled(device), Scaled(device)),
            torch.rand(2, 4),
            layers=["0", "1"],
            method="rerun",
        )
    assert (fault.hits > 0) == bool(kinds)
    assert [finding.kind for finding in verdict.findings[:1]] == kinds, verdict.explain()
    assert verdict.kind == ("different" if kinds else "equal")


@pytest.mark.parametrize("name", ["one-ulp", "rng-not-restored", "missing-argument"])
def test_what_comes_of_it_is_not_told_by_another_name(name: str) -> None:
    verdict = run(Case("demo:gpt", fault=name)).verdict
    assert {finding.kind for finding in verdict.findings} == {FAULTS[name].kind}


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(retape.UsageError, match="no such fault"):
        _C.inject("gremlin")
