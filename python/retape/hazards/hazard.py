"""What a hazard is: a small model that is right when its code runs once, and the story behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# How a region of forward is called: way(function, *args, **kwargs).
Way = Callable[..., Any]

# What a program leaves behind, by kind: {"gradient": {"w": w.grad}, "buffer": {...}}.
Evidence = dict[str, dict[str, torch.Tensor | None]]


@dataclass(frozen=True)
class Hazard:
    name: str  # "shared_cache"
    title: str  # a line in the table
    story: str  # one sentence: what happens in real life
    sources: tuple[str, ...]  # public issues, "repository#number"
    program: Callable[[Way], Evidence]
    true_program: Callable[[Way], Evidence] | None = None  # if plain autograd raises
    options: tuple[tuple[str, Any], ...] = ()  # that whoever wrote it gave to checkpoint
    rerun_raises: bool = False  # a second call cannot be right there, and Retape's says so


# In the order of the table.
HAZARDS: list[Hazard] = []


def hazard(
    title: str,
    story: str,
    *sources: str,
    truth: Callable[[Way], Evidence] | None = None,
    rerun_raises: bool = False,
    **options: Any,
) -> Callable[[Callable[[Way], Evidence]], Callable[[Way], Evidence]]:
    """Puts the decorated program on the list."""

    def add(program: Callable[[Way], Evidence]) -> Callable[[Way], Evidence]:
        given = tuple(options.items())
        HAZARDS.append(
            Hazard(program.__name__, title, story, sources, program, truth, given, rerun_raises)
        )
        return program

    return add


def leaf(*shape: int, seed: int) -> torch.Tensor:
    """A tensor to train, the same every time, without a draw from the default generator."""
    generator = torch.Generator().manual_seed(seed)
    scale = shape[-1] ** -0.5
    return (torch.randn(shape, generator=generator) * scale).requires_grad_()


def gradients(**leaves: torch.Tensor) -> dict[str, torch.Tensor | None]:
    return {name: tensor.grad for name, tensor in leaves.items()}


def addresses(sources: tuple[str, ...]) -> list[tuple[str, str]]:
    """("pytorch#96136", its address) for each."""
    return [(source, f"https://github.com/{_address(source)}") for source in sources]


_OWNERS = {
    "pytorch": "pytorch/pytorch",
    "transformers": "huggingface/transformers",
    "peft": "huggingface/peft",
    "OpenTau": "TensorAuto/OpenTau",
    "unsloth-zoo": "unslothai/unsloth-zoo",
    "OLMo-core": "allenai/OLMo-core",
    "Megatron-LM": "NVIDIA/Megatron-LM",
    "NeMo-RL": "NVIDIA-NeMo/RL",
    "Automodel": "NVIDIA-NeMo/Automodel",
    "LongLive": "NVlabs/LongLive",
}


def _address(source: str) -> str:
    repository, number = source.split("#")
    return f"{_OWNERS[repository]}/issues/{number}"
