"""retape.dist from Python: three ranks do what tests/python/dist_scenarios.py says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.python import dist_scenarios, ranks
from torch import nn

import retape
import retape.dist as rd

RANKS = dist_scenarios.RANKS
Told = Callable[[str], list[dict]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[dict]:
    return ranks.run_once("tests.python.dist_scenarios", RANKS, tmp_path_factory.getbasetemp())


@pytest.fixture
def told(lines) -> Told:
    """What each rank told of a scenario, in order of ranks."""

    def of(scenario: str) -> list[dict]:
        found = sorted((x for x in lines if x["scenario"] == scenario), key=lambda x: x["rank"])
        assert len(found) == RANKS
        for line in found:
            assert "failed" not in line, f"rank {line['rank']}: {line['failed']}"
        return found

    return of


def check_collective(line: dict, blamed: list[int]) -> None:
    assert line["kinds"][:3] == ["CollectiveError", "Error", "RuntimeError"]
    assert line["ranks"] == blamed


# ---- groups ----------------------------------------------------------------------------------------


def test_sums_are_in_place_for_every_dtype(told):
    for rank, line in enumerate(told("sums")):
        for dtype in ("float32", "float64", "bfloat16", "int64"):
            assert line[f"torch.{dtype}"] == [6, 6, 6]
        assert line["async"] == [3, 3]
        assert (line["size"], line["index"], line["is one"]) == (RANKS, rank, True)
        assert line["repr"] == f'<Group "sums" of 3, index {rank}>'
        assert (
            "expected a timeout of less than a year, in seconds, got inf" in line["endless"]["text"]
        )
        assert "a timeout of 0 ms. Fix: at least 1 ms" in line["none"]["text"]


def test_broadcast_gather_and_agreement(told):
    for line in told("broadcast_gather_agree"):
        assert line["broadcast"] == [2]
        assert line["gathered"] == [[0], [1], [2]]


def test_a_call_of_another_name_raises_on_all_and_changes_nothing(told):
    for rank, line in enumerate(told("another_name")):
        check_collective(line, [1])
        assert (
            'rank 1 would sum "bias" Float[2], and ranks 0 and 2 would sum "weight"' in line["text"]
        )
        assert line["after"] == [rank, rank]
        assert line["again"]["text"] == line["text"]  # the group is broken, and says why
        assert line["again"]["ranks"] == [1]


def test_a_call_of_another_dtype_raises_on_all(told):
    for line in told("another_dtype"):
        check_collective(line, [2])
        assert '"w" Int[2]' in line["text"]
        assert line["after"] == [1, 1]


def test_another_topology_and_complaints_raise_on_all(told):
    for line in told("another_topology"):
        check_collective(line, [0])
        assert "7 rows" in line["text"]
    for line in told("a_complaint"):
        check_collective(line, [2])
        assert "rank 2: no data left" in line["text"]


def test_a_placement_compares_the_topology_and_has_its_groups(told):
    lines = told("a_placement")
    assert [line["total"] for line in lines] == [4, 3, 4]
    assert [line["index"] for line in lines] == [0, 1, 1]
    assert [line["rows"] for line in lines] == [[0, 4], [4, 7], [0, 7]]
    assert [line["leads"] for line in lines] == [True, False, True]
    assert [line["has"] for line in lines] == [True, False, True]
    assert 'rank 1 is not in "b"' in lines[1]["outside"]["text"]
    for line in lines:
        check_collective(line["differs"], [1])
        assert "ends: 1 2" in line["differs"]["text"]
    assert [line["first"] for line in lines] == [[1, 2], None, [0, 2]]  # in the topology's order


def test_a_placement_is_made_by_the_ranks_of_its_topology(told):
    first, *others = told("a_placement_of_fewer_ranks")
    assert first["has"] is False
    assert [line["total"] for line in others] == [3, 3]
    assert [line["leads"] for line in others] == [False, True]
    assert all(line["shared"] for line in others)
    check_collective(others[0]["late"], [2])
    assert "ranks [2] did not come within 0.5 s" in others[0]["late"]["text"]


def test_calls_under_way_in_two_groups_of_one_process_group_do_not_mix(told):
    for line in told("two_groups_of_one_process_group"):
        assert line["wrong"] == 0
        check_collective(line["mixed"], [0])
        assert 'rank 0 would sum "x" Float[1000] in "two"' in line["mixed"]["text"]
        assert 'ranks 1 and 2 would sum "x" Float[1000] in "one"' in line["mixed"]["text"]


def test_a_group_that_is_made_again_goes_on_where_the_first_has_ended(told):
    for line in told("a_group_made_again"):
        assert line["total"] == RANKS**4
        check_collective(line["found"], [1])
        assert line["broken"]["text"] == line["found"]["text"]


def test_groups_that_end_with_calls_under_way_do_not_mix_them_either(told):
    for line in told("groups_end_with_calls_nobody_waits_for"):
        assert line["last"] == RANKS


def test_a_rank_that_does_not_come_is_named(told):
    for rank, line in enumerate(told("a_rank_that_does_not_come")):
        assert line["after"] == [1, 1]
        if rank != 1:
            check_collective(line, [1])
            assert "rank 1 did not come within 3000 ms" in line["text"]


# ---- reducers --------------------------------------------------------------------------------------


def test_a_reducer_sums_many_tensors_of_several_dtypes(told):
    for line in told("reducer"):
        assert (line["a"], line["b"], line["c"], line["d"]) == ([3], [6], [6], [3])


def test_a_narrow_wire_rounds(told):
    for line in told("reducer_wire"):
        assert (line["sum"], line["dtype"]) == ([3.0], "torch.float32")


def test_a_gradient_that_is_none_on_one_rank_counts_as_zeros(told):
    for line in told("gradients_that_are_none"):
        assert line["all"] == [6, 6]
        assert line["one"] == [7, 7]
        assert line["none"] is None


def test_after_an_error_in_one_bucket_nothing_has_changed(told):
    for rank, line in enumerate(told("after_an_error_in_one_bucket")):
        check_collective(line, [0])
        assert line["after"] == [1, 1, 1, 1]
        assert line["gradient"] == (rank == 0)


def test_what_is_not_finite_is_named_before_it_spreads(told):
    for line in told("not_finite"):
        check_collective(line, [1])
        assert (
            'rank 1: "second" has 1 values that are not finite, the first at [1]: nan'
            in line["text"]
        )
        assert line["after"] == [1, 1]


def test_what_is_replicated_is_contributed_once(told):
    for rank, line in enumerate(told("once")):
        assert line["totals"] == [[5, 5]] * RANKS
        assert line["computed"] == [[1] if rank == 1 else [], True, [5, 5]]
        assert line["no owner"]["kinds"][0] == "UsageError"
        assert "no index 3 in group" in line["no owner"]["text"]


# ---- counts, residuals, norms ----------------------------------------------------------------------


def test_a_mean_over_ragged_ranks_is_that_of_one_process(told):
    for line in told("ragged_mean"):
        assert line["count"] == line["value"] == sum(dist_scenarios.COUNTS)
        assert line["off"] < 1e-14


def test_counts_that_cannot_be_divided_by_are_refused_on_all(told):
    for line in told("count_of_nothing"):
        assert line["kinds"][0] == "UsageError"
        assert "nothing to divide by" in line["text"]
    for line in told("count_below_zero"):
        assert line["kinds"][0] == "UsageError"
        assert "counts less than none" in line["text"]


def test_a_residual_has_the_value_of_all_and_the_gradient_of_its_own(told):
    for line in told("residual"):
        assert line["total"] == [6, 6]
        assert line["gradient"] == [12, 12]  # torch's all_reduce gives 36


def test_a_clip_norm_counts_every_parameter_once(told):
    for line in told("clipping"):
        assert line["norm"] == pytest.approx(line["expected"], rel=1e-15)
        assert line["norm"] == pytest.approx((2 * 9 + 6 * 4) ** 0.5, rel=1e-15)
        assert line["off"] < 1e-15
        assert line["largest"] == line["left"]  # below the limit: untouched


# ---- edges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["edge_to_fewer", "edge_to_more"])
def test_rows_go_over_an_edge_and_gradients_come_back(told, scenario):
    lines = told(scenario)
    receivers = {rank: line for rank, line in enumerate(lines) if "received" in line}
    assert len(receivers) == (1 if scenario == "edge_to_fewer" else 2)
    for line in receivers.values():
        assert line["received"] == list(range(*line["rows"]))
        assert line["leaf"]
    for line in lines:
        if "gradient" not in line:
            continue
        begin, end = line["rows"]
        taker = [
            next(r for r, each in receivers.items() if each["rows"][0] <= row < each["rows"][1])
            for row in range(begin, end)
        ]
        expected = [
            2.0 * row * (rank + 1) for row, rank in zip(range(begin, end), taker, strict=True)
        ]
        assert line["gradient"] == expected
        assert line["unused"] == [0.0] * (end - begin)


# ---- beside torch's own ----------------------------------------------------------------------------


def test_ddp_with_a_hook_is_one_process_and_without_is_not(told):
    for line in told("ddp"):
        assert line["off"] < 1e-14
        assert line["names"] == [name for name, _ in dist_scenarios.net().named_parameters()]
    for line in told("ddp_average"):
        assert line["off"] > 0.1


def test_sums_of_a_hook_do_not_mix_with_calls_of_ddp(told):
    for line in told("ddp_with_parameters_that_are_not_used"):
        assert line["off"] < 1e-14
        assert line["again"]  # one process group for all hooks of it


def test_a_parameter_that_is_not_used_raises_at_the_end_of_the_first_backward(told):
    for line in told("ddp_with_parameters_that_are_not_used_and_not_looked_for"):
        for first, prefix in ((True, "0"), (False, "1")):
            error = line[f"first {first}"]
            assert error["kinds"][0] == "UsageError"
            assert f"does not reach '{prefix}.weight', '{prefix}.bias'. So" in error["text"]
            assert "find_unused_parameters=True" in error["text"]
        said = "'0.0.weight', '0.0.bias', '0.2.weight' and 1 more have this rank's gradient"
        assert said in line["first False"]["text"]


def test_backwards_of_reentrant_checkpoints_are_not_taken_for_the_whole(told):
    for line in told("ddp_with_reentrant_checkpoints"):
        assert line["off"] < 1e-14


def test_a_backward_beside_ddp_is_left_alone(told):
    for line in told("ddp_beside_its_module"):
        assert line["off"] < 1e-14
        assert line["local"] == [1.0, 1.0]


def test_gradients_that_are_asked_for_under_ddp_are_no_backward(told):
    for line in told("ddp_and_gradients_that_are_asked_for"):
        assert line["off"] < 1e-14


def test_microbatches_under_ddp_are_summed_once_or_raise(told):
    for line in told("ddp_microbatches"):
        assert line["off"] < 1e-14
        assert "was summed over ranks" in line["error"] and "no_sync()" in line["error"]


def test_a_self_test_breaks_the_sums_of_a_ddp_hook(told):
    lines = told("ddp_self_test")
    assert [line["kind"] for line in lines] == ["equal"] * RANKS
    assert lines[0]["names"] == ["0.weight to 2.bias"]
    assert lines[0]["mutations"] == ["drop", "double", "average", "times group"]
    assert lines[0]["killed"]


def test_an_error_of_any_kind_in_a_sum_reaches_the_backward_of_ddp(told):
    for line in told("ddp_and_an_error_of_its_own"):
        assert line["kinds"][0] == "ValueError"
        assert line["text"] == "not collective"
        assert line["again"] < 1e-14  # DDP has come to its end: the next step is as any


def test_a_call_too_many_beside_ddp_is_named_on_all(told):
    for line in told("ddp_and_a_call_too_many"):
        check_collective(line, [1])
        assert 'rank 1 would sum "odd" Float[1]' in line["text"]


def test_a_rank_that_has_changed_its_mind_under_ddp_is_a_collective_error_of_backward(told):
    for line in told("ddp_and_a_call_in_between"):
        check_collective(line, [1])
        assert 'rank 1 would sum "odd" Float[1]' in line["text"]
        check_collective(line["again"], [1])  # the group is broken


def test_a_hook_names_rank_and_parameter_of_what_is_not_finite_on_request(told):
    for line in told("ddp_not_finite"):
        check_collective(line, [1])
        assert 'rank 1: "2.bias" has 1 values that are not finite, the first at [1]' in line["text"]
        assert "0.weight" not in line["text"].split("Fix")[0]
        assert line["before"] < 1e-14


def test_a_second_backward_of_a_retained_graph_raises_under_a_hook(told):
    for line in told("ddp_and_a_retained_graph"):
        assert line["off"] < 1e-14
        for error in line["errors"]:
            assert error["kinds"][0] == "UsageError"
            assert "[SumHook] a second backward of a retained graph" in error["text"]


def test_a_hook_for_some_ranks_is_made_by_them(told):
    for line in told("ddp_of_fewer_ranks"):
        assert line["off"] < 1e-14


def test_join_is_refused_on_all_ranks_before_one_waits_and_its_fix_works(told):
    for line in told("ddp_join"):
        for refused in line["refused"]:
            assert refused["kinds"][0] == "UsageError"
            assert "[SumHook] join() of DistributedDataParallel: " in refused["text"]
            assert "ranks that run out continue with 0 rows" in refused["text"]
        assert len(line["off"]) == 2
        assert max(line["off"]) < 1e-14


def test_a_hook_is_for_ddp(told):
    for line in told("ddp_join"):
        assert line["plain"]["kinds"][0] == "UsageError"
        assert "expected a DistributedDataParallel, got Sequential. Fix: " in line["plain"]["text"]


def test_a_second_hook_of_a_model_is_refused(told):
    for line in told("ddp_join"):
        assert line["second"]["kinds"][0] == "UsageError"
        assert "has a communication hook already" in line["second"]["text"]


def test_a_hook_may_send_less(told):
    for line in told("ddp_wire"):
        assert line["same"]  # as a SumReducer with that wire
        assert 1e-6 < line["off"] < 1e-2
        assert line["refused"]["kinds"][0] == "UsageError"
        assert "wire: expected a floating point dtype" in line["refused"]["text"]


def test_fsdp_with_sums_is_one_process(told):
    for line in told("fsdp"):
        assert line["off"] < 1e-14


def test_gradcheck_makes_dtensors_whole_in_the_same_order_on_all_ranks(told):
    for rank, line in enumerate(told("gradcheck_of_dtensors")):
        assert line["kind"] == "equal", line["text"]
        assert line["compared"] == ([] if rank else ["gradient", "norm", "parameter"])
        said = "reference: gradient 'w' is a DTensor of 3 ranks, and one rank alone runs the reference. Fix: "
        assert said in line["by one"]["text"]


def test_ranks_without_the_report_say_who_has_it(told):
    first, *others = told("gradcheck_of_dtensors")
    assert "different: 3 of 3 comparisons" in first["wrong"]["text"]
    for line in others:
        assert (
            line["wrong"]["text"]
            == "[GradCheck] different: rank 0 has the report, with the reasons."
        )


def test_pickle_is_out_of_order_in_all_of_this(told):
    for line in told("what_pickles"):
        for what in ("send", "receive", "own"):
            assert (line[what]["kinds"][0], line[what]["text"]) == ("AssertionError", "pickled")


# ---- without ranks ---------------------------------------------------------------------------------


def alone():
    return rd.Group.alone("me")


def test_a_replicated_value_in_a_sum_is_a_type_error_with_the_fix():
    part, whole = rd.Partial(torch.ones(2)), rd.Replicated(torch.ones(2))
    fix = r"counted once per rank. Fix: retape.dist.contribute_once"
    for add in (lambda: part + whole, lambda: whole + part):
        with pytest.raises(TypeError, match=fix):
            add()
    reducer = rd.SumReducer(alone())
    with pytest.raises(TypeError, match=r"\[SumReducer.add\] .*" + fix):
        reducer.add("w", whole)
    with pytest.raises(
        TypeError, match=r"'w': expected a Partial, got Tensor. Fix: Partial\(tensor\)"
    ):
        reducer.add("w", torch.ones(2))
    with pytest.raises(TypeError, match="expected a Replicated, got Partial"):
        rd.contribute_once("w", part, alone())
    with pytest.raises(TypeError, match="expected a Replicated, got Tensor"):
        rd.contribute_once("w", lambda: torch.ones(2), alone(), like=torch.ones(2))
    with pytest.raises(TypeError, match="expected a tensor for like=, got NoneType"):
        rd.contribute_once("w", lambda: whole, alone())
    with pytest.raises(TypeError):
        part + 1


@pytest.mark.parametrize("kind", [rd.Partial, rd.Replicated])
def test_a_tensor_that_does_not_say_what_it_is_is_a_type_error_with_the_fix(kind):
    tensor = torch.ones(2)
    value = kind(tensor)
    for add in (
        lambda: value + tensor,
        lambda: tensor + value,
        lambda: tensor - value,
        lambda: value + 1,
    ):
        with pytest.raises(
            TypeError, match=r"does not say what it is. Fix: Partial\(tensor\), if the sum"
        ):
            add()


def test_a_value_of_a_value_is_a_type_error():
    with pytest.raises(
        TypeError, match=r"\[Partial\] expected a tensor, got a Replicated. Fix: contribute_once"
    ):
        rd.Partial(rd.Replicated(torch.ones(2)))
    with pytest.raises(
        TypeError, match=r"\[Replicated\] expected a tensor, got a Partial. Fix: Group.sum"
    ):
        rd.Replicated(rd.Partial(torch.ones(2)))
    with pytest.raises(TypeError, match=r"got a Partial. Fix: its .value"):
        rd.Partial(rd.Partial(torch.ones(2)))


def test_one_parameter_is_clipped_as_a_list_of_one_is():
    parameter = torch.zeros(2, 3, requires_grad=True)
    parameter.grad = torch.full((2, 3), 10.0)
    norm = rd.clip_grad_norm([(parameter, alone())], 1.0, alone())
    assert norm == pytest.approx(600**0.5)
    assert parameter.grad.norm().item() == pytest.approx(1, abs=1e-5)


def test_an_edge_travels_in_floating_point():
    topology = rd.Topology(4, [rd.Pool("a", [0]), rd.Pool("b", [1])])
    with pytest.raises(retape.UsageError, match="expected a floating point dtype, got Int"):
        rd.Edge("e", topology, "a", "b", alone(), wire=torch.int32)


def test_likes_are_added_and_scaled():
    one, two = torch.ones(2), torch.full((2,), 2.0)
    for kind in (rd.Partial, rd.Replicated):
        made = 3 * kind(one) + kind(two) * 0.5
        assert type(made) is kind
        assert made.value.tolist() == [4, 4]


@pytest.mark.parametrize("kind", [rd.Partial, rd.Replicated])
def test_likes_are_subtracted_divided_negated_and_added_up(kind):
    one, two = kind(torch.ones(2)), kind(torch.full((2,), 2.0))
    for made, expected in (
        (two - one, 1),
        (one / 2, 0.5),
        (one / torch.tensor(4.0), 0.25),
        (-two, -2),
        (sum([one, two, two]), 5),
        (torch.tensor(3.0) * two, 6),
    ):
        assert type(made) is kind
        assert made.value.tolist() == [expected] * 2
    with pytest.raises(TypeError):
        1 - one
    with pytest.raises(TypeError):
        1 / one


def test_a_sum_of_unlikes_is_a_type_error_with_the_fix():
    part, whole = rd.Partial(torch.ones(2)), rd.Replicated(torch.ones(2))
    fix = "counted once per rank. Fix: retape.dist.contribute_once"
    for add in (lambda: part - whole, lambda: whole - part, lambda: sum([part, whole])):
        with pytest.raises(TypeError, match=fix):
            add()


@pytest.mark.parametrize("factor", [rd.Partial(torch.ones(2)), rd.Replicated(torch.ones(2)), "2"])
@pytest.mark.parametrize("kind", [rd.Partial, rd.Replicated])
def test_a_factor_is_a_number_or_a_tensor(kind, factor):
    made = kind(torch.ones(2))
    for scale in (lambda: made * factor, lambda: factor * made, lambda: made / factor):
        with pytest.raises(TypeError, match=r"expected a number or a tensor, got .*Fix: "):
            scale()


def test_a_sum_of_products_is_not_a_product_of_sums():
    with pytest.raises(TypeError, match=r"\[Partial \* Partial\] .* Fix: global_residual"):
        rd.Partial(torch.ones(2)) * rd.Partial(torch.ones(2))
    with pytest.raises(TypeError, match=r"\[Partial \* Replicated\] .* Fix: .*\.value"):
        rd.Partial(torch.ones(2)) * rd.Replicated(torch.ones(2))


@pytest.mark.parametrize("count", [5, 5.0, torch.tensor(5)])
def test_only_a_global_count_is_a_denominator(count):
    with pytest.raises(
        TypeError, match=r"\[normalize\] expected a GlobalCount, got .*count_global"
    ):
        rd.normalize(torch.ones(()), count)
    with pytest.raises(TypeError):
        rd.GlobalCount(5)


@pytest.mark.parametrize("count", [2.9, 3.0, torch.tensor(2.5), "3"])
def test_a_count_is_an_integer(count):
    with pytest.raises(
        TypeError, match=r"\[count_global\] 'rows': expected an integer, got .*int\(\)"
    ):
        rd.count_global("rows", count, alone())
    assert rd.count_global("rows", torch.tensor(3), alone()).value == 3


def test_a_count_of_other_ranks_is_no_denominator_of_a_group():
    count = rd.count_global("rows", 2, alone())
    assert rd.normalize(torch.ones(()), count, alone()).value == 0.5
    with pytest.raises(
        retape.UsageError, match="the count is that of rank 0, and .* rank 1. Fix: "
    ):
        rd.normalize(torch.ones(()), count, rd.Group.alone("other", 1))


def test_a_group_is_of_a_class():
    group = alone()
    assert isinstance(group, rd.Group)
    assert not isinstance("me", rd.Group)
    assert (group.size, group.rank, rd.Group.alone("other", 3).rank) == (1, 0, 3)
    assert "agree before data moves" in rd.Group.__doc__


def test_rows_are_cut_evenly_as_a_pool_cuts_them():
    assert rd.even_shards(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert rd.Topology(10, [rd.Pool("a", [0, 1, 2, 3])]).pools[0].shards == rd.even_shards(10, 4)
    with pytest.raises(retape.UsageError, match=r"\[even_shards\]"):
        rd.even_shards(2, 3)


def test_a_placement_needs_torch_distributed():
    with pytest.raises(retape.UsageError, match="torch.distributed is not initialized. Fix: "):
        rd.Placement(rd.Topology(2, [rd.Pool("all", [0])]))


def test_a_group_needs_torch_distributed():
    with pytest.raises(retape.UsageError, match="torch.distributed is not initialized. Fix: "):
        rd.Group()


def test_fsdp_sums_wants_fully_shard_first():
    with pytest.raises(
        retape.UsageError, match=r"no module is under fully_shard. Fix: call it after"
    ):
        rd.fsdp_sums(nn.Linear(2, 2))


def test_shards_are_at_least_one():
    with pytest.raises(
        retape.UsageError,
        match=r"\[even_shards\] expected rows, and at least one shard, got 10 and 0",
    ):
        rd.even_shards(10, 0)


def test_topologies_are_values():
    topology = rd.Topology(
        10, [rd.Pool("a", [0, 1]), rd.Pool("b", [2, 3, 4], [(0, 1), (1, 4), (4, 10)])]
    )
    assert topology.pool("a").shards == [(0, 5), (5, 10)]
    assert topology.overlap("a", 0, "b", 2) == (4, 5)
    assert topology.world_size == 5
    assert (len(topology.pool("b")), topology.pool("b").leader, topology.pool("b").index_of(0)) == (
        3,
        2,
        -1,
    )
    same = rd.Topology(10, topology.pools)
    assert same == topology
    assert hash(same) == hash(topology)
    assert topology != None  # noqa: E711
    assert repr(topology.pool("a")) == '<Pool "a" of ranks [0, 1]>'
    with pytest.raises(retape.UsageError, match="[ab]"):
        topology.pool("c")
    with pytest.raises(retape.UsageError):
        rd.Topology(10, [rd.Pool("a", [0, 1], [(0, 5), (6, 10)])])
