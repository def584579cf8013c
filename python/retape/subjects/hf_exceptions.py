"""Architectures for which the rules do not suffice: what to change."""

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
    loss_per_sample: bool = False  # its own loss is not one number


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
INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
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
    "DeepseekV4": Exceptional(  # of 12 tokens, more than one block
        changes={
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 4}
        }
    ),
    "DeepseekOcr2": Exceptional(
        changes={"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}}
    ),
    "DeepseekVLHybrid": Exceptional(
        changes={"high_res_vision_config": {"global_attn_indexes": [0, 1]}}
    ),
    "DiffusionGemma": Exceptional(
        changes={"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}}
    ),
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
    "CHMv2": Exceptional(
        changes={"backbone_config": {"return_class_token": True}}, inputs=special.without("labels")
    ),
    "DepthPro": Exceptional(
        changes={
            "patch_size": 32,
            "intermediate_hook_ids": [1, 0],
            "scaled_images_ratios": [0.25, 0.5, 1],
        },
        inputs=special.depth_pro_image,
    ),
    "PromptDepthAnything": Exceptional(inputs=special.without("labels")),
    "ZoeDepth": Exceptional(inputs=special.without("labels")),
    # Backbones of timm by default.
    "ConditionalDetr": Exceptional(changes=tiny_backbone()),
    "DabDetr": Exceptional(changes=tiny_backbone()),
    "DeformableDetr": Exceptional(changes=tiny_backbone()),
    "Detr": Exceptional(changes=tiny_backbone()),
    "TableTransformer": Exceptional(changes=tiny_backbone()),
    # Inputs of their own.
    "AST": Exceptional(changes={"max_length": 64}, inputs=special.spectrogram),
    "LightGlue": Exceptional(keep="dim|hidden|channels", inputs=special.pair_of_images),
    "SuperGlue": Exceptional(keep="dim|hidden|channels", inputs=special.pair_of_images),
    "EfficientLoFTR": Exceptional(keep="hidden_size|head", inputs=special.pair_of_images),
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
    "Dac": Exceptional(inputs=special.mono, loss_per_sample=True),
    "PeAudio": Exceptional(inputs=special.mono),
    "VibeVoiceAcousticTokenizer": Exceptional(inputs=special.mono),
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
    "Data2VecVision": Exceptional(changes={"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}),
    "DPT": Exceptional(changes={"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}),
    "LayoutLMv3": Exceptional(changes={"coordinate_size": 8, "shape_size": 16}),
    "LwDetr": Exceptional(
        changes={"backbone_config": {"num_windows": 4}, "projector_scale_factors": [1.0]}
    ),
    "Mask2Former": Exceptional(changes={"feature_size": 64, "mask_feature_size": 64}),
    "MaskFormer": Exceptional(changes={"fpn_feature_size": 64, "mask_feature_size": 64}),
    "MobileViTV2": Exceptional(changes={"image_size": 128}),
    "Sam": Exceptional(changes={"vision_config": {"num_pos_feats": 32}}),
    "SamHQ": Exceptional(changes={"vision_config": {"num_pos_feats": 32}}),
    "VitMatte": Exceptional(  # its decoder doubles the features four times
        changes={
            "backbone_config": {"image_size": 64, "patch_size": 16},
            "fusion_hidden_sizes": [64, 32, 32, 32],
            "convstream_hidden_sizes": [16, 16, 32],
        }
    ),
    "HGNetV2": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "DFine": Exceptional(
        keep="channels|embedding_size|hidden_sizes", changes={"decoder_in_channels": [64] * 3}
    ),
    "Deimv2": Exceptional(
        keep="channels|embedding_size|hidden_sizes", changes={"decoder_in_channels": [64] * 3}
    ),
    "PPDocLayoutV2": Exceptional(
        keep="channels|embedding_size|hidden_sizes",
        changes={
            "decoder_in_channels": [64] * 3,
            "class_thresholds": [0.5] * 25,
            "class_order": list(range(25)),
        },
    ),
    "PPDocLayoutV3": Exceptional(
        keep="channels|embedding_size|hidden_sizes",
        changes={"decoder_in_channels": [64] * 3, "x4_feat_dim": 128},
    ),
    "PPOCRV5ServerRec": Exceptional(keep="channels|embedding_size|hidden_sizes"),
    "PPFormulaNet": Exceptional(keep="channels"),
    "SLANet": Exceptional(keep="channels|dim"),
    "SLANeXt": Exceptional(keep="channels"),
    "UVDoc": Exceptional(
        keep=".", changes={"backbone_config": {"out_features": [f"stage{i}" for i in range(1, 7)]}}
    ),
    # Images and text.
    "Aria": Exceptional(changes={"projector_patch_to_query_dict": {16: 4}}),
    "Blip2": Exceptional(changes={"image_token_index": 120}),
    "InstructBlip": Exceptional(changes={"image_token_index": 120}, early=special.qformer),
    "InstructBlipVideo": Exceptional(
        changes={"video_token_index": 120}, early=special.qformer, inputs=special.video_in_text
    ),
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
    "Qwen2_5_VL": Exceptional(changes=WINDOW),
    "Qwen2_5OmniThinker": Exceptional(changes={**WINDOW, "vision_start_token_id": 100}),
    "Qwen3ASR": Exceptional(keep="window|chunk", early=special.hundred_frames),
    "Qwen3ASREncoder": Exceptional(keep="window|chunk", inputs=special.hundred_frames),
    "Qwen3OmniMoeThinker": Exceptional(
        keep="n_window|chunk",
        changes={"vision_start_token_id": 100},
        early=special.hundred_frames,
    ),
    "PvtV2": Exceptional(changes={"image_size": 128}),  # else the last stages have one key
    "VideoPrism": Exceptional(changes={"vision_config": {"image_size": 36}}),  # two by two patches
    "VideoPrismVision": Exceptional(changes={"image_size": 36}),
    "PaddleOCRVL": Exceptional(early=special.square_patches),
    "MuseGlimmer": Exceptional(
        changes={"out_hidden_size": 256}, early=special.patches_of_two_frames
    ),
    "MuseSpark": Exceptional(changes={"out_hidden_size": 256}, early=special.patches_beside_sound),
    "GraniteSpeech5CTC": Exceptional(inputs=special.wide_frames),
    "Nemotron3_5Asr": Exceptional(inputs=special.decoded),  # its own loss is another model's
    "NemotronAsrStreaming": Exceptional(inputs=special.decoded),
    "ParakeetRNNT": Exceptional(inputs=special.decoded_labels),
    "ParakeetTDT": Exceptional(inputs=special.decoded_labels),
    "Qwen2Audio": Exceptional(changes={"ignore_index": -100}, early=special.one_sound_each),
    "VideoLlama3": Exceptional(early=special.merge_sizes),
    "Exaone4_5_Vision": Exceptional(changes={"window_size": 32}, inputs=special.patches_of_images),
    "VibeVoiceAcousticTokenizerDecoder": Exceptional(inputs=special.sound_latents),
    "VibeVoiceAcousticTokenizerEncoder": Exceptional(inputs=special.sound),
    "LwDetrViT": Exceptional(changes={"num_windows": 4}),
    "Qwen4ExpText": Exceptional(changes=INDEXER),
    "Qwen4Exp": Exceptional(changes={"text_config": INDEXER}),
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
    "FunAsrNano": Exceptional(
        changes={"adaptor_config": {"intermediate_size": 16}}, early=special.stacked_frames
    ),
    "Sam2": Exceptional(keep="hidden_size|dim|channel", changes=SAM2),
    "Sam2Video": Exceptional(keep="hidden_size|dim|channel", changes=SAM2),
    "Sam2Vision": Exceptional(keep="hidden_size|dim|channel", changes=SAM2["vision_config"]),
    "Sam2HieraDet": Exceptional(keep="hidden_size|dim|channel"),
    "PPDocLayoutV4": Exceptional(
        keep="channels|embedding_size|hidden_sizes",
        changes={"decoder_in_channels": [64] * 3},
        inputs=special.without("labels"),
    ),
    "Nemotron3_5Transcribe": Exceptional(
        keep="chunk",
        changes={"text_config": {"n_groups": 2, "mamba_num_heads": 4, "mamba_head_dim": 32}},
    ),
    "Nemotron3_5TranscribeAudio": Exceptional(keep="chunk"),
    "Nemotron3Diarization": Exceptional(keep="chunk"),
    "Nemotron3_5TranscribeWordTimestamp": Exceptional(inputs=special.embedded_frames),
    "GraniteSpeech": Exceptional(keep="window", inputs=special.without("input_features_mask")),
    "GraniteSpeechPlus": Exceptional(keep="window", inputs=special.without("input_features_mask")),
    "TimesFm": Exceptional(inputs=special.long_past),
    "TimesFm2_5": Exceptional(changes={"context_length": 128}, inputs=special.long_past),
    "Chameleon": Exceptional(
        changes={"vocabulary_map": {"<image>": 120}}, early=special.without("pixel_values")
    ),
    "Pix2Struct": Exceptional(inputs=special.flattened),
    "Kosmos2_5": Exceptional(changes={"latent_query_num": 8}, inputs=special.kosmos2_5_batch),
    "Kimi_K25": Exceptional(early=special.square_patches),
    "ColQwen2": Exceptional(inputs=special.padded_patches),
    "Clap": Exceptional(
        keep="spec_size|mel_bins",
        changes={"audio_config": {"hidden_size": 128}},
        inputs=special.mel_image,
    ),
    "GroupViT": Exceptional(inputs=special.ended_text),
    "Granite4Vision": Exceptional(
        changes={
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1, 2, 3, 4],
            "text_config": {"num_hidden_layers": 5},
            "downsample_rate": "2/4",
            "image_grid_pinpoints": [[32, 32]],
        },
        early=special.tiles,
        inputs=special.marked_image,
    ),
    "FastSpeech2ConformerWithHifiGan": Exceptional(
        changes={"vocoder_config": {"model_in_dim": 16}}, inputs=special.spoken_text
    ),
    "Lfm2Vl": Exceptional(early=special.siglip2_patches),
    "Flava": Exceptional(model="FlavaModel"),
    "FunAsrNanoEncoder": Exceptional(inputs=special.stacked_frames),
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
    "Csm": Exceptional(inputs=special.frames_of_codes),
    "Lfm2Moe": Exceptional(changes={"layer_types": ["conv", "full_attention"]}),
    "DepthAnything": Exceptional(
        changes={"depth_estimation_type": "metric"}, inputs=special.without("labels")
    ),
    "Emu3": Exceptional(
        changes={"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121}},
        early=special.without("pixel_values", "image_sizes"),
    ),
    "KyutaiSpeechToText": Exceptional(inputs=special.text_beside_codes),
    "MimiDecoder": Exceptional(inputs=special.codec_latents),
    "PocketTTSAudioTokenizerDecoder": Exceptional(inputs=special.codec_latents),
    "Pop2Piano": Exceptional(inputs=special.embedded_sound),
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
    # Its classifier takes the width of another config; images keep the width of their last stage.
    "Align": Exceptional(model="AlignModel", changes={"projection_dim": 128}),
    "Exaone4_5_": Exceptional(changes=WINDOW),
    "HyperCLOVAXVisionV2": Exceptional(changes=WINDOW),
    "VJEPA2": Exceptional(changes={"crop_size": 32, "image_size": 32, "frames_per_clip": 4}),
    "MoonshineStreaming": Exceptional(changes={"num_key_value_heads": 4}),
    "MossTranscribeDiarizeAudio": Exceptional(inputs=special.without("attention_mask")),
    "Qwen2AudioEncoder": Exceptional(inputs=special.without("attention_mask")),
}
