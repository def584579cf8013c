"""Parameters that get no gradient, or zeros, in a plain step of the tiny model: and why."""

from __future__ import annotations

import re

from torch import nn

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
ONLY_LAST = "of the first layer, where the last one's are given"
NO_SILENCE = "stands in for silence, and there is none"
STRIDED = r"blocks\.[1-4]\.layers\.0\.depthwise_convolution\.act\.lab\.(scale|bias)$"
NOT_ACTIVATED = "where the stride is 2 nothing is activated"
SHIFT = r"depthwise_convolution\.(act\.)?lab\.bias$"
TAKEN_OUT = "a shift that the next batch norm takes out"
NO_PROMPT = "of a prompt, and there is none"
NO_POINT = r"^prompt_encoder\.not_a_point_embed\."  # Sam 2 puts one in
SAM = {
    r"^prompt_encoder\.(mask|point)_embed\.": NO_PROMPT,
    r"\.output_hypernetworks_mlps\.0\.": "of the single mask, where three are asked for",
}
SAM3 = {
    r"^geometry_encoder\.": "of a prompt of boxes, and there is none",
    r"neck\.fpn_layers\.3\.": "the coarsest map, which nothing reads",
    r"pixel_decoder\.(conv_layers|norms)\.2\.": "of one map more than there are",
    r"^text_encoder\.(text_)?projection\.": "of pooled text, where words are read",
}
READY_CODES = "codes come in ready made"
NO_CONTENT = "the first layer's queries have no content yet: zeros"
NEVER_LAST = "the head reads the layers before those it is told, so never the last"
ALONE = "without a separator each word attends to itself alone"
BEHIND_NECK = "after the stages that the neck reads"
QFORMER_WORDS = r"qformer\.encoder\.layer\.1\.(intermediate|output)\."
LAST_WORDS = "the last layer's words, where only the queries are read"
LAST_PREFIX = "of the prefix's last layer only keys and values are read"
BY_NAME: dict[str, dict[str, str]] = {
    "Beit": {r"^beit\.layers\.3\.": NEVER_LAST},
    "Data2VecVision": {r"^data2vec_vision\.encoder\.layer\.3\.": NEVER_LAST},
    "ConditionalDetr": {
        r"decoder\.layers\.0\.self_attn\.([qk]_content|v)_proj\.weight$": NO_CONTENT
    },
    "DabDetr": {r"decoder\.layers\.0\.self_attn\.\w+_(content|value)_proj\.weight$": NO_CONTENT},
    "Detr": {r"decoder\.layers\.0\.self_attn\.v_proj\.weight$": NO_CONTENT},
    "TableTransformer": {r"decoder\.layers\.0\.self_attn_layer_norm\.weight$": NO_CONTENT},
    "DeepseekOcr2": {r"\.query_1024_resolution\.": "of larger images than this batch has"},
    "FastSpeech2ConformerWithHifiGan": {
        r"^vocoder\.": "speaks, where the loss is of the spectrogram"
    },
    "Mra": {
        r"attention\.(self\.|output\.dense\.weight)": "attention is a CUDA kernel: on a CPU, zeros"
    },
    "Nemotron3Diarization": {r"silence_embeds$": NO_SILENCE},
    "Nemotron3_5Transcribe": {
        r"\.diarization_model\.": "speakers are told by a threshold, through which no "
        "gradient passes",
        r"\bword_timestamp_(encoder|head)\.": "tells when words were said, where the loss is of words",
    },
    "Nemotron3_5TranscribeAudio": {r"silence_embeds$": NO_SILENCE},
    "Pixio": {r"^pixio\.layernorm\.": BEHIND_NECK},
    "Pop2Piano": {r"^mel_conditioner\.": "names the composer, where sound comes in embedded"},
    "PPLCNetV3": {STRIDED: NOT_ACTIVATED, SHIFT: TAKEN_OUT},
    "PPOCRV5MobileDet": {STRIDED: NOT_ACTIVATED, SHIFT: TAKEN_OUT},
    "PPOCRV5MobileRec": {STRIDED: NOT_ACTIVATED, SHIFT: TAKEN_OUT},
    "Reformer": {r"^lm_head\.bias$": "unused by the model: its decoder has another"},
    "Sam": {**SAM, NO_POINT: NO_PROMPT},
    "SamHQ": {
        **SAM,
        NO_POINT: NO_PROMPT,
        r"\.compress_vit_": "of the layers with global attention, of which this size has none",
    },
    "Sam2": SAM,
    "Sam2Video": SAM,
    "Sam3": SAM3,
    "Sam3LiteText": SAM3,
    "SegGpt": {r"\.type_token_semantic$": "of semantic masks, where instances are marked"},
    "SwiftFormer": {
        r"\.attn\.w_g$": "weighs by a softmax over one number, which is always 1",
        r"\.(attn\.(proj|final)|linear\.fc2)\.bias$": "a shift that batch norms take out, where a "
        "stage has one pixel",
    },
    "T5Gemma2": {r"\.eoi_embedding$": "of the end of an image, which this text does not mark"},
    "Udop": {
        r"^decoder\.embed_patches\.": "of pictures, which only the encoder sees",
        r"^decoder\.relative_bias\.biases\.[12]\.": "of places on a page, where words are written",
    },
    "UVDocBackbone": {r"^bridge\.bridge\.[0-4]\.": "of stages that this backbone does not give"},
    "VisualBert": {
        r"^cls\.seq_relationship\.": "of pairs of sentences, of which there are no labels"
    },
    "Vits": {
        r"^duration_predictor\.": "durations are rounded up to frames",
        r"^posterior_encoder\.": "encodes a spectrogram, which forward does not take",
    },
    "XCLIP": {
        r"vision_model\.encoder\.layers\.0\.message_attn\.[kq]_proj\.": "in the first layer the "
        "messages of all frames are the same"
    },
    "Cvt": {
        r"stages\.2\.layers\.9\..*convolution_projection_query\.": "the last queries of patches, "
        "where the head reads the class token"
    },
    "Flava": {
        r"^(logit_scale|(image|text)_projection\.)": "of the contrast, which is another head's"
    },
    "GroundingDino": {
        r"swin\.layernorm\.": BEHIND_NECK,
        r"text_(backbone|enhancer_layer)\..*\.(query|key)\.": ALONE,
    },
    "MMGroundingDino": {
        r"swin\.layernorm\.": BEHIND_NECK,
        r"text_(backbone|enhancer_layer)\..*\.(query|key)\.": ALONE,
    },
    "HunYuanVL": {r"\.image_sep$": "unused by the model"},
    "InstructBlip": {QFORMER_WORDS: LAST_WORDS},
    "InstructBlipVideo": {QFORMER_WORDS: LAST_WORDS},
    "LayoutLMv3": {r"\.rel_pos(_[xy])?_bias\.": "read under no_grad"},
    "Lxmert": {
        r"^obj_predict_head\.": "predicts objects, of which there are no labels",
        r"x_layers\.1\.visn_": "the last layer's visual stream, which only objects are predicted from",
        r"\.token_type_embeddings\.": "all words are of type 0, which is its padding",
    },
    "MaskFormerSwin": {
        r"^(model\.layernorm|hidden_states_norms\.[0-2])\.": "of stages that this backbone does not give"
    },
    "MobileNetV2": {
        r"reduce_1x1\.normalization\.bias$": TAKEN_OUT,
        r"\.conv_1x1\.": "makes the last map, where the head reads the one before",
    },
    "Chameleon": {r"\.vqmodel\.": QUANTIZED},
    "Clvp": {r"^(conditioning_encoder|speech_decoder_model)\.": QUANTIZED},
    "Csm": {r"^codec_model\.": READY_CODES, r"^embed_text_tokens\.": OTHER_INPUT},
    "Dac": {
        r"^decoder\.": "decodes, where the loss is of the codes",
        r"quantizers\.8\.out_proj\.": "the last code, from which nothing is left over to code",
    },
    "DepthPro": {r"fusion_stage\.intermediate\.0\.residual_layer1\.": NO_RESIDUAL},
    "DiffusionGemma": {
        r"\.(vision_tower|embed_vision)\.": OTHER_INPUT,
        r"\.self_conditioning\.": "of an earlier guess, and this is the first",
    },
    "KyutaiSpeechToText": {r"^codec_model\.": READY_CODES},
    "DecisionTransformer": {r"^encoder\.wte\.": "words, where states and actions come in"},
    "DFine": {r"denoising_class_embed": "denoising needs labels"},
    "Deimv2": {r"denoising_class_embed": "denoising needs labels"},
    "DPT": {
        FIRST_FUSION: NO_RESIDUAL,
        r"^dpt\.layernorm\.": "after the layers that the neck reads",
    },
    "DepthAnything": {FIRST_FUSION: NO_RESIDUAL},
    "PromptDepthAnything": {
        FIRST_FUSION: NO_RESIDUAL,
        r"\.prompt_depth_layer\.": "of a rough depth to begin with, which this batch does not have",
    },
    "ZoeDepth": {FIRST_FUSION: NO_RESIDUAL},
    "Emu3": {r"\.vqmodel\.": QUANTIZED},
    "Ernie4_5_VLMoe": {r"\.vision_moe\.": OTHER_INPUT},
    "Encodec": {r"^encoder\.": QUANTIZED},
    "Esm": {r"contact_head\.": "predicts contacts, apart from the language model"},
    "Evolla": {r"\.(protein_encoder|sequence_compressor_resampler|adapter)\.": OTHER_INPUT},
    "HiggsAudioV2": {r"\.(audio_\w+|embed_audio_tokens)\.": OTHER_INPUT},
    "Janus": {r"\.(vqmodel|generation_\w+)\.": "draws images, where images are read"},
    "LightGlue": {
        r"^keypoint_detector\.": "finds keypoints under no_grad",
        r"^(match_assignment_layers\.[0-7]|token_confidence\.\d+)\.": "decides where to stop; "
        "the matches are the last layer's",
    },
    "Lilt": {
        r"layer\.1\..*layout_(value|intermediate|output)\.": "the last layer's layout stream, which no head reads"
    },
    "LongcatFlash": {r"\.experts\.": "experts that got no token"},
    "MarkupLM": {r"xpath_unitseq2_embeddings": "unused by the model"},
    "Mimi": {
        r"^encoder\.": QUANTIZED,
        r"^decoder\.(upsample\.|\w+\.layers\.0\.input_layernorm\.weight)": "codebooks begin as zeros",
    },
    "Musicgen": {r"^audio_encoder\.": READY_CODES},
    "MusicgenMelody": {r"^audio_encoder\.": READY_CODES},
    "MiniCPMOcr": {r"\.(vision_tower|merger)\.": OTHER_INPUT},
    "MiniCPMV4_6": {r"\.(vision_tower|merger)\.": OTHER_INPUT},
    "MiniCPMV4_7": {r"\.(vision_tower|merger)\.": OTHER_INPUT},
    "PPDocLayoutV2": {
        r"denoising_class_embed": "denoising needs labels",
        r"^reading_order\..*(rel_\w+\.|self\.key\.bias$)": "of boxes that are sure enough: of none",
    },
    "PPDocLayoutV3": {
        r"denoising_class_embed": "denoising needs labels",
        r"\.decoder_order_head\.0\.": ONLY_LAST,
    },
    "PPDocLayoutV4": {
        r"denoising_class_embed": "denoising needs labels",
        r"decoder\.(class_embed|(successor|relative)_order_head\.proj)\.0\.": ONLY_LAST,
    },
    "Qwen2_5OmniThinker": {r"\.audio_bos_eos_token\.": "unused by the model"},
    "RTDetr": {r"denoising_class_embed": "denoising needs labels"},
    "RTDetrV2": {r"denoising_class_embed": "denoising needs labels"},
    "PI0": {
        r"\.vlm\.language_model\.(norm|layers\.1\.(mlp|post_attention|self_attn\.[qo]_proj))": LAST_PREFIX,
        r"\.(vlm\.lm_head|dit\.embed_tokens)": "words, where actions come out",
    },
    "PeAudio": {r"\.(dac_encoder|bottleneck)\.": "runs under no_grad"},
    "Phi4Multimodal": {r"\.embed_tokens_extend\.": OTHER_INPUT},
    "SwitchTransformers": {r"\.experts\.": "experts that got no token"},
    "Wav2Vec2Conformer": {r"pos_conv_embed\.": "its positions are relative by default"},
    "XLNet": {
        r"mask_emb$|\.(seg_embed|r_s_bias)$": "segments and targets, of which there are none"
    },
    "VideoLlava": {
        r"\.video_tower\.": OTHER_INPUT,
        r"\.image_tower\.post_layernorm\.": "of the pooled image; text reads patches",
    },
    "TrOCR": {r"\.encoder_attn": "reads an encoder, and the decoder is alone here"},
    "VJEPA2": {r"\.predictor\.": "predicts masked frames, where the head classifies"},
}


def patterns(name: str) -> list[str]:
    return [*EVERYWHERE, *BY_NAME.get(name, ())]


def expected_dead(name: str, model: nn.Module) -> list[str]:
    """Only patterns that match a parameter of this model."""
    parameters = [parameter for parameter, _ in model.named_parameters()]
    return [p for p in patterns(name) if any(re.search(p, parameter) for parameter in parameters)]
