"""Where the bytes go: the largest allocations that are alive when memory peaks."""

from collections import Counter

import torch
from torch import nn

import retape

model = nn.Sequential(
    *(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4))
)
x = torch.randn(512, 256)

for policy in ("none", "full"):
    model.zero_grad(set_to_none=True)
    with retape.memory.Meter(timeline=True) as meter:
        with retape.recompute(policy):
            loss = model(x).square().mean()
        loss.backward()

    alive: dict[int, tuple[int, str]] = {}
    at_peak: dict[int, tuple[int, str]] = {}
    for event in meter.timeline:
        if event.bytes > 0:
            alive[event.id] = (event.bytes, f"{event.op} in {event.phase}")
        else:
            alive.pop(event.id, None)
        if event.current == meter.peak:
            at_peak = dict(alive)

    totals: Counter[str] = Counter()
    for size, what in at_peak.values():
        totals[what] += size
    print(f"{policy}: peak {meter.peak / 2**20:.1f} MiB")
    for what, size in totals.most_common(5):
        print(f"  {size / 2**20:6.1f} MiB  {what}")
