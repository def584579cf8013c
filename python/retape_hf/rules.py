"""Architectures for which the rules do not suffice: what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retape_hf import special_inputs as special
from retape_hf.inputs import Batch


@dataclass(frozen=True)
class Rule:
    changes: dict[str, Any] = field(default_factory=dict)  # of the shrunk config, nested
    keep: str | None = None  # attributes (a pattern) that are not shrunk
    model: str | None = None  # another class than the first choice
    early: Callable[[Any, Batch], Batch] | None = None  # before placeholders are put in
    inputs: Callable[[Any, Batch], Batch] | None = None  # after all the rules
    loss_per_sample: bool = False  # its own loss is not one number


# Of the detectors whose default backbone is one of timm's.
TINY_BACKBONE = {
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 32, 32],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage2", "stage3", "stage4"],
    },
    "use_timm_backbone": False,
    "backbone": None,
}
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
STAGES = "channels|embedding_size|hidden_sizes"
SAM2_WIDTHS = "hidden_size|dim|channel"
TEXT_ONLY = special.without("pixel_values", "input_features", "input_features_mask")
GENERATED = {"pad_token_id": 0, "decoder_start_token_id": 1}

RULES: dict[str, Rule] = {
    # States, heads and experts that are sized apart from the rest.
    "FalconH1": Rule({**MAMBA_HEADS, "mamba_d_ssm": 128}),
    "GraniteMoeHybrid": Rule(
        {**MAMBA_HEADS, "num_local_experts": 4, "layer_types": ["mamba", "attention"]}
    ),
    "Mamba2": Rule({"num_heads": 4, "head_dim": 32, "n_groups": 1}),
    "Nemotron": Rule({"num_key_value_heads": 2}),
    "DeepseekV2": Rule({"num_experts_per_tok": 2}),
    "Dots1": Rule({"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}),
    "DeepseekV4": Rule(  # of 12 tokens, more than one block
        {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 4}}
    ),
    "DeepseekOcr2": Rule(
        {"text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}}
    ),
    "DeepseekVLHybrid": Rule({"high_res_vision_config": {"global_attn_indexes": [0, 1]}}),
    "DiffusionGemma": Rule(
        {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}}
    ),
    "Esm": Rule({"vocab_size": 128, "pad_token_id": 1, "mask_token_id": 2}),
    "GPTNeo": Rule({"attention_types": [[["global", "local"], 1]], "num_layers": 2}),
    "LongcatFlash": Rule(
        {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "head_dim": 8}
    ),
    "Reformer": Rule(
        {"axial_pos_embds_dim": (32, 32), "axial_pos_shape": (4, 4), "is_decoder": False},
        inputs=special.axial_length,
    ),
    "Splinter": Rule({"question_token_id": 50}, inputs=special.question),
    "RoCBert": Rule(inputs=special.shapes_of_words),
    "Luke": Rule(inputs=special.entities),
    "LED": Rule(inputs=special.global_attention),
    "Longformer": Rule(inputs=special.global_attention),
    "Lilt": Rule({"hidden_size": 96, "intermediate_size": 64}, keep="hidden_size"),
    "Bark": Rule(model="BarkSemanticModel", inputs=special.without("labels")),
    "EncoderDecoder": Rule(CROSS, inputs=special.two_texts),
    "VisionEncoderDecoder": Rule(CROSS),
    "Informer": Rule(FORECAST, inputs=special.series),
    "TimeSeriesTransformer": Rule(FORECAST, inputs=special.series),
    "DecisionTransformer": Rule(inputs=special.trajectory),
    # Depth is not trained by its own loss there: any loss will do.
    "CHMv2": Rule(
        {"backbone_config": {"return_class_token": True}}, inputs=special.without("labels")
    ),
    "DepthPro": Rule(
        {"patch_size": 32, "intermediate_hook_ids": [1, 0], "scaled_images_ratios": [0.25, 0.5, 1]},
        inputs=special.noise(alone=True, pixel_values=(3, 128, 128)),
    ),
    "PromptDepthAnything": Rule(inputs=special.without("labels")),
    "ZoeDepth": Rule(inputs=special.without("labels")),
    # Backbones of timm by default.
    **dict.fromkeys(
        ("ConditionalDetr", "DabDetr", "DeformableDetr", "Detr", "TableTransformer"),
        Rule(TINY_BACKBONE),
    ),
    # Inputs of their own.
    "AST": Rule(
        {"max_length": 64}, inputs=special.noise(input_values=("max_length", "num_mel_bins"))
    ),
    "LightGlue": Rule(keep="dim|hidden|channels", inputs=special.pair_of_images),
    "SuperGlue": Rule(keep="dim|hidden|channels", inputs=special.pair_of_images),
    "EfficientLoFTR": Rule(keep="hidden_size|head", inputs=special.pair_of_images),
    "Lxmert": Rule(inputs=special.visual_regions),
    "VisualBert": Rule(inputs=special.visual_bert),
    "PI0": Rule(inputs=special.pi0_batch),
    "Clvp": Rule(
        {"text_config": {"num_attention_heads": 2}, "speech_config": {"num_attention_heads": 2}},
        inputs=special.clvp_batch,
    ),
    "Dac": Rule(inputs=special.noise(input_values=(1, 4000)), loss_per_sample=True),
    "PeAudio": Rule(inputs=special.noise(input_values=(1, 4000))),
    "VibeVoiceAcousticTokenizer": Rule(inputs=special.noise(input_values=(1, 4000))),
    # Convolutions whose widths follow from one another.
    "EfficientNet": Rule(keep="hidden_dim"),
    "TextNet": Rule(keep="channels|hidden_sizes"),
    "PPLCNetV4": Rule(keep="channels"),
    "Levit": Rule(keep="patch_size"),
    "SuperPoint": Rule(keep="dim|channels|hidden_sizes"),
    "Bamba": Rule({**MAMBA_HEADS, "attn_layer_indices": [1]}),
    "Jamba": Rule(
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_hidden_layers": 2,
        }
    ),
    "NemotronH": Rule({"n_groups": 2, "mamba_num_heads": 4, "mamba_head_dim": 32}),
    "Xmod": Rule({"default_language": "en_XX"}),
    "Moonshine": Rule(
        {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4, **GENERATED}
    ),
    "Wav2Vec2Bert": Rule({"vocab_size": 128}),
    "Wav2Vec2Conformer": Rule({"vocab_size": 128}),
    "Marian": Rule(inputs=special.decoder_words),
    "Perceiver": Rule({"d_latents": 64, "num_latents": 8}, inputs=special.latents),
    "Dbrx": Rule({"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}}),
    "Gemma3nText": Rule(
        {
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
    "CohereCompassText": Rule(COMPASS),
    "CohereCompass": Rule({"text_config": COMPASS}),
    "Blt": Rule(
        {"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [2, 3]},
        inputs=lambda model, batch: {**batch, "use_cache": False},
    ),
    "SpeechEncoderDecoder": Rule(CROSS, inputs=special.without("input_features")),
    "Udop": Rule(inputs=special.parts_of_pages),
    "Dia": Rule(inputs=special.channels_of_codes),
    "Musicgen": Rule(model="MusicgenForConditionalGeneration", inputs=special.codes),
    "MusicgenMelody": Rule(model="MusicgenMelodyForConditionalGeneration", inputs=special.codes),
    "Step3p7": Rule({"text_config": {"sliding_window": 8}}),
    # Images.
    "Beit": Rule({"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}),
    "Data2VecVision": Rule({"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}),
    "DPT": Rule({"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}),
    "LayoutLMv3": Rule({"coordinate_size": 8, "shape_size": 16}),
    "LwDetr": Rule({"backbone_config": {"num_windows": 4}, "projector_scale_factors": [1.0]}),
    "Mask2Former": Rule({"feature_size": 64, "mask_feature_size": 64}),
    "MaskFormer": Rule({"fpn_feature_size": 64, "mask_feature_size": 64}),
    "MobileViTV2": Rule({"image_size": 128}),
    "Sam": Rule({"vision_config": {"num_pos_feats": 32}}),
    "SamHQ": Rule({"vision_config": {"num_pos_feats": 32}}),
    "VitMatte": Rule(  # its decoder doubles the features four times
        {
            "backbone_config": {"image_size": 64, "patch_size": 16},
            "fusion_hidden_sizes": [64, 32, 32, 32],
            "convstream_hidden_sizes": [16, 16, 32],
        }
    ),
    "HGNetV2": Rule(keep=STAGES),
    "DFine": Rule({"decoder_in_channels": [64] * 3}, keep=STAGES),
    "Deimv2": Rule({"decoder_in_channels": [64] * 3}, keep=STAGES),
    "PPDocLayoutV2": Rule(
        {
            "decoder_in_channels": [64] * 3,
            "class_thresholds": [0.5] * 25,
            "class_order": list(range(25)),
        },
        keep=STAGES,
    ),
    "PPDocLayoutV3": Rule({"decoder_in_channels": [64] * 3, "x4_feat_dim": 128}, keep=STAGES),
    "PPOCRV5ServerRec": Rule(keep=STAGES),
    "PPFormulaNet": Rule(keep="channels"),
    "SLANet": Rule(keep="channels|dim"),
    "SLANeXt": Rule(keep="channels"),
    "UVDoc": Rule(
        {"backbone_config": {"out_features": [f"stage{i}" for i in range(1, 7)]}}, keep="."
    ),
    # Images and text.
    "Aria": Rule({"projector_patch_to_query_dict": {16: 4}}),
    "Blip2": Rule({"image_token_index": 120}),
    "InstructBlip": Rule({"image_token_index": 120}, early=special.qformer),
    "InstructBlipVideo": Rule(
        {"video_token_index": 120}, early=special.qformer, inputs=special.video_in_text
    ),
    "Voxtral": Rule({"audio_token_id": 120}),
    "Gemma3": Rule({"mm_tokens_per_image": 4}),
    "ShieldGemma2": Rule({"mm_tokens_per_image": 4}),
    "T5Gemma2": Rule({"encoder": {"mm_tokens_per_image": 4}}),
    "Llama4": Rule({"vision_config": {"intermediate_size": 256}}),
    "LlavaNext": Rule({"image_grid_pinpoints": [[32, 32]]}, early=special.tiles),
    "LlavaNextVideo": Rule({"image_grid_pinpoints": [[32, 32]]}, early=special.tiles),
    "LlavaOnevision": Rule({"image_grid_pinpoints": [[32, 32]]}, early=special.tiles),
    "Llava": Rule(early=special.without("image_sizes")),  # those are Pixtral's
    "VipLlava": Rule({"vision_feature_layers": [-1, -2]}),
    "Qwen2_5_VL": Rule(WINDOW),
    "Qwen2_5OmniThinker": Rule({**WINDOW, "vision_start_token_id": 100}),
    "Qwen3ASR": Rule(keep="window|chunk", early=special.hundred_frames),
    "Qwen3ASREncoder": Rule(keep="window|chunk", inputs=special.hundred_frames),
    "Qwen3OmniMoeThinker": Rule(
        {"vision_start_token_id": 100}, keep="n_window|chunk", early=special.hundred_frames
    ),
    "PvtV2": Rule({"image_size": 128}),  # else the last stages have one key
    "VideoPrism": Rule({"vision_config": {"image_size": 36}}),  # two by two patches
    "VideoPrismVision": Rule({"image_size": 36}),
    "PaddleOCRVL": Rule(early=special.square_patches),
    "MuseGlimmer": Rule({"out_hidden_size": 256}, early=special.patches_of_two_frames),
    "MuseSpark": Rule({"out_hidden_size": 256}, early=special.patches_beside_sound),
    "GraniteSpeech5CTC": Rule(inputs=special.wide_frames),
    "Nemotron3_5Asr": Rule(inputs=special.decoded),  # its own loss is another model's
    "NemotronAsrStreaming": Rule(inputs=special.decoded),
    "ParakeetRNNT": Rule(inputs=special.decoded_labels),
    "ParakeetTDT": Rule(inputs=special.decoded_labels),
    "Qwen2Audio": Rule({"ignore_index": -100}, early=special.one_sound_each),
    "VideoLlama3": Rule(early=special.merge_sizes),
    "Exaone4_5_Vision": Rule({"window_size": 32}, inputs=special.patches_of_images),
    "VibeVoiceAcousticTokenizerDecoder": Rule(
        inputs=special.noise(alone=True, hidden_states=("hidden_size", 4))
    ),
    "VibeVoiceAcousticTokenizerEncoder": Rule(
        inputs=special.noise(alone=True, hidden_states=(1, 6400))
    ),
    "LwDetrViT": Rule({"num_windows": 4}),
    "Qwen4ExpText": Rule(INDEXER),
    "Qwen4Exp": Rule({"text_config": INDEXER}),
    "Mllama": Rule(
        {
            "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192},
            "text_config": {"cross_attention_layers": [1]},
        },
        inputs=special.mllama_batch,
    ),
    "Idefics": Rule(inputs=special.idefics_batch),
    "Kosmos2": Rule(inputs=special.kosmos2_batch),
    "Siglip2": Rule(inputs=special.siglip2_patches),
    "FunAsrNano": Rule({"adaptor_config": {"intermediate_size": 16}}, early=special.stacked_frames),
    "Sam2": Rule(SAM2, keep=SAM2_WIDTHS),
    "Sam2Video": Rule(SAM2, keep=SAM2_WIDTHS),
    "Sam2Vision": Rule(SAM2["vision_config"], keep=SAM2_WIDTHS),
    "Sam2HieraDet": Rule(keep=SAM2_WIDTHS),
    "PPDocLayoutV4": Rule(
        {"decoder_in_channels": [64] * 3}, keep=STAGES, inputs=special.without("labels")
    ),
    "Nemotron3_5Transcribe": Rule(
        {"text_config": {"n_groups": 2, "mamba_num_heads": 4, "mamba_head_dim": 32}}, keep="chunk"
    ),
    "Nemotron3_5TranscribeAudio": Rule(keep="chunk"),
    "Nemotron3Diarization": Rule(keep="chunk"),
    "Nemotron3_5TranscribeWordTimestamp": Rule(inputs=special.embedded_frames),
    "GraniteSpeech": Rule(keep="window", inputs=special.without("input_features_mask")),
    "GraniteSpeechPlus": Rule(keep="window", inputs=special.without("input_features_mask")),
    "TimesFm": Rule(inputs=special.noise(alone=True, past_values=("context_length",))),
    "TimesFm2_5": Rule(
        {"context_length": 128}, inputs=special.noise(alone=True, past_values=("context_length",))
    ),
    "Chameleon": Rule({"vocabulary_map": {"<image>": 120}}, early=special.without("pixel_values")),
    "Pix2Struct": Rule(inputs=special.flattened),
    "Kosmos2_5": Rule({"latent_query_num": 8}, inputs=special.kosmos2_5_batch),
    "Kimi_K25": Rule(early=special.square_patches),
    "ColQwen2": Rule(inputs=special.padded_patches),
    "Clap": Rule(
        {"audio_config": {"hidden_size": 128}}, keep="spec_size|mel_bins", inputs=special.mel_image
    ),
    "GroupViT": Rule(inputs=special.ended_text),
    "Granite4Vision": Rule(
        {
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1, 2, 3, 4],
            "text_config": {"num_hidden_layers": 5},
            "downsample_rate": "2/4",
            "image_grid_pinpoints": [[32, 32]],
        },
        early=special.tiles,
        inputs=special.marked_image,
    ),
    "FastSpeech2ConformerWithHifiGan": Rule(
        {"vocoder_config": {"model_in_dim": 16}}, inputs=special.spoken_text
    ),
    "Lfm2Vl": Rule(early=special.siglip2_patches),
    "Flava": Rule(model="FlavaModel"),
    "FunAsrNanoEncoder": Rule(inputs=special.stacked_frames),
    "Gemma4": Rule(early=TEXT_ONLY),
    "Gemma4Unified": Rule(early=TEXT_ONLY),
    "EmbeddingGemma2": Rule(early=TEXT_ONLY),
    "Bit": Rule({"num_groups": 8, "embedding_size": 32}),
    "xLSTM": Rule({"hidden_size": 128, "embedding_dim": 128, "num_heads": 2, "use_cache": False}),
    "Zamba": Rule(
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_hidden_layers": 5,
            "layers_block_type": None,
            "num_key_value_heads": 4,
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
        }
    ),
    "RTDetr": Rule(
        {"decoder_in_channels": [64] * 3}, keep="hidden_sizes|embedding_size|in_channels"
    ),
    "RTDetrV2": Rule(
        {"decoder_in_channels": [64] * 3}, keep="hidden_sizes|embedding_size|in_channels"
    ),
    "Csm": Rule(inputs=special.frames_of_codes),
    "Lfm2Moe": Rule({"layer_types": ["conv", "full_attention"]}),
    "DepthAnything": Rule({"depth_estimation_type": "metric"}, inputs=special.without("labels")),
    "Emu3": Rule(
        {"vocabulary_map": {"<image>": 120, "<|extra_200|>": 121}},
        early=special.without("pixel_values", "image_sizes"),
    ),
    "KyutaiSpeechToText": Rule(inputs=special.text_beside_codes),
    "MimiDecoder": Rule(inputs=special.noise(alone=True, latents=("hidden_size", 8))),
    "PocketTTSAudioTokenizerDecoder": Rule(
        inputs=special.noise(alone=True, latents=("hidden_size", 8))
    ),
    "Pop2Piano": Rule(inputs=special.embedded_sound),
    "SegGpt": Rule(
        {"image_size": [64, 32], "intermediate_hidden_state_indices": [0, 1], "merge_index": 0},
        model="SegGptForImageSegmentation",
        inputs=special.prompted,
    ),
    "Autoformer": Rule({**FORECAST, "label_length": 2}, inputs=special.series),
    "ColModernVBert": Rule(early=special.one_image_each),
    "Fuyu": Rule(early=special.rows_of_pixels),
    "Canine": Rule(model="CanineForTokenClassification"),
    "HunYuanMoEV1": Rule({"moe_topk": 2, "num_experts": 4}),
    "Swin2SR": Rule({"image_size": 32}),
    # Its classifier takes the width of another config; images keep the width of their last stage.
    "Align": Rule({"projection_dim": 128}, model="AlignModel"),
    "Exaone4_5_": Rule(WINDOW),
    "HyperCLOVAXVisionV2": Rule(WINDOW),
    "VJEPA2": Rule({"crop_size": 32, "image_size": 32, "frames_per_clip": 4}),
    "MoonshineStreaming": Rule({"num_key_value_heads": 4}),
    "MossTranscribeDiarizeAudio": Rule(inputs=special.without("attention_mask")),
    "Qwen2AudioEncoder": Rule(inputs=special.without("attention_mask")),
}
