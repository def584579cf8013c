"""One small batch for a Hugging Face model, from the signature of its forward and from its config."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from retape_hf.tiny_config import FIRST_SPECIAL, is_config

BATCH, LENGTH, FIRST_WORD = 2, 12, 10
FRAMES, WAVEFORM = 64, 8000
Batch = dict[str, Any]


def batch_for(model: nn.Module, early: Callable[[nn.Module, Batch], Batch] | None = None) -> Batch:
    """Keyword arguments for `model(**batch)`, labels among them where the class has a loss.

    early: changes them before placeholders for images and sounds are put into the text.
    """
    wanted = inspect.signature(model.forward).parameters
    batch: Batch = {}
    for name, make in MAKERS.items():
        if name in wanted:
            value = make(model, batch)
            if value is not None:
                batch[name] = value
    if early:
        batch = early(model, batch)
    put_placeholders(model, batch)
    if "labels" in wanted:
        labels = labels_for(model, batch)
        if labels is not None:
            batch["labels"] = labels
    if "return_loss" in wanted:
        batch["return_loss"] = True
    return batch


# --- looking things up ---------------------------------------------------------------------------


def lookup(config: Any, *names: str, kind: type | tuple[type, ...] = int) -> Any:
    """The first of these attributes in the config, then in the configs inside it."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, kind) and not isinstance(value, bool):
            return value
    for value in vars(config).values():
        if is_config(value):
            found = lookup(value, *names, kind=kind)
            if found is not None:
                return found
    return None


def part(config: Any, *names: str) -> Any:
    """A config inside a config."""
    return next((getattr(config, n) for n in names if is_config(getattr(config, n, None))), config)


def vocabulary(model: nn.Module) -> int:
    config = part(model.config, "text_config", "llm_config", "thinker_config", "text_encoder")
    size = lookup(config, "vocab_size") or lookup(model.config, "vocab_size") or 128
    return min(size, FIRST_SPECIAL) if size >= 128 else size


# --- text ----------------------------------------------------------------------------------------


