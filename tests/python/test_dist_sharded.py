"""retape.dist beside FSDP2: four ranks do what tests/python/dist_sharded.py says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.python import ranks

RANKS = 4
Told = Callable[[str], list[dict]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[dict]:
    return ranks.run_once("tests.python.dist_sharded", RANKS, tmp_path_factory.getbasetemp())


@pytest.fixture
def told(lines) -> Told:
    def of(scenario: str) -> list[dict]:
        found = [line for line in lines if line["scenario"] == scenario]
        assert len(found) == RANKS
        for line in found:
            assert "failed" not in line, f"rank {line['rank']}: {line['failed']}"
        return found

    return of


@pytest.mark.parametrize("mesh", ["fsdp", "hsdp"])
def test_sums_are_those_of_one_process(told, mesh):
    for line in told(mesh):
        assert line["off"] < 1e-14


@pytest.mark.parametrize("mesh", ["fsdp", "hsdp"])
def test_a_clip_norm_counts_every_shard_once(told, mesh):
    for line in told(mesh):
        assert line["norm"] == pytest.approx(line["expected"], rel=1e-14)
        assert line["norm"] == pytest.approx(line["torch"], rel=1e-14)
        assert line["clipped"] < 1e-14
        assert line["largest"] == pytest.approx(1, rel=1e-14)


def test_shards_and_what_is_not_sharded_have_one_norm(told):
    for line in told("beside"):
        assert line["norm"] == pytest.approx(line["expected"], rel=1e-14)
        assert line["scaled"] == pytest.approx([1, 1, 1], rel=1e-14)


def test_a_gradient_that_is_not_reduced_has_no_norm(told):
    for line in told("refused"):
        assert line["clip"]["kind"] == "UsageError"
        assert 'is Partial over "data"' in line["clip"]["text"]
        assert "Fix: reduce it first" in line["clip"]["text"]
        assert line["left"] == [1, 1, 1]


@pytest.mark.parametrize("call", ["add", "gradients"])
def test_a_reducer_takes_no_dtensors(told, call):
    for line in told("refused"):
        assert line[call]["kind"] == "UsageError"
        assert '[SumReducer] "w" is a DTensor' in line[call]["text"]
        assert "Fix: fsdp_sums(model)" in line[call]["text"]
