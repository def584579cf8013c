"""retape.verify: what it compares, when it proves nothing, what it leaves behind."""

from __future__ import annotations

import dataclasses
import random
from collections import UserDict
from types import MappingProxyType

import numpy
import pytest
import torch
from tests.python import verify_models as models
from tests.python.bits import assert_same_bits
from torch import nn

import retape


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ---- equal


@pytest.mark.parametrize("policy", ["full", "cheap", retape.Policy.full().anchors(False)])
def test_a_model_with_dropout_is_equal(policy) -> None:
    verdict = retape.verify(models.Stack(), models.x(grad=True), policy=policy)
    assert verdict, verdict
    assert verdict.kind == "equal"
    assert verdict.ops_replayed > 0
    assert (
        verdict.tensors_compared > 14
    )  # 14 gradients of parameters, one of the input, an output...
    assert not verdict.with_tolerance
    verdict.raise_if_different()


@pytest.mark.parametrize("method", ["replay", "rerun"])
def test_layers_of_a_copy_are_recomputed_and_the_model_stays_as_it_was(method) -> None:
    model = models.Stack()
    verdict = retape.verify(model, models.x(), layers="auto", method=method)
    assert verdict, verdict
    assert bool(verdict.ops_replayed) == (method == "replay")
    assert bool(verdict.reruns) == (method == "rerun")
    assert len(retape.enabled(model)) == 0


def test_layers_are_named_as_regions() -> None:
    verdict = retape.verify(
        models.Stack(), models.x(), layers="blocks.*", regions=["blocks.0", "blocks.2"]
    )
    assert verdict, verdict


def test_an_lstm_has_no_bytes_compared_that_nobody_wrote() -> None:
    class Model(models.Block):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = [
                torch.full((2**n,), float(n)) for n in range(16)
            ]  # where the workspace will be
            del noise
            return super().forward(self.lstm(x)[0])

    verdict = retape.verify(Model(), models.x())
    assert verdict, verdict
    seen: list[str] = []
    with retape.recompute(lambda value: seen.append(value.op) or "drop"):
        Model()(models.x())
    assert seen
    assert "aten::mkldnn_rnn_layer" not in seen


def test_all_of_forward_can_run_again() -> None:
    verdict = retape.verify(models.Stack(), models.x(), method="rerun")
    assert verdict, verdict
    assert verdict.reruns > 0


def test_python_numpy_and_private_generators_draw_the_same_and_are_put_back() -> None:
    model = models.Noisy()
    mine = model.sources["masks"]
    before = random.getstate(), numpy.random.get_state()[1].tolist(), mine.get_state()
    verdict = retape.verify(model, models.x(1))
    assert verdict, verdict
    assert random.getstate() == before[0]
    assert numpy.random.get_state()[1].tolist() == before[1]
    assert torch.equal(mine.get_state(), before[2])


def test_the_default_generator_and_the_model_are_left_alone() -> None:
    model, given = models.Stack(), models.x(grad=True)
    state = torch.get_rng_state()
    parameters = {name: value.clone() for name, value in model.state_dict().items()}
    retape.verify(model, given, steps=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_bits(dict(model.state_dict()), parameters)
    assert given.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_list_of_policies_gives_a_list_of_verdicts() -> None:
    full, none = retape.verify(models.Stack(), models.x(), policy=["full", "none"])
    assert (full.kind, none.kind) == ("equal", "vacuous")


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64])
def test_parameters_and_inputs_are_cast(dtype) -> None:
    seen = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        seen.append(output.dtype)
        return output.float().square().mean()

    verdict = retape.verify(models.Stack(), [models.x(grad=True)], dtype=dtype, loss=loss)
    assert verdict, verdict
    assert set(seen) == {getattr(torch, dtype) if isinstance(dtype, str) else dtype}


def test_several_losses_by_name_run_backward_in_every_order() -> None:
    verdict = retape.verify(
        models.Stack(),
        models.x(grad=True),
        loss=lambda y: {"a": y.exp().mean(), "b": y.sin().sum()},
        orders=True,
    )
    assert verdict, verdict
    assert {"losses a, b", "losses b, a", "backward twice", "two forwards"} <= set(verdict.orders)


