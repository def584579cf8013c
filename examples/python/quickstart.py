import torch

import retape

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
x = torch.randn(32, 64)

with retape.recompute("cheap") as rec:  # any code, no closures, no annotations
    loss = model(x).square().mean()
loss.backward()  # replays what it needs, bit for bit
print(rec.stats.ops_replayed, "ops replayed,", rec.stats.bytes_dropped, "bytes dropped")

y = retape.checkpoint(model, x)  # or one region at a time, as with torch.utils.checkpoint
