"""What the tests of OutputDiscardCheckpoint share: a block, and stand-ins that count or do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import retape
from retape._bits import same_bits

BATCH, WIDTH, HIDDEN = (2, 3), 8, 32
H = 2 * 3 * HIDDEN * 4  # bytes of the output

Result = list[Any]


class Plain:
    """The same calls with nothing behind them."""

    freed = 0

    def checkpoint(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def discard_output_and_register_recompute(self, hook_tensor: Tensor) -> int:
        return 0


class Counted(retape.OutputDiscardCheckpoint):
    freed = 0

    def discard_output_and_register_recompute(self, hook_tensor: Tensor) -> int:
        freed = super().discard_output_and_register_recompute(hook_tensor)
        Counted.freed += freed
        return freed


New = Callable[[], Any]


class Block:
    """x -> up -> silu, discarded -> down; and everything a scenario wants to look at afterwards."""

    def __init__(self, grad: bool = True) -> None:
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.x = torch.randn(*BATCH, WIDTH).requires_grad_(grad)

    def inner(self, x: Tensor) -> Tensor:
        return F.silu(self.up(x))

    def forward(
        self, new: New, x: Tensor | None = None, fn: Callable[..., Any] | None = None
    ) -> Tensor:
        ckpt = new()
        h = ckpt.checkpoint(fn or self.inner, self.x if x is None else x)
        z = self.down(h)
        ckpt.discard_output_and_register_recompute(z)
        return z

    def grads(self) -> Result:
        parameters = [*self.up.parameters(), *self.down.parameters()]
        return [self.x.grad, *(parameter.grad for parameter in parameters)]


def with_backend(backend: str) -> New:
    return lambda: Counted(backend)


def loss(z: Tensor) -> Tensor:
    return z.square().sum()


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return same_bits(left, right)
    return left == right
