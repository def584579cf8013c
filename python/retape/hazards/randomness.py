"""Random numbers that a second call draws anew."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F

from retape.hazards.hazard import Evidence, Way, gradients, hazard, leaf


@hazard(
    "Noise from a private generator",
    "A model that draws its masks from a torch.Generator of its own, to be independent of the data "
    "loader, gets another mask in backward: only default generators are put back.",
)
def private_generator(way: Way) -> Evidence:
    x, w = leaf(32, 16, seed=1), leaf(16, 16, seed=2)
    generator = torch.Generator().manual_seed(3)

    def layer(x: torch.Tensor) -> torch.Tensor:
        mask = torch.empty(32, 16).bernoulli_(0.5, generator=generator)
        return ((x @ w) * mask).sin() * 2

    out = way(layer, x)
    out.sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "generator": {"private generator": generator.get_state()},
    }


@hazard(
    "Python's random skips layers",
    "Stochastic depth and LayerDrop toss a coin with random.random(); the second call tosses again, "
    "and gradients flow through layers that forward had skipped.",
    rerun_raises=True,
)
def python_random(way: Way) -> Evidence:
    x, w = leaf(4, 8, seed=1), leaf(8, 8, seed=2)

    def layer(x: torch.Tensor) -> torch.Tensor:
        kept = random.random() < 0.5
        return x + ((x @ w) * (2.0 if kept else 0.0)).tanh()

    h = x
    for _ in range(6):
        h = way(layer, h)
    h.square().sum().backward()
    drawn = torch.tensor(random.getstate()[1])
    return {
        "output": {"out": h.detach()},
        "gradient": gradients(x=x, w=w),
        "generator": {"random": drawn},
    }


@hazard(
    "NumPy picks the tokens",
    "Token dropping and mixup take np.random.permutation inside the model; the second call keeps "
    "other tokens, of the same shape, so no check notices.",
    rerun_raises=True,
)
def numpy_random(way: Way) -> Evidence:
    import numpy

    x, w = leaf(16, 8, seed=1), leaf(8, 8, seed=2)

    def layer(x: torch.Tensor) -> torch.Tensor:
        kept = torch.from_numpy(numpy.random.permutation(16)[:6])
        return (x[kept] @ w).tanh().sin()

    out = way(layer, x)
    out.square().sum().backward()
    _, drawn, position, *_ = numpy.random.get_state()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "generator": {"numpy.random": torch.tensor([*drawn.tolist(), position])},
    }


@hazard(
    "RReLU, stopped early",
    "The noise of nn.RReLU is saved before its kernel has written it; early stop, on by default, "
    "ends the second call right there, and backward reads memory that was never written.",
    "pytorch#193671",
)
def rrelu(way: Way) -> Evidence:
    x, w = leaf(16, 16, seed=1), leaf(16, 16, seed=2)
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # unwritten memory is then NaN, not what lay there
    try:
        out = way(lambda x: F.rrelu(x @ w, training=True), x)
        out.square().sum().backward()
    finally:
        torch.use_deterministic_algorithms(was)
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "generator": {"default generator": torch.get_rng_state()},
    }


@hazard(
    "Dropout, preserve_rng_state=False",
    "The switch saves a little time and is safe only where nothing is random; with dropout on, a "
    "multimodal model's loss at step 150 was 2.495 instead of 2.195.",
    "OLMo-core#828",
    preserve_rng_state=False,
    rerun_raises=True,
)
def dropout_without_state(way: Way) -> Evidence:
    x, w = leaf(32, 16, seed=1), leaf(16, 16, seed=2)
    out = way(lambda x: F.dropout((x @ w).tanh(), 0.3).sin(), x)
    out.sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "generator": {"default generator": torch.get_rng_state()},
    }
