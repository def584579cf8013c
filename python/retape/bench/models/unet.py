"""A U-Net: what the way down makes is held for the way up."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from retape.bench.models.model import Model
from retape.bench.task import Apply, ModuleTask


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inputs, dtype=dtype)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, dtype=dtype)
        self.norm2 = nn.GroupNorm(8, outputs, dtype=dtype)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, dtype=dtype)
        self.skip = (
            nn.Conv2d(inputs, outputs, 1, dtype=dtype) if inputs != outputs else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """Each level is a stack: `depth` residual blocks on the way down, as many on the way up."""

    def __init__(self, width: int, levels: int, depth: int, dtype: torch.dtype) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.first = nn.Conv2d(3, width, 3, padding=1, dtype=dtype)
        self.down = nn.ModuleList(
            _level(widths[max(level - 1, 0)], widths[level], depth, dtype)
            for level in range(levels)
        )
        self.up = nn.ModuleList(
            _level(widths[level] + widths[level + 1], widths[level], depth, dtype)
            for level in reversed(range(levels - 1))
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1, dtype=dtype)

    def forward(self, x: torch.Tensor, apply: Apply) -> torch.Tensor:
        x = self.first(x)
        skips = []
        for level, blocks in enumerate(self.down):
            x = apply(blocks, F.avg_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for blocks in self.up:
            x = apply(blocks, torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return self.last(x)


def _level(inputs: int, outputs: int, depth: int, dtype: torch.dtype) -> nn.ModuleList:
    return nn.ModuleList(Residual(outputs if i else inputs, outputs, dtype) for i in range(depth))


class UNetTask(ModuleTask):
    """Denoises: the step of a diffusion model."""

    def __init__(
        self, dtype: torch.dtype, width: int, levels: int, depth: int, pixels: int, batch: int
    ) -> None:
        super().__init__(UNet(width, levels, depth, dtype))
        self.picture = torch.randn(batch, 3, pixels, pixels, dtype=dtype)
        self.noise = torch.randn_like(self.picture)

    def loss(self, apply: Apply) -> torch.Tensor:
        return F.mse_loss(self.model(self.picture + self.noise, apply), self.noise)


MODELS = (
    Model(
        "unet", "U-Net, skips between levels", UNetTask,
        dict(width=32, levels=4, depth=2, pixels=128, batch=4),
        dict(width=16, levels=3, depth=2, pixels=32, batch=2),
        dry=False,
    ),
)  # fmt: skip
