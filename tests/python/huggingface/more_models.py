"""More tiny models: with states and caches, and some that Hugging Face's switch does not support."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from tests.python.huggingface.models import (
    ATTENTION,
    BATCH,
    CASES,
    IDS,
    TEXT,
    VOCABULARY,
    Case,
    causal,
    image_and_text,
    masked,
    paligemma_config,
    pixels,
)


def pi0_config() -> hf.PreTrainedConfig:
    vlm = paligemma_config().to_dict()
    expert = {"model_type": "gemma", **ATTENTION, "head_dim": 8, **IDS}
    return hf.PI0Config(
        vlm_config=vlm, dit_config=expert, chunk_size=3, max_state_dim=4, max_action_dim=4
    )


def pi0_batch() -> dict[str, Any]:
    batch = image_and_text()
    batch.pop("labels")
    return {
        **batch,
        "pixel_values": batch["pixel_values"][:, None],  # one camera
        "pixel_attention_mask": torch.ones(BATCH, 1, dtype=torch.bool),
        "state": torch.randn(BATCH, 4),
        "actions": torch.randn(BATCH, 3, 4),
    }


def gemma3n_config() -> hf.PreTrainedConfig:
    """The last two layers read keys and values that the first two put into a dict."""
    return hf.Gemma3nTextConfig(
        **{**ATTENTION, "num_hidden_layers": 4},
        head_dim=8,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=4,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
        altup_num_inputs=2,
        **IDS,
    )


MAMBA = {
    "Mamba": Case(
        hf.MambaForCausalLM,
        lambda: hf.MambaConfig(**TEXT, state_size=4, **IDS),
        causal,
        layers=2,
        dropout=False,
    ),
    "Mamba2": CASES["Mamba2"],
    "FalconMamba": Case(
        hf.FalconMambaForCausalLM,
        lambda: hf.FalconMambaConfig(**TEXT, state_size=4, **IDS),
        causal,
        layers=2,
        dropout=False,
    ),
}
PI0 = Case(hf.PI0ForConditionalGeneration, pi0_config, pi0_batch, layers=6)
GEMMA3N = Case(hf.Gemma3nForCausalLM, gemma3n_config, causal, layers=4)

UNSUPPORTED = {
    "Albert": Case(  # one group of layers, called again and again
        hf.AlbertForMaskedLM,
        lambda: hf.AlbertConfig(
            vocab_size=VOCABULARY,
            embedding_size=8,
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        ),
        masked,
        layers=1,
    ),
    "MPNet": Case(
        hf.MPNetForMaskedLM,
        lambda: hf.MPNetConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        ),
        masked,
        layers=2,
    ),
    "XLNet": Case(
        hf.XLNetLMHeadModel,
        lambda: hf.XLNetConfig(
            vocab_size=VOCABULARY, d_model=16, n_layer=2, n_head=2, d_inner=32, mem_len=4
        ),
        causal,
        layers=2,
    ),
    "ResNet": Case(
        hf.ResNetForImageClassification,
        lambda: hf.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=2
        ),
        lambda: {"pixel_values": pixels(32), "labels": torch.tensor([0, 1])},
        layers=2,
        dropout=False,
    ),
    "ConvNext": Case(
        hf.ConvNextForImageClassification,
        lambda: hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 2], num_stages=2, num_labels=2),
        lambda: {"pixel_values": pixels(32), "labels": torch.tensor([0, 1])},
        layers=2,
    ),
}
