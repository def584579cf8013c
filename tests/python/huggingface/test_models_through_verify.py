"""The Hugging Face models of the other tests, through verify itself."""

from __future__ import annotations

import pytest
import torch
from tests.python.huggingface.models import CASES
from tests.python.huggingface.more_models import PI0

import retape

MODELS = {**CASES, "PI0": PI0}
# Parameters without a gradient in any run, by a part of their name, and why that is right.
DEAD = {
    # A softmax over one token; biases in front of a batch norm, in a stage of one pixel.
    "SwiftFormer": ("attn.w_g", "attn.proj.bias", "attn.final.bias", "linear.fc2.bias"),
    "ClvpModel": ("speech_decoder_model",),  # makes the speech that the loss does not see
    "Janus": ("vqmodel", "generation_"),  # draws images; this batch reads one
    # The flow loss reads the prefix through its cache: behind the last keys and values nothing counts.
    "PI0": ("dit.embed_tokens", "language_model.layers.1.", "language_model.norm"),
}


def verdict(name: str, dropout: float, dtype: torch.dtype, **how: object) -> retape.Verdict:
    case = MODELS[name]
    model = case.build(dropout, dtype)
    dead = [n for n, _ in model.named_parameters() if any(p in n for p in DEAD.get(name, ()))]
    return retape.verify(model, case.inputs(dtype), loss=case.loss, may_be_dead=dead, **how)


@pytest.mark.parametrize("way", ["scope", "layers"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["no_dropout", "dropout"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("name", MODELS)
def test_recomputed_it_is_equal(name: str, dtype: torch.dtype, dropout: float, way: str) -> None:
    found = verdict(name, dropout, dtype, layers="auto" if way == "layers" else None)
    assert found.kind == "equal", found.explain()
    assert found.ops_replayed > 0


@pytest.mark.parametrize("name", ["Llama", "T5", "Mixtral", "Whisper"])
def test_called_again_in_every_order_it_is_equal(name: str) -> None:
    found = verdict(name, 0.2, torch.float32, layers="auto", method="rerun", orders=True)
    assert found.kind == "equal", found.explain()
    assert found.reruns > 0


@pytest.mark.parametrize("name", DEAD)
def test_what_has_no_gradient_would_be_vacuous_if_it_were_not_declared(name: str) -> None:
    case = MODELS[name]
    found = retape.verify(case.build(), case.inputs(), loss=case.loss)
    assert found.kind == "vacuous"
    parts = DEAD[name]
    assert all(any(part in reason for part in parts) for reason in found.vacuous), found.vacuous
