"""retape.enable(model, "**.mlp", rows=8): backward of chosen layers in slices of rows."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from tests.python.bits import assert_same_bits
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import retape

LAYERS = 3


def llama(dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 256, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(dtype)


def gradients(model: nn.Module, sequence: int = 24) -> dict[str, torch.Tensor]:
    ids = torch.randint(64, (2, sequence), generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.ne(0).any()
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


def test_gradients_are_equal_to_rounding_and_every_call_goes_in_slices():
    model = llama()
    expected = gradients(model)
    with retape.enable(model, "**.mlp", rows=4) as report:
        found = gradients(model)
        assert report.names == [f"model.layers.{i}.mlp" for i in range(LAYERS)]
        assert (report.rows.sliced, report.rows.whole, report.rows.reasons) == (LAYERS, 0, [])
        assert report.stats.ops_replayed > LAYERS * 4
        assert report.idle == {}
        assert str(report).endswith(f"{LAYERS} calls in slices, 0 whole")
    assert_close(found, expected)
    assert_same_bits(list(gradients(model).values()), list(expected.values()))


def test_the_peak_is_lower_than_with_all_of_the_layer_replayed():
    model = llama(torch.float32)
    gradients(model, 512)  # gradients are there from now on

    def peak(**options: int) -> int:
        with retape.enable(model, "**.mlp", **options), retape.memory.Meter() as meter:
            gradients(model, 512)
        return meter.peak

    assert peak(rows=8) < peak() - 512 * 2 * 256 * 4  # one activation of the inside at least


def test_layers_that_mix_rows_are_replayed_whole_bit_for_bit_with_a_warning():
    model = llama()
    expected = gradients(model)
    with retape.enable(model, rows=4) as report:
        with pytest.warns(UserWarning, match="replayed whole"):
            found = gradients(model)
        assert (report.rows.sliced, report.rows.whole) == (0, LAYERS)
        assert report.rows.reasons
        assert report.idle == {}
    assert_same_bits(list(found.values()), list(expected.values()))


def test_strict_rows_raise_where_a_layer_mixes_them():
    model = llama()
    with retape.enable(model, rows=retape.Rows(4, strict=True)):
        with pytest.raises(retape.UsageError, match="rows"):
            gradients(model)


def test_slices_inside_of_layers_that_are_replayed_themselves():
    model = llama()
    expected = gradients(model)
    with retape.enable(model), retape.enable(model, "**.mlp", rows=4) as report:
        found = gradients(model)
        assert report.rows.sliced == LAYERS
    assert_close(found, expected)


def test_a_copy_is_enabled_too_and_counts_for_itself():
    model = llama()
    expected = gradients(model)
    report = retape.enable(model, "**.mlp", rows=retape.Rows(4))
    twin = copy.deepcopy(model)
    assert_close(gradients(twin), expected)
    assert report.rows.sliced == 0
    assert retape.enabled(twin).rows.sliced == LAYERS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that were never called
        retape.disable(model)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rows": 4, "method": "rerun"}, "rows are a way of replay"),
        ({"rows": 0}, "at least 1 slice"),
        ({"rows": 1.5}, "expected a number of slices or a retape.Rows, got 1.5"),
        ({"rows": True}, "expected a number of slices or a retape.Rows, got True"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_has_changed(options, text):
    model = llama()
    with pytest.raises(retape.UsageError, match=text):
        retape.enable(model, "**.mlp", **options)
    assert len(retape.enabled(model)) == 0
