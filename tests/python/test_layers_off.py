"""What retape.disable leaves, what copies of an enabled model do, and what is reported."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import accelerate.hooks
import pytest
import torch
from tests.python.bits import assert_same_bits
from tests.python.stacks import Block, Model, build, data, step
from torch import nn

import retape


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_disable_leaves_the_model_as_it_was() -> None:
    model = build()
    own = model.layers[0].forward
    model.layers[0].forward = own  # an instance may have a forward of its own
    before = [dict(vars(module)) for module in model.modules()]
    kinds = [type(module) for module in model.modules()]
    names = list(model.state_dict())
    retape.enable(model)
    assert [type(module) for module in model.modules()] == kinds
    assert list(model.state_dict()) == names
    assert inspect.signature(model.layers[1].forward) == inspect.signature(Block().forward)
    assert_same_bits(step(model), step(build()))
    retape.disable(model)
    assert [dict(vars(module)) for module in model.modules()] == before
    assert model.layers[0].__dict__["forward"] is own
    assert "forward" not in model.layers[1].__dict__
    retape.disable(model)  # once more does no harm
    assert str(retape.enabled(model)).startswith("0 layers, 0 calls: 0 ops recorded")


def test_graphs_recorded_before_disable_go_on() -> None:
    model = build()
    plain = step(build())
    with retape.enable(model) as report:
        torch.manual_seed(2)
        loss = model(data())
    loss.backward()
    assert_same_bits({n: p.grad for n, p in model.named_parameters()}, plain["gradients"])
    assert report.stats.ops_replayed > 0


def test_disable_names_layers_in_which_nothing_was_recomputed() -> None:
    class Skips(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](self.embed(x)).square().mean()

    model = Skips()
    report = retape.enable(model)
    step(model)
    assert report.never_ran == ["layers.1", "layers.2"]
    with pytest.warns(
        UserWarning,
        match=r"\[disable\] nothing was recomputed in 2 of 3 layers: never called: layers.1, layers.2",
    ) as caught:
        retape.disable(model)
    assert caught[0].filename == __file__


def test_disable_says_nothing_when_all_was_recomputed() -> None:
    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with retape.enable(model):
            step(model)


def test_frozen_model_is_reported_as_idle() -> None:
    model = build().requires_grad_(False)
    report = retape.enable(model)
    model(data())
    assert report.calls == 3
    assert set(report.idle.values()) == {"nothing that autograd saved in it was dropped"}


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), lambda model: saved(model)],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies_use_their_own_parameters_and_count_for_themselves(duplicate: Any) -> None:
    model = build()
    report = retape.enable(model)
    other = duplicate(model)
    assert retape.enabled(other).names == report.names
    plain = step(build())
    assert_same_bits(step(other), plain)
    assert report.calls == 0
    assert retape.enabled(other).stats.ops_replayed > 0
    retape.disable(other)
    assert "forward" not in other.layers[0].__dict__
    assert_same_bits(step(model), plain)
    assert report.calls == 3


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_copies_share_a_policy_that_can_not_be_copied() -> None:
    model = build()
    retape.enable(model, policy=retape.Policy.full().keep_ops(["aten::addmm"]))
    assert_same_bits(step(copy.deepcopy(model)), step(build()))


def test_state_dict_travels_between_enabled_and_plain_models() -> None:
    model, plain = build(), build()
    retape.enable(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(plain.state_dict())


def test_deleted_model_is_freed_at_once() -> None:
    model = build()
    report = retape.enable(model)
    step(model)
    alive = weakref.ref(model.layers[0].up.weight)
    gc.disable()
    try:
        del model, report
        assert alive() is None
    finally:
        gc.enable()


def test_statistics_hold_no_tensors() -> None:
    model = build()
    retape.enable(model)
    step(model)
    with retape.memory.Meter() as meter:
        for _ in range(3):
            step(model)
    assert meter.current == 0


class Doubling(accelerate.hooks.ModelHook):
    def post_forward(self, module: nn.Module, output: torch.Tensor) -> torch.Tensor:
        return output * 2


@pytest.mark.parametrize("enable_first", [False, True])
def test_beside_hooks_of_accelerate(enable_first: bool) -> None:
    """They put a forward of their own over the one that they find, and keep that aside."""

    def hook(model: Model) -> Model:
        accelerate.hooks.add_hook_to_module(model.layers[1], Doubling())
        return model

    plain = step(hook(build()))
    model = build()
    if enable_first:
        retape.enable(model)
    hook(model)
    if not enable_first:
        retape.enable(model)
    report = retape.enabled(model)
    assert len(report) == 3
    assert_same_bits(step(model), plain)
    assert report.calls == 3
    retape.disable(model)
    assert not len(retape.enabled(model))
    assert_same_bits(step(model), plain)
    assert report.calls == 3
    accelerate.hooks.remove_hook_from_module(model.layers[1])
    assert_same_bits(step(model), step(build()))
