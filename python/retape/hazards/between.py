"""What changes after the region has run, before its backward."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from retape.hazards.hazard import Evidence, Way, gradients, hazard, leaf


def _stepped(way: Way, step: bool) -> Evidence:
    x, layer = leaf(4, 8, seed=1), nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.copy_(leaf(8, 8, seed=2))
    out = way(lambda x: layer(x).tanh().square(), x)
    if step:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        layer(x.detach()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    out.sum().backward()
    return {"gradient": gradients(x=x, weight=layer.weight, bias=layer.bias)}


@hazard(
    "A weight steps before backward",
    "Pipelines and generator-discriminator loops step an optimizer while another loss still waits "
    "for its backward; plain autograd refuses, a second call uses the new weight.",
    truth=partial(_stepped, step=False),
)
def weight_stepped(way: Way) -> Evidence:
    return _stepped(way, step=True)


def _list_changed(way: Way, change: bool) -> Evidence:
    x, w, mask = leaf(4, 8, seed=1), leaf(8, 8, seed=2), torch.full((8,), 0.5)
    out = way(lambda x, extra: ((x @ w) * extra[0]).sin(), x, [mask])
    if change:
        mask.mul_(3)  # the buffer is reused for the next batch
    out.sum().backward()
    return {"gradient": gradients(x=x, w=w)}


@hazard(
    "A tensor in a list is overwritten",
    "A mask or noise buffer passed in a list, a dict or by keyword is reused for the next batch; "
    "torch checks versions of positional tensors only.",
    truth=partial(_list_changed, change=False),
)
def list_overwritten(way: Way) -> Evidence:
    return _list_changed(way, change=True)


@hazard(
    "A captured number changes",
    "A scheduler moves a coefficient, a temperature or a flag between the forward and the backward "
    "of a micro-batch; the second call computes with the new one.",
    rerun_raises=True,
)
def number_changed(way: Way) -> Evidence:
    x, w, schedule = leaf(4, 8, seed=1), leaf(8, 8, seed=2), {"temperature": 1.0}
    out = way(lambda x: (x @ w / schedule["temperature"]).softmax(-1).log(), x)
    schedule["temperature"] = 0.5
    out.square().sum().backward()
    return {"output": {"out": out.detach()}, "gradient": gradients(x=x, w=w)}


@hazard(
    "The default dtype changes",
    "A model is built or a checkpoint is loaded under another default dtype while graphs still wait; "
    "constants that the second call makes have the new one.",
)
def default_dtype(way: Way) -> Evidence:
    x, w, was = leaf(4, 8, seed=1), leaf(8, 8, seed=2), torch.get_default_dtype()
    try:
        out = way(lambda x: ((x @ w) * torch.full((8,), 0.3)).sin(), x)
        torch.set_default_dtype(torch.bfloat16)
        out.sum().backward()
    finally:
        torch.set_default_dtype(was)
    return {"output": {"out": out.detach()}, "gradient": gradients(x=x, w=w)}


@hazard(
    "sdpa_kernel() around forward only",
    "The context that chose an attention backend ends before backward; the second call picks "
    "another kernel, which saves other tensors and rounds differently.",
    "NeMo-RL#1717",
    "Automodel#2761",
)
def attention_backend(way: Way) -> Evidence:
    x, w = leaf(2, 2, 8, 16, seed=1), leaf(16, 16, seed=2)

    def layer(x: torch.Tensor) -> torch.Tensor:
        q = x @ w
        return F.scaled_dot_product_attention(q, q, x).sin()

    with sdpa_kernel(SDPBackend.MATH):
        out = way(layer, x)
    out.sum().backward()
    return {"output": {"out": out.detach()}, "gradient": gradients(x=x, w=w)}
