"""The six blocks: what peers wrap is `inner`, and `outer` is what consumes it.

A stack of N of them ends in y.square().mean(). The last Linear of each is scaled so that its output has
unit deviation: with torch's own initialisation, gradients through eight swiglu layers are
exactly zero, and to compare those proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from retape.bench.task import Apply, ModuleTask


@dataclass(frozen=True)
class Size:
    layers: int = 8
    dtype: str = "float32"
    d_model: int = 2048
    d_ff: int = 8192
    batch: int = 2
    sequence: int = 2048

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


class Block(nn.Module):
    """inner: what peers wrap. outer: the rest, with the block's input at hand."""

    title = ""
    multiplies = ""  # the dtype of its products, where that is not the size's
    has_one_product = False

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x), x)

    def _linear(self, inputs: int, outputs: int, dtype: torch.dtype | None = None) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False, dtype=dtype or self.size.torch_dtype)

    @property
    def last(self) -> nn.Linear:
        """Whose scale is the scale of the output."""
        return [module for module in self.modules() if isinstance(module, nn.Linear)][-1]


class Fp32Cast(Block):
    title = "linear_fp32([x.float()]).to(dtype)"
    has_one_product = True
    multiplies = "float32"

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.linear = self._linear(size.d_model, size.d_model, torch.float32)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.linear(h).to(self.size.torch_dtype)


class UpProj(Block):
    title = "down([up(x)])"

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.up = self._linear(size.d_model, size.d_ff)
        self.down = self._linear(size.d_ff, size.d_model)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x)

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.down(h)


class SiluUp(UpProj):
    title = "down([silu(up(x))])"

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.up(x))


class SwiGlu(Block):
    title = "w2([silu(w1 x) * w3 x])"

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.w1 = self._linear(size.d_model, size.d_ff)
        self.w3 = self._linear(size.d_model, size.d_ff)
        self.w2 = self._linear(size.d_ff, size.d_model)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.w1(x)) * self.w3(x)

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.w2(h)


class RmsNorm(Block):
    title = "linear([rms_norm(x)]) + x"
    has_one_product = True

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.norm = nn.RMSNorm(size.d_model, dtype=size.torch_dtype)
        self.linear = self._linear(size.d_model, size.d_model)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.linear(h) + x


class Fp32Softmax(Block):
    title = "proj([softmax(x.float())].to(dtype))"
    has_one_product = True

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.proj = self._linear(size.d_model, size.d_model)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.float(), -1)

    def outer(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.proj(h.to(self.size.torch_dtype))


BLOCKS: dict[str, type[Block]] = {
    "fp32_cast": Fp32Cast,
    "up_proj": UpProj,
    "silu_up": SiluUp,
    "swiglu": SwiGlu,
    "rms_norm": RmsNorm,
    "fp32_softmax": Fp32Softmax,
}


def make_stack(name: str, size: Size) -> nn.ModuleList:
    return nn.ModuleList(BLOCKS[name](size) for _ in range(size.layers))


def make_input(size: Size) -> torch.Tensor:
    shape = (size.batch, size.sequence, size.d_model)
    return torch.randn(shape, dtype=size.torch_dtype).requires_grad_()


def scale(stack: nn.ModuleList, x: torch.Tensor) -> None:
    """Unit deviation behind every block. Of rms_norm, of what it adds to its input: the sum grows from
    layer to layer, as a residual stream does, and no weight of one block can keep it from that."""
    with torch.no_grad():
        for block in stack:
            before = block(x) - (x if isinstance(block, RmsNorm) else 0)
            block.last.weight /= before.float().std().to(block.last.weight.dtype)
            x = block(x)
            if isinstance(block, RmsNorm):
                x = x / x.float().std().to(x.dtype)


def loss_of(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


class BlockTask(ModuleTask):
    def __init__(self, name: str, size: Size, scaled: bool) -> None:
        self.layers, self.x = make_stack(name, size), make_input(size)
        if scaled:
            scale(self.layers, self.x)
        super().__init__(self.layers)
        self.leaves["x"] = self.x

    def loss(self, apply: Apply) -> torch.Tensor:
        self.y = apply(self.layers, self.x)
        return loss_of(self.y)

    def resident(self, live: int) -> int:
        # The input is held, the output is not.
        return super().resident(live) - self.x.nbytes + self.y.nbytes
