"""retape.verify: what a step leaves behind besides gradients is compared, whether or not it is trained."""

from __future__ import annotations

import random

import pytest
import torch
from tests.python import verify_models as models
from torch import nn

import retape


class WritesAParameter(models.Block):
    """Past the dispatcher, so that a second call cannot put it back, and nothing of it reaches a gradient."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(8), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.detach().numpy()[...] += 1
        return super().forward(x)


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
def test_a_parameter_that_a_second_call_writes_again_is_different(trained) -> None:
    dead = ["seen"] if trained else []
    model = WritesAParameter(trained=trained)
    verdict = retape.verify(model, models.x(), method="rerun", may_be_dead=dead)
    assert verdict.kind == "different", verdict
    assert {d.name for d in verdict.differences} == {"seen"}
    assert retape.verify(model, models.x(), may_be_dead=dead)  # replay calls nothing again
    assert not model.seen.any()


def test_a_frozen_parameter_of_a_step_is_compared_and_put_back() -> None:
    model, given = WritesAParameter(trained=False), models.x()
    step = retape.Step(lambda: model(given).square().mean(), modules=[model])
    verdict = retape.verify(step, method="rerun")
    assert verdict.kind == "different", verdict
    assert {d.name for d in verdict.differences} == {"seen"}
    assert not model.seen.any()


def test_a_model_with_frozen_parameters_is_equal() -> None:
    model = models.Stack()
    model.blocks[0].requires_grad_(False)
    assert retape.verify(model, models.x(grad=True))


class DrawsGauss(models.Block):
    """Numbers come in pairs: the second call takes the one that the first has left, and draws nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        random.gauss(0, 1)
        return super().forward(x)


def test_the_second_of_a_pair_of_gauss_numbers_that_a_second_call_takes_is_found() -> None:
    random.seed(0)
    verdict = retape.verify(DrawsGauss(), models.x(), method="rerun")
    assert verdict.kind == "different", verdict
    assert [(d.what, d.name) for d in verdict.differences] == [("generator", "random")]
    assert retape.verify(DrawsGauss(), models.x())
