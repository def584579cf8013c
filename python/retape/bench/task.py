"""A task is a training step that every method is tried on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from retape import memory

Layers = Sequence[Callable[..., Any]]
# `apply(layers, *given)` calls them in order: the first with all that is given, each other one with the last result.
Apply = Callable[..., Any]


def plain(layers: Layers, *given: Any) -> Any:
    return in_order(lambda index, layer, *given: layer(*given), layers, *given)


def in_order(call: Callable[..., Any], layers: Layers, *given: Any) -> Any:
    """`call(index, layer, *given)` for each."""
    for index, layer in enumerate(layers):
        given = (call(index, layer, *given),)
    return given[0]


class Named:
    """A layer that has a name in timelines, of its module where it is one. Peers may call its parts."""

    def __init__(self, layer: Any, name: str) -> None:
        self.layer, self.name = layer, name

    def __call__(self, *given: Any) -> Any:
        with memory.region(self.name):
            return self.layer(*given)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        with memory.region(self.name):
            return self.layer.inner(x)

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with memory.region(self.name):
            return self.layer.outer(h, x)


def name_of(layer: Any, index: int) -> str:
    return layer.name if isinstance(layer, Named) else f"layer {index}"


def named_region(layer: Any) -> contextlib.AbstractContextManager[None]:
    """Of a layer that has a name, around a call of what it is made of."""
    return memory.region(layer.name) if isinstance(layer, Named) else contextlib.nullcontext()


class Task:
    """Tensors, and a forward pass that gives every stack of its layers to `apply`.

    leaves: by name, what gets gradients. buffers: by name, what a step may change besides.
    """

    leaves: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def loss(self, apply: Apply) -> torch.Tensor:
        raise NotImplementedError

    def path(self, layer: Any) -> str:
        """Where the model has it, if that is known."""
        return ""

    def resident(self, live: int) -> int:
        """Bytes that are there in any case: no activations. live: those there were before the step."""
        return sum(tensor.nbytes for tensor in (*self.leaves.values(), *self.buffers.values()))


class ModuleTask(Task):
    """Of an nn.Module."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.leaves = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())

    def path(self, layer: Any) -> str:
        module = getattr(layer, "module", layer)
        found = next((path for path, each in self.model.named_modules() if each is module), "")
        return "" if found.isdigit() else found  # a place in a list of layers is no name


Make = Callable[[], Task]  # the same one every time: it seeds what it draws


def seeded(make: Callable[..., Task], *args: Any, **options: Any) -> Make:
    """`make(*args)`, from the same random numbers each time."""

    def made() -> Task:
        torch.manual_seed(0)
        return make(*args, **options)

    return made
