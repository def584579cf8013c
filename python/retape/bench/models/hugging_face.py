"""Models of transformers, with random weights. Its code calls the layers; here they meet `apply`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from retape.bench.models.model import Model
from retape.bench.task import Apply, ModuleTask


class HuggingFaceTask(ModuleTask):
    """layers: of the model, called one after the other, each with the last one's result."""

    def __init__(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], layers: Sequence[nn.Module]
    ) -> None:
        super().__init__(model.train())
        self.inputs = inputs
        self.layers = list(layers)

    def loss(self, apply: Apply) -> torch.Tensor:
        with quiet(), through(apply, self.layers):
            return self.model(**self.inputs).loss


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of transformers about defaults."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextlib.contextmanager
def through(apply: Apply, layers: Sequence[nn.Module]) -> Iterator[None]:
    """While it is open, a call of the first layer runs them all by `apply`; the others pass on what
    they are given, which is the result already."""
    forwards = [layer.forward for layer in layers]

    def run_all(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        called = zip(layers, forwards, strict=True)
        return apply([_Call(layer, forward, args, kwargs) for layer, forward in called], x)

    def pass_on(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x

    for i, layer in enumerate(layers):
        layer.forward = pass_on if i else run_all
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class has it


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    forward: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x, *self.args, **self.kwargs)


_CLASSES = 100
# What transformers calls a size.
_NAMES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocabulary": "vocab_size",
    "tokens": "max_position_embeddings",
    "pixels": "image_size",
    "patch": "patch_size",
    "state": "state_size",
}


def _make(
    dtype: torch.dtype,
    *,
    name: str,
    options: Mapping[str, Any],
    layers_of: Callable[[Any], Sequence[nn.Module]],
    **size: int,
) -> HuggingFaceTask:
    """The model that transformers calls `name`, with random weights and inputs. options: more of its
    configuration; a function is of the sizes."""
    import transformers

    named = {_NAMES[each]: value for each, value in size.items() if each in _NAMES}
    more = {key: value(size) if callable(value) else value for key, value in options.items()}
    with quiet():
        cls = getattr(transformers, name)
        model = cls(cls.config_class(**named, **more)).to(dtype)
    batch = size["batch"]
    if "tokens" in size:
        ids = torch.randint(size["vocabulary"], (batch, size["tokens"]))
        inputs = {"input_ids": ids, "labels": ids}
    else:
        pictures = torch.randn(batch, 3, size["pixels"], size["pixels"], dtype=dtype)
        inputs = {"pixel_values": pictures, "labels": torch.randint(_CLASSES, (batch,))}
    return HuggingFaceTask(model, inputs, layers_of(model))


def _four_times_as_wide(size: dict[str, int]) -> int:
    return 4 * size["width"]


def _blocks_of_resnet(model: Any) -> list[nn.Module]:
    return [layer for stage in model.resnet.encoder.stages for layer in stage.layers]


def _model(
    name: str,
    title: str,
    of: str,
    layers_of: Callable[[Any], Sequence[nn.Module]],
    options: Mapping[str, Any],
    *sizes: dict[str, Any],
    dry: bool = True,
) -> Model:
    make = partial(_make, name=of, options=options, layers_of=layers_of)
    return Model(name, title, make, *sizes, dry=dry, needs="transformers")


MODELS = (
    _model(
        "gpt2", "GPT-2, unfused attention, dropout",
        "GPT2LMHeadModel", lambda model: model.transformer.h,
        dict(attn_implementation="eager", use_cache=False),
        dict(layers=12, width=768, heads=12, vocabulary=50257, batch=4, tokens=1024),
        dict(layers=8, width=128, heads=4, vocabulary=1024, batch=2, tokens=128),
    ),
    _model(
        "llama", "LLaMA, fused attention, grouped heads",
        "LlamaForCausalLM", lambda model: model.model.layers,
        dict(use_cache=False),
        dict(layers=16, width=2048, hidden=5632, heads=32, kv_heads=8, vocabulary=32000, batch=1, tokens=2048),
        dict(layers=8, width=128, hidden=352, heads=4, kv_heads=2, vocabulary=1024, batch=2, tokens=128),
    ),
    _model(
        "bert", "BERT, dropout",
        "BertForMaskedLM", lambda model: model.bert.encoder.layer,
        dict(intermediate_size=_four_times_as_wide),
        dict(layers=12, width=768, heads=12, vocabulary=30522, batch=8, tokens=512),
        dict(layers=8, width=128, heads=4, vocabulary=1024, batch=2, tokens=128),
    ),
    _model(
        "vit", "ViT",
        "ViTForImageClassification", lambda model: model.vit.layers,
        dict(intermediate_size=_four_times_as_wide, num_labels=_CLASSES),
        dict(layers=12, width=768, heads=12, pixels=224, patch=16, batch=16),
        dict(layers=8, width=128, heads=4, pixels=64, patch=8, batch=4),
    ),
    _model(
        "resnet50", "ResNet-50, batch norm",
        "ResNetForImageClassification", _blocks_of_resnet,
        dict(depths=[3, 4, 6, 3], layer_type="bottleneck", num_labels=_CLASSES),
        dict(pixels=128, batch=8),
        dict(pixels=64, batch=2),
        dry=False,
    ),
    _model(
        "mamba2", "Mamba2",
        "Mamba2ForCausalLM", lambda model: model.backbone.layers,
        dict(
            num_heads=lambda size: size["heads"], head_dim=lambda size: 2 * size["width"] // size["heads"],
            n_groups=1, chunk_size=64,
        ),
        dict(layers=12, width=768, heads=24, state=64, vocabulary=32000, batch=1, tokens=512),
        dict(layers=4, width=64, heads=4, state=16, vocabulary=512, batch=1, tokens=128),
    ),
)  # fmt: skip