def words(model: nn.Module, length: int = LENGTH) -> torch.Tensor:
    high = vocabulary(model)
    return torch.randint(min(FIRST_WORD, high // 2), high, (BATCH, length))


def input_ids(model: nn.Module, batch: Batch) -> torch.Tensor:
    return words(model)


def attention_mask(model: nn.Module, batch: Batch) -> torch.Tensor | None:
    """Of the text; of the sound where there is no text."""
    if "input_ids" in batch:
        return torch.ones_like(batch["input_ids"])
    if "input_features" in batch and not re.search(r"Whisper|Voxtral", type(model).__name__):
        return torch.ones(BATCH, batch["input_features"].shape[1], dtype=torch.long)
    return None


def bbox(model: nn.Module, batch: Batch) -> torch.Tensor:
    corner = torch.randint(0, 30, (BATCH, LENGTH, 2))
    return torch.cat([corner, corner + 8], dim=-1)


# --- images --------------------------------------------------------------------------------------


def side(model: nn.Module) -> tuple[int, int]:
    config = part(model.config, "vision_config", "backbone_config", "encoder")
    size = lookup(config, "image_size", "img_size", "input_size", kind=(int, list, tuple))
    if size is None:
        size = lookup(model.config, "image_size", kind=(int, list, tuple)) or 128
    return (size, size) if isinstance(size, int) else tuple(size[-2:])


def channels(model: nn.Module) -> int:
    config = part(model.config, "vision_config", "backbone_config")
    return lookup(config, "num_channels", "in_channels", "in_chans", "channels") or 3


def pixel_values(model: nn.Module, batch: Batch) -> torch.Tensor:
    if "image_grid_thw" in inspect.signature(model.forward).parameters:
        return patches(model)
    if re.search(r"Video(?!Llava)|Timesformer|Vivit|VJEPA|XCLIP|Tvp", type(model).__name__):
        return clip(model)
    if "pixel_attention_mask" in inspect.signature(model.forward).parameters:
        return torch.randn(BATCH, 1, channels(model), *side(model))  # one image per sample
    return torch.randn(BATCH, channels(model), *side(model))


def clip(model: nn.Module) -> torch.Tensor:
    frames = lookup(model.config, "num_frames", "frames_per_clip") or 2
    return torch.randn(BATCH, frames, channels(model), *side(model))


def pixel_values_videos(model: nn.Module, batch: Batch) -> torch.Tensor | None:
    """Where there is no other way in."""
    return None if "pixel_values" in batch else clip(model)


def high_res_pixel_values(model: nn.Module, batch: Batch) -> torch.Tensor:
    size = lookup(part(model.config, "high_res_vision_config"), "image_size") or 64
    return torch.randn(BATCH, 3, size, size)


def image_sizes(model: nn.Module, batch: Batch) -> torch.Tensor | None:
    if "pixel_values" not in batch:
        return None
    return torch.tensor([batch["pixel_values"].shape[-2:]] * BATCH)


def patches(model: nn.Module) -> torch.Tensor:
    """As Qwen's processors flatten them: one row per patch."""
    config = part(model.config, "vision_config", "vlm_config")
    patch = lookup(config, "patch_size") or 8
    frames = lookup(config, "temporal_patch_size") or 1
    return torch.randn(BATCH * 16, channels(model) * frames * patch * patch)


def image_grid_thw(model: nn.Module, batch: Batch) -> torch.Tensor:
    return torch.tensor([[1, 4, 4]] * BATCH)


# --- sound ---------------------------------------------------------------------------------------


MELS_LAST = r"Wav2Vec2Bert|Speech2Text|Seamless|MusicgenMelody|NeuCodec|Xcodec2"
MELS_FIRST = r"GlmAsr|Qwen3ASR|VoxtralRealtime"


def input_features(model: nn.Module, batch: Batch) -> torch.Tensor:
    config = part(model.config, "audio_config", "encoder_config", "speech_config")
    mels = lookup(
        config, "num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_feat_size",
        "num_chroma", "feature_projection_input_dim", "input_dim", "input_size",
    ) or 16  # fmt: skip
    frames = lookup(config, "max_source_positions")
    channels_first = bool(re.search(MELS_FIRST, type(model).__name__))
    channels_first |= bool(frames) and not re.search(MELS_LAST, type(model).__name__)
    length = 2 * frames if channels_first and frames else FRAMES
    return torch.randn(BATCH, mels, length) if channels_first else torch.randn(BATCH, length, mels)


def input_features_mask(model: nn.Module, batch: Batch) -> torch.Tensor | None:
    features = batch.get("input_features")
    if features is None:
        return None
    mels = lookup(model.config, "num_mel_bins", "feature_size") or 16
    return torch.ones(BATCH, features.shape[2 if features.shape[1] == mels else 1]).long()


def input_values(model: nn.Module, batch: Batch) -> torch.Tensor:
    if hasattr(model.config, "audio_channels"):
        return torch.randn(BATCH, model.config.audio_channels, WAVEFORM)
    return torch.randn(BATCH, WAVEFORM)


# --- the rest ------------------------------------------------------------------------------------


def past_values(model: nn.Module, batch: Batch) -> torch.Tensor:
    """A time series, with a channel for each that the config asks for."""
    length = lookup(model.config, "context_length") or 32
    return torch.randn(BATCH, length, lookup(model.config, "num_input_channels", "input_size") or 1)


MAKERS: dict[str, Callable[[nn.Module, Batch], Any]] = {
    "input_ids": input_ids,
    "bbox": bbox,
    "pixel_values": pixel_values,
    "image_grid_thw": image_grid_thw,
    "image_sizes": image_sizes,
    "high_res_pixel_values": high_res_pixel_values,
    "pixel_values_videos": pixel_values_videos,
    "input_features": input_features,
    "input_features_mask": input_features_mask,
    "feature_attention_mask": input_features_mask,
    "input_values": input_values,
    "past_values": past_values,
    "attention_mask": attention_mask,
}


# --- placeholders --------------------------------------------------------------------------------

PLACEHOLDERS = (
    ("get_image_features", ("image_token_id", "image_token_index", "image_token", "img_token_id")),
    ("get_audio_features", ("audio_token_id", "audio_token_index")),
)


def put_placeholders(model: nn.Module, batch: Batch) -> None:
    """Before the text, as many image (or audio) tokens as the model makes features for."""
    if "input_ids" not in batch:
        return
    for method, ids in PLACEHOLDERS:
        token = lookup(model.config, *ids)
        make = features_maker(model, method)
        if token is None or make is None:
            continue
        count = feature_count(model, make, batch)
        if count:
            marks = torch.full((BATCH, count // BATCH), token)
            batch["input_ids"] = torch.cat([marks, batch["input_ids"]], dim=1)
    if "attention_mask" in batch:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    wanted = inspect.signature(model.forward).parameters
    image = lookup(model.config, "image_token_id", "image_token_index")
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in wanted and image is not None and "pixel_values" in batch:
            batch[name] = (batch["input_ids"] == image).int()


FEATURES = {"pixel_values", "input_features", "input_values"}


def features_maker(model: nn.Module, method: str) -> Callable[..., Any] | None:
    """That of the model inside, if there is one: those around it may hand on less."""
    for owner in (getattr(model, "base_model", model), model):
        make = getattr(owner, method, None)
        if make is not None and FEATURES & inspect.signature(make).parameters.keys():
            return make
    return None


def feature_count(model: nn.Module, method: Callable[..., Any], batch: Batch) -> int:
    """Rows that the model would put into the text."""
    wanted = inspect.signature(method).parameters
    arguments = {k: v for k, v in batch.items() if k in wanted}
    if not FEATURES & arguments.keys():
        return 0
    model.eval()  # leaves BatchNorm as it was
    with torch.no_grad():
        made = method(**arguments)
    model.train()
    pooled = getattr(made, "pooler_output", made)
    made = made.last_hidden_state if pooled is None else pooled
    parts = made if isinstance(made, list | tuple) else [made]
    return sum(p.numel() // p.shape[-1] for p in parts if torch.is_tensor(p))


# --- labels --------------------------------------------------------------------------------------


def labels_for(model: nn.Module, batch: Batch) -> Any:
    head = type(model).__name__
    if re.search(
        r"CausalLM|MaskedLM|LMHead|ConditionalGeneration|PreTraining|2Text|2Seq|Decoder", head
    ):
        return text_labels(model, batch)
    if re.search(r"CTC|RNNT|TDT|SpeechToText", head):
        return words(model, 4)
    if re.search(r"ObjectDetection", head):
        return boxes(model)
    if re.search(r"SemanticSegmentation", head):
        return torch.randint(0, model.config.num_labels, (BATCH, *batch["pixel_values"].shape[-2:]))
    if re.search(r"DepthEstimation", head):
        return torch.rand(BATCH, *batch["pixel_values"].shape[-2:])
    if re.search(r"Classification|MultipleChoice", head):
        if "Token" in head:
            return torch.randint(0, model.config.num_labels, (BATCH, LENGTH))
        return torch.arange(BATCH) % model.config.num_labels
    return None


def text_labels(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The words themselves; those of the decoder where there is one."""
    if getattr(model.config, "is_encoder_decoder", False) or "input_ids" not in batch:
        return words(model)
    ids = batch["input_ids"]
    return ids.masked_fill(ids >= FIRST_SPECIAL, -100)


def boxes(model: nn.Module) -> list[dict[str, torch.Tensor]] | None:
    """Without scipy transformers cannot match them: then any loss will do."""
    if importlib.util.find_spec("scipy") is None:
        return None
    return [
        {
            "class_labels": torch.randint(0, model.config.num_labels, (2,)),
            "boxes": 0.25 + 0.5 * torch.rand(2, 4),
        }
        for _ in range(BATCH)
    ]
