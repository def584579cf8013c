"""Shrinks any Hugging Face config: same architecture, two layers, 64 wide, 128 tokens.

The default config says what there is; rules over the names of its attributes say how big it may be.
A config is made anew from what was shrunk, so that what it derives from its arguments fits again.
All widths become the same number: parts that were made for each other still fit each other.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

WIDTH, HEADS, KEY_VALUE_HEADS, HEAD_WIDTH, LAYERS = 64, 4, 2, 16, 2
VOCABULARY, POSITIONS, EXPERTS, IMAGE, PATCH = 128, 64, 4, 32, 8
IMAGE_IN_STAGES = 128  # halved by every stage: more than one pixel must be left for the last one
STAGES = ("depths", "hidden_sizes", "embed_dims", "num_heads")
FIRST_SPECIAL = 96  # token ids from here on are special: never drawn as text

# First match wins; None leaves the value alone. A value only ever gets smaller.
RULES: tuple[tuple[str, int | None], ...] = (
    (r"groups$", 16),
    (
        r"coefficient|_cost$|kernel|padding|temperature|_prob|pretraining_tp|sampl|seed|num_labels",
        None,
    ),
    (
        r"num_channels|in_channels|in_chans|audio_channels|input_channels|rope_theta|_scalar|ratio",
        None,
    ),
    (
        r"num_res_blocks|num_mel_attn_blocks|mlp_ratio|expand|stride|dilation|_factor|_rate$|growth",
        None,
    ),
    (
        r"temporal|merge|downsample|conv_L|num_points|_n_points|num_feature_levels|num_labels|scale",
        None,
    ),
    (r"vocab_size$|^vocab_size|num_embeddings|codebook_size|vocab_size_per", VOCABULARY),
    (r"mel_bins$|feature_size|input_feat_per_channel|feature_dim$", 16),
    (r"index_(topk|kpool)", 4),
    (r"experts?_per_tok|top_?k$|moe_k$|router_topk", 2),
    (r"(num|n)_(\w+_)?experts$|num_experts|n_experts", EXPERTS),
    (r"topk_group$", 1),
    (r"n_group$|num_expert_group$", 2),
    (r"d_head$|dim_head$", HEAD_WIDTH),
    (r"(num_)?k(ey)?_?v(alue)?_heads?$", KEY_VALUE_HEADS),
    (r"heads?$|n_heads_|num_\w*heads", HEADS),
    (r"num_hidden_layers|(^|_)layers?$|^depth$|_depth$|num_blocks$|n_block|num_\w*layers$", LAYERS),
    (r"rotary_dim|rope_head_dim", HEAD_WIDTH // 2),
    (r"head_dim|^d_kv$|kv_channels|d_head$|dim_head|head_size|head_width", HEAD_WIDTH),
    (r"lora_rank|dt_rank|_rank$", 16),
    (r"^image_size$|img_size|_image_size$|^input_size$", IMAGE),
    (r"^patch_size$|_patch_size$", PATCH),
    (r"max_.*position|n_positions|max_seq|max_.*length|n_ctx|max_len", POSITIONS),
    (r"num_queries|query_tokens|num_latents|num_query", 8),
    (r"sliding_window", 8),  # shorter than a sample: it must matter
    (r"window_size", 4),
    (r"num_groups|groups$|num_register_tokens|window|chunk|block_size", 16),
    (r"num_frames", 2),
    (r"state_size|d_state|ssm_state", 16),
    (
        r"size|dim|dims|width|channels|units|features|filters|d_model|d_ff|n_embd|d_inner|n_inner",
        WIDTH,
    ),
)
TOKEN_ID = re.compile(
    r"_token_id$|_token_index$|_token_ids$|_index$|_id$|^(image|audio|video)_token$"
)
MROPE = r"qwen|glm|ernie|omni|vl|ocr|cosmos"  # families that rotate by time, height and width
NEVER = {"transformers_version", "architectures", "id2label", "label2id", "torch_dtype", "dtype"}


class Ids:
    """Special token ids that do not fit the small vocabulary get new ones: equal before, equal after."""

    def __init__(self) -> None:
        self._new: dict[int, int] = {}

    def __call__(self, old: int) -> int:
        if old < 10:
            return old
        return self._new.setdefault(old, VOCABULARY - 1 - len(self._new))


def tiny(config_class: type, changes: dict[str, Any] | None = None, keep: str | None = None) -> Any:
    """A config of that class, small.

    changes: by attribute, nested for the configs inside; they come last.
    keep: a pattern of attributes that stay as they are.
    """
    return shrink(config_class(), changes or {}, Ids(), keep)


def shrink(config: Any, changes: dict[str, Any], ids: Ids, keep: str | None = None) -> Any:
    values = {k: v for k, v in vars(config).items() if k in arguments_of(type(config))}
    values = {k: v for k, v in values.items() if k not in NEVER and not k.startswith("_")}
    in_stages = any(isinstance(values.get(k), list | tuple) for k in STAGES)
    small = {}
    for name, value in values.items():
        if is_config(value):
            inner = changes.get(name)
            small[name] = shrink(value, inner if isinstance(inner, dict) else {}, ids, keep)
        elif not (keep and re.search(keep, name)):
            small[name] = smaller(name, value, ids)
    small = {name: value for name, value in small.items() if value is not values[name]}
    small = unlike_default(config, values) | small
    count = next((n for n in ("num_hidden_layers", "n_layer", "num_layers") if n in values), None)
    small |= fewer_layers(values, count)
    small |= same_stages(config, count)
    if in_stages and isinstance(values.get("image_size"), int):
        small["image_size"] = min(values["image_size"], IMAGE_IN_STAGES)
    small |= {k: v for k, v in changes.items() if not (is_config(small.get(k)) and is_part(v))}
    keep_relations(values, small, changes)
    return complete(type(config)(**small), changes)


def same_stages(config: Any, count: str | None) -> dict[str, Any]:
    """A backbone gives as many feature maps as before; layers enough for that."""
    stages, chosen = getattr(config, "stage_names", None), getattr(config, "out_features", None)
    if not stages or not chosen or len(chosen) < 2:
        return {}
    if count is None or len(stages) != getattr(config, count) + 1:
        return {"out_features": list(chosen)}
    layers = max(LAYERS, len(chosen))
    return {count: layers, "out_features": [f"stage{i + 1}" for i in range(layers)][-len(chosen) :]}


def complete(config: Any, changes: dict[str, Any]) -> Any:
    """What a checkpoint's config always has and a default one may lack."""
    for name in ("pad_token_id", "bos_token_id", "decoder_start_token_id"):
        wanted = name != "decoder_start_token_id" or attribute(config, "is_encoder_decoder")
        if name not in changes and wanted and attribute(config, name) is None:
            setattr(config, name, 0 if name != "bos_token_id" else 1)
    rope = attribute(config, "rope_parameters")
    if hasattr(type(config), "head_dim") and attribute(config, "head_dim", 0) is None:
        config.head_dim = HEAD_WIDTH
    if isinstance(rope, dict) and not any(isinstance(v, dict) for v in rope.values()):
        rotary = int(attribute(config, "head_dim") or HEAD_WIDTH)
        quarter = int(rotary * rope.get("partial_rotary_factor", 1)) // 8
        if "mrope_section" in rope or re.search(MROPE, config.model_type):
            time_last = config.model_type.startswith("ernie")
            sections = [2 * quarter, quarter, quarter]
            rope["mrope_section"] = sections[::-1] if time_last else sections
    return config


