"""Tiny random Hugging Face models, one batch each. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

BATCH, LENGTH, VOCABULARY, IMAGE_TOKEN = 2, 8, 64, 63
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}
ATTENTION = {**TEXT, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}


@dataclass(frozen=True)
class Case:
    """A model from a config, a batch for it, and how many layers `retape.enable` is to choose."""

    model: type[nn.Module]
    config: Callable[[], hf.PreTrainedConfig]
    batch: Callable[[], dict[str, Any]]
    layers: int
    never_ran: int = 0  # of those, parts of the model that this batch does not use
    loss: Callable[[Any], torch.Tensor] = lambda outputs: outputs.loss
    dropout: bool = True  # the architecture has some
    switch: bool = True  # has layers that Hugging Face's own switch reaches

    def build(
        self, dropout: float = 0.0, dtype: torch.dtype = torch.float32, use_cache: bool = True
    ) -> nn.Module:
        torch.manual_seed(0)
        config = self.config()
        set_everywhere(config, dropout, use_cache)
        model = self.model(config)
        with torch.no_grad():
            for parameter in model.parameters():  # some begin at 0, and so would their gradients
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        return model.to(dtype).train()

    def forward(self, dtype: torch.dtype = torch.float32) -> Callable[[nn.Module], Any]:
        inputs = self.inputs(dtype)
        return lambda model: (self.loss(model(**inputs)), {})

    def inputs(self, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        torch.manual_seed(1)
        return {
            name: value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in self.batch().items()
        }


def set_everywhere(config: hf.PreTrainedConfig, dropout: float, use_cache: bool) -> None:
    """In the config and those inside it. (LayerDrop would skip layers; it stays off.)"""
    for name, value in list(vars(config).items()):
        if isinstance(value, hf.PreTrainedConfig):
            set_everywhere(value, dropout, use_cache)
        elif name == "use_cache":
            config.use_cache = value and use_cache
        elif "drop" in name and "layerdrop" not in name and isinstance(value, int | float):
            setattr(config, name, dropout)


def tokens(low: int = 3) -> torch.Tensor:
    return torch.randint(low, VOCABULARY - 1, (BATCH, LENGTH))


def causal() -> dict[str, Any]:
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def masked() -> dict[str, Any]:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -3:] = 0
    return {**causal(), "attention_mask": mask}


def choices() -> dict[str, Any]:
    ids = torch.randint(3, VOCABULARY, (BATCH, 3, LENGTH))
    return {"input_ids": ids, "labels": torch.tensor([0, 2])}


def pixels(size: int = 8) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size)


def image() -> dict[str, Any]:
    return {"pixel_values": pixels(), "labels": torch.tensor([0, 1])}


def image_and_text(patches: int = 4) -> dict[str, Any]:
    ids = torch.cat([torch.full((BATCH, patches), IMAGE_TOKEN), tokens()], dim=1)
    labels = ids.masked_fill(ids == IMAGE_TOKEN, -100)
    mask = torch.ones_like(ids)
    return {"input_ids": ids, "pixel_values": pixels(), "labels": labels, "attention_mask": mask}


def paligemma_batch() -> dict[str, Any]:
    batch = image_and_text()
    return {**batch, "token_type_ids": (batch["labels"] != -100).long()}


def speech() -> dict[str, Any]:
    return {"input_features": torch.randn(BATCH, 8, 16), "labels": tokens()}


def clvp_batch() -> dict[str, Any]:
    flags = {"return_loss": True, "output_hidden_states": True}
    return {"input_ids": tokens(), "input_features": torch.randn(BATCH, 8, 10), **flags}


def clvp_loss(outputs: Any) -> torch.Tensor:
    """With the decoder's part: an argmax cuts it off from the contrastive loss."""
    return outputs.loss + outputs.decoder_hidden_states[-1].square().mean()


