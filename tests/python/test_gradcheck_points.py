"""What GradCheck promises, point by point: four ranks run each step of tests/python/gradcheck_points.py."""

from __future__ import annotations

import pytest
from tests.python import gradcheck_points, ranks


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, dict]:
    base = tmp_path_factory.getbasetemp()
    told = ranks.run_once("tests.python.gradcheck_points", gradcheck_points.RANKS, base)
    return {line["name"]: {**line["report"], "text": line["text"]} for line in told}


def wrong(report: dict) -> list[dict]:
    """Rows that differ, and do not follow from others."""
    return [row for row in report["rows"] if row["kind"] == "different" and not row["follows"]]


def test_a_right_step_is_equal_in_all_that_is_compared(reports):
    report = reports["right"]
    assert report["kind"] == "equal", report["text"]
    assert {row["what"] for row in report["rows"]} == {"gradient", "norm", "parameter"}
    exact = [row["error"] for row in report["rows"] if row["dtype"] == "float64"]
    assert max(exact) < 1e-14


def test_every_term_is_alone_and_all_are_together(reports):
    terms = {row["terms"] for row in reports["right"]["rows"]}
    assert terms == {"all", "fit", "noise", "penalty", "all, 3 steps"}


def test_a_term_too_small_beside_the_others_is_vacuous(reports):
    report = reports["too_small"]
    assert (report["kind"], report["exit_code"]) == ("vacuous", 6)
    assert report["vacuous"] == []  # for no other reason
    rows = [row for row in report["rows"] if row["kind"] == "vacuous"]
    assert {row["terms"] for row in rows} == {"penalty"}
    assert all("it cannot be seen there" in row["reason"] for row in rows)


def test_a_factor_is_fitted_and_named_by_sizes(reports):
    rows = wrong(reports["other_pool"])
    assert {row["terms"] for row in rows} == {"fit"}
    found = {(row["topology"], row["tensor"]): (row["alpha"], row["guesses"]) for row in rows}
    # In one of them it could be n_right alone: both together say which sizes were mixed up.
    assert found["1, 3", "left"] == (pytest.approx(3), ["n_right / n_left"])
    assert found["1, 3", "right"] == (pytest.approx(1 / 3), ["n_left / n_right"])
    assert found["3, 1", "left"] == (pytest.approx(1 / 3), ["n_right / n_left"])
    assert max(row["residual"] for row in rows) < 1e-12


def test_topologies_of_all_ones_of_all_sizes_and_of_both_directions_of_fan(reports):
    report = reports["right"]
    given = {row["topology"] for row in report["rows"]}
    ragged, empty = ({f"{name}, {how}" for name in ("1, 3", "3, 1")} for how in ("ragged", "empty"))
    assert given == {"1, 1", "1, 3", "3, 1", *ragged, *empty}
    missing = ("direction", "one rank in every", "are even in every", "microbatches")
    assert not any(text in note for text in missing for note in report["notes"])


def test_what_a_square_hides_is_vacuous_and_not_equal(reports):
    report = reports["other_pool_in_a_square"]
    assert max(row["error"] for row in report["rows"]) < 1e-14
    assert report["kind"] == "vacuous"
    assert "n_left and n_right are equal in every topology" in report["vacuous"][0]
    lives = [row for row in reports["square"]["self_test"]["rows"] if not row["killed"]]
    assert {(row["mutation"], row["pool"]) for row in lives} == {
        ("other count", "left"),
        ("other count", "right"),
    }


def test_microbatches_are_ragged_so_that_a_mean_of_their_means_is_seen(reports):
    found = wrong(reports["mean_of_microbatches"])
    assert {row["terms"] for row in found} == {"fit"}
    assert {row["topology"] for row in found} == {"1, 1", "1, 3", "1, 3, ragged", "1, 3, empty"}
    rows = [row for row in found if row["error"] is not None]  # a rank without rows divides by 0
    assert {row["topology"] for row in rows} >= {"1, 1", "1, 3", "1, 3, ragged"}
    assert min(row["residual"] for row in rows) > 0.05
    assert all("no factor explains it" in row["reason"] for row in rows)


def test_a_rank_has_no_rows_so_that_a_count_of_at_least_one_is_seen(reports):
    report = reports["counts_at_least_one"]
    assert {row["topology"] for row in report["rows"]} == {"4", "4, ragged", "4, empty"}
    rows = wrong(report)
    assert {row["topology"] for row in rows} == {"4, empty"}
    said = (
        "only where a rank has no rows (4 is equal). Candidates: a count of at least 1 for 0 rows"
    )
    assert all(said in row["reason"] for row in rows)


