"""Architectures for which the rules do not suffice: what to change, and why something is not built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retape.subjects import hf_special_inputs as special
from retape.subjects.hf_inputs import Batch


@dataclass(frozen=True)
class Exceptional:
    model: str | None = None  # another class than the first choice
    changes: dict[str, Any] = field(default_factory=dict)  # of the shrunk config, nested
    keep: str | None = None  # attributes (a pattern) that are not shrunk
    early: Callable[[Any, Batch], Batch] | None = None  # before placeholders are put in
    inputs: Callable[[Any, Batch], Batch] | None = None  # after all the rules


def tiny_backbone() -> dict[str, Any]:
    """Of the detectors whose default backbone is one of timm's."""
    resnet = {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 32, 32],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage2", "stage3", "stage4"],
    }
    return {"backbone_config": resnet, "use_timm_backbone": False, "backbone": None}


MAMBA_HEADS = {"mamba_n_heads": 4, "mamba_d_head": 32}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
COMPASS = {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}
SAM2 = {
    "vision_config": {
        "backbone_config": {"image_size": [128, 128]},
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
    },
    "prompt_encoder_config": {"image_size": 128, "patch_size": 16},
}
WINDOW = {"vision_config": {"window_size": 32}}
CROSS = {"decoder": {"is_decoder": True, "add_cross_attention": True}}
FORECAST = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "num_time_features": 2,
}
GENERATED = {"pad_token_id": 0, "decoder_start_token_id": 1}

