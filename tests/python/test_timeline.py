"""What the memory timeline calls replay: any forward that runs again, Retape's or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_remat
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import retape
from retape.bench import measure, run
from retape.bench.blocks import Size
from retape.bench.methods import METHODS
from retape.bench.models import MODELS
from retape.bench.report.timeline import KINDS, allocations
from retape.bench.result import Event


def body(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp().sigmoid()


def events_of(step: Callable[[torch.Tensor], object]) -> set[tuple[str, str]]:
    x = torch.randn(64, 64, requires_grad=True)
    with retape.memory.Meter(timeline=True) as meter:
        step(x)
    return {(event.phase, event.op) for event in meter.timeline if event.bytes > 0}


def replayed(step: Callable[[torch.Tensor], object]) -> set[str]:
    return {op for phase, op in events_of(step) if phase == "replay"}


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("retain_graph", [False, True])
def test_torch_checkpoints_recomputation_is_replay(use_reentrant: bool, retain_graph: bool) -> None:
    def step(x: torch.Tensor) -> None:
        checkpoint(body, x, use_reentrant=use_reentrant).sum().backward(retain_graph=retain_graph)

    events = events_of(step)
    assert {"aten::sin", "aten::exp"} <= {op for phase, op in events if phase == "replay"}
    assert ("backward", "aten::sin") not in events
    assert ("backward", "aten::sigmoid_backward") in events
    assert ("replay", "aten::sigmoid_backward") not in events


def test_a_plain_backward_replays_nothing() -> None:
    assert replayed(lambda x: body(x).sum().backward()) == set()
    assert replayed(lambda x: body(x).sum().backward(retain_graph=True)) == set()


@pytest.mark.parametrize("retain_graph", [False, True])
def test_a_backward_that_makes_a_graph_is_backward(retain_graph: bool) -> None:
    def step(x: torch.Tensor) -> None:
        loss = body(x).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True, retain_graph=retain_graph)
        del first, loss

    assert replayed(step) == set()


def test_retapes_own_replay_is_replay() -> None:
    def step(x: torch.Tensor) -> None:
        with retape.recompute("full"):
            loss = body(x).sum()
        loss.backward()

    assert "aten::sin" in replayed(step)


def test_torch_remats_recomputation_is_replay() -> None:
    def step(x: torch.Tensor) -> None:
        torch_remat.checkpoint(region_name="body")(body)(x).sum().backward()

    assert {"aten::sin", "aten::exp"} <= replayed(step)


def test_selective_checkpoints_recomputation_is_replay() -> None:
    def keeps() -> object:
        return create_selective_checkpoint_contexts([torch.ops.aten.exp.default])

    def step(x: torch.Tensor) -> None:
        checkpoint(body, x, use_reentrant=False, context_fn=keeps).sum().backward()

    assert "aten::sin" in replayed(step)
    assert "aten::exp" not in replayed(step)


def regions_of(step: Callable[[torch.Tensor], object]) -> dict[tuple[str, str], set[str]]:
    x = torch.randn(64, 64, requires_grad=True)
    found: dict[tuple[str, str], set[str]] = {}
    with retape.memory.Meter(timeline=True) as meter:
        step(x)
    for event in meter.timeline:
        if event.bytes > 0:
            found.setdefault((event.phase, event.op), set()).add(event.region)
    return found


def in_regions(x: torch.Tensor) -> torch.Tensor:
    with retape.memory.region("outer"):
        x = x.sin()
        with retape.memory.region("inner"):
            x = x.exp()
        return x.sigmoid()


def test_a_region_names_what_is_allocated_in_it_and_the_gradients_of_it() -> None:
    found = regions_of(lambda x: in_regions(x).sum().backward())
    assert found["forward", "aten::sin"] == {"outer"}
    assert found["forward", "aten::exp"] == {"inner"}
    assert found["forward", "aten::sigmoid"] == {"outer"}
    assert found["forward", "aten::sum"] == {""}
    assert found["backward", "aten::sigmoid_backward"] == {"outer"}
    assert found["backward", "aten::mul"] == {"inner", "outer"}  # of exp, of sin


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpoint_runs_again_is_of_its_region_too(use_reentrant: bool) -> None:
    found = regions_of(
        lambda x: checkpoint(in_regions, x, use_reentrant=use_reentrant).sum().backward()
    )
    assert found["replay", "aten::sin"] == {"outer"}
    assert found["replay", "aten::exp"] == {"inner"}
    assert found["backward", "aten::sigmoid_backward"] == {"outer"}


def test_a_scopes_own_name_goes_before_a_regions() -> None:
    def step(x: torch.Tensor) -> None:
        with retape.memory.region("mine"):
            with retape.recompute("full", name="scope"):
                x = x.sin().exp()
            with retape.recompute("full"):
                x = x.sigmoid()
        x.sum().backward()

    found = regions_of(step)
    assert found["forward", "aten::sin"] == {"scope"}
    assert found["forward", "aten::sigmoid"] == {"mine"}


SIZE = Size(layers=2, d_model=64, d_ff=256, batch=2, sequence=64)


def events_in(method: str, dry: bool = True) -> list[Event]:
    return measure.timeline(
        run.block_task("swiglu", SIZE, scaled=False), METHODS[method], dry
    ).events


METHODS_WITH_REGIONS = [
    "plain",
    "retape cheap",
    "retape full",
    "torch checkpoint",
    "torch reentrant",
    "selective",
]


@pytest.mark.parametrize("method", METHODS_WITH_REGIONS)
def test_every_method_of_the_bench_names_its_layers(method: str) -> None:
    products = [e for e in events_in(method) if e.bytes > 0 and e.op == "aten::mm"]
    assert {e.region for e in products} == {"layer 0", "layer 1"}
    assert {e.kind for e in products} >= {"kept", "gradient"}
    assert any(e.kind == "replayed" for e in products) == (method in METHODS_WITH_REGIONS[2:5])


@pytest.mark.parametrize("method", ["plain", "retape full"])
def test_layers_of_a_model_have_the_paths_of_its_modules(method: str) -> None:
    model = MODELS["vocabulary"]
    made = measure.timeline(model.at(model.small, "float32"), METHODS[method], dry=True)
    regions = {event.region for event in made.events if event.bytes > 0}
    assert {"layers.0", "layers.3", "head"} <= regions


@pytest.mark.parametrize("method", ["plain", "retape full", "torch checkpoint"])
def test_a_timeline_is_of_the_step_and_what_was_there_is_from_before(method: str) -> None:
    events = events_in(method)
    parameters = 2 * 3 * SIZE.d_model * SIZE.d_ff * 4
    x = SIZE.batch * SIZE.sequence * SIZE.d_model * 4
    assert events[0].current - events[0].bytes == parameters + x
    row = measure.Row(method, METHODS[method].family)
    measure.memory(run.block_task("swiglu", SIZE, scaled=False), METHODS[method], row, dry=True)
    assert max(event.current for event in events) == row.peak


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize("method", ["plain", "retape full", "torch checkpoint"])
def test_ops_have_the_names_that_people_know(method: str, dry: bool) -> None:
    for block in ("swiglu", "rms_norm", "fp32_softmax"):
        made = measure.timeline(run.block_task(block, SIZE, scaled=False), METHODS[method], dry)
        names = {event.op for event in made.events}
        assert not [name for name in names if "::" in name and not name.startswith("aten::")], names
        assert not any("evaluate_function" in name for name in names)


def test_what_a_scope_forgets_is_dropped_in_forward_and_what_plain_keeps_is_kept() -> None:
    def bytes_of(method: str) -> dict[str, int]:
        events = events_in(method)
        total = dict.fromkeys(KINDS, 0)
        for each in allocations(events):
            total[KINDS[each.kind]] += events[each.event].bytes
        return total

    plain, full = bytes_of("plain"), bytes_of("retape full")
    assert full["passing"] > plain["passing"]
    assert full["kept"] < plain["kept"]
    assert full["passing"] + full["kept"] == plain["passing"] + plain["kept"]


def test_what_is_replayed_is_no_gradients_node() -> None:
    def step(x: torch.Tensor) -> None:
        with retape.recompute("full"):
            loss = torch.dropout(x.sin(), 0.5, True).exp().sum()
        loss.backward()

    assert not [op for op in replayed(step) if "Backward" in op], replayed(step)


def test_a_dry_run_tells_the_ops_that_a_wet_one_does() -> None:
    dry = {event.op for event in events_in("plain") if event.bytes > 0}
    wet = {event.op for event in events_in("plain", dry=False) if event.bytes > 0}
    assert dry <= wet
