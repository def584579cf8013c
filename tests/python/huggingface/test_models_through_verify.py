"""The Hugging Face models of the other tests, through verify itself."""

from __future__ import annotations

import re

import pytest
import torch
from tests.python.huggingface.dead import expected_dead
from tests.python.huggingface.models import CASES
from tests.python.huggingface.more_models import PI0
from torch import nn

import retape

MODELS = {**CASES, "PI0": PI0}
# Some of their parameters have no gradient in any run; `dead` says why that is right.
WITH_DEAD = ("SwiftFormer", "ClvpModel", "Janus", "PI0")


def dead_of(name: str, model: nn.Module) -> list[str]:
    patterns = expected_dead(name.removesuffix("Model"), model)
    return [n for n, _ in model.named_parameters() if any(re.search(p, n) for p in patterns)]


def verdict(name: str, dropout: float, dtype: torch.dtype, **how: object) -> retape.Verdict:
    case = MODELS[name]
    model = case.build(dropout, dtype)
    dead = dead_of(name, model)
    return retape.verify(model, case.inputs(dtype), loss=case.loss, may_be_dead=dead, **how)


@pytest.mark.parametrize("way", ["scope", "layers"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["no_dropout", "dropout"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_recomputed_it_is_equal(name: str, dtype: torch.dtype, dropout: float, way: str) -> None:
    found = verdict(name, dropout, dtype, layers="auto" if way == "layers" else None)
    assert found.kind == "equal", found.explain()
    assert found.ops_replayed > 0


@pytest.mark.parametrize("name", ["Llama", "T5", "Mixtral", "Whisper"])
def test_called_again_in_every_order_it_is_equal(name: str) -> None:
    found = verdict(name, 0.2, torch.float32, layers="auto", method="rerun", orders=True)
    assert found.kind == "equal", found.explain()
    assert found.reruns > 0


@pytest.mark.parametrize("name", WITH_DEAD)
def test_what_has_no_gradient_would_be_vacuous_if_it_were_not_declared(name: str) -> None:
    case = MODELS[name]
    model = case.build()
    found = retape.verify(model, case.inputs(), loss=case.loss)
    assert found.kind == "vacuous"
    dead = dead_of(name, model)
    assert all(any(f'"{each}"' in reason for each in dead) for reason in found.vacuous), (
        found.vacuous
    )
