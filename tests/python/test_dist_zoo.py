"""Every animal of the zoo is caught and named, and its clean twin is equal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.python import dist_zoo, ranks

EVEN, RAGGED, EMPTY = (f"{dist_zoo.RANKS}{how}" for how in ("", ", ragged", ", empty"))
NO_SCALE = "no factor explains it"


@dataclass(frozen=True)
class Found:
    """What a check must say. `tensors`: those that differ, all others are equal."""

    tensors: set[str]
    alpha: float | None = None  # none: not a scale
    guess: str | None = None  # none: no size makes it
    reason: str = ""
    topologies: tuple[str, ...] = (EVEN, RAGGED, EMPTY)
    terms: str = "loss"
    what: str = "gradient"

    @property
    def said(self) -> str:
        """In a word or two, as the page has it."""
        if self.alpha is None:
            return "have not the bits" if "bits" in self.reason else "no factor"
        return self.guess or f"{self.alpha:.6g}"


BOTH = {"w", "b"}
N = dist_zoo.RANKS
OR_MICROBATCHES = f"1 / n_ranks, or 1 / microbatches if there are {N}"
EXPECTED = {
    "microbatch_means": Found(BOTH, reason="only with ragged shards", topologies=(RAGGED, EMPTY)),
    "token_means": Found(BOTH, reason="only with ragged shards", topologies=(RAGGED, EMPTY)),
    "missing_world_size": Found(BOTH, 1 / N, "1 / n_ranks", OR_MICROBATCHES),
    "world_size_too_many": Found(BOTH, N, "n_ranks"),
    "normalised_twice": Found(
        BOTH, 1 / dist_zoo.MICROBATCHES, "1 / 2", "1 / 2, or 1 / microbatches if there are 2"
    ),
    "count_summed_twice": Found(BOTH, 1 / N, "1 / n_ranks", OR_MICROBATCHES),
    "local_log": Found(BOTH, reason="a function of a rank's own sum"),
    "autograd_all_reduce": Found(BOTH, N, "n_ranks"),
    "expert_scale": Found({"expert0", "expert1"}, dist_zoo.EXPERTS, "n_expert0"),
    "tied_twice": Found({"w"}, 2, "2"),
    "contrastive_average": Found({*BOTH, "keys"}, 1 / N, "1 / n_ranks"),
    "contrastive_own_queries": Found({"keys"}, reason="a part that is missing"),
    "clip_counts_replicas": Found({"all"}, math.sqrt(N), "sqrt(n_ranks)", what="norm"),
    "norm_not_reduced": Found({"norm"}, reason="ranks 1, 2, 3 have not the bits that rank 0 has"),
    "count_of_another_loss": Found(BOTH, 2 / 3, terms="next"),
    "rank_left_out": Found(BOTH, reason="a part that is missing"),
    "penalty_on_every_rank": Found({"w"}, N, "n_ranks", terms="penalty"),
    "reseeded_noise": Found(BOTH, reason="draws random numbers"),
    "residual_in_batch_norm": Found({"w"}, reason="a part that is missing"),
    "rows_dropped": Found(
        BOTH, reason="rows that are dropped or padded where shards differ", topologies=(RAGGED,)
    ),
    "state_left_over": Found(BOTH, reason="or state of an earlier run", topologies=(RAGGED, EMPTY)),
}
NAMES = [each.name for each in dist_zoo.ANIMALS]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> dict[tuple[str, bool], dict]:
    base = tmp_path_factory.getbasetemp()
    told = ranks.run_once("tests.python.dist_zoo", dist_zoo.RANKS, base)
    return {(each["animal"], each["broken"]): each for each in told}


def test_every_animal_is_here():
    assert len(NAMES) == len(set(NAMES)) >= 12
    assert set(EXPECTED) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_is_equal(zoo, name):
    report = zoo[name, False]
    assert report["kind"] == "equal", report
    assert {row["topology"] for row in report["rows"]} == {EVEN, RAGGED, EMPTY}
    assert report["worst_error"] < 1e-14


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrong_is_caught_and_named(zoo, name):
    report, expected = zoo[name, True], EXPECTED[name]
    assert (report["kind"], report["exit_code"]) == ("different", 1)
    wrong = [row for row in report["rows"] if row["kind"] != "equal" and not row["follows"]]
    assert {row["kind"] for row in wrong} == {"different"}
    assert {row["tensor"] for row in wrong} == expected.tensors
    assert {row["terms"] for row in wrong} == {expected.terms}
    assert {row["what"] for row in wrong} == {expected.what}
    for topology in expected.topologies:
        assert {row["tensor"] for row in wrong if row["topology"] == topology} == expected.tensors
    assert {row["topology"] for row in wrong} == set(expected.topologies)
    for row in wrong:
        assert expected.reason in row["reason"]
        if expected.alpha is None:
            assert row["residual"] > 1e-3
            assert row["guesses"] == []
            assert NO_SCALE in row["reason"]
        else:
            assert row["alpha"] == pytest.approx(expected.alpha, rel=1e-12)
            assert row["residual"] < 1e-12
            assert (expected.guess in row["guesses"]) if expected.guess else row["guesses"] == []


@pytest.mark.parametrize("name", ["microbatch_means", "token_means"])
def test_means_of_means_are_invisible_where_all_have_as_many_tokens(zoo, name):
    rows = [row for row in zoo[name, True]["rows"] if row["topology"] == EVEN]
    assert {row["tensor"] for row in rows} == BOTH
    assert max(row["error"] for row in rows) < 1e-14


@pytest.mark.parametrize(
    "name", ["microbatch_means", "token_means", "rows_dropped", "state_left_over"]
)
def test_what_differs_with_ragged_shards_alone_has_each_such_cause_as_a_candidate(zoo, name):
    rows = [row for row in zoo[name, True]["rows"] if row["kind"] == "different"]
    said = "only with ragged shards (4 is equal). Candidates: a mean of each rank's mean"
    assert all(said in row["reason"] for row in rows)
    assert all("rows that are dropped" in row["reason"] for row in rows)
    assert all("state of an earlier run" in row["reason"] for row in rows)


def test_a_small_loss_with_a_wrong_count_hides_in_the_sum_of_all(zoo):
    rows = zoo["count_of_another_loss", True]["rows"]
    alone = [row for row in rows if row["terms"] == "next"]
    together = [row for row in rows if row["terms"] == "all"]
    assert len(alone) == len(together) == 6
    # A third of it is missing; of all together that is less than float16 resolves.
    assert min(row["error"] for row in alone) > 0.3
    assert max(row["error"] for row in together) < 1e-3
    assert all(row["alpha"] == pytest.approx(1, abs=1e-3) for row in together)
    assert all(row["follows"] for row in together)


def test_experts_are_off_and_what_every_rank_holds_is_not(zoo):
    rows = [row for row in zoo["expert_scale", True]["rows"] if row["tensor"] == "dense"]
    assert [row["kind"] for row in rows] == ["equal", "equal", "equal"]


def test_a_wrong_norm_of_right_gradients_is_seen(zoo):
    rows = zoo["clip_counts_replicas", True]["rows"]
    assert {row["kind"] for row in rows if row["what"] == "gradient"} == {"equal"}
    assert {row["kind"] for row in rows if row["what"] == "norm"} == {"different"}


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_the_page_are_these(zoo, name):
    page = Path(__file__).resolve().parents[2] / "docs/ranks.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    (line,) = [each for each in lines if each.startswith(f"| `{name}` |")]
    shown = [cell.strip() for cell in line.strip("|").split("|")]
    wrong = [
        row for row in zoo[name, True]["rows"] if row["kind"] != "equal" and not row["follows"]
    ]
    for topology, cell in ((EVEN, shown[2]), (RAGGED, shown[3])):
        worst = max((row["error"] for row in wrong if row["topology"] == topology), default=0.0)
        assert f"{worst:.2g}" == cell
    assert EXPECTED[name].said in shown[4]
