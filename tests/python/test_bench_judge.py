"""Limits of time, judged from artefacts that were made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.python import bench_runs

from retape import _artefact, cli
from retape._text import Exit, median_between
from retape.bench import judge
from retape.bench.judge import BROKEN, MET, UNCLEAR
from retape.bench.result import Row, Run


def timed(method: str, family: str, ratios: Sequence[float], gflop: float) -> Row:
    return bench_runs.row(method, family, 100, 0.12, ratios=list(ratios), gflop=gflop)


def around(middle: float, half: float, rounds: int = 7) -> list[float]:
    """Evenly spread."""
    return [middle * (1 + half * (2 * i / (rounds - 1) - 1)) for i in range(rounds)]


def run_of(
    cheap: float = 1.02,
    full: float = 1.18,
    peer: float = 1.25,
    half: float = 0.002,
    rounds: int = 7,
    group: str = "blocks",
) -> Run:
    """Full replays a sixth of plain's FLOPs: it may take 1.03 * 7 / 6, which is 1.2017."""
    rows = [
        timed("plain", "plain", [1.0] * rounds, 6.0),
        timed("retape cheap", "retape", around(cheap, half, rounds), 6.0),
        timed("retape full", "retape", around(full, half, rounds), 7.0),
        timed("torch checkpoint", "torch", around(peer, half, rounds), 7.0),
    ]
    return bench_runs.run(bench_runs.subject(rows=rows, group=group, timelines=[]))


def verdicts(run: Run) -> dict[tuple[str, str], str]:
    return {
        (limit.method, limit.beside.split()[0]): limit.verdict for limit in judge.judge(run).limits
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
    ("cheap", "half", "rounds", "verdict"),
    [
        (1.04, 0.005, 7, MET),  # of seven rounds: all of them
        (1.04, 0.03, 7, UNCLEAR),  # 1.009 to 1.071
        (1.04, 0.03, 101, MET),  # of a hundred: the middle twenty, 1.034 to 1.046
        (1.06, 0.03, 7, UNCLEAR),
        (1.06, 0.03, 101, BROKEN),
        (1.2, 0.1, 7, BROKEN),  # noisy, and yet clear
        (0.9, 0.1, 7, MET),
        (0.9, 0.0, 5, UNCLEAR),  # one of two could be chance
    ],
)
def test_noise_and_rounds_decide_what_can_be_told(
    cheap: float, half: float, rounds: int, verdict: str
) -> None:
    assert verdicts(run_of(cheap=cheap, half=half, rounds=rounds, peer=2.0))[CHEAP] == verdict


def test_a_peer_is_compared_round_by_round() -> None:
    """What slows a round slows both."""
    run = run_of(full=1.19)
    slow = [1.19, 1.3, 1.7, 1.2, 1.9, 1.25, 1.4]
    run.subjects[0].rows[2].ratios = slow
    run.subjects[0].rows[3].ratios = [ratio * 1.02 for ratio in slow]
    assert verdicts(run)[FULL_PEER] == MET
    run.subjects[0].rows[3].ratios = [ratio * 0.98 for ratio in slow]
    assert verdicts(run)[FULL_PEER] == BROKEN


def test_a_peer_that_is_as_quick_is_not_quicker() -> None:
    assert verdicts(run_of(full=1.18, peer=1.18))[FULL_PEER] == MET
    run = run_of()
    run.subjects[0].rows[3].ratios = list(reversed(around(1.18, 0.05)))
    run.subjects[0].rows[2].ratios = around(1.18, 0.05)
    assert verdicts(run)[FULL_PEER] == UNCLEAR


def test_what_was_not_timed_is_not_called_met() -> None:
    run = run_of()
    run.subjects[0].rows[1].ratios = []
    run.subjects[0].rows[2].gflop = None
    found = verdicts(run)
    assert (found[CHEAP], found[FULL], found[FULL_PEER]) == (UNCLEAR, UNCLEAR, MET)
    for row in run.subjects[0].rows:
        row.ratios = []
    assert judge.judge(run).exit_code() is Exit.VACUOUS


@pytest.mark.parametrize("count", [6, 7, 20, 31, 100])
def test_the_median_lies_between_two_values_with_the_certainty_that_is_said(count: int) -> None:
    """By the definition: how probable it is that too many of a sample lie on one side."""
    ordered = [float(i) for i in range(count)]
    low, middle, high = median_between(ordered[::-1])
    assert middle == (count - 1) / 2
    assert low + high == count - 1

    def outside(places: int) -> float:
        return 2 * sum(math.comb(count, i) for i in range(places)) / 2**count

    assert outside(int(low) + 1) <= 0.05 < outside(int(low) + 2)


def test_five_values_tell_nothing_of_a_median() -> None:
    assert median_between([1.0] * 5) is None
    assert median_between([]) is None


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
            "broken: swiglu, 8 layers, float32: retape cheap takes 1.060 (1.058 to 1.062) x plain, "
            "expected at most 1.050: plain + 5%",
        ),
        (
            {"cheap": 1.045, "half": 0.03},
            6,
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