def qwen3_vl_batch() -> dict[str, Any]:
    ids = torch.cat([torch.full((BATCH, 4), IMAGE_TOKEN), tokens(low=5)], dim=1)
    return {
        "input_ids": ids,
        "labels": ids.masked_fill(ids == IMAGE_TOKEN, -100),
        "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
        "pixel_values": torch.randn(BATCH * 16, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
    }


def paligemma_config() -> hf.PreTrainedConfig:
    return hf.PaliGemmaConfig(
        text_config={"model_type": "gemma", **ATTENTION, "head_dim": 8, **IDS},
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        image_token_index=IMAGE_TOKEN,
        projection_dim=16,
        hidden_size=16,
    )


def janus_vq_config() -> hf.PreTrainedConfig:
    return hf.JanusVQVAEConfig(
        embed_dim=8,
        num_embeddings=16,
        latent_channels=32,
        base_channels=32,
        channel_multiplier=(1, 1),
        num_res_blocks=2,
        num_patches=4,
        projection_dim=16,
        image_token_embed_dim=16,
    )


def janus_config() -> hf.PreTrainedConfig:
    vision = {**VISION, "projection_dim": 16, "mlp_ratio": 2, "num_image_tokens": 4}
    vision.pop("intermediate_size")
    return hf.JanusConfig(
        text_config=hf.LlamaConfig(**ATTENTION, **IDS),
        vision_config=hf.JanusVisionConfig(**vision),
        vq_config=janus_vq_config(),
        image_token_id=IMAGE_TOKEN,
    )


def clvp_decoder_config() -> hf.PreTrainedConfig:
    return hf.ClvpDecoderConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_mel_attn_blocks=2,
        max_position_embeddings=64,
        max_text_tokens=64,
        feature_size=8,
        bos_token_id=1,
        eos_token_id=2,
    )


def clvp_config() -> hf.PreTrainedConfig:
    encoder = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 32,
        "projection_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return hf.ClvpConfig(
        text_config=hf.ClvpEncoderConfig(**encoder).to_dict(),
        speech_config=hf.ClvpEncoderConfig(**encoder).to_dict(),
        decoder_config=clvp_decoder_config().to_dict(),
        projection_dim=64,
    )


def qwen3_vl_config() -> hf.PreTrainedConfig:
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
    return hf.Qwen3VLConfig(
        text_config={**ATTENTION, "head_dim": 8, "rope_parameters": rope, **IDS},
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "patch_size": 4,
            "out_hidden_size": 16,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=IMAGE_TOKEN,
        video_token_id=62,
        vision_start_token_id=3,
        vision_end_token_id=4,
    )


def bert_config() -> hf.PreTrainedConfig:
    config = {key: value for key, value in ATTENTION.items() if key != "num_key_value_heads"}
    return hf.BertConfig(**config, max_position_embeddings=16)


def vit_config() -> hf.PreTrainedConfig:
    return hf.ViTConfig(**VISION)


def vq_loss(outputs: Any) -> torch.Tensor:
    return outputs.decoded_pixel_values.square().mean() + outputs.embedding_loss


