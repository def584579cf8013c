"""Stacks of C++ layers, run by Python: `loss(apply)` of the models in `_models`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.python.bits import assert_same_bits, same_bits
from torch.utils.checkpoint import checkpoint

import retape
from retape import _models
from retape.bench.methods import METHODS

MODELS = {
    "transformer": _models.Transformer,
    "moe": _models.Moe,
    "pi05": _models.Pi05,
}
DTYPES = [torch.float32, torch.bfloat16]

Apply = Callable[[list[Any], torch.Tensor], torch.Tensor]


def made(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    return MODELS[name](**{"dropout": 0.3, "dtype": dtype, **options})


def step(model: Any, apply: Apply | None, scope: Any = nullcontext) -> dict[str, torch.Tensor]:
    """Loss, gradients and the generator's state of one step; gradients are taken away."""
    torch.manual_seed(1)
    with scope():
        loss = model.loss(apply)
    loss.backward()
    parameters = model.parameters()
    result = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    return {**result, "loss": loss.detach(), "generator": torch.get_rng_state()}


def plain(layers: list[Any], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


def each(call: Callable[..., torch.Tensor], **options: Any) -> Apply:
    def apply(layers: list[Any], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = call(layer, x, **options)
        return x

    return apply


def scope(policy: str) -> Apply:
    def apply(layers: list[Any], x: torch.Tensor) -> torch.Tensor:
        with retape.recompute(policy):
            return plain(layers, x)

    return apply


RETAPE = {
    "scope, full": scope("full"),
    "scope, cheap": scope("cheap"),
    "each layer": each(retape.checkpoint),
    "each layer, called again": each(retape.checkpoint, method="rerun"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", RETAPE)
@pytest.mark.parametrize("name", MODELS)
def test_retape_around_cpp_layers_gives_the_plain_bits(name, way, dtype):
    model = made(name, dtype)
    expected = step(model, None)
    assert_same_bits(expected, step(model, plain))
    assert_same_bits(expected, step(model, RETAPE[way]))
    assert_same_bits(expected, step(model, None))


# Not those that want more of a layer than that it can be called.
CALLING = [
    method
    for method in METHODS.values()
    if method.around != "inner" and method.is_eager and not method.in_rows
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", CALLING, ids=lambda method: method.name)
def test_every_method_gives_the_transformers_plain_bits(method, dtype):
    if method.missing:
        pytest.skip(method.missing)
    # torch_remat leaves generators to its user (preserve_rng_state must be False).
    model = made("transformer", dtype, dropout=0.0 if method.needs == "torch_remat" else 0.3)
    assert_same_bits(step(model, None), step(model, method.apply, method.scope))


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_gradient(name):
    grads = step(made(name), None)
    assert {n for n, grad in grads.items() if grad is None or not grad.any()} == set()


@pytest.mark.parametrize("name", MODELS)
def test_loss_is_what_forward_says(name):
    model = made(name)
    torch.manual_seed(1)
    output = model.forward()
    parts = {
        "transformer": {"ce": 1},
        "moe": {"ce": 1, "balance": 0.01},
        "pi05": {"mse": 1, "ce": 1},
    }
    assert_same_bits(
        sum(output[part].detach() * weight for part, weight in parts[name].items()),
        step(model, None)["loss"],
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_is_each_towers_layers_in_order(name):
    counts = []

    def apply(layers, x):
        counts.append(len(layers))
        return plain(layers, x)

    made(name, depth=2).loss(apply)
    assert counts == ([2, 2] if name == "pi05" else [2])


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_are_called_again_are_there_after_the_model_is_gone(name):
    model = made(name)
    expected = step(model, None)
    parameters = model.parameters()
    torch.manual_seed(1)
    loss = model.loss(each(checkpoint, use_reentrant=False))
    del model
    gc.collect()
    loss.backward()
    grads = {n: parameter.grad for n, parameter in parameters.items()}
    assert grads.keys() <= expected.keys() and all(grad is not None for grad in grads.values())
    if name == "transformer":  # the others write something when they are called again
        assert_same_bits({n: expected[n] for n in grads}, grads)


def test_what_a_second_call_of_a_moe_layer_leaves_does_not_reach_the_next_step():
    model = made("moe")
    expected = step(model, None)
    for reentrant in (False, True):
        step(model, each(checkpoint, use_reentrant=reentrant))
        assert_same_bits(expected, step(model, None))


def test_reentrant_checkpoints_lose_the_gradient_of_the_balance_loss_and_retape_does_not():
    model = made("moe")
    expected = step(model, None)
    lost = step(model, each(checkpoint, use_reentrant=True))
    assert_same_bits(expected["loss"], lost["loss"])
    routers = [name for name in expected if "router" in name]
    assert len(routers) == 3
    assert not any(same_bits(expected[name], lost[name]) for name in routers)
    kept = step(model, each(retape.checkpoint))
    assert_same_bits(expected, kept)


def test_an_error_in_apply_is_pythons_and_the_model_is_as_before():
    model = made("transformer")
    expected = step(model, None)

    class Odd(Exception):
        pass

    def apply(layers, x):
        layers[0](x)
        raise Odd("in apply")

    with pytest.raises(Odd, match="in apply"):
        model.loss(apply)
    assert_same_bits(expected, step(model, None))


def test_an_error_in_a_layer_is_torchs():
    with pytest.raises(RuntimeError, match="size"):
        made("transformer").loss(lambda layers, x: layers[0](x[..., :-1]))


def test_apply_must_return_a_tensor():
    with pytest.raises(
        TypeError, match=r"\[loss\] expected apply\(layers, x\) to return .* NoneType"
    ):
        made("transformer").loss(lambda layers, x: None)


def test_a_size_that_is_not_there_is_told():
    with pytest.raises(
        TypeError,
        match=r"\[Moe\] no such size or switch: experts_each\. There is: layers, .*experts",
    ):
        _models.Moe(experts_each=2)
    with pytest.raises(TypeError, match=r"\[Transformer\] width cannot be 'wide'"):
        _models.Transformer(width="wide")


def test_sizes_are_taken():
    model = made("pi05", batch=3, depth=1, chunk=7, action_tokens=5, insulation=False)
    assert model.loss().isfinite()
    shapes = {
        n: tuple(p.shape) for n, p in made("moe", experts=3, width=8, hidden=6).parameters().items()
    }
    assert shapes["layers.2.mlp.experts.2.up.weight"] == (6, 8)
    assert "layers.2.mlp.experts.3.up.weight" not in shapes


def test_apply_is_let_go_of_with_the_step():
    def apply(layers, x):
        return plain(layers, x)

    model, gone = made("pi05"), weakref.ref(apply)
    step(model, apply)
    del apply
    gc.collect()
    assert gone() is None
