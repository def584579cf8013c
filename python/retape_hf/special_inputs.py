"""Batches of architectures whose forward takes what no rule could guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from retape_hf.inputs import BATCH, LENGTH, Batch, channels, lookup, side, words


def without(*names: str) -> Callable[[Any, Batch], Batch]:
    return lambda model, batch: {k: v for k, v in batch.items() if k not in names}


def noise(alone: bool = False, **shapes: tuple[int | str, ...]) -> Callable[[Any, Batch], Batch]:
    """Random inputs of these shapes per sample; a name stands for an attribute of the config. alone:
    without the rest of the batch."""

    def make(model: Any, batch: Batch) -> Batch:
        made = {}
        for name, shape in shapes.items():
            sizes = (getattr(model.config, d) if isinstance(d, str) else d for d in shape)
            made[name] = torch.randn(BATCH, *sizes)
        return made if alone else {**batch, **made}

    return make


def series(model: Any, batch: Batch) -> Batch:
    """Of the forecasting models: a past, and the future to be guessed."""
    config = model.config
    past = config.context_length + max(config.lags_sequence)
    future, marks = config.prediction_length, config.num_time_features
    return {
        "past_values": torch.randn(BATCH, past),
        "past_time_features": torch.randn(BATCH, past, marks),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.randn(BATCH, future),
        "future_time_features": torch.randn(BATCH, future, marks),
    }


def trajectory(model: Any, batch: Batch) -> Batch:
    config = model.config
    return {
        "states": torch.randn(BATCH, LENGTH, config.state_dim),
        "actions": torch.randn(BATCH, LENGTH, config.act_dim),
        "rewards": torch.randn(BATCH, LENGTH, 1),
        "returns_to_go": torch.randn(BATCH, LENGTH, 1),
        "timesteps": torch.arange(LENGTH).repeat(BATCH, 1),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }


def two_texts(model: Any, batch: Batch) -> Batch:
    return {**batch, "decoder_input_ids": words(model), "labels": words(model)}


def pair_of_images(model: Any, batch: Batch) -> Batch:
    return {"pixel_values": torch.randn(BATCH, 2, channels(model), *side(model))}


def qformer(model: Any, batch: Batch) -> Batch:
    ids = words(model)
    return {**batch, "qformer_input_ids": ids, "qformer_attention_mask": torch.ones_like(ids)}


def global_attention(model: Any, batch: Batch) -> Batch:
    mask = torch.zeros_like(batch["input_ids"])
    mask[:, 0] = 1
    return {**batch, "global_attention_mask": mask}


def entities(model: Any, batch: Batch) -> Batch:
    ids = torch.randint(3, model.config.entity_vocab_size, (BATCH, 3))
    places = torch.full((BATCH, 3, 4), -1)
    places[..., 0] = torch.arange(3)
    labels = {"entity_labels": ids, "entity_position_ids": places}
    return {**batch, "entity_ids": ids, "entity_attention_mask": torch.ones_like(ids), **labels}


def visual_regions(model: Any, batch: Batch) -> Batch:
    """Of Lxmert: features and boxes of what a detector would have found."""
    config = model.config
    return {
        **{k: v for k, v in batch.items() if k != "labels"},
        "visual_feats": torch.randn(BATCH, 4, config.visual_feat_dim),
        "visual_pos": torch.rand(BATCH, 4, config.visual_pos_dim),
    }


def visual_bert(model: Any, batch: Batch) -> Batch:
    embeds = torch.randn(BATCH, 4, model.config.visual_embedding_dim)
    ones = torch.ones(BATCH, 4, dtype=torch.long)
    labels = torch.cat([batch["input_ids"], torch.full((BATCH, 4), -100)], dim=1)
    seen = {"visual_embeds": embeds, "visual_attention_mask": ones, "visual_token_type_ids": ones}
    return {**batch, **seen, "labels": labels}


def question(model: Any, batch: Batch) -> Batch:
    ids = batch["input_ids"].clone()
    ids[:, 3] = model.config.question_token_id
    answer = {
        "start_positions": torch.tensor([[5], [6]]),
        "end_positions": torch.tensor([[7], [8]]),
    }
    return {**batch, "input_ids": ids, "question_positions": torch.tensor([[3], [3]]), **answer}


def shapes_of_words(model: Any, batch: Batch) -> Batch:
    shapes = torch.randint(0, model.config.shape_vocab_size, (BATCH, LENGTH))
    sounds = torch.randint(0, model.config.pronunciation_vocab_size, (BATCH, LENGTH))
    return {**batch, "input_shape_ids": shapes, "input_pronunciation_ids": sounds}


def axial_length(model: Any, batch: Batch) -> Batch:
    ids = words(model, 16)  # exactly the product of its axes
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def decoder_words(model: Any, batch: Batch) -> Batch:
    return {**batch, "decoder_input_ids": words(model)}


def tiles(model: Any, batch: Batch) -> Batch:
    """Of LlavaNext: the whole image, then its tiles."""
    images = torch.randn(BATCH, 2, channels(model), *side(model))
    return {**batch, "pixel_values": images}


def siglip2_patches(model: Any, batch: Batch) -> Batch:
    patch = model.config.vision_config.patch_size
    return {
        **batch,
        "pixel_values": torch.randn(BATCH, 16, 3 * patch * patch),
        "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
    }


def latents(model: Any, batch: Batch) -> Batch:
    ids = torch.randint(3, model.config.vocab_size, (BATCH, model.config.max_position_embeddings))
    return {"inputs": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def parts_of_pages(model: Any, batch: Batch) -> Batch:
    box = torch.rand(BATCH, LENGTH, 4).sort(dim=-1).values
    return {**batch, "bbox": box}


def mllama_batch(model: Any, batch: Batch) -> Batch:
    count = model.config.vision_config.max_num_tiles
    mask = torch.ones(BATCH, batch["input_ids"].shape[1], 1, count, dtype=torch.long)
    return {
        **batch,
        "pixel_values": torch.randn(BATCH, 1, count, 3, *side(model)),
        "aspect_ratio_ids": torch.ones(BATCH, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(BATCH, 1, count, dtype=torch.long),
        "cross_attention_mask": mask,
    }


def idefics_batch(model: Any, batch: Batch) -> Batch:
    pixels = torch.randn(BATCH, 1, 3, *side(model))
    mask = torch.ones(BATCH, batch["input_ids"].shape[1], 1, dtype=torch.long)
    return {**batch, "pixel_values": pixels, "image_attention_mask": mask}


def kosmos2_batch(model: Any, batch: Batch) -> Batch:
    count = model.config.latent_query_num
    ids = torch.cat([torch.full((BATCH, count), 5), batch["input_ids"]], dim=1)
    mask = torch.zeros_like(ids)
    mask[:, :count] = 1
    labels = ids.masked_fill(mask.bool(), -100)
    rest = {"image_embeds_position_mask": mask, "attention_mask": torch.ones_like(ids)}
    return {**batch, "input_ids": ids, "labels": labels, **rest}


def channels_of_codes(model: Any, batch: Batch) -> Batch:
    """Of Dia: a token per codebook and step."""
    count = model.config.decoder_config.num_channels
    high = model.config.decoder_config.vocab_size - 1
    ids = torch.randint(0, high, (BATCH, LENGTH, count))
    return {**batch, "decoder_input_ids": ids, "labels": ids.transpose(1, 2).reshape(-1, LENGTH)}


def pi0_batch(model: Any, batch: Batch) -> Batch:
    config, vision = model.config, model.config.vlm_config.vision_config
    images = torch.full(
        (BATCH, (vision.image_size // vision.patch_size) ** 2), config.vlm_config.image_token_id
    )
    ids = torch.cat([images, words(model)], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(BATCH, 1, 3, *side(model)),  # one camera
        "pixel_attention_mask": torch.ones(BATCH, 1, dtype=torch.bool),
        "state": torch.randn(BATCH, config.max_state_dim),
        "actions": torch.randn(BATCH, config.chunk_size, config.max_action_dim),
    }


def clvp_batch(model: Any, batch: Batch) -> Batch:
    mels = model.config.decoder_config.feature_size
    return {
        "input_ids": words(model),
        "input_features": torch.randn(BATCH, mels, 12),
        "return_loss": True,
    }


def prompted(model: Any, batch: Batch) -> Batch:
    """Of SegGpt: an image, an example of the same size, and the example's mask."""
    height, width = model.config.image_size
    image, example, mask, label = torch.randn(4, BATCH, 3, height // 2, width)
    return {
        "pixel_values": image,
        "prompt_pixel_values": example,
        "prompt_masks": mask,
        "labels": label,
    }


def flattened(model: Any, batch: Batch) -> Batch:
    """Of Pix2Struct and Kosmos2.5: row, column, then the pixels of a patch."""
    config = model.config.vision_config
    patches = torch.randn(BATCH, 4, 2 + config.patch_embed_hidden_size)
    patches[..., :2] = torch.tensor([[1, 1], [1, 2], [2, 1], [2, 2]])
    return {**batch, "flattened_patches": patches, "attention_mask": torch.ones(BATCH, 4)}


def codes(model: Any, batch: Batch) -> Batch:
    """Of Musicgen: one row of tokens per codebook."""
    decoder = model.config.decoder
    ids = torch.randint(0, decoder.vocab_size - 1, (BATCH * decoder.num_codebooks, LENGTH))
    labels = torch.randint(0, decoder.vocab_size - 1, (BATCH, LENGTH, decoder.num_codebooks))
    return {**batch, "decoder_input_ids": ids, "labels": labels}


def embedded_sound(model: Any, batch: Batch) -> Batch:
    sound = torch.randn(BATCH, LENGTH, model.config.d_model)
    return {"input_features": sound, "labels": batch["labels"]}


def one_image_each(model: Any, batch: Batch) -> Batch:
    return {**batch, "pixel_values": batch["pixel_values"][:, None]}


def rows_of_pixels(model: Any, batch: Batch) -> Batch:
    return {**batch, "pixel_values": torch.randn(BATCH, 4, 3 * model.config.patch_size**2)}


def frames_of_codes(model: Any, batch: Batch) -> Batch:
    """Of Csm: a token per codebook and frame."""
    ids = torch.randint(0, model.config.vocab_size - 1, (BATCH, LENGTH, model.config.num_codebooks))
    return {"input_ids": ids, "labels": ids, "attention_mask": batch["attention_mask"]}


def text_beside_codes(model: Any, batch: Batch) -> Batch:
    """Of Kyutai's: in each frame a word, then a token per codebook."""
    config = model.config
    codes = torch.randint(0, config.codebook_vocab_size - 1, (BATCH, LENGTH, config.num_codebooks))
    ids = torch.cat([batch["input_ids"][..., None], codes], dim=-1)
    return {**batch, "input_ids": ids, "input_values": None}


def stacked_frames(model: Any, batch: Batch) -> Batch:
    """Of FunAsrNano: several frames in a row."""
    frames = torch.randn(BATCH, 16, 7 * lookup(model.config, "num_mel_bins"))
    return {**batch, "input_features": frames, "input_features_mask": torch.ones(BATCH, 16).long()}


def video_in_text(model: Any, batch: Batch) -> Batch:
    config = model.config
    count = config.num_query_tokens * batch["pixel_values"].shape[1]
    marks = torch.full((BATCH, count), config.video_token_index)
    ids = torch.cat([marks, batch["input_ids"]], dim=1)
    labels = torch.cat([torch.full_like(marks, -100), batch["labels"]], dim=1)
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def kosmos2_5_batch(model: Any, batch: Batch) -> Batch:
    patches = flattened(model, batch)["flattened_patches"]
    seen = kosmos2_batch(model, batch)
    return {**seen, "flattened_patches": patches}


def square_patches(model: Any, batch: Batch) -> Batch:
    patch = model.config.vision_config.patch_size
    return {**batch, "pixel_values": torch.randn(BATCH * 16, 3, patch, patch)}


def padded_patches(model: Any, batch: Batch) -> Batch:
    return {**batch, "pixel_values": batch["pixel_values"].view(BATCH, 16, -1)}


def mel_image(model: Any, batch: Batch) -> Batch:
    """Of Clap: a spectrogram as a picture of one channel."""
    mels = model.config.audio_config.num_mel_bins
    longer = torch.zeros(BATCH, 1, dtype=torch.bool)
    return {**batch, "input_features": torch.randn(BATCH, 1, 64, mels), "is_longer": longer}


def ended_text(model: Any, batch: Batch) -> Batch:
    """Text is pooled where it ends."""
    ids = batch["input_ids"].clone()
    ids[:, -1] = lookup(model.config, "eos_token_id")
    return {**batch, "input_ids": ids}


def spoken_text(model: Any, batch: Batch) -> Batch:
    mels = lookup(model.config, "num_mel_bins")
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "spectrogram_labels": torch.randn(BATCH, 2 * LENGTH, mels),
        "duration_labels": torch.full((BATCH, LENGTH), 2),
        "pitch_labels": torch.randn(BATCH, LENGTH, 1),
        "energy_labels": torch.randn(BATCH, LENGTH, 1),
    }