EXCEPTIONS: dict[str, Exceptional] = {
    # States, heads and experts that are sized apart from the rest.
    "FalconH1": Exceptional(changes={**MAMBA_HEADS, "mamba_d_ssm": 128}),
    "GraniteMoeHybrid": Exceptional(
        changes={**MAMBA_HEADS, "num_local_experts": 4, "layer_types": ["mamba", "attention"]}
    ),
    "Mamba2": Exceptional(changes={"num_heads": 4, "head_dim": 32, "n_groups": 1}),
    "Nemotron": Exceptional(changes={"num_key_value_heads": 2}),
    "DeepseekV2": Exceptional(changes={"num_experts_per_tok": 2}),
    "Dots1": Exceptional(
        changes={"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
    ),
    "DiffusionGemma": Exceptional(changes={"text_config": {"num_experts": 4, "top_k_experts": 2}}),
    "Esm": Exceptional(changes={"vocab_size": 128, "pad_token_id": 1, "mask_token_id": 2}),
    "GPTNeo": Exceptional(changes={"attention_types": [[["global", "local"], 1]], "num_layers": 2}),
    "LongcatFlash": Exceptional(
        changes={"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8}
    ),
    "Reformer": Exceptional(
        changes={"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (4, 4), "is_decoder": False},
        inputs=special.axial_length,
    ),
    "Splinter": Exceptional(changes={"question_token_id": 50}, inputs=special.question),
    "RoCBert": Exceptional(inputs=special.shapes_of_words),
    "Luke": Exceptional(inputs=special.entities),
    "LED": Exceptional(inputs=special.global_attention),
    "Longformer": Exceptional(inputs=special.global_attention),
    "Lilt": Exceptional(keep="hidden_size", changes={"hidden_size": 96, "intermediate_size": 64}),
    "Bark": Exceptional(model="BarkSemanticModel", inputs=special.without("labels")),
    "EncoderDecoder": Exceptional(changes=CROSS, inputs=special.two_texts),
    "VisionEncoderDecoder": Exceptional(changes=CROSS),
    "Informer": Exceptional(changes=FORECAST, inputs=special.series),
    "TimeSeriesTransformer": Exceptional(changes=FORECAST, inputs=special.series),
    "DecisionTransformer": Exceptional(inputs=special.trajectory),
    # Depth is not trained by its own loss there: any loss will do.
    "CHMv2": Exceptional(inputs=special.without("labels")),
    "DepthPro": Exceptional(inputs=special.without("labels")),
    "PromptDepthAnything": Exceptional(inputs=special.without("labels")),
    "ZoeDepth": Exceptional(inputs=special.without("labels")),
    # Backbones of timm by default.
    "ConditionalDetr": Exceptional(changes=tiny_backbone()),
    "DabDetr": Exceptional(changes=tiny_backbone()),
    "DeformableDetr": Exceptional(changes=tiny_backbone()),
    "Detr": Exceptional(changes=tiny_backbone()),
    "TableTransformer": Exceptional(changes=tiny_backbone()),
    "OmDetTurbo": Exceptional(changes=tiny_backbone()),
    # Inputs of their own.
    "AST": Exceptional(changes={"max_length": 64}, inputs=special.spectrogram),
    "LightGlue": Exceptional(keep="dim|hidden|channels", inputs=special.pair_of_images),
    "SuperGlue": Exceptional(keep="dim|hidden|channels", inputs=special.pair_of_images),
    "EfficientLoFTR": Exceptional(keep="hidden_size", inputs=special.pair_of_images),
    "Lxmert": Exceptional(inputs=special.visual_regions),
    "VisualBert": Exceptional(inputs=special.visual_bert),
    "PI0": Exceptional(inputs=special.pi0_batch),
    "Clvp": Exceptional(
        changes={
            "text_config": {"num_attention_heads": 2},
            "speech_config": {"num_attention_heads": 2},
        },
        inputs=special.clvp_batch,
    ),
    "Dac": Exceptional(inputs=special.mono),
    "PeAudio": Exceptional(inputs=special.mono),
    "VibeVoiceAcousticTokenizer": Exceptional(inputs=special.mono),
    "Xcodec": Exceptional(inputs=special.mono),
    # Convolutions whose widths follow from one another.
    "EfficientNet": Exceptional(keep="hidden_dim"),
    "TextNet": Exceptional(keep="channels|hidden_sizes"),
    "PPLCNetV4": Exceptional(keep="channels"),
    "Levit": Exceptional(keep="patch_size"),
    "SuperPoint": Exceptional(keep="dim|channels|hidden_sizes"),
    "Bamba": Exceptional(changes={**MAMBA_HEADS, "attn_layer_indices": [1]}),
    "Jamba": Exceptional(
        changes={
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_hidden_layers": 2,
        }
    ),
    "NemotronH": Exceptional(changes={"n_groups": 2, "mamba_num_heads": 4, "mamba_head_dim": 32}),
    "Xmod": Exceptional(changes={"default_language": "en_XX"}),
    "Moonshine": Exceptional(
        changes={"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4, **GENERATED}
    ),
    "Wav2Vec2Bert": Exceptional(changes={"vocab_size": 128}),
    "Wav2Vec2Conformer": Exceptional(changes={"vocab_size": 128}),
    "Marian": Exceptional(inputs=special.decoder_words),
    "Perceiver": Exceptional(changes={"d_latents": 64, "num_latents": 8}, inputs=special.latents),
    "Dbrx": Exceptional(changes={"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}}),
    "Gemma3nText": Exceptional(
        changes={
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [64] * 4,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
        }
    ),
    "CohereCompassText": Exceptional(changes=COMPASS),
    "CohereCompass": Exceptional(changes={"text_config": COMPASS}),
    "Glm5Next": Exceptional(),
    "Blt": Exceptional(
        changes={"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [2, 3]},
        inputs=lambda model, batch: {**batch, "use_cache": False},
    ),
    "SpeechEncoderDecoder": Exceptional(changes=CROSS, inputs=special.without("input_features")),
    "Udop": Exceptional(inputs=special.parts_of_pages),
    "Dia": Exceptional(inputs=special.channels_of_codes),
    "Musicgen": Exceptional(model="MusicgenForConditionalGeneration", inputs=special.codes),
    "MusicgenMelody": Exceptional(
        model="MusicgenMelodyForConditionalGeneration", inputs=special.codes
    ),
    "Step3p7": Exceptional(changes={"text_config": {"sliding_window": 8}}),
    # Images.
    "Beit": Exceptional(changes={"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}),
    "Data2VecVision": Exceptional(changes={"num_hidden_layers": 4, "out_indices": [0, 1, 2, 3]}),
    "DPT": Exceptional(changes={"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}),
    "LayoutLMv3": Exceptional(changes={"coordinate_size": 8, "shape_size": 16}),
    "LwDetr": Exceptional(changes={"backbone_config": {"num_windows": 4}}),
    "LwDetrViT": Exceptional(changes={"num_windows": 4}),
    "Mask2Former": Exceptional(changes={"feature_size": 64, "mask_feature_size": 64}),
    "MaskFormer": Exceptional(changes={"fpn_feature_size": 64, "mask_feature_size": 64}),
    "MobileViTV2": Exceptional(changes={"image_size": 128}),
    "Sam": Exceptional(changes={"vision_config": {"num_pos_feats": 32}}),
    "SamHQ": Exceptional(changes={"vision_config": {"num_pos_feats": 32}}),
    "VitMatte": Exceptional(
        changes={"fusion_hidden_sizes": [64, 32, 32, 32], "convstream_hidden_sizes": [16, 16, 32]}
    ),
    "HGNetV2": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "DFine": Exceptional(
        keep="channels|embedding_size|hidden_sizes", changes={"decoder_in_channels": [64] * 3}
    ),
    "Deimv2": Exceptional(
        keep="channels|embedding_size|hidden_sizes", changes={"decoder_in_channels": [64] * 3}
    ),
    "PPDocLayoutV2": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPDocLayoutV3": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPOCRV5ServerDet": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPOCRV5ServerRec": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPOCRV6MediumDet": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPOCRV6SmallDet": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPOCRV6SmallRec": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPOCRV6TinyRec": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPFormulaNet": Exceptional(keep="channels"),
    "SLANet": Exceptional(keep="channels|dim"),
    "SLANeXt": Exceptional(keep="channels"),
    "UVDoc": Exceptional(keep="."),
    "Tvp": Exceptional(changes={**tiny_backbone(), "visual_prompt_size": 8, "max_img_size": 32}),
    # Images and text.
    "Aria": Exceptional(changes={"projector_patch_to_query_dict": {16: 4}}),
    "Blip2": Exceptional(changes={"image_token_index": 120}),
    "InstructBlip": Exceptional(changes={"image_token_index": 120}, early=special.qformer),
    "InstructBlipVideo": Exceptional(changes={"video_token_index": 120}, early=special.qformer),
    "Voxtral": Exceptional(changes={"audio_token_id": 120}),
    "Gemma3": Exceptional(changes={"mm_tokens_per_image": 4}),
    "ShieldGemma2": Exceptional(changes={"mm_tokens_per_image": 4}),
    "T5Gemma2": Exceptional(changes={"encoder": {"mm_tokens_per_image": 4}}),
    "Llama4": Exceptional(changes={"vision_config": {"intermediate_size": 256}}),
    "LlavaNext": Exceptional(changes={"image_grid_pinpoints": [[32, 32]]}, early=special.tiles),
    "LlavaNextVideo": Exceptional(
        changes={"image_grid_pinpoints": [[32, 32]]}, early=special.tiles
    ),
    "LlavaOnevision": Exceptional(
        changes={"image_grid_pinpoints": [[32, 32]]}, early=special.tiles
    ),
    "Llava": Exceptional(early=special.without("image_sizes")),  # those are Pixtral's
    "VipLlava": Exceptional(changes={"vision_feature_layers": [-1, -2]}),
    "Molmo2": Exceptional(changes={"adapter_config": {"vision_feature_layer": [1, 0]}}),
    "Qwen2_5_VL": Exceptional(changes=WINDOW),
    "Qwen2_5OmniThinker": Exceptional(changes=WINDOW),
    "Mllama": Exceptional(
        changes={
            "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
            "text_config": {"cross_attention_layers": [1]},
        },
        inputs=special.mllama_batch,
    ),
    "Idefics": Exceptional(inputs=special.idefics_batch),
    "Kosmos2": Exceptional(inputs=special.kosmos2_batch),
    "Siglip2": Exceptional(inputs=special.siglip2_patches),
    "FunAsrNano": Exceptional(changes={"adaptor_config": {"intermediate_size": 16}}),
    "Sam2": Exceptional(keep="hidden_size|dim|channel", changes=SAM2),
    "Sam2Video": Exceptional(keep="hidden_size|dim|channel", changes=SAM2),
    "Sam2Vision": Exceptional(keep="hidden_size|dim|channel", changes=SAM2["vision_config"]),
    "Sam2HieraDet": Exceptional(keep="hidden_size|dim|channel"),
    "PPDocLayoutV4": Exceptional(
        keep="channels|embedding_size|hidden_sizes", inputs=special.without("labels")
    ),
    "Nemotron3_5Transcribe": Exceptional(keep="chunk"),
    "Nemotron3_5TranscribeAudio": Exceptional(keep="chunk"),
    "Nemotron3Diarization": Exceptional(keep="chunk"),
    "GraniteSpeech": Exceptional(keep="window"),
    "GraniteSpeechPlus": Exceptional(keep="window"),
    "TimesFm": Exceptional(inputs=special.long_past),
    "TimesFm2_5": Exceptional(changes={"context_length": 128}, inputs=special.long_past),
    "Chameleon": Exceptional(
        changes={"vocabulary_map": {"<image>": 120}}, early=special.without("pixel_values")
    ),
    "Pix2Struct": Exceptional(inputs=special.flattened),
    "Lfm2Vl": Exceptional(early=special.siglip2_patches),
    "Flava": Exceptional(model="FlavaModel"),
    "FunAsrNanoEncoder": Exceptional(changes={"num_mel_bins": 112}),
    "Gemma4": Exceptional(
        early=special.without("pixel_values", "input_features", "input_features_mask")
    ),
    "Gemma4Unified": Exceptional(
        early=special.without("pixel_values", "input_features", "input_features_mask")
    ),
    "EmbeddingGemma2": Exceptional(
        early=special.without("pixel_values", "input_features", "input_features_mask")
    ),
    "Bit": Exceptional(changes={"num_groups": 8, "embedding_size": 32}),
    "xLSTM": Exceptional(
        changes={"hidden_size": 128, "embedding_dim": 128, "num_heads": 2, "use_cache": False}
    ),
    "Zamba": Exceptional(
        changes={
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_hidden_layers": 5,
            "layers_block_type": None,
            "num_key_value_heads": 4,
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
        }
    ),
    "RTDetr": Exceptional(
        keep="hidden_sizes|embedding_size|in_channels", changes={"decoder_in_channels": [64] * 3}
    ),
    "RTDetrV2": Exceptional(
        keep="hidden_sizes|embedding_size|in_channels", changes={"decoder_in_channels": [64] * 3}
    ),
    "Csm": Exceptional(inputs=special.without("input_values")),
    "Lfm2Moe": Exceptional(changes={"layer_types": ["conv", "full_attention"]}),
    "DepthAnything": Exceptional(
        changes={"depth_estimation_type": "metric"}, inputs=special.without("labels")
    ),
    "Emu3": Exceptional(
        changes={"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121}},
        early=special.without("pixel_values", "image_sizes"),
    ),
    "KyutaiSpeechToText": Exceptional(inputs=special.without("input_values")),
    "MimiDecoder": Exceptional(inputs=special.codec_latents),
    "PocketTTSAudioTokenizerDecoder": Exceptional(inputs=special.codec_latents),
    "Pop2Piano": Exceptional(inputs=special.embedded_sound),
    "NeuCodec": Exceptional(inputs=special.mono),
    "Xcodec2": Exceptional(inputs=special.mono),
    "SegGpt": Exceptional(
        model="SegGptForImageSegmentation",
        changes={
            "image_size": [64, 32],
            "intermediate_hidden_state_indices": [0, 1],
            "merge_index": 0,
        },
        inputs=special.prompted,
    ),
    "Autoformer": Exceptional(changes={**FORECAST, "label_length": 2}, inputs=special.series),
    "ColModernVBert": Exceptional(early=special.one_image_each),
    "Fuyu": Exceptional(early=special.rows_of_pixels),
    "Canine": Exceptional(model="CanineForTokenClassification"),
    "HunYuanMoEV1": Exceptional(changes={"moe_topk": 2, "num_experts": 4}),
    "Swin2SR": Exceptional(changes={"image_size": 32}),
    "Align": Exceptional(model="AlignModel"),  # its classifier takes the width of another config
    "Exaone4_5_": Exceptional(changes=WINDOW),
    "HyperCLOVAXVisionV2": Exceptional(changes=WINDOW),
    "VJEPA2": Exceptional(changes={"crop_size": 32, "image_size": 32, "frames_per_clip": 4}),
    "MossTranscribeDiarizeAudio": Exceptional(inputs=special.without("attention_mask")),
    "Qwen2AudioEncoder": Exceptional(inputs=special.without("attention_mask")),
}
NOT_BUILT: dict[str, str] = {
    "Gemma4Assistant": "drafts for another model, whose keys and values it needs",
    "Gemma4UnifiedAssistant": "drafts for another model, whose keys and values it needs",
    "Inkling": "the rules do not shrink its vision encoder yet: 2.4 GB in one projection",
    "MuseGlimmerAssistant": "drafts for another model, whose hidden states it needs",
    "Qwen2_5Omni": "has no forward: it only generates; Qwen2_5OmniThinker is its part that trains",
    "Qwen3OmniMoe": "has no forward: it only generates; Qwen3OmniMoeThinker is its part that trains",
    "Sam3TrackerVideo": "forward takes a session of inference, not a batch",
}
