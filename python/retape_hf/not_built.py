"""Architectures that are not built here, and why: what comes before the colon is shared by several."""

from __future__ import annotations

NO_BATCH = "no rule makes its batch yet"
NO_SIZES = "no rule makes its parts small and fit for each other yet"
NO_DEFAULT = "its default config lacks what the model needs"
DRAFTS = "drafts for another model"
NO_FORWARD = "has no forward, it only generates"
NOT_BUILT: dict[str, str] = {
    "Gemma4Assistant": f"{DRAFTS}: whose keys and values it needs",
    "Gemma4UnifiedAssistant": f"{DRAFTS}: whose keys and values it needs",
    "GlmImage": f"{NO_BATCH}: images that are read, and a grid of one to draw",
    "GradiumPhononTTS": f"{NO_BATCH}: latents of sound, at marked places in the text",
    "Inkling": f"{NO_SIZES}: 2.4 GB in one projection of its vision encoder",
    "Molmo2": f"{NO_BATCH}: image_token_pooling and image_grids",
    "MossTranscribeDiarize": f"{NO_BATCH}: a padding mask, and sound at marked places in the text",
    "MuseGlimmerAssistant": f"{DRAFTS}: whose hidden states it needs",
    "MusicFlamingo": f"{NO_BATCH}: sound at places in the text that tell its time",
    "NemotronH_Omni_Reasoning_V3_": f"{NO_BATCH}: image_grid_hw",
    "NeoMME": f"{NO_BATCH}: rows of pixels, and sound",
    "NeuCodec": f"{NO_SIZES}: an acoustic and a semantic encoder",
    "OmDetTurbo": f"{NO_BATCH}: words for classes and tasks",
    "PocketTTS": f"{NO_BATCH}: latents of sound, at marked places in the text",
    "PPOCRV5ServerDet": f"{NO_DEFAULT}: intraclass_block_config",
    "PPOCRV6MediumDet": f"{NO_DEFAULT}: intraclass_block_config",
    "PPOCRV6SmallDet": f"{NO_SIZES}: maps of its backbone, and its neck",
    "PPOCRV6SmallRec": f"{NO_SIZES}: its neck and its head",
    "PPOCRV6TinyRec": f"{NO_SIZES}: pictures one pixel high at its head",
    "Qwen2_5Omni": f"{NO_FORWARD}: Qwen2_5OmniThinker is its part that trains",
    "Qwen3OmniMoe": f"{NO_FORWARD}: Qwen3OmniMoeThinker is its part that trains",
    "Sam3Tracker": f"{NO_SIZES}: maps of fixed sizes, up to 288 x 288",
    "Sam3TrackerVideo": f"{NO_BATCH}: a session of inference",
    "Sam3Video": f"{NO_SIZES}: maps of fixed sizes, up to 288 x 288",
    "Sapiens2": f"{NO_DEFAULT}: head_config.upsample_out_channels",
    "Tvp": f"{NO_SIZES}: its grid of positions, and its backbone",
    "VibeVoice": f"{NO_BATCH}: a padding mask, and sound at marked places in the text",
    "VibeVoiceAsr": f"{NO_SIZES}: chunks of a multiple of 3200 samples",
    "VoxtralRealtime": f"{NO_BATCH}: text as long as its sound",
    "Xcodec": f"{NO_SIZES}: an acoustic and a semantic encoder",
    "Xcodec2": f"{NO_SIZES}: an acoustic and a semantic encoder",
}
