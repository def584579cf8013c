"""Float32 precision settings, old and new, of every backend, around and inside a region."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.python.as_eager import WAYS, Way, assert_as_eager, leaf
from torch import Tensor

BACKENDS = {
    "all": (torch.backends, "fp32_precision"),
    "cuda.matmul": (torch.backends.cuda.matmul, "fp32_precision"),
    "cudnn": (torch.backends.cudnn, "fp32_precision"),
    "cudnn.conv": (torch.backends.cudnn.conv, "fp32_precision"),
    "cudnn.rnn": (torch.backends.cudnn.rnn, "fp32_precision"),
    "mkldnn": (torch.backends.mkldnn, "fp32_precision"),
    "mkldnn.matmul": (torch.backends.mkldnn.matmul, "fp32_precision"),
    "mkldnn.conv": (torch.backends.mkldnn.conv, "fp32_precision"),
    "mkldnn.rnn": (torch.backends.mkldnn.rnn, "fp32_precision"),
}
# `torch.backends.fp32_precision` of mkldnn alone knows bf16.
VALUES = {
    name: ["ieee", "tf32", *(["bf16"] if name.startswith("mkldnn") else [])] for name in BACKENDS
}
SETTINGS = pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VALUES.items() for value in values]
)


def precision(name: str) -> str:
    return getattr(*BACKENDS[name])


def set_precision(name: str, value: str) -> None:
    setattr(*BACKENDS[name], value)


@pytest.fixture(autouse=True)
def _settings_are_put_back() -> Iterator[None]:
    before = {name: precision(name) for name in BACKENDS}
    # torch's own test utilities, once imported by another test, freeze these settings.
    with torch.backends.__allow_nonbracketed_mutation():
        try:
            yield
        finally:
            for name, value in before.items():
                set_precision(name, value)


def region(x: Tensor) -> Tensor:
    weight = torch.linspace(-1, 1, 64 * 64).view(64, 64)
    image = (x @ weight).sin().view(1, 1, 64, 64)
    image = F.conv2d(image, weight[:3, :3].reshape(1, 1, 3, 3), padding=1).tanh()
    return (image.view(64, 64) @ weight).cos()


def all_precisions() -> list[str]:
    return [precision(name) for name in BACKENDS]


@WAYS
@SETTINGS
def test_a_setting_made_before_the_region_holds_in_replay(way: Way, name: str, value: str) -> None:
    def program(way: Way):
        set_precision(name, value)
        x = leaf(64, 64)
        y = way(region, x)
        y.sum().backward()
        return y.detach(), x.grad, all_precisions()

    assert_as_eager(program, way)


@WAYS
@SETTINGS
def test_a_setting_made_after_the_region_does_not_reach_replay(
    way: Way, name: str, value: str
) -> None:
    start = precision(name)

    def program(way: Way):
        set_precision(name, start)
        x = leaf(64, 64)
        y = way(region, x)
        set_precision(name, value)
        y.sum().backward()
        return y.detach(), x.grad, all_precisions()

    assert_as_eager(program, way)


@WAYS
@SETTINGS
def test_a_setting_made_in_the_middle_of_the_region(way: Way, name: str, value: str) -> None:
    start = precision(name)

    def program(way: Way):
        set_precision(name, start)
        x = leaf(64, 64)

        def twice(x: Tensor) -> Tensor:
            h = region(x)
            set_precision(name, value)
            h = region(h)
            set_precision(name, start)
            return h

        way(twice, x).sum().backward()
        return x.grad, all_precisions()

    assert_as_eager(program, way)


@WAYS
@pytest.mark.parametrize("value", ["highest", "high", "medium"])
def test_the_old_setting_and_the_new_one_in_one_program(way: Way, value: str) -> None:
    """Torch refuses to read the old setting where the new ones disagree with it."""

    def program(way: Way):
        torch.set_float32_matmul_precision(value)
        set_precision("mkldnn.matmul", "ieee")
        x = leaf(64, 64)
        y = way(region, x)
        set_precision("cuda.matmul", "tf32")
        y.sum().backward()
        return x.grad, all_precisions()

    before = torch.get_float32_matmul_precision()
    try:
        assert_as_eager(program, way)
    finally:
        torch.set_float32_matmul_precision(before)