def unlike_default(config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What the config around this one had set."""
    try:
        default = vars(type(config)())
    except Exception:  # has no default
        return {}
    plain = bool | int | float | str
    return {k: v for k, v in values.items() if isinstance(v, plain) and v != default.get(k)}


def smaller(name: str, value: Any, ids: Ids) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, float | str):
        return 0.0 if "layerdrop" in name.replace("_", "") and value else value
    if name == "vision_feature_layer" and isinstance(value, int):
        return -1  # of so few layers none may be left out
    if TOKEN_ID.search(name):
        return ids(value) if isinstance(value, int) else value
    if isinstance(value, int):
        limit = next((limit for rule, limit in RULES if re.search(rule, name)), None)
        return value if limit is None or value <= limit else limit
    if isinstance(value, dict) and "mrope_section" in value:  # some configs check it at once
        return {**value, "mrope_section": [HEAD_WIDTH // 4, HEAD_WIDTH // 8, HEAD_WIDTH // 8]}
    if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        return smaller_list(name, value)
    return value


def smaller_list(name: str, values: Sequence[int]) -> Sequence[int]:
    """One number per stage. Widths keep their order, and stay multiples of the number of heads."""
    if name in ("depths", "layers", "num_block_repeats", "block_sizes"):
        new = [min(v, 1 + (i == 0)) for i, v in enumerate(values)]
    elif re.search(r"heads", name):
        new = [min(v, 2 if v < max(values) else HEADS) for v in values]
    elif name == "deepstack_visual_indexes":
        new = list(range(LAYERS))
    elif re.search(r"^image_size$", name):
        new = [IMAGE] * len(values)
    elif re.search(r"^patch_size$", name):
        new = [min(v, PATCH) for v in values]
    elif re.search(
        r"hidden_sizes|embed_dims?$|conv_dim|tdnn_dim|channels|^dims$|hidden_dims?|neck", name
    ):
        new = [32 * (1 + (v > min(values))) if v > 32 else v for v in values]
    else:
        return values
    return values if list(values) == new else type(values)(new)


def fewer_layers(values: dict[str, Any], count: str | None) -> dict[str, Any]:
    """Lists with one entry per layer: one layer of each kind stays, and at least two."""
    if count is None or not isinstance(values[count], int):
        return {}
    old = values[count]
    per_layer = {
        name: value
        for name, value in values.items()
        if isinstance(value, list | tuple) and len(value) == old and old > 1
    }
    kinds = [n for n, v in per_layer.items() if all(isinstance(x, str) for x in v)]
    chosen: dict[Any, int] = {}
    for layer in range(old if kinds else 0):
        chosen.setdefault(tuple(per_layer[name][layer] for name in kinds), layer)
    layers = sorted(chosen.values())
    layers = (layers + [i for i in range(old) if i not in layers])[: max(LAYERS, len(layers))]
    layers.sort()
    if not per_layer:
        return {}
    return {count: len(layers)} | {n: type(v)(v[i] for i in layers) for n, v in per_layer.items()}


def keep_relations(values: dict[str, Any], small: dict[str, Any], changes: dict[str, Any]) -> None:
    """As many heads for keys as for queries, if that was so; as many groups chosen as there are."""
    queries, keys = "num_attention_heads", "num_key_value_heads"
    if keys in small and keys not in changes and values.get(keys) == values.get(queries):
        small[keys] = small.get(queries, values.get(queries))


def arguments_of(config_class: type) -> set[str]:
    names = set(inspect.signature(config_class.__init__).parameters)
    names |= set(getattr(config_class, "__dataclass_fields__", ()))
    return names | set(config_class.sub_configs or ())


def attribute(config: Any, name: str, default: Any = None) -> Any:
    """Some configs refuse an attribute that differs between layers."""
    try:
        return getattr(config, name, default)
    except Exception:
        return default


def is_part(change: Any) -> bool:
    """Changes of a config inside; with a model type it is another config instead."""
    return isinstance(change, dict) and "model_type" not in change


def is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict")
