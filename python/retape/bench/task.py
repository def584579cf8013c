"""A task is a training step that every method is tried on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Layers = Sequence[Callable[[torch.Tensor], torch.Tensor]]
Apply = Callable[[Layers, torch.Tensor], torch.Tensor]  # calls layers in order, each with the last result


def plain(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


class Task:
    """Tensors, and a forward pass that gives every stack of its layers to `apply`.

    leaves: by name, what gets gradients. buffers: by name, what a step may change besides.
    """

    leaves: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def loss(self, apply: Apply) -> torch.Tensor:
        raise NotImplementedError

    def resident(self) -> int:
        """Bytes that are there in any case: no activations."""
        return sum(tensor.nbytes for tensor in (*self.leaves.values(), *self.buffers.values()))


class ModuleTask(Task):
    """Of an nn.Module."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.leaves = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())


Make = Callable[[], Task]  # the same one every time: it seeds what it draws


def seeded(make: Callable[..., Task], *args: Any, **options: Any) -> Make:
    """`make(*args)`, from the same random numbers each time."""

    def made() -> Task:
        torch.manual_seed(0)
        return make(*args, **options)

    return made
