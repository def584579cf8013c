"""Hugging Face models, from tiny random configs: with Retape, every bit of a step is eager's.

Each test compares the set of parameters with a gradient that is not zero, every gradient, the
buffers and the generator's state, and asserts that something was replayed, or called again.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.python.bits import same_bits
from tests.python.huggingface.models import CASES
from tests.python.huggingface.more_models import UNSUPPORTED
from tests.python.huggingface.steps import Step, assert_same_step, copy_step, step, summed_by_layer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import retape

all_models = pytest.mark.parametrize("name", CASES)
settings = pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["no_dropout", "dropout"])
dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)


# Layers of these read a tensor that others read too: the encoder's output, T5's position bias.
# Reentrant autograd runs a backward per layer, and what that returns is one gradient per tensor, the
# sum over the layer; plain autograd adds up op by op. Nothing public lets a backward inside go on from
# the sum outside, so these are compared, bitwise too, with plain autograd that is made to add up by
# layer. `test_torchs_reentrant_checkpoint_adds_up_by_layer_too` shows that it is not ours alone.
SHARED = {"T5", "Whisper"}


@functools.cache
def prepared(
    name: str, dropout: float, dtype: torch.dtype, use_cache: bool
) -> tuple[torch.nn.Module, Step]:
    """A model before its step, and the step that eager makes."""
    case = CASES[name]
    model = case.build(dropout, dtype, use_cache)
    return model, step(copy.deepcopy(model), case.forward(dtype))


def check(
    name: str, dropout: float, dtype: torch.dtype, *, use_cache: bool, **how: object
) -> retape.Enabled:
    case = CASES[name]
    model, plain = prepared(name, dropout, dtype, use_cache)
    if dropout and case.dropout:
        torch.manual_seed(2)
        assert not torch.equal(plain.rng, torch.get_rng_state()), "no dropout was drawn"
    ours, report = copy_step(model, case.forward(dtype), lambda model: retape.enable(model, **how))
    if how.get("use_reentrant") and name in SHARED:
        plain = step(summed_by_layer(copy.deepcopy(model), report.names), case.forward(dtype))
    assert_same_step(plain, ours)
    assert report.calls > 0
    assert set(report.idle) == set(report.never_ran)
    return report


@all_models
@settings
@dtypes
def test_replay_gives_the_step_of_eager(name: str, dropout: float, dtype: torch.dtype) -> None:
    report = check(name, dropout, dtype, use_cache=True)
    assert report.stats.ops_replayed > 0
    assert report.stats.values_dropped > 0
    assert report.reruns == 0


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non_reentrant", "reentrant"])
@all_models
@settings
@dtypes
def test_rerun_gives_the_step_of_eager(
    name: str, dropout: float, dtype: torch.dtype, use_reentrant: bool
) -> None:
    """Reentrant without caches: what a layer writes there would get no gradient."""
    how = {"method": "rerun", "use_reentrant": use_reentrant}
    report = check(name, dropout, dtype, use_cache=not use_reentrant, **how)
    assert report.reruns > 0


def torchs_reentrant(model: torch.nn.Module, layers: list[str]) -> torch.nn.Module:
    """torch.utils.checkpoint around these layers; keywords too are given by position."""

    def region(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def forward(*values: Any) -> Any:
            named = dict(zip(kwargs, values[len(args) :], strict=True))
            return inner(*values[: len(args)], **named)

        return checkpoint(forward, *args, *kwargs.values(), use_reentrant=True)

    for name in layers:
        layer = model.get_submodule(name)
        layer.forward = functools.partial(region, layer.forward)
    return model


@pytest.mark.parametrize("name", sorted(SHARED))
@settings
@dtypes
def test_torchs_reentrant_checkpoint_adds_up_by_layer_too(
    name: str, dropout: float, dtype: torch.dtype
) -> None:
    """With one SDPA kernel. Else torch's runs T5 forward without gradients, on another one."""
    case = CASES[name]
    model, _ = prepared(name, dropout, dtype, False)
    with sdpa_kernel(SDPBackend.MATH):
        ours, report = copy_step(
            model,
            case.forward(dtype),
            lambda model: retape.enable(model, method="rerun", use_reentrant=True),
        )
        theirs = step(torchs_reentrant(copy.deepcopy(model), report.names), case.forward(dtype))
        by_layer = step(summed_by_layer(copy.deepcopy(model), report.names), case.forward(dtype))
        plain = step(copy.deepcopy(model), case.forward(dtype))
    assert_same_step(theirs, ours)
    assert_same_step(by_layer, theirs)
    assert not same_bits(plain.gradients, theirs.gradients), "bitwise eager: no longer SHARED"


@pytest.mark.parametrize("how", [{}, {"method": "rerun"}], ids=["replay", "rerun"])
@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe", "Olmoe", "GptOss"])
def test_logits_that_routers_hand_out_beside_their_layers(name: str, how: dict) -> None:
    """The auxiliary loss reads them; torch's reentrant checkpoint loses their gradients."""
    case = CASES[name]
    inputs = case.inputs()

    def forward(model: torch.nn.Module) -> tuple[torch.Tensor, dict]:
        outputs = model(**inputs, output_router_logits=True)
        return outputs.loss, {"auxiliary": outputs.aux_loss}

    model, _ = prepared(name, 0.0, torch.float32, False)
    ours, report = copy_step(model, forward, lambda model: retape.enable(model, **how))
    assert_same_step(step(copy.deepcopy(model), forward), ours)
    assert report.stats.ops_replayed + report.reruns > 0


@all_models
def test_layers_are_the_blocks_of_the_stacks(name: str) -> None:
    """Stacks, not lists inside a block (T5's `layer`, experts) nor lists of Linear or norms."""
    case = CASES[name]
    model = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with retape.enable(model) as report:
            chosen = report.names
    assert len(chosen) == case.layers
    modules = dict(model.named_modules())
    holders = {name.rpartition(".")[0] for name in chosen}
    assert all(isinstance(modules[holder], torch.nn.ModuleList) for holder in holders)
    assert not [a for a in chosen for b in chosen if a.startswith(b + ".")]
    step(model, case.forward())
    assert report.calls == 0  # switched off again


@all_models
def test_every_layer_that_a_batch_uses_is_replayed(name: str) -> None:
    case = CASES[name]
    _, report = copy_step(case.build(), case.forward(), retape.enable)
    assert len(report.never_ran) == case.never_ran
    replayed = [layer for layer in report.layers if layer.stats.ops_replayed > 0]
    assert len(replayed) == case.layers - case.never_ran


@pytest.mark.parametrize("name", UNSUPPORTED)
@settings
def test_models_that_hugging_face_does_not_support(name: str, dropout: float) -> None:
    case = UNSUPPORTED[name]
    model = case.build(dropout)
    with pytest.raises(ValueError, match="does not support gradient checkpointing"):
        model.gradient_checkpointing_enable()
    ours, report = copy_step(model, case.forward(), retape.enable)
    assert_same_step(step(model, case.forward()), ours)
    assert len(report) == case.layers
    assert not report.idle
    assert report.stats.ops_replayed > 0
