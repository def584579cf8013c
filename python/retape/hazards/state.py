"""State that a region itself moves: a second call moves it again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from retape.hazards.hazard import Evidence, Way, gradients, hazard, leaf


@hazard(
    "BatchNorm's running statistics",
    "The second call feeds the same batch into the running mean and variance again; evaluation then "
    "uses statistics that no plain run would have. Open since 2023.",
    "pytorch#96136",
    "pytorch#62471",
)
def batch_norm(way: Way) -> Evidence:
    x, norm = leaf(16, 6, seed=1), nn.BatchNorm1d(6)
    out = way(lambda x: norm(x * 3 + 1).tanh(), x)
    out.square().sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, weight=norm.weight, bias=norm.bias),
        "buffer": {name: buffer.clone() for name, buffer in norm.named_buffers()},
    }


@hazard(
    "A buffer is updated in place",
    "Codebook usage, moving averages and load counts are buffers that a layer updates and uses in "
    "one breath; the second call updates them again and computes with other numbers.",
    "Automodel#3247",
)
def buffer_in_place(way: Way) -> Evidence:
    x, w, usage = leaf(8, 8, seed=1), leaf(8, 8, seed=2), torch.ones(8)

    def layer(x: torch.Tensor) -> torch.Tensor:
        h = x @ w
        with torch.no_grad():
            usage.mul_(0.5).add_(h.abs().mean(0))
        return (h / usage.clone()).sin()

    out = way(layer, x)
    out.sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "buffer": {"usage": usage},
    }


@hazard(
    "A counter sets the temperature",
    "self.calls += 1 drives warm-up, annealing or logging inside a module; called again, it counts "
    "twice, and the temperature of backward is not that of forward.",
    rerun_raises=True,
)
def counter(way: Way) -> Evidence:
    x, w, calls = leaf(8, 8, seed=1), leaf(8, 8, seed=2), [0]

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return ((x @ w) / calls[0]).softmax(-1).log()

    out = way(layer, x)
    out.square().sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "count": {"calls": torch.tensor(calls[0])},
    }


@hazard(
    "A dict argument is mutated",
    "Attention takes state={'position': 0}, rotates by it and moves it on; the second call finds the "
    "moved position and rotates by another angle.",
    "OpenTau#202",
)
def keyword_mutated(way: Way) -> Evidence:
    x, w, state = leaf(8, 8, seed=1), leaf(8, 8, seed=2), {"position": 0}

    def layer(x: torch.Tensor, *, state: dict[str, Any]) -> torch.Tensor:
        angle = torch.arange(8.0)[:, None] + state["position"]
        state["position"] += len(x)
        h = x @ w
        return h * angle.cos() + h.roll(1, -1) * angle.sin() + h.sin() * angle.cos()

    out = way(layer, x, state=state)
    out.square().sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w=w),
        "count": {"position": torch.tensor(state["position"])},
    }
