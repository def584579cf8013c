"""FLOPs that are counted are those that torch's own counter counts, with and without Retape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import retape


def counted(step: Callable[[], torch.Tensor]) -> int:
    with retape.memory.Flops() as count:
        step().sum().backward()
    return count.flops


def counted_dry(step: Callable[[], torch.Tensor]) -> int:
    with retape.memory.Dry() as dry:
        step().sum().backward()
    return dry.flops


def torchs(step: Callable[[], torch.Tensor]) -> int:
    with FlopCounterMode(display=False) as mode:
        step().sum().backward()
    return mode.get_total_flops()


def input_of(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


CONVOLUTIONS = {
    "1d": (nn.Conv1d(6, 8, 3), (2, 6, 20)),
    "2d": (nn.Conv2d(3, 8, 3, padding=1), (2, 3, 16, 16)),
    "strided": (nn.Conv2d(4, 8, (3, 5), stride=(2, 3), padding=(1, 2)), (2, 4, 17, 19)),
    "dilated": (nn.Conv2d(4, 8, 3, dilation=2), (2, 4, 16, 16)),
    "groups": (nn.Conv2d(8, 16, 3, groups=4), (2, 8, 12, 12)),
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8), (2, 8, 12, 12)),
    "3d": (nn.Conv3d(2, 4, 3), (1, 2, 6, 7, 8)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 8, 8)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("needs_grad", [True, False])
def test_a_convolutions_flops_are_torchs(name: str, needs_grad: bool) -> None:
    convolution, shape = CONVOLUTIONS[name]
    x = input_of(*shape).requires_grad_(needs_grad)

    def step() -> torch.Tensor:
        return convolution(x)

    expected = torchs(step)
    if (
        convolution.groups > 1
    ):  # torch's counter takes a weight's gradient to be of all channels with all
        with FlopCounterMode(display=False) as forward:
            step()
        expected = forward.get_total_flops() * (2 + needs_grad)
    assert counted(step) == expected > 0
    assert counted_dry(step) == expected


@pytest.mark.parametrize("causal", [False, True])
def test_attentions_flops_are_torchs_formula(causal: bool) -> None:
    shapes = q, k, v = (2, 4, 24, 16), (2, 4, 40, 16), (2, 4, 40, 16)
    tensors = [input_of(*shape) for shape in shapes]

    def step() -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors, is_causal=causal)

    expected = sdpa_flop_count(q, k, v) + sdpa_backward_flop_count(q, q, k, v)
    assert counted(step) == expected
    assert counted_dry(step) == expected


def test_a_model_of_everything_has_torchs_flops_and_what_is_replayed_counts_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 32),
        nn.GELU(),
    )
    x = torch.randn(4, 3, 8, 8)

    def recomputed() -> torch.Tensor:
        with retape.recompute("full"):
            return model(x)

    plain = torchs(lambda: model(x))
    assert counted(lambda: model(x)) == plain
    assert counted(recomputed) > plain


def test_counting_changes_neither_bits_nor_bytes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 3))
    x = input_of(2, 3, 16, 16)

    def step() -> tuple[torch.Tensor, int]:
        x.grad = None
        with retape.memory.Meter() as meter:
            with retape.recompute("full"):
                loss = model(x).square().mean()
            loss.backward()
        return x.grad.clone(), meter.peak

    step()
    bits, peak = step()
    with retape.memory.Flops():
        with_bits, with_peak = step()
    assert torch.equal(bits, with_bits)
    assert peak == with_peak


def test_counters_nest_and_a_dry_run_inside_computes_nothing() -> None:
    x = torch.ones(8, 8)
    with retape.memory.Flops() as outer:
        with retape.memory.Flops() as inner:
            y = x @ x
        with retape.memory.Dry() as dry:
            x @ x
        z = x @ x
    assert bool((y == 8).all()) and bool((z == 8).all())
    assert (inner.flops, dry.flops, outer.flops) == (1024, 1024, 3072)