CASES = {
    "GPTBigCode": Case(
        hf.GPTBigCodeForCausalLM,
        lambda: hf.GPTBigCodeConfig(
            vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, **IDS
        ),
        masked,
        layers=2,
    ),
    "SwiftFormer": Case(
        hf.SwiftFormerForImageClassification,
        lambda: hf.SwiftFormerConfig(
            image_size=32, depths=[2, 2, 2, 2], embed_dims=[8, 8, 16, 16], mlp_ratio=2, num_labels=2
        ),
        lambda: {"pixel_values": pixels(32), "labels": torch.tensor([0, 1])},
        layers=7,  # four stages and what is between them
    ),
    "xLSTM": Case(
        hf.xLSTMForCausalLM,
        lambda: hf.xLSTMConfig(**{**TEXT, "hidden_size": 128}, num_heads=2, use_cache=False, **IDS),
        causal,
        layers=2,
        dropout=False,
    ),
    "Zamba": Case(
        hf.ZambaForCausalLM,
        lambda: hf.ZambaConfig(
            **{**ATTENTION, "num_hidden_layers": 5, "num_key_value_heads": 2},
            mamba_d_state=4,
            mamba_dt_rank=4,
            n_mamba_heads=2,
            attn_layer_period=2,
            attn_layer_offset=1,
            **IDS,
        ),
        masked,
        layers=5,
    ),
    "Zamba2": Case(
        hf.Zamba2ForCausalLM,
        lambda: hf.Zamba2Config(
            **{**ATTENTION, "num_hidden_layers": 4, "num_key_value_heads": 2},
            layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
            mamba_d_state=4,
            n_mamba_heads=4,
            chunk_size=4,
            adapter_rank=4,
            use_shared_attention_adapter=True,
            **IDS,
        ),
        masked,
        layers=4,
    ),
    "ClvpForCausalLM": Case(
        hf.ClvpForCausalLM, clvp_decoder_config, causal, layers=2, switch=False
    ),
    "ClvpModel": Case(
        hf.ClvpModelForConditionalGeneration,
        clvp_config,
        clvp_batch,
        layers=8,
        loss=clvp_loss,
        switch=False,
    ),
    "Janus": Case(
        hf.JanusForConditionalGeneration, janus_config, image_and_text, layers=19, never_ran=15
    ),
    "JanusVQVAE": Case(
        hf.JanusVQVAE,
        janus_vq_config,
        lambda: {"pixel_values": pixels()},
        layers=15,
        loss=vq_loss,
        switch=False,
    ),
    "BertForMultipleChoice": Case(hf.BertForMultipleChoice, bert_config, choices, layers=2),
    "Mixtral": Case(
        hf.MixtralForCausalLM,
        lambda: hf.MixtralConfig(**ATTENTION, num_local_experts=4, **IDS),
        masked,
        layers=2,
    ),
    "Qwen2Moe": Case(
        hf.Qwen2MoeForCausalLM,
        lambda: hf.Qwen2MoeConfig(
            **ATTENTION,
            moe_intermediate_size=8,
            shared_expert_intermediate_size=16,
            num_experts=4,
            num_experts_per_tok=2,
            **IDS,
        ),
        masked,
        layers=2,
    ),
    "Olmoe": Case(
        hf.OlmoeForCausalLM,
        lambda: hf.OlmoeConfig(**ATTENTION, num_experts=4, num_experts_per_tok=2, **IDS),
        masked,
        layers=2,
    ),
    "GptOss": Case(
        hf.GptOssForCausalLM,
        lambda: hf.GptOssConfig(
            **ATTENTION, head_dim=8, num_local_experts=4, num_experts_per_tok=2, **IDS
        ),
        masked,
        layers=2,
    ),
    "DeepseekV3": Case(
        hf.DeepseekV3ForCausalLM,
        lambda: hf.DeepseekV3Config(
            **{**ATTENTION, "num_key_value_heads": 2},
            moe_intermediate_size=8,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=8,
            **IDS,
        ),
        masked,
        layers=2,
    ),
    "Llama": Case(
        hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**ATTENTION, **IDS), masked, layers=2
    ),
    "Olmo2": Case(
        hf.Olmo2ForCausalLM, lambda: hf.Olmo2Config(**ATTENTION, **IDS), masked, layers=2
    ),
    "Gemma": Case(
        hf.GemmaForCausalLM,
        lambda: hf.GemmaConfig(**ATTENTION, head_dim=8, **IDS),
        masked,
        layers=2,
    ),
    "PaliGemma": Case(
        hf.PaliGemmaForConditionalGeneration, paligemma_config, paligemma_batch, layers=4
    ),
    "T5": Case(
        hf.T5ForConditionalGeneration,
        lambda: hf.T5Config(
            vocab_size=VOCABULARY,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        ),
        masked,
        layers=4,
    ),
    "Whisper": Case(
        hf.WhisperForConditionalGeneration,
        lambda: hf.WhisperConfig(
            vocab_size=VOCABULARY,
            num_mel_bins=8,
            encoder_layers=2,
            encoder_attention_heads=2,
            decoder_layers=2,
            decoder_attention_heads=2,
            decoder_ffn_dim=32,
            encoder_ffn_dim=32,
            d_model=16,
            max_source_positions=8,
            max_target_positions=16,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            **IDS,
        ),
        speech,
        layers=4,
    ),
    "ViT": Case(hf.ViTForImageClassification, vit_config, image, layers=2),
    "Mamba2": Case(
        hf.Mamba2ForCausalLM,
        lambda: hf.Mamba2Config(
            **TEXT, num_heads=4, head_dim=8, state_size=4, n_groups=1, chunk_size=4, **IDS
        ),
        causal,
        layers=2,
        dropout=False,
    ),
    "GPT2": Case(
        hf.GPT2LMHeadModel,
        lambda: hf.GPT2Config(
            vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, **IDS
        ),
        masked,
        layers=2,
    ),
    "Bert": Case(hf.BertForMaskedLM, bert_config, masked, layers=2),
    "Qwen3VL": Case(hf.Qwen3VLForConditionalGeneration, qwen3_vl_config, qwen3_vl_batch, layers=6),
}
