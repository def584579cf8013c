"""Limits of time, judged from artefacts that were made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.python import bench_runs

from retape import _artefact, cli
from retape._text import Exit
from retape.bench import judge
from retape.bench.judge import BROKEN, MET, UNCLEAR
from retape.bench.result import Row, Run


def timed(method: str, family: str, ratio: float, half: float, gflop: float) -> Row:
    return bench_runs.row(
        method, family, 100, 0.12 * ratio, ratio=bench_runs.spread(ratio, half), gflop=gflop
    )


def run_of(
    cheap: float = 1.02,
    full: float = 1.18,
    peer: float = 1.25,
    half: float = 0.002,
    group: str = "blocks",
) -> Run:
    """Full replays a sixth of plain's FLOPs: it may take 1.03 * 7 / 6, which is 1.2017."""
    rows = [
        timed("plain", "plain", 1.0, 0.0, 6.0),
        timed("retape cheap", "retape", cheap, half, 6.0),
        timed("retape full", "retape", full, half, 7.0),
        timed("torch checkpoint", "torch", peer, half, 7.0),
    ]
    return bench_runs.run(bench_runs.subject(rows=rows, group=group, timelines=[]))


def verdicts(run: Run) -> dict[tuple[str, str], str]:
    return {
        (limit.method, limit.than.split()[0]): limit.verdict for limit in judge.judge(run).limits
    }


CHEAP, FULL = ("retape cheap", "plain"), ("retape full", "plain")
CHEAP_PEER, FULL_PEER = ("retape cheap", "torch"), ("retape full", "torch")


def test_a_run_within_its_limits_meets_all_of_them() -> None:
    found = judge.judge(run_of())
    assert [limit.verdict for limit in found.limits] == [MET] * 4
    assert found.exit_code() is Exit.OK


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"cheap": 1.06}, {CHEAP}),
        ({"full": 1.21}, {FULL}),
        ({"full": 1.19, "peer": 1.17}, {FULL_PEER}),
        ({"cheap": 1.04, "full": 1.10, "peer": 1.02}, {CHEAP_PEER, FULL_PEER}),
    ],
)
def test_each_limit_can_be_broken_by_itself(changes: dict, broken: set) -> None:
    found = verdicts(run_of(**changes))
    assert {key for key, verdict in found.items() if verdict == BROKEN} == broken
    assert judge.judge(run_of(**changes)).exit_code() is Exit.REGRESSION


@pytest.mark.parametrize(
    ("cheap", "half", "verdict"),
    [
        (1.04, 0.005, MET),  # 1.035 to 1.045
        (1.045, 0.015, MET),  # 1.029 to 1.061: close together, and the median is below
        (1.045, 0.03, UNCLEAR),  # 1.014 to 1.076
        (1.055, 0.015, UNCLEAR),  # the median is above, a quarter of the rounds below
        (1.08, 0.015, BROKEN),  # 1.064 to 1.096
        (1.2, 0.1, BROKEN),  # noisy, and yet clear
        (0.9, 0.1, MET),
    ],
)
def test_noise_decides_what_can_be_told(cheap: float, half: float, verdict: str) -> None:
    assert verdicts(run_of(cheap=cheap, half=half, peer=2.0))[CHEAP] == verdict


def test_a_noisy_peer_cannot_prove_that_retape_is_slower() -> None:
    run = run_of(cheap=1.01, full=1.19, peer=1.17)
    run.subjects[0].rows[3].ratio = (1.05, 1.17, 1.3)
    assert verdicts(run)[FULL_PEER] == UNCLEAR


def test_what_was_not_timed_is_not_called_met() -> None:
    run = run_of()
    run.subjects[0].rows[1].ratio = None
    run.subjects[0].rows[2].gflop = None
    found = verdicts(run)
    assert (found[CHEAP], found[FULL], found[FULL_PEER]) == (UNCLEAR, UNCLEAR, MET)
    for row in run.subjects[0].rows:
        row.ratio = None
    assert judge.judge(run).exit_code() is Exit.VACUOUS


def test_models_have_no_limits() -> None:
    assert judge.judge(run_of(group="models")).limits == []


@pytest.fixture
def artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def save(run: Run) -> str:
        made = _artefact.artefact("bench run", {}, run.to_dict(), 0, "retape bench")
        Path("run.json").write_text(json.dumps(made))
        return "run.json"

    return save


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({}, 0, "limits of time: 4 met"),
        (
            {"cheap": 1.06},
            3,
            "broken: swiglu, 8 layers, float32: retape cheap takes 1.060 x plain, expected at most "
            "plain + 5% (1.050)",
        ),
        (
            {"cheap": 1.045, "half": 0.03},
            0,
            "cannot judge: swiglu, 8 layers, float32: retape cheap",
        ),
        ({"group": "models"}, 6, "limits of time: no block was timed"),
    ],
)
def test_report_judges_an_artefact(artefact, capsys, changes, code, told) -> None:
    path = artefact(run_of(**changes))
    assert cli.main(["report", path, "--judge", "--json", "judged.json"]) == code
    assert told in " ".join(capsys.readouterr().out.split())
    assert "judge" in json.loads(Path("judged.json").read_text())["result"]
