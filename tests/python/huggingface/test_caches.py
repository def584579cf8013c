"""Caches and states are written once, by forward: gradients and what they hold are eager's bits.

Through `retape.enable(model)`, which touches no flag, through Hugging Face's own switch with Retape
behind it, and with layers that are called again. `torchs` shows what the switch does with torch's
checkpoint in the same place.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from tests.python.bits import assert_same_bits
from tests.python.huggingface.models import CASES, IDS, TEXT, Case
from tests.python.huggingface.more_models import GEMMA3N, MAMBA, PI0
from tests.python.huggingface.steps import (
    Forward,
    Step,
    Tensors,
    assert_same_step,
    copy_step,
    step,
)
from torch import nn

import retape

ENABLE: dict[str, Callable[[nn.Module], Any]] = {
    "enable": retape.enable,
    "switch": lambda model: retape.enable(model, through="huggingface"),
    "rerun": lambda model: retape.enable(model, method="rerun"),
}
all_ways = pytest.mark.parametrize("way", ENABLE)
reentrant = pytest.mark.parametrize("use_reentrant", [False, True])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check(model: nn.Module, forward: Forward, way: str) -> Step:
    ours, report = copy_step(model, forward, ENABLE[way])
    plain = step(model, forward)
    assert_same_step(plain, ours)
    assert report.stats.ops_replayed + report.reruns > 0
    return plain


def torchs(model: nn.Module, forward: Forward, use_reentrant: bool) -> Step:
    options = {"use_reentrant": use_reentrant}
    return copy_step(model, forward, lambda m: m.gradient_checkpointing_enable(options))[0]


def worst(plain: Step, other: Step) -> float:
    """Largest error of a gradient, relative to the largest element of it."""
    errors = [
        ((other.gradients[name] - plain.gradients[name]).abs().max() / gradient.abs().max()).item()
        for name, gradient in plain.gradients.items()
        if name in plain.live and gradient.abs().max() > 1e-4
    ]
    return max(errors)


def content(cache: Any) -> Tensors:
    """All tensors of a Hugging Face cache, by layer and name."""
    found: Tensors = {}
    if hasattr(cache, "cross_attention_cache"):
        found.update({f"cross.{n}": t for n, t in content(cache.cross_attention_cache).items()})
        cache = cache.self_attention_cache
    for i, layer in enumerate(cache.layers if cache is not None else []):
        for name in ("keys", "values"):
            if torch.is_tensor(getattr(layer, name, None)):
                found[f"{i}.{name}"] = getattr(layer, name)
        for name in ("conv_states", "recurrent_states"):
            states = getattr(layer, name, None) or {}
            items = states.items() if isinstance(states, dict) else enumerate(states)
            found.update({f"{i}.{name}.{j}": each for j, each in items if torch.is_tensor(each)})
    return found


def llama() -> tuple[nn.Module, dict[str, Any]]:
    return CASES["Llama"].build(dropout=0.1), CASES["Llama"].inputs()


# ---- key-value caches -------------------------------------------------------------------------


@all_ways
@pytest.mark.parametrize("name", ["Llama", "GPTBigCode", "GPT2", "Mixtral", "T5", "Whisper"])
def test_use_cache_gives_gradients_and_a_cache(name: str, way: str) -> None:
    case = CASES[name]
    inputs = case.inputs()

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        outputs = model(**inputs, use_cache=True)
        return outputs.loss, content(outputs.past_key_values)

    plain = check(case.build(dropout=0.1), forward, way)
    assert len(plain.extra) == (8 if name in ("T5", "Whisper") else 4)


@all_ways
def test_dynamic_cache_of_the_caller_is_filled_once(way: str) -> None:
    model, inputs = llama()

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        cache = hf.DynamicCache(config=model.config)
        loss = model(**inputs, past_key_values=cache).loss
        assert cache.get_seq_length() == inputs["input_ids"].shape[1]
        return loss, content(cache)

    check(model, forward, way)


@reentrant
def test_torchs_checkpoint_leaves_that_cache_empty(use_reentrant: bool) -> None:
    model, inputs = llama()

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        cache = hf.DynamicCache(config=model.config)
        return model(**inputs, past_key_values=cache).loss, content(cache)

    assert torchs(model, forward, use_reentrant).extra == {}


@all_ways
def test_static_cache_is_written_in_place_once(way: str) -> None:
    model, inputs = llama()

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        cache = hf.StaticCache(config=model.config, max_cache_len=16)
        return model(**inputs, past_key_values=cache).loss, content(cache)

    plain = check(model, forward, way)
    assert plain.extra["0.keys"].shape[2] == 16


def two_chunks(inputs: dict[str, Any]) -> Forward:
    ids = inputs["input_ids"]

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        cache = hf.DynamicCache(config=model.config)
        first = model(input_ids=ids[:, :5], labels=ids[:, :5], past_key_values=cache)
        second = model(input_ids=ids[:, 5:], labels=ids[:, 5:], past_key_values=cache)
        return first.loss + second.loss, content(cache)

    return forward


@all_ways
def test_two_chunks_through_one_cache(way: str) -> None:
    model, inputs = llama()
    plain = check(model, two_chunks(inputs), way)
    assert plain.extra["0.keys"].shape[2] == inputs["input_ids"].shape[1]


@reentrant
def test_torchs_checkpoint_gets_two_chunks_wrong(use_reentrant: bool) -> None:
    model, inputs = llama()
    other = torchs(model, two_chunks(inputs), use_reentrant)
    plain = step(model, two_chunks(inputs))
    assert worst(plain, other) > 0.5


@pytest.mark.parametrize("name", ["Llama", "GPTBigCode", "GPT2", "T5", *MAMBA])
def test_reentrant_refuses_a_cache(name: str) -> None:
    """With a growing cache and no mask the loss would be right, and gradients of keys lost."""
    case = MAMBA.get(name) or CASES[name]
    inputs = case.inputs()
    inputs.pop("attention_mask", None)
    how = {"method": "rerun", "use_reentrant": True}
    with pytest.raises(
        retape.UsageError, match="was given a cache.* gets no gradient. Fix: use_reentrant=False"
    ):
        copy_step(
            case.build(),
            lambda m: (m(**inputs, use_cache=True).loss, {}),
            lambda m: retape.enable(m, **how),
        )


CACHES: dict[str, tuple[str, Callable[[nn.Module], Any]]] = {
    "dynamic": ("Llama", lambda m: hf.DynamicCache(config=m.config)),
    "static": ("Llama", lambda m: hf.StaticCache(config=m.config, max_cache_len=16)),
    "dynamic, sliding": ("GptOss", lambda m: hf.DynamicCache(config=m.config)),
    "static, sliding": ("GptOss", lambda m: hf.StaticCache(config=m.config, max_cache_len=16)),
    "states": ("Mamba", lambda m: hf.DynamicCache(config=m.config)),
    "states and keys": ("Zamba2", lambda m: hf.DynamicCache(config=m.config)),
}


def python_state(value: Any) -> Any:
    """Which tensors are where, the counters and flags. Not what is in the tensors."""
    if torch.is_tensor(value):
        return id(value), value._version, value.grad_fn
    if isinstance(value, list | tuple):
        return [python_state(each) for each in value]
    if isinstance(value, dict):
        return {key: python_state(each) for key, each in value.items()}
    return python_state(vars(value)) if type(value).__module__ == hf.cache_utils.__name__ else value


@all_ways
@pytest.mark.parametrize("kind", CACHES)
def test_backward_leaves_the_cache_as_forward_left_it(kind: str, way: str) -> None:
    name, make = CACHES[kind]
    case = MAMBA.get(name) or CASES[name]
    ids = case.inputs()["input_ids"]
    model = case.build()
    report = ENABLE[way](model)
    cache = make(model)
    argument = {"cache_params" if name == "Mamba" else "past_key_values": cache}
    loss = model(input_ids=ids, labels=ids, **argument).loss
    state, tensors = python_state(cache), content(cache)
    bits = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    assert bits
    loss.backward()
    assert report.stats.ops_replayed + report.reruns > 0
    assert python_state(cache) == state
    assert_same_bits({name: t.detach() for name, t in content(cache).items()}, bits, "cache")


@all_ways
def test_gradient_through_the_cache_after_a_first_backward(way: str) -> None:
    """What a second run wrote is not what the cache's tensors remember."""
    case = CASES["Llama"]
    ids = case.inputs()["input_ids"]

    def gradients(enable: Callable[[nn.Module], Any]) -> dict[str, Any]:
        model = case.build()
        enable(model)
        cache = hf.StaticCache(config=model.config, max_cache_len=16)
        model(input_ids=ids, labels=ids, past_key_values=cache).loss.backward(retain_graph=True)
        sum(tensor.square().sum() for tensor in content(cache).values()).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    assert_same_bits(gradients(ENABLE[way]), gradients(lambda _: None), "gradients")