@pytest.mark.parametrize("how", ["", "_without_self_test", "_summed_by_torch"])
@pytest.mark.parametrize("name", ["alike_rows", "mean_of_means_of_alike_rows"])
def test_where_rows_are_alike_a_note_says_that_a_mean_of_means_would_not_be_seen(
    reports, name, how
):
    report = reports[name + how]
    assert report["kind"] == "equal", report["text"]
    (note,) = [
        note for note in report["notes"] if "a mean of each rank's mean would not be seen" in note
    ]
    assert 'term "fit" with 4, ragged' in note
    assert "Fix: rows that differ" in note


# With a self-test, without one, and where torch alone sums.
@pytest.mark.parametrize("name", ["right", "shared", "nothing_through_retape_and_no_self_test"])
def test_where_rows_differ_nothing_is_said_of_them(reports, name):
    assert reports[name]["kind"] == "equal"
    assert not any("rows that differ" in note for note in reports[name]["notes"])


def test_numbers_drawn_by_rank_are_seen_and_explained(reports):
    rows = wrong(reports["reseeded"])
    assert {row["terms"] for row in rows} == {"noise"}
    assert all("may draw others on ranks" in row["reason"] for row in rows)


def test_replicas_have_the_same_bits(reports):
    rows = wrong(reports["not_the_same"])
    assert max(row["error"] for row in rows) < 1e-14
    assert all("replicas drift apart" in row["reason"] for row in rows)
    assert {row["topology"] for row in rows} == {"1, 3", "1, 3, ragged", "1, 3, empty"}


def test_a_replica_without_the_gradient_is_different(reports):
    rows = wrong(reports["none_on_one_rank"])
    assert {row["topology"] for row in rows} == {"4", "4, ragged", "4, empty"}
    said = "rank 1 has none, and rank 0 has one: replicas drift apart"
    assert {row["reason"] for row in rows} == {said}


def test_with_rows_a_name_that_a_rank_leaves_out_is_different(reports):
    report = reports["left_out_on_one_rank"]
    assert (report["kind"], report["exit_code"]) == ("different", 1)
    rows = wrong(report)
    assert {row["topology"] for row in rows} == {row["topology"] for row in report["rows"]}
    said = "rank 1 does not return it, and ranks 0, 2 and 3 do"
    assert all(row["reason"].startswith(said) for row in rows)
    assert max(row["error"] for row in rows) < 1e-14  # of those that return it


def test_with_rows_one_name_of_several_that_a_rank_leaves_out_is_different(reports):
    report = reports["one_of_several_left_out_on_one_rank"]
    assert report["exit_code"] == 1
    rows = wrong(report)
    assert {row["tensor"] for row in rows} == {"right"}
    assert {row["topology"] for row in rows} == {"4", "4, ragged", "4, empty"}
    said = "rank 1 does not return it, and ranks 0, 2 and 3 do"
    assert all(row["reason"].startswith(said) for row in rows)


def test_in_pools_a_rank_that_returns_nothing_is_noted(reports):
    report = reports["left_out_on_one_rank_of_a_pool"]
    assert report["kind"] == "equal"
    (note,) = [
        note for note in report["notes"] if "rank 1 returns nothing (in 4; 4, ragged" in note
    ]
    assert "not compared" in note


def test_a_pool_that_does_not_return_what_another_returns_is_noted(reports):
    """Its own parameters, or one that both hold and that it has lost: only the user knows."""
    everywhere = "(in 1, 1; 1, 3; 3, 1; 1, 3, ragged; 3, 1, ragged)"
    left = f'pool "left" does not return gradient "right", and pool "right" does {everywhere}'
    names = {"shared": 'gradient "left"', "shared_left_out_by_a_pool": 'gradients "left", "shared"'}
    for name, missed in names.items():
        report = reports[name]
        assert report["kind"] == "equal", report["text"]
        notes = [note for note in report["notes"] if "not return" in note]
        right = f'pool "right" does not return {missed}, and pool "left" does {everywhere}'
        assert {note.split(":")[0] for note in notes} == {left, right}
        assert all("not compared" in note for note in notes)


