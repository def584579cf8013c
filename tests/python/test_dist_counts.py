"""Counts of a step, and what one rank alone has. With more ranks: tests/cpp/dist, by the same code."""

from __future__ import annotations

import pytest
import torch

import retape
import retape.dist as rd
from retape import _dist


@pytest.fixture
def alone() -> _dist.Group:
    return _dist.Group.alone("alone")


def test_all_counts_of_a_step_are_denominators(alone):
    counts = rd.StepCounts(alone, tokens=4, images=2)
    assert (int(counts["tokens"]), counts["images"].ranks) == (4, [0])
    assert rd.normalize(torch.tensor(6.0), counts["tokens"]).value.item() == 1.5


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rows", "was not counted. There is: none, tokens"),
        ("none", "there is nothing to divide by"),
    ],
)
def test_what_is_no_denominator_says_why(alone, name, told):
    counts = rd.StepCounts(alone, tokens=4, none=0)
    with pytest.raises(retape.UsageError, match=told):
        counts[name]


def test_what_is_no_count_is_refused(alone):
    with pytest.raises(TypeError, match=r"\[StepCounts\] 'tokens': expected an integer, got 2.5"):
        rd.StepCounts(alone, tokens=2.5)
    with pytest.raises(retape.UsageError, match="a rank counts less than none"):
        rd.StepCounts(alone, tokens=-1)


def test_a_mean_for_logs_is_a_number(alone):
    assert rd.global_mean("loss", torch.tensor(6.0, requires_grad=True), 4, alone) == 1.5
    with pytest.raises(TypeError, match=r"\[global_mean\] 'loss': expected an integer, got 4.0"):
        rd.global_mean("loss", 6.0, 4.0, alone)
    with pytest.raises(retape.UsageError, match="expected at least 0 on each, and 1 in all"):
        rd.global_mean("loss", 6.0, 0, alone)


def test_what_one_rank_has_is_its_part(alone):
    part = rd.contribute_from("sum", torch.ones(2), alone)
    assert isinstance(part, rd.Partial)
    assert part.value.tolist() == [1.0, 1.0]
    with pytest.raises(retape.UsageError, match=r"\[contribute_from\] \"sum\": no index 1"):
        rd.contribute_from("sum", torch.ones(2), alone, owner=1)


def test_what_is_summed_says_what_it_is(alone):
    tensor = torch.ones(2)
    alone.sum("a", rd.Partial(tensor))
    alone.sum_async("a", tensor, ordered=True).wait()
    with pytest.raises(
        TypeError, match=r"\[Group.sum\] 'a': a Replicated value.*Fix: retape.dist.contribute_once"
    ):
        alone.sum("a", rd.Replicated(tensor))
    with pytest.raises(TypeError, match="expected a tensor or a Partial, got list"):
        alone.sum_async("a", [1.0])
    with pytest.raises(
        TypeError, match=r"\[normalize\] expected a tensor, got Partial. Fix: its .value."
    ):
        rd.normalize(rd.Partial(tensor), rd.count_global("n", 1, alone))
    with pytest.raises(retape.UsageError, match="is Short, which transports do not add"):
        alone.sum("a", tensor.to(torch.int16))
    assert tensor.tolist() == [1.0, 1.0]
