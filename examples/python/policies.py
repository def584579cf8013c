"""Policies are values: named ones, refined by op name, or a function of your own.

Prints what each keeps of one transformer layer and what it replays.
"""

import torch
from torch import nn

import retape


def keep_what_is_costly(info) -> bool:
    """True keeps. Told once for each op output: op, sizes, dtype, bytes, region, cheap..."""
    return not info.cheap or info.bytes < 4096


POLICIES = {
    "none": "none",
    "cheap": "cheap",
    "full": "full",
    "full, keep bmm": retape.Policy.full().keep_ops(["aten::bmm"]),
    "full, no anchors": retape.Policy.full().anchors(False),
    "own function": keep_what_is_costly,
}

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
x = torch.randn(4, 128, 128, requires_grad=True)

gradients = {}
for name, policy in POLICIES.items():
    layer.zero_grad()
    torch.manual_seed(1)
    with retape.memory.Meter() as meter:
        with retape.recompute(policy, name="layer") as rec:
            y = layer(x)
        y.square().mean().backward()
    gradients[name] = [parameter.grad.clone() for parameter in layer.parameters()]
    same = all(torch.equal(a, b) for a, b in zip(gradients["none"], gradients[name], strict=True))
    print(
        f"{name:<18} peak {meter.peak / 2**20:5.1f} MiB, held {meter.held / 2**20:5.1f} MiB, "
        f"{rec.stats.ops_replayed:3} of {rec.stats.ops_recorded} ops replayed, "
        f"gradients {'identical' if same else 'DIFFERENT'}"
    )
    assert same, name
