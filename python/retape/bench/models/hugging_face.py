"""Models of transformers, with random weights. Its code calls the layers; here they meet `apply`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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
    """transformers tells people of defaults; of these models nobody chose any."""
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


def _tokens(vocabulary: int, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(vocabulary, (batch, tokens))
    return {"input_ids": ids, "labels": ids}


def _pictures(batch: int, pixels: int, classes: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(batch, 3, pixels, pixels, dtype=dtype),
        "labels": torch.randint(classes, (batch,)),
    }


def gpt2(
    dtype: torch.dtype,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    batch: int,
    tokens: int,
) -> HuggingFaceTask:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocabulary, n_positions=tokens,
        attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(dtype)
    return HuggingFaceTask(model, _tokens(vocabulary, batch, tokens), model.transformer.h)


def llama(
    dtype: torch.dtype, layers: int, width: int, hidden: int, heads: int, kv_heads: int,
    vocabulary: int, batch: int, tokens: int,
) -> HuggingFaceTask:  # fmt: skip
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=hidden,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocabulary,
        max_position_embeddings=tokens, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype)
    return HuggingFaceTask(model, _tokens(vocabulary, batch, tokens), model.model.layers)


def bert(
    dtype: torch.dtype,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    batch: int,
    tokens: int,
) -> HuggingFaceTask:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width,
        num_attention_heads=heads, vocab_size=vocabulary, max_position_embeddings=tokens,
    )  # fmt: skip
    model = BertForMaskedLM(config).to(dtype)
    return HuggingFaceTask(model, _tokens(vocabulary, batch, tokens), model.bert.encoder.layer)


def vit(
    dtype: torch.dtype, layers: int, width: int, heads: int, pixels: int, patch: int, batch: int
) -> HuggingFaceTask:
    from transformers import ViTConfig, ViTForImageClassification

    classes = 100
    config = ViTConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width,
        num_attention_heads=heads, image_size=pixels, patch_size=patch, num_labels=classes,
    )  # fmt: skip
    model = ViTForImageClassification(config).to(dtype)
    return HuggingFaceTask(model, _pictures(batch, pixels, classes, dtype), model.vit.layers)


def resnet50(dtype: torch.dtype, pixels: int, batch: int) -> HuggingFaceTask:
    from transformers import ResNetConfig, ResNetForImageClassification

    classes = 100
    config = ResNetConfig(depths=[3, 4, 6, 3], layer_type="bottleneck", num_labels=classes)
    model = ResNetForImageClassification(config).to(dtype)
    layers = [layer for stage in model.resnet.encoder.stages for layer in stage.layers]
    return HuggingFaceTask(model, _pictures(batch, pixels, classes, dtype), layers)


def mamba2(
    dtype: torch.dtype, layers: int, width: int, heads: int, state: int, vocabulary: int, batch: int,
    tokens: int,
) -> HuggingFaceTask:  # fmt: skip
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        num_hidden_layers=layers, hidden_size=width, num_heads=heads, head_dim=2 * width // heads,
        state_size=state, n_groups=1, vocab_size=vocabulary, chunk_size=64,
    )  # fmt: skip
    model = Mamba2ForCausalLM(config).to(dtype)
    return HuggingFaceTask(model, _tokens(vocabulary, batch, tokens), model.backbone.layers)


def _quietly(make: Callable[..., HuggingFaceTask], **options: Any) -> HuggingFaceTask:
    with quiet():
        return make(**options)


def _model(
    name: str,
    title: str,
    make: Callable[..., HuggingFaceTask],
    *sizes: dict[str, Any],
    dry: bool = True,
) -> Model:
    return Model(name, title, partial(_quietly, make), *sizes, dry=dry, needs="transformers")


MODELS = (
    _model(
        "gpt2", "GPT-2, unfused attention, dropout", gpt2,
        dict(layers=12, width=768, heads=12, vocabulary=50257, batch=4, tokens=1024),
        dict(layers=8, width=128, heads=4, vocabulary=1024, batch=2, tokens=128),
    ),
    _model(
        "llama", "LLaMA, fused attention, grouped heads", llama,
        dict(layers=16, width=2048, hidden=5632, heads=32, kv_heads=8, vocabulary=32000, batch=1, tokens=2048),
        dict(layers=8, width=128, hidden=352, heads=4, kv_heads=2, vocabulary=1024, batch=2, tokens=128),
    ),
    _model(
        "bert", "BERT, dropout", bert,
        dict(layers=12, width=768, heads=12, vocabulary=30522, batch=8, tokens=512),
        dict(layers=8, width=128, heads=4, vocabulary=1024, batch=2, tokens=128),
    ),
    _model(
        "vit", "ViT", vit,
        dict(layers=12, width=768, heads=12, pixels=224, patch=16, batch=16),
        dict(layers=8, width=128, heads=4, pixels=64, patch=8, batch=4),
    ),
    _model(
        "resnet50", "ResNet-50, batch norm", resnet50,
        dict(pixels=128, batch=8),
        dict(pixels=64, batch=2),
        dry=False,
    ),
    _model(
        "mamba2", "Mamba2", mamba2,
        dict(layers=12, width=768, heads=24, state=64, vocabulary=32000, batch=1, tokens=512),
        dict(layers=4, width=64, heads=4, state=16, vocabulary=512, batch=1, tokens=128),
    ),
)  # fmt: skip
