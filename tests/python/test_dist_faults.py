"""A rank that is killed or stopped under DDP: what the others see of it, and how they end."""

from __future__ import annotations

import pytest
from tests.python import dist_faults, ranks


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[dict]:
    base = tmp_path_factory.getbasetemp()
    return ranks.run_once("tests.python.dist_faults", dist_faults.RANKS, base)


@pytest.mark.parametrize(("fault", "where"), dist_faults.LAUNCHES)
def test_survivors_name_the_rank_that_is_lost_in_time(lines, fault, where):
    told = [line for line in lines if (line.get("fault"), line.get("where")) == (fault, where)]
    (struck,) = [line for line in told if line["rank"] in dist_faults.LOST]
    survivors = [line for line in told if line["rank"] not in dist_faults.LOST]
    assert {line["rank"] for line in survivors} == {0, 2}
    for line in survivors:
        assert line["blamed"] == list(dist_faults.LOST), line["text"]
        assert not line["text"].startswith("[undefined]")  # torch's word for a group without a name
        assert line["step"] == dist_faults.STRIKES
        assert line["at"] - struck["at"] < dist_faults.TIMEOUT + 2


@pytest.mark.parametrize("words", dist_faults.LAUNCHES)
def test_survivors_end_as_programs_do(lines, words):
    """While the one that is lost is still stopped; with all that an interpreter does when it ends."""
    codes = {line["rank"]: line["exit_code"] for line in lines if line.get("words") == list(words)}
    assert codes == {0: 0, 2: 0}