def patches_of_two_frames(model: Any, batch: Batch) -> Batch:
    patch = lookup(model.config, "patch_size")
    return {**batch, "pixel_values": torch.randn(BATCH * 16, 2 * 3 * patch**2)}


def patches_of_images(model: Any, batch: Batch) -> Batch:
    """Of a vision tower alone."""
    config = model.config
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    grid = torch.tensor([[1, 4, 4]] * BATCH)
    return {"hidden_states": torch.randn(BATCH * 16, width), "grid_thw": grid}


def merge_sizes(model: Any, batch: Batch) -> Batch:
    return {**batch, "image_merge_sizes": torch.tensor([2] * BATCH)}


def wide_frames(model: Any, batch: Batch) -> Batch:
    """Of GraniteSpeech5: several frames in a row."""
    width = model.encoder.input_linear.in_features
    features = torch.randn(BATCH, 16, width)
    return {**batch, "input_features": features, "attention_mask": torch.ones(BATCH, 16).long()}


def decoded_labels(model: Any, batch: Batch) -> Batch:
    """Of transducers: what was said so far."""
    return {**batch, "decoder_input_ids": torch.nn.functional.pad(batch["labels"], (1, 0))}


def decoded(model: Any, batch: Batch) -> Batch:
    return without("labels")(model, decoded_labels(model, batch))


