"""What the reentrant way of running a region again cannot see."""

from __future__ import annotations

import torch

from retape.hazards.hazard import Evidence, Way, gradients, hazard, leaf


@hazard(
    "Tensors in containers",
    "The reentrant way tracks positional tensors and nothing else: whatever comes in a list or a "
    "dict gets no gradient, and the part of the model before it does not train.",
    "OpenTau#202",
    "Megatron-LM#4765",
)
def containers(way: Way) -> Evidence:
    x, w_in, w_out = leaf(4, 8, seed=1), leaf(8, 8, seed=2), leaf(8, 8, seed=3)
    h = leaf(4, 8, seed=4)

    def encoder(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"fine": (x @ w_in).tanh(), "coarse": (x @ w_in).sin()}

    def decoder(h: torch.Tensor, skips: dict[str, torch.Tensor]) -> torch.Tensor:
        return ((h + skips["fine"]) @ w_out).tanh() * skips["coarse"]

    out = way(decoder, h, way(encoder, x))
    out.square().sum().backward()
    return {
        "output": {"out": out.detach()},
        "gradient": gradients(x=x, w_in=w_in, w_out=w_out, h=h),
    }


@hazard(
    "An adapter behind a frozen input",
    "With frozen embeddings no input of the first region requires grad, so the reentrant way runs "
    "it without a graph: the adapter inside never trains.",
    "transformers#26221",
    "peft#1142",
)
def frozen_input(way: Way) -> Evidence:
    x, adapter, head = leaf(4, 8, seed=1).detach(), leaf(8, 8, seed=2), leaf(8, 8, seed=3)
    out = way(lambda x: (x @ adapter).tanh().sin(), x) @ head
    out.square().sum().backward()
    return {"output": {"out": out.detach()}, "gradient": gradients(adapter=adapter, head=head)}
