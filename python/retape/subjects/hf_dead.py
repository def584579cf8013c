"""Parameters that get no gradient, or zeros, in a plain step of the tiny model: and why."""

from __future__ import annotations

# In every architecture that has them.
EVERYWHERE = {
    r"(^|\.)pooler\.": "a pooler, where the head reads the sequence",
    r"(^|\.)mask_token$": "stands in for masked patches, and none is masked",
    r"masked_spec_embed$": "stands in for masked frames, and none is masked",
    r"vision_(tower|model)\.(vision_model\.)?head\.": "pools an image for contrast; text reads patches",
    r"(vision_(tower|model)|vision_model)\.post_layernorm\.": "of the pooled image; text reads patches",
    r"\.indexer\.": "chooses tokens by top-k, through which no gradient passes",
}

# By architecture.
QUANTIZED = "behind a choice of codes (argmax), through which no gradient passes"
OTHER_INPUT = "of an input that this batch does not have"
FIRST_FUSION = r"fusion_stage\.layers\.0\.residual_layer1\."
NO_RESIDUAL = "the first fusion has nothing to add"
LAST_PREFIX = "of the prefix's last layer only keys and values are read"
BY_NAME: dict[str, dict[str, str]] = {
    "Canine": {
        r"\.(projection|final_char_encoder)\.": "of the characters, where the head reads a pool"
    },
    "Chameleon": {r"\.vqmodel\.": QUANTIZED},
    "Clvp": {r"^(conditioning_encoder|speech_decoder_model)\.": QUANTIZED},
    "Dac": {r"^decoder\.": "decodes, where the loss is of the codes"},
    "DecisionTransformer": {r"^encoder\.wte\.": "words, where states and actions come in"},
    "DFine": {r"denoising_class_embed": "denoising needs labels"},
    "Deimv2": {r"denoising_class_embed": "denoising needs labels"},
    "DPT": {
        FIRST_FUSION: NO_RESIDUAL,
        r"^dpt\.layernorm\.": "after the layers that the neck reads",
    },
    "DepthAnything": {FIRST_FUSION: NO_RESIDUAL},
    "PromptDepthAnything": {FIRST_FUSION: NO_RESIDUAL},
    "ZoeDepth": {FIRST_FUSION: NO_RESIDUAL},
    "Emu3": {r"\.vqmodel\.": QUANTIZED},
    "Ernie4_5_VLMoe": {r"\.vision_moe\.": OTHER_INPUT},
    "Encodec": {r"^encoder\.": QUANTIZED},
    "Esm": {r"contact_head\.": "predicts contacts, apart from the language model"},
    "Evolla": {r"\.(protein_encoder|sequence_compressor_resampler|adapter)\.": OTHER_INPUT},
    "HiggsAudioV2": {r"\.(audio_\w+|embed_audio_tokens)\.": OTHER_INPUT},
    "Janus": {r"\.(vqmodel|generation_\w+)\.": "draws images, where images are read"},
    "LightGlue": {r"^keypoint_detector\.": "finds keypoints under no_grad"},
    "Lilt": {r"layer\.1\..*layout": "the last layer's layout stream, which no head reads"},
    "LongcatFlash": {r"\.experts\.": "experts that got no token"},
    "MarkupLM": {r"xpath_unitseq2_embeddings": "unused by the model"},
    "Mimi": {r"^encoder\.": QUANTIZED},
    "Musicgen": {r"^audio_encoder\.": "codes come in ready made"},
    "MusicgenMelody": {r"^audio_encoder\.": "codes come in ready made"},
    "MiniCPMOcr": {r"\.(vision_tower|merger)\.": OTHER_INPUT},
    "MiniCPMV4_6": {r"\.(vision_tower|merger)\.": OTHER_INPUT},
    "MiniCPMV4_7": {r"\.(vision_tower|merger)\.": OTHER_INPUT},
    "RTDetr": {r"denoising_class_embed": "denoising needs labels"},
    "RTDetrV2": {r"denoising_class_embed": "denoising needs labels"},
    "PI0": {
        r"\.vlm\.language_model\.(norm|layers\.1\.(mlp|post_attention|self_attn\.[qo]_proj))": LAST_PREFIX,
        r"\.(vlm\.lm_head|dit\.embed_tokens)": "words, where actions come out",
    },
    "PeAudio": {r"\.dac_encoder\.": "runs under no_grad"},
    "Phi4Multimodal": {r"\.embed_tokens_extend\.": OTHER_INPUT},
    "SwitchTransformers": {r"\.experts\.": "experts that got no token"},
    "Wav2Vec2Conformer": {r"pos_conv_embed\.": "its positions are relative by default"},
    "XLNet": {
        r"mask_emb$|\.(seg_embed|r_s_bias)$": "segments and targets, of which there are none"
    },
    "VideoLlava": {r"\.video_tower\.": OTHER_INPUT},
    "TrOCR": {r"\.encoder_attn": "reads an encoder, and the decoder is alone here"},
    "VJEPA2": {r"\.predictor\.": "predicts masked frames, where the head classifies"},
}


def patterns(name: str) -> list[str]:
    return [*EVERYWHERE, *BY_NAME.get(name, ())]
