"""Which class of a Hugging Face architecture to train: the most complete one that has a loss."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

# Most complete first. Encoders before decoders: a config is an encoder's unless it says otherwise.
TASKS = """
    IMAGE_TEXT_TO_TEXT MULTIMODAL_LM SPEECH_SEQ_2_SEQ SEQ_TO_SEQ_CAUSAL_LM MASKED_LM CAUSAL_LM
    CTC TDT RNNT VISUAL_QUESTION_ANSWERING DOCUMENT_QUESTION_ANSWERING TABLE_QUESTION_ANSWERING
    ZERO_SHOT_IMAGE_CLASSIFICATION OBJECT_DETECTION UNIVERSAL_SEGMENTATION SEMANTIC_SEGMENTATION
    IMAGE_CLASSIFICATION CAUSAL_IMAGE_MODELING VIDEO_CLASSIFICATION AUDIO_CLASSIFICATION
    DEPTH_ESTIMATION IMAGE_TO_IMAGE IMAGE_MATTING TEXT_TO_SPECTROGRAM TEXT_TO_WAVEFORM
    TIME_SERIES_PREDICTION RETRIEVAL PRETRAINING ZERO_SHOT_OBJECT_DETECTION
    INSTANCE_SEGMENTATION IMAGE_SEGMENTATION MASK_GENERATION KEYPOINT_DETECTION
    KEYPOINT_MATCHING TEXT_RECOGNITION TABLE_RECOGNITION TOKEN_CLASSIFICATION
    SEQUENCE_CLASSIFICATION QUESTION_ANSWERING
""".split()
LOSS_ARGUMENTS = {"labels", "return_loss", "mask_labels", "future_values", "start_positions"}


@functools.cache
def mappings() -> dict[str, dict[str, list[str]]]:
    """Config class, to task, to the names of the model classes that the auto classes would choose."""
    from transformers.models.auto import configuration_auto, modeling_auto

    found: dict[str, dict[str, list[str]]] = {}
    for variable, table in vars(modeling_auto).items():
        task = re.fullmatch(r"MODEL_(?:FOR_)?(.*?)_?(?:MAPPING_)?NAMES", variable)
        if not task:
            continue
        for model_type, classes in table.items():
            config = configuration_auto.CONFIG_MAPPING_NAMES.get(model_type)
            names = [classes] if isinstance(classes, str) else list(classes)
            if config is not None:
                tasks = found.setdefault(config, {})
                tasks.setdefault(task[1] or "BASE", []).extend(n for n in names if n)
    return found


@functools.cache
def heads() -> dict[str, str]:
    """Name of an architecture (of its config, without "Config") to the model class to train."""
    import transformers

    chosen, folders = {}, {}
    for config, tasks in mappings().items():
        config_class = getattr(transformers, config, None)
        if config_class is not None:
            chosen[config] = choose(tasks)
            folders.setdefault(config_class.__module__, []).append(config_class)
    parts = {
        part.__name__
        for configs in folders.values()
        for config in configs
        for part in (config.sub_configs or {}).values()
        if inspect.isclass(part) and part is not config
    }
    return {
        config.removesuffix("Config"): model
        for config, model in sorted(chosen.items(), key=lambda item: item[0].lower())
        if config not in parts or has_loss(model)
    }


def head_of(name: str) -> str | None:
    """The model class of one architecture, without a look at all the others."""
    tasks = mappings().get(f"{name}Config")
    return choose(tasks) if tasks else None


def choose(tasks: dict[str, list[str]]) -> str:
    ranked = [name for task in TASKS for name in tasks.get(task, ())]
    ranked += [name for task in sorted(tasks) for name in tasks[task] if name not in ranked]
    return next((name for name in ranked if has_loss(name)), ranked[0])


@functools.cache
def has_loss(model: str) -> bool:
    return bool(LOSS_ARGUMENTS & forward_parameters(model).keys())


def forward_parameters(model: str) -> dict[str, Any]:
    import transformers

    try:
        return dict(inspect.signature(getattr(transformers, model).forward).parameters)
    except (AttributeError, ImportError, RuntimeError):  # asks for a package that is not there
        return {}