@all_ways
@pytest.mark.parametrize("kind", CACHES)
def test_cache_is_freed_with_a_graph_that_sees_no_backward(kind: str, way: str) -> None:
    name, make = CACHES[kind]
    case = MAMBA.get(name) or CASES[name]
    ids = case.inputs()["input_ids"]
    model = case.build()
    ENABLE[way](model)
    with retape.memory.Meter() as meter:
        cache = make(model)
        argument = {"cache_params" if name == "Mamba" else "past_key_values": cache}
        loss = model(input_ids=ids, labels=ids, **argument).loss
        assert meter.current > 0
        del loss, cache, argument
        gc.collect()
        assert meter.current == 0


@all_ways
def test_prefix_tuning(way: str) -> None:
    """The trainable part is what is in the cache before forward begins."""
    model, inputs = llama()
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(model, config).train()

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        outputs = model(**inputs)
        return outputs.loss, content(outputs.past_key_values)

    plain = check(model, forward, way)
    assert plain.live == {"prompt_encoder.default.embedding.weight"}
    assert plain.extra["0.keys"].shape[2] == 4 + inputs["input_ids"].shape[1]


@reentrant
def test_torchs_checkpoint_can_not_tune_a_prefix(use_reentrant: bool) -> None:
    model, inputs = llama()
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(model, config).train()
    with pytest.raises(RuntimeError, match="size of tensor"):
        torchs(model, lambda m: (m(**inputs).loss, {}), use_reentrant)