def one_sound_each(model: Any, batch: Batch) -> Batch:
    """Of Qwen2Audio: a mark for each sound, which the model itself makes longer."""
    ids = batch["input_ids"].clone()
    ids[:, 0] = model.config.audio_token_id
    return {**batch, "input_ids": ids}


def hundred_frames(model: Any, batch: Batch) -> Batch:
    """Of Qwen3's: sounds come in windows of that length."""
    features = torch.randn(BATCH, batch["input_features"].shape[1], 100)
    names = [name for name in ("input_features_mask", "feature_attention_mask") if name in batch]
    return {**batch, "input_features": features} | dict.fromkeys(
        names, torch.ones(BATCH, 100).long()
    )


def patches_beside_sound(model: Any, batch: Batch) -> Batch:
    return {**patches_of_two_frames(model, batch), "input_values": torch.randn(BATCH, 9600)}


def marked_image(model: Any, batch: Batch) -> Batch:
    """Of Granite4Vision: a mark for each row of its first map."""
    marks = torch.full((BATCH, 10), model.config.image_token_id)
    ids = torch.cat([marks, batch["input_ids"]], dim=1)
    labels = torch.cat([torch.full_like(marks, -100), batch["labels"]], dim=1)
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def embedded_frames(model: Any, batch: Batch) -> Batch:
    return {"inputs_embeds": torch.randn(BATCH, LENGTH, model.input_layer_norm.normalized_shape[0])}