def test_a_pool_that_has_parameters_of_its_own_is_noted_once(reports):
    notes = {note.split(" (in")[0] for note in reports["right"]["notes"] if "not return" in note}
    assert notes == {
        f'pool "{pool}" does not return gradient "{other}", parameter "{other}", and pool "{other}" does'
        for pool, other in (("left", "right"), ("right", "left"))
    }


def test_a_rest_that_float32_leaves_is_named_with_a_factor_and_without(reports):
    rest = (
        "float32 rounds like that. Candidates: a part of the step that computes or sends in float32"
    )
    factors = {
        "through_float32": "no factor explains it (alpha 1,",
        "average_through_float32": "0.25 times the reference: 1 / n_ranks, or 1 / microbatches if there are 4",
        "third_through_float32": "Candidate: 1 / microbatches if there are 3",
    }
    for name, factor in factors.items():
        rows = wrong(reports[name])
        assert {row["topology"] for row in rows} == {"4", "4, ragged", "4, empty"}
        assert all(factor in row["reason"] and rest in row["reason"] for row in rows), rows
        assert not any("a mean of each rank's mean" in row["reason"] for row in rows)


def test_a_parameter_that_may_be_dead_and_is_reduced_with_others_is_no_mutant(reports):
    report = reports["dead_and_reduced"]
    assert report["kind"] == "equal", report["text"]
    assert report["self_test"]["killed"] == report["self_test"]["mutants"] > 0


def test_a_sum_of_what_may_be_dead_is_matched_by_the_name_of_the_sum(reports):
    report = reports["dead_and_summed_by_another_name"]
    assert report["kind"] == "vacuous", report["text"]
    lives = {row["name"] for row in report["self_test"]["rows"] if not row["killed"]}
    assert lives == {"grad of dead"}


def test_a_clip_norm_counts_each_parameter_once(reports):
    rows = wrong(reports["every_replica"])
    assert {(row["what"], row["tensor"]) for row in rows} == {("norm", "both")}
    assert "1, 1" not in {row["topology"] for row in rows}


def test_steps_of_the_optimizer_move_parameters_alike(reports):
    report = reports["forgetful"]
    assert {row["terms"] for row in wrong(report)} == {"all, 3 steps"}
    moved = [row for row in report["rows"] if row["what"] == "parameter"]
    assert {row["kind"] for row in moved} == {"different"}


def test_float64_decides_and_production_dtypes_follow_with_tolerances_of_their_own(reports):
    allowed = {
        row["dtype"]: row["tolerance"]
        for row in reports["right"]["rows"]
        if row["what"] == "gradient"
    }
    assert list(allowed) == ["float64", "float32", "float32, bfloat16 wire"]
    assert allowed["float64"] == 1e-12
    assert allowed["float32"] < 2e-5 < allowed["float32, bfloat16 wire"]
    rows = wrong(reports["coarse"])
    assert {row["dtype"] for row in rows} == {"float32"}
    assert all("float64 is equal" in row["reason"] for row in rows)


def test_every_mutant_is_noticed_by_its_predicted_ratio(reports):
    test = reports["right"]["self_test"]
    assert test["kill_rate"] == 1
    assert test["killed"] == test["mutants"] >= 26
    assert test["as_predicted"] == test["predicted"] >= 22
    assert {row["mutation"] for row in test["rows"]} >= {
        *("drop", "double", "on all ranks", "average", "local count", "times group"),
        *("other count", "every replica"),
    }


@pytest.mark.parametrize("name", ["another_call_in_a_mutant", "raises_in_a_mutant"])
def test_a_mutant_that_breaks_groups_ends_the_self_test(reports, name):
    """Where groups are broken each of the others would raise, whatever it broke."""
    report = reports[name]
    assert report["kind"] == "vacuous", report["text"]
    test = report["self_test"]["rows"]
    assert [row["mutation"] for row in test] == ["drop", "double"]
    assert "raised: " in test[1]["reason"]
    (reason,) = report["vacuous"]
    assert "mutants left: a rank raised, and since then the step itself raises or differs" in reason


def test_where_nothing_goes_through_retape_only_who_goes_without_a_self_test_has_a_proof(reports):
    report = reports["nothing_through_retape"]
    assert report["kind"] == "vacuous"
    assert max(row["error"] for row in report["rows"]) < 1e-14
    (reason,) = report["vacuous"]
    assert "nothing was summed through retape::dist" in reason
    assert "Fix: SumHook under DDP, SumReducer elsewhere, or --no-self-test" in reason
    assert reports["nothing_through_retape_and_no_self_test"]["kind"] == "equal"
