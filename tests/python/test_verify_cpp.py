"""C++ models through Python's verify."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import retape
from retape import _models
from retape.cli.verify.case import Case, run
from retape.subjects import cpp
from retape.subjects.cpp import MODELS


@pytest.mark.parametrize("policy", ["full", "cheap"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_cpp_is_equal_in_every_order(name: str, dtype: str, policy: str) -> None:
    result = run(Case(f"cpp:{name}", policy=policy, dtype=dtype, orders=True))
    assert result.kind == "equal", result.explanation
    # Together, twice, two forwards; two losses also apart, in both orders.
    assert len(result.verdict.orders) == (3 if name == "transformer" else 5)


def in_turn(*towers: str) -> list[str]:
    return [f"{tower}.{layer}" for tower in towers for layer in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "make, regions",
    [
        (_models.Transformer, in_turn("layers")),
        (_models.Moe, in_turn("layers")),
        (_models.Pi05, in_turn("prefix", "suffix")),
    ],
)
def test_a_model_whose_layers_are_regions_is_equal(make, regions, dtype) -> None:
    step = partial(cpp.step, make, dtype, dropout=0.3, layers=True)
    # "auto": what is enabled is up to the model, and there is no scope around it.
    verdict = retape.verify(step, layers="auto", loss=cpp.losses, regions=regions)
    verdict.raise_if_different()
    assert verdict.kind == "equal"


def test_a_fault_in_it_is_told_by_name() -> None:
    result = run(Case("cpp:pi05", fault="rng-not-restored"))
    assert result.kind == "different"
    assert result.verdict.findings[0].kind == "generator state"
