"""Built-in Hugging Face subjects: tiny, trainable, the same for the same seed, or a reason why not."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from tests.python.huggingface.dead import expected_dead

import retape_hf as hf
from retape._bits import same_bits

FAMILIES = [
    "GPTBigCode",  # decoder
    "Bert",  # encoder
    "T5",  # both
    "Mixtral",  # experts
    "DeepseekV3",  # latent attention, groups of experts
    "Mamba2",  # state
    "Zamba2",  # state, and shared attention
    "ViT",
    "ConvNext",
    "Whisper",
    "Wav2Vec2",
    "CLIP",  # contrast
    "Qwen3VL",  # images in text
]
# Of issue lists and of what people try first.
KNOWN = """GPTBigCode SwiftFormer xLSTM Zamba Zamba2 Clvp Janus Bert Mixtral Qwen2Moe Olmoe GptOss
DeepseekV3 Llama Olmo2 Gemma PaliGemma T5 Whisper ViT Mamba2 GPT2 Qwen3VL PI0 Gemma3nText Albert""".split()
AT_LEAST = 500  # 564 in transformers 5.22.2


def step(name: str):
    model, inputs = hf.build(name)
    torch.manual_seed(2)
    value = hf.loss(model(**inputs))
    value.backward()
    return model, value.detach()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_subject_trains_every_parameter(name: str) -> None:
    model, value = step(name)
    assert model.training
    assert value.isfinite()
    allowed = "|".join(expected_dead(name, model)) or "$^"
    dead = [
        parameter
        for parameter, tensor in model.named_parameters()
        if tensor.requires_grad
        and (tensor.grad is None or not tensor.grad.any())
        and not re.search(allowed, parameter)
    ]
    assert dead == []


@pytest.mark.parametrize("name", [*FAMILIES, "SwiftFormer", "Lilt", "Esm", "RTDetr", "VJEPA2"])
def test_every_parameter_that_is_found_to_have_no_gradient_has_a_reason(name: str) -> None:
    model, inputs = hf.build(name)
    allowed = "|".join(expected_dead(name, model)) or "$^"
    found = hf.dead_parameters(name, model, inputs)
    assert [parameter for parameter in found if not re.search(allowed, parameter)] == []


@pytest.mark.parametrize("name", ["Llama", "Swin", "Whisper"])
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    before = torch.get_rng_state()
    one, inputs = hf.build(name, seed=3)
    two, again = hf.build(name, seed=3)
    other, _ = hf.build(name, seed=4)
    assert torch.equal(before, torch.get_rng_state())  # and the caller's generator is as it was
    assert all(same_bits(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(
        same_bits(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )
    assert inputs.keys() == again.keys()
    assert all(same_bits(v, again[k]) for k, v in inputs.items() if torch.is_tensor(v))


def test_a_subject_has_the_type_that_was_asked_for() -> None:
    model, inputs = hf.build("ViT", dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert inputs["pixel_values"].dtype == torch.bfloat16


def test_a_class_may_be_named_instead_of_an_architecture() -> None:
    model, _ = hf.build("BertForTokenClassification")
    assert type(model).__name__ == "BertForTokenClassification"


def test_what_is_not_built_says_why() -> None:
    with pytest.raises(hf.NotBuilt, match="has no class NoSuchModel") as caught:
        hf.build("NoSuchModel")
    assert caught.value.name == "NoSuchModel"
    assert "NoSuchModel was not built" in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers"):
        hf.architectures()


def test_every_architecture_that_transformers_can_train_has_a_name() -> None:
    names = hf.architectures()
    assert len(names) == len(set(names)) >= AT_LEAST
    assert set(KNOWN) <= set(names)