def test_a_gradient_that_torch_gives_as_zeros_without_memory_is_compared() -> None:
    """The second derivative of abs."""
    x, w = torch.linspace(-1, 1, 4, requires_grad=True), torch.ones(4, requires_grad=True)

    def forward() -> torch.Tensor:
        (slope,) = torch.autograd.grad(x.abs().sum(), x, create_graph=True)
        return slope.square().sum() + w.sin().exp().sum()

    step = retape.Step(forward, leaves={"x": x, "w": w})
    verdict = retape.verify(step, may_be_dead=["x"])
    assert verdict, verdict
    assert 'leaf "x" has an all-zero gradient' in str(retape.verify(step))


def test_steps_of_an_optimizer_are_compared() -> None:
    made = []

    def optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        made.append(len(parameters))
        return torch.optim.AdamW(parameters, lr=0.01)

    verdict = retape.verify(models.Stack(), models.x(grad=True), steps=3, optimizer=optimizer)
    assert verdict, verdict
    assert set(made) == {14}  # parameters, not the input


def test_a_model_with_a_loss_of_its_own_and_keyword_inputs() -> None:
    class Model(models.Stack):
        def forward(self, *, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
            y = super().forward(x)
            return {"loss": (y * scale).exp().mean(), "logits": y}

    verdict = retape.verify(Model(), {"x": models.x(grad=True), "scale": 0.5})
    assert verdict, verdict


def test_a_factory_is_called_for_every_run_with_the_same_numbers() -> None:
    weights = []

    def factory():
        model = models.Stack()
        weights.append(model.blocks[0].up.weight.detach().clone())
        return model, (models.x(),)

    verdict = retape.verify(factory)
    assert verdict, verdict
    assert len(weights) >= 3
    assert_same_bits(weights[0], weights[-1])


def test_a_step_over_live_objects_puts_them_back() -> None:
    model, given, extra = nn.BatchNorm1d(8), models.x(), torch.ones(8, requires_grad=True)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = retape.Step(
        lambda: (model(given) * extra).tanh().exp().sum(), modules=[model], leaves={"extra": extra}
    )
    verdict = retape.verify(step, steps=2)
    assert verdict, verdict
    assert_same_bits(dict(model.state_dict()), before)
    assert extra.grad is None
    assert all((parameter.grad == 3).all() for parameter in model.parameters())


def test_layers_of_a_live_step_are_enabled_for_its_runs_only() -> None:
    model, given = models.Stack(), models.x()
    step = retape.Step(lambda: model(given).square().mean(), modules=[model])
    verdict = retape.verify(step, layers="auto")
    assert verdict, verdict
    assert verdict.ops_replayed > 0
    assert len(retape.enabled(model)) == 0


# ---- different


def test_a_write_that_nobody_saw_is_different_and_explained() -> None:
    verdict = retape.verify(models.WritesBehindTheBack(), models.x())
    assert not verdict
    assert verdict.kind == "different"
    assert {d.what for d in verdict.differences} >= {"gradient"}
    assert "up.weight" in {d.name for d in verdict.differences}
    with pytest.raises(retape.ReplayMismatch, match=r"up\.weight"):
        verdict.raise_if_different()
    told = verdict.to_dict()
    assert told["kind"] == "different"
    assert told["differences"][0]["elements"] > 0


def test_an_error_of_the_recomputed_run_is_a_difference() -> None:
    class Model(models.Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if retape.is_recording():
                raise ValueError("only when recorded")
            return super().forward(x)

    verdict = retape.verify(Model(), models.x())
    assert verdict.kind == "different"
    assert "only when recorded" in verdict.error
    assert "only when recorded" in str(verdict)


def test_tolerance_is_only_on_request_and_is_told() -> None:
    verdict = retape.verify(
        models.WritesBehindTheBack(), models.x(), tolerance={torch.float32: (1e3, 1e3)}
    )
    assert verdict.with_tolerance
    assert verdict.kind == "equal"
    assert "toleran" in str(verdict)


def with_tolerance(tolerance) -> retape.Verdict:
    return retape.verify(models.WritesBehindTheBack(), models.x(), tolerance=tolerance)


@pytest.mark.parametrize("tolerance", [{"float32": (1e3, 1e3)}, {"torch.float32": [1000, 1000]}])
def test_a_tolerance_may_name_its_dtype(tolerance) -> None:
    assert with_tolerance(tolerance).with_tolerance
    assert with_tolerance(tolerance).kind == "equal"
    assert with_tolerance({"float64": (1e3, 1e3)}).kind == "different"


def test_an_error_of_the_plain_run_passes_through() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("as always")

    with pytest.raises(ValueError, match="as always"):
        retape.verify(Model(), models.x())


# ---- vacuous


def vacuous(*args, **options) -> str:
    verdict = retape.verify(*args, **options)
    assert verdict.kind == "vacuous", verdict
    assert not verdict
    assert verdict.vacuous
    with pytest.raises(retape.Error):
        verdict.raise_if_different()
    return "\n".join([*verdict.vacuous, str(verdict)])


def test_vacuous_when_nothing_was_replayed() -> None:
    assert "replayed" in vacuous(models.Stack(), models.x(), policy="none")


def test_vacuous_when_a_region_never_ran() -> None:
    text = vacuous(models.Stack(), models.x(), layers="auto", regions=["blocks.7"])
    assert "blocks.7" in text


def test_vacuous_when_a_parameter_is_dead_unless_it_is_declared() -> None:
    model = models.WithDeadParameter()
    assert "unused.weight" in vacuous(model, models.x())
    assert retape.verify(model, models.x(), may_be_dead=["unused.*"])
    assert retape.verify(model, models.x(), may_be_dead=["unused.weight", "unused.bias"])


def test_vacuous_when_a_gradient_is_zero() -> None:
    class Model(models.Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).exp() * 0

    assert "zero" in vacuous(Model(), models.x())


def test_vacuous_when_the_plain_step_is_not_the_same_twice() -> None:
    assert "plain" in vacuous(models.NeverTheSame(), models.x())


def test_vacuous_when_eval_mode_switched_layers_off() -> None:
    assert "eval mode" in vacuous(models.Stack().eval(), models.x(), layers="auto")


@pytest.mark.parametrize("layers", ["auto", "blocks.*"])
def test_vacuous_when_eval_mode_switched_one_layer_off(layers) -> None:
    model = models.Stack()
    model.blocks[1].eval()
    text = vacuous(model, models.x(), layers=layers)
    assert "layers blocks.1: called in eval mode only" in text


def test_vacuous_when_a_layer_that_was_named_never_ran() -> None:
    class Model(models.Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.blocks[1](self.blocks[0](x)))

    dead = ["blocks.2.*"]
    text = vacuous(Model(), models.x(), layers=["blocks.0", "blocks.2"], may_be_dead=dead)
    assert "layers blocks.2: never called" in text
    assert retape.verify(Model(), models.x(), layers=["blocks.0", "blocks.1"], may_be_dead=dead)
    assert retape.verify(Model(), models.x(), layers="auto", may_be_dead=dead)


def test_vacuous_when_no_grad_switched_recompute_off() -> None:
    class Model(models.Block):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    assert "grad" in vacuous(Model(), models.x())


# ---- what else is compared


def test_numbers_that_a_second_call_draws_from_python_and_numpy_are_found() -> None:
    class Model(models.Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            random.random(), numpy.random.rand()
            return super().forward(x)

    verdict = retape.verify(Model(), models.x(), method="rerun")
    assert verdict.kind == "different"
    moved = {each.name for each in verdict.differences if each.what == "generator"}
    assert moved == {"random", "numpy.random"}
    assert retape.verify(Model(), models.x())


def test_an_input_that_forward_writes_is_compared() -> None:
    class Model(models.Block):
        def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
            cache.detach().numpy()[...] += 1  # unseen, so that rerun cannot put it back
            return super().forward(x)

    cache = torch.zeros(8)
    verdict = retape.verify(Model(), (models.x(), cache), method="rerun")
    assert [(d.what, d.name) for d in verdict.differences] == [("buffer", "input 1")]
    assert retape.verify(Model(), (models.x(), cache))
    assert not cache.any()


def test_a_step_that_recomputes_by_itself_needs_no_scope() -> None:
    class Model(models.Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = retape.checkpoint(block, x)
            return self.norm(x)

    verdict = retape.verify(Model(), models.x(), policy=None)
    assert verdict, verdict
    assert verdict.ops_replayed
    assert "no scope, checkpoint or layer" in vacuous(models.Stack(), models.x(), policy=None)


def test_an_order_in_which_plain_raises_is_told() -> None:
    class Model(models.Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.scale.add_(1)  # the first forward has saved it
            return super().forward(x * self.scale)

    verdict = retape.verify(Model(), models.x(grad=True), orders=True)
    assert verdict, verdict
    assert [order.partition(":")[0] for order in verdict.skipped] == ["two forwards"]
    assert verdict.to_dict()["skipped"] == verdict.skipped
    assert "raises, as plain does: two forwards" in str(verdict)


def test_a_live_step_that_replaces_its_buffer_is_put_back() -> None:
    class Model(models.Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return super().forward(x - self.mean)

    model = Model()
    before = model.mean
    verdict = retape.verify(retape.Step(lambda: model(models.x()).sin().sum(), modules=[model]))
    assert verdict, verdict
    assert model.mean is before
    assert not before.any()


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    rows: int = 4


@pytest.mark.parametrize("inputs", [UserDict(x=models.x()), MappingProxyType({"x": models.x()})])
def test_every_mapping_is_cast(inputs) -> None:
    class Model(models.Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.bfloat16
            return super().forward(x)

    assert retape.verify(lambda: (Model(), inputs), dtype=torch.bfloat16)


def test_dataclasses_are_cast() -> None:
    class Model(models.Block):
        def forward(self, batch: Batch) -> torch.Tensor:
            assert (batch.x.dtype, batch.rows) == (torch.bfloat16, 4)
            return super().forward(batch.x)

    assert retape.verify(Model(), (Batch(models.x()),), dtype=torch.bfloat16)


def test_one_name_may_stand_alone() -> None:
    model = models.WithDeadParameter()
    assert retape.verify(model, models.x(), may_be_dead="unused.*", regions="step")


# ---- refused


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: retape.verify(models.Stack()), "needs inputs"),
        (lambda: retape.verify(lambda: torch.ones(())), r"retape\.Step\(function"),
        (lambda: retape.verify(lambda: (models.Stack(), 1), models.x()), "leave them out"),
        (lambda: retape.verify(3), "got int"),
        (lambda: retape.verify(models.Stack(), models.x(), method="again"), "'again'"),
        (lambda: retape.verify(models.Stack(), models.x(), dtype="int64"), "floating dtype"),
        (lambda: retape.verify(models.Stack(), models.x(), policy="ful"), "ful"),
        (lambda: retape.verify(models.Block(), models.x(), layers="blocks"), "blocks"),
        (lambda: retape.verify(models.step(), dtype=torch.bfloat16), "tensors of its own"),
        (lambda: retape.verify(models.step, dtype="bfloat16"), "tensors of its own"),
        (lambda: retape.verify(models.Stack(), models.x(), steps=0), "at least 1, got 0"),
        (lambda: retape.verify(models.Stack(), models.x(), tolerance=1e-3), "for each dtype"),
        (lambda: with_tolerance({torch.float32: 1e-3}), r"expected \(rtol, atol\) .* got 0\.001"),
        (lambda: with_tolerance({"float32": (1e-3,)}), r"expected \(rtol, atol\)"),
        (lambda: with_tolerance({"float32": (1e-3, -1)}), "0 or more"),
        (lambda: with_tolerance({"float32": (float("nan"), 0)}), "0 or more"),
        (lambda: with_tolerance({"float32": ("a", 0)}), r"expected \(rtol, atol\)"),
        (lambda: with_tolerance({"flaot32": (0, 0)}), "Did you mean float32"),
        (lambda: with_tolerance({3: (0, 0)}), "got 3"),
        (
            lambda: retape.verify(models.Stack(), models.x(), policy=None, layers="auto"),
            "by itself",
        ),
        (lambda: retape.verify(lambda: (models.Stack(), models.x(grad=True) * 2)), "made by an op"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(call, told) -> None:
    with pytest.raises(retape.UsageError, match=told):
        call()


def gated() -> nn.Module:
    """Of a class of its own: TorchScript optimises once for all models of one."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 16)
            self.b = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.nn.functional.gelu(self.a(x)) * torch.sigmoid(self.a(x)))

    torch.manual_seed(0)
    return Gated()


def with_inputs(model: nn.Module) -> tuple:
    return model, models.x()


def as_factory(model: nn.Module) -> tuple:
    return (lambda: (model, models.x()),)


def as_factory_of_a_step(model: nn.Module) -> tuple:
    return (lambda: retape.Step(lambda: model(models.x()).sin().sum(), modules=[model]),)


@pytest.mark.parametrize("given", [with_inputs, as_factory, as_factory_of_a_step])
@pytest.mark.parametrize("compile_it", [torch.jit.script, lambda m: torch.jit.trace(m, models.x())])
def test_torchscript_is_warmed_up_before_it_is_judged(compile_it, given) -> None:
    verdict = retape.verify(*given(compile_it(gated())), policy="full")
    assert verdict.kind == "equal", verdict
    assert verdict.ops_replayed > 0


def test_a_look_at_what_a_factory_makes_leaves_no_trace() -> None:
    seen: list[tuple] = []

    def factory() -> tuple:
        seen.append((random.random(), torch.rand(()).item()))
        return models.Block(), models.x()

    random.seed(1)
    state = torch.get_rng_state()
    assert retape.verify(factory)
    assert len(set(seen)) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_warm_up_steps_are_run_and_leave_no_trace() -> None:
    model = models.Block()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    verdict = retape.verify(model, models.x(), warm_up=3)
    assert verdict.kind == "equal", verdict
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_cannot_be_copied_is_told_what_to_do() -> None:
    model = models.Block()
    model.lock = (lambda: (yield))()  # a generator object
    with pytest.raises(retape.UsageError, match="makes model and inputs anew"):
        retape.verify(model, models.x())


def test_it_says_when_the_plain_step_has_ended() -> None:
    seen: list[str] = []

    class Watched(models.Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append("recomputed" if retape.is_recording() else "plain")
            return super().forward(x)

    found = retape.verify(Watched(), models.x(), before_recompute=lambda: seen.append("told"))
    assert found.kind == "equal"
    assert seen == ["plain", "plain", "told", "recomputed"]


def test_a_graph_that_eager_holds_for_ever_is_no_leak() -> None:
    """Its buffer is saved and then written: the buffer's history owns the buffer."""

    def make() -> retape.Step:
        torch.manual_seed(1)
        buffers = nn.Module()
        buffers.register_buffer("cache", torch.rand(2, 5, 3))
        table = torch.rand(5, 3, requires_grad=True)
        other = torch.rand(4, requires_grad=True)

        def forward() -> dict[str, torch.Tensor]:
            with retape.recompute(retape.Policy.full().anchors(False)):
                scaled = table / (buffers.cache.abs() + 1)
                buffers.cache.addcmul_(scaled, scaled, value=-0.5)
                loss = other.sin().sin().sum()
            return {"loss": loss}

        return retape.Step(forward, modules=[buffers], leaves={"table": table, "other": other})

    verdict = retape.verify(make, policy=None, orders=True, may_be_dead=["table"])
    assert verdict.findings == []
    assert verdict, verdict