@all_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["no_dropout", "dropout"])
def test_pi0_whose_expert_reads_the_cache_of_its_vlm(
    way: str, dropout: float, dtype: torch.dtype
) -> None:
    model = PI0.build(dropout, dtype)
    plain = check(model, PI0.forward(dtype), way)
    vlm = [name for name in plain.live if name.startswith("model.vlm.language_model.layers")]
    assert vlm, "no gradient through the cache"


@reentrant
def test_torchs_checkpoint_can_not_train_pi0(use_reentrant: bool) -> None:
    with pytest.raises(AttributeError, match="get_seq_length"):
        torchs(PI0.build(), PI0.forward(), use_reentrant)


# ---- states of recurrent layers ---------------------------------------------------------------


def from_a_state(case: Case) -> Forward:
    """Train on the end of a text, from the state after its beginning."""
    ids = case.inputs()["input_ids"]

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        state = hf.DynamicCache(config=model.config)
        with torch.no_grad():
            model.eval()(input_ids=ids[:, :5], cache_params=state)
        model.train()
        loss = model(input_ids=ids[:, 5:], labels=ids[:, 5:], cache_params=state).loss
        return loss, content(state)

    return forward


@all_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MAMBA)
def test_mamba_goes_on_from_a_state(name: str, way: str, dtype: torch.dtype) -> None:
    case = MAMBA[name]
    plain = check(case.build(dtype=dtype), from_a_state(case), way)
    assert len(plain.extra) == 4


def test_large_state_that_is_overwritten_raises_when_called_again() -> None:
    """A first run copies at most 256 KiB of what it overwrites; beyond that, bits are compared."""
    case = replace(
        MAMBA["Mamba"],
        config=lambda: hf.MambaConfig(**{**TEXT, "hidden_size": 512}, conv_kernel=64, **IDS),
    )
    with pytest.raises(retape.ReplayMismatch, match='came out different.* use method="replay"'):
        copy_step(case.build(), from_a_state(case), ENABLE["rerun"])
    check(case.build(), from_a_state(case), "enable")


@reentrant
@pytest.mark.parametrize("name", MAMBA)
def test_torchs_checkpoint_gets_it_wrong_without_a_word(name: str, use_reentrant: bool) -> None:
    case = MAMBA[name]
    model = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = torchs(model, from_a_state(case), use_reentrant)
    plain = step(model, from_a_state(case))
    assert torch.equal(other.loss, plain.loss)
    assert worst(plain, other) > 1.0


@all_ways
@pytest.mark.parametrize("name", MAMBA)
def test_mamba_trains_through_two_chunks(name: str, way: str) -> None:
    case = MAMBA[name]
    ids = case.inputs()["input_ids"]

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        first = model(input_ids=ids[:, :5], use_cache=True)
        state = first.cache_params
        second = model(input_ids=ids[:, 5:], labels=ids[:, 5:], cache_params=state, use_cache=True)
        return first.logits.square().mean() + second.loss, content(state)

    check(case.build(), forward, way)


def test_state_that_the_model_overwrites_after_its_layer_needs_a_scope_around_the_model() -> None:
    """xLSTM copies into the state that a layer was given. Layer by layer that raises, as nothing
    saw the write; a scope around the model sees it."""
    case = CASES["xLSTM"]
    inputs = case.inputs()

    def forward(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        outputs = model(**inputs, use_cache=True)
        states = outputs.cache_params.rnn_state
        return outputs.loss, {
            f"{i}.{j}": each for i, state in states.items() for j, each in enumerate(state)
        }

    def scoped(model: nn.Module) -> tuple[torch.Tensor, Tensors]:
        with retape.recompute("full") as rec:
            result = forward(model)
        scopes.append(rec)
        return result

    scopes: list[Any] = []
    plain = step(case.build(), forward)
    assert_same_step(plain, step(case.build(), scoped))
    assert scopes[0].stats.ops_replayed > 0
    with pytest.raises(retape.ReplayMismatch, match=r'region "backbone.blocks.\d": .* inplace'):
        copy_step(case.build(), forward, retape.enable)


# ---- layers that write elsewhere --------------------------------------------------------------


@all_ways
def test_keys_and_values_shared_through_a_dict(way: str) -> None:
    """Gemma3n: layers fill a dict from which later layers attend."""
    check(GEMMA3N.build(), GEMMA3N.forward(), way)


def test_torchs_reentrant_checkpoint_loses_gradients_of_that_dict() -> None:
    model = GEMMA3N.build()
    other = torchs(model, GEMMA3N.forward(), use_reentrant=True)
    plain = step(model, GEMMA3N.forward())
    assert torch.equal(other.loss, plain.loss)
    assert worst(plain, other) > 0.5
