"""Ops of libraries other than torch's own: kept, unless `retape.replayable` says that they are
pure.

An op may draw random numbers, count its calls or read state that its schema does not name, and
still carry `pt2_compliant_tag`. A second call would then differ from the first.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.python.as_eager import WAYS, Way, assert_as_eager, leaf, plain, run, under
from tests.python.bits import assert_same_bits
from torch import Tensor

import retape

Kernel = Callable[[Tensor], Tensor]

LIBRARY = torch.library.Library("retape_test_ops", "DEF")
numbers = itertools.count()


def by_library(kernel: Kernel) -> Any:
    return _registered(kernel, "CPU")


def by_composite(kernel: Kernel) -> Any:
    return _registered(kernel, "CompositeExplicitAutograd")


def _registered(kernel: Kernel, key: str) -> Any:
    name = f"op{next(numbers)}"
    LIBRARY.define(f"{name}(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, kernel, key)
    return getattr(torch.ops.retape_test_ops, name)


def by_decorator(kernel: Kernel) -> Any:
    name = f"op{next(numbers)}"

    def annotated(x: Tensor) -> Tensor:
        return kernel(x)

    annotated.__annotations__ = {"x": Tensor, "return": Tensor}
    torch.library.custom_op(f"retape_test_ops::{name}", annotated, mutates_args=())
    return getattr(torch.ops.retape_test_ops, name)


REGISTRATIONS = pytest.mark.parametrize("register", [by_library, by_composite, by_decorator])


def program_with(op: Any) -> Callable[[Way], Any]:
    """The op's result is read by an op whose own result is saved."""

    def program(way: Way):
        random.seed(0)
        np.random.seed(0)
        x = leaf(4, 4)
        y = way(lambda x: (x * op(x.detach() * 2)).sin() * 3, x)
        y.sum().backward()
        return y.detach(), x.grad, torch.get_rng_state(), random.random(), np.random.random()

    return program


# ---- ops that are not pure


@WAYS
@REGISTRATIONS
def test_an_op_that_draws_from_the_default_generator(way: Way, register) -> None:
    op = register(lambda x: x + torch.rand_like(x))
    assert_as_eager(program_with(op), way)


@WAYS
@REGISTRATIONS
def test_an_op_that_draws_from_a_generator_of_its_own(way: Way, register) -> None:
    generator = torch.Generator()
    op = register(lambda x: x + torch.rand(x.shape, generator=generator))
    inner = program_with(op)

    def program(way: Way):
        generator.manual_seed(3)
        return inner(way), generator.get_state()

    assert_as_eager(program, way)


@WAYS
@REGISTRATIONS
@pytest.mark.parametrize("draw", [random.random, np.random.random], ids=["python", "numpy"])
def test_an_op_that_draws_outside_torch(way: Way, register, draw) -> None:
    assert_as_eager(program_with(register(lambda x: x * float(draw()))), way)


@WAYS
@REGISTRATIONS
def test_an_op_that_counts_its_calls(way: Way, register) -> None:
    calls = [0]

    def kernel(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * calls[0]

    inner = program_with(register(kernel))

    def program(way: Way):
        calls[0] = 0
        return inner(way), calls[0]

    assert_as_eager(program, way)


@WAYS
@REGISTRATIONS
def test_an_op_that_reads_a_setting_which_changes_before_backward(way: Way, register) -> None:
    setting = [0.5]
    op = register(lambda x: x * setting[0])

    def program(way: Way):
        setting[0] = 0.5
        x = leaf(4, 4)
        y = way(lambda x: (x * op(x.detach() * 2)).sin(), x)
        setting[0] = 2.0
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
@REGISTRATIONS
def test_an_op_that_keeps_a_cache_in_a_tensor_of_its_own(way: Way, register) -> None:
    cache = torch.zeros(4, 4)

    def kernel(x: Tensor) -> Tensor:
        cache.add_(x)
        return cache.clone()

    inner = program_with(register(kernel))

    def program(way: Way):
        cache.zero_()
        return inner(way), cache.clone()

    assert_as_eager(program, way)


@WAYS
@REGISTRATIONS
def test_an_op_with_a_gradient_that_is_not_pure(way: Way, register) -> None:
    calls = [0]

    def kernel(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * calls[0]

    op = register(kernel)

    def setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]

    torch.library.register_autograd(op.default._name.split(".")[0], backward, setup_context=setup)

    def program(way: Way):
        calls[0] = 0
        x = leaf(4, 4)
        way(lambda x: op(op(x * 2).sin()).cos(), x).sum().backward()
        return x.grad, calls[0]

    assert_as_eager(program, way)


# ---- ops that are declared pure


def counted(calls: list[int]) -> Kernel:
    def kernel(x: Tensor) -> Tensor:
        calls.append(1)
        return x.cos()

    return kernel


DROPPING = pytest.mark.parametrize(
    "way",
    [under(retape.Policy.full().anchors(False)), retape.checkpoint],
    ids=["full", "checkpoint"],
)


def by_name(op: Any) -> Any:
    return str(op.default.name())


def by_overload(op: Any) -> Any:
    return op.default


NAMINGS = pytest.mark.parametrize("naming", [by_name, by_overload])


@DROPPING
@REGISTRATIONS
def test_an_op_that_is_not_declared_runs_once(way: Way, register) -> None:
    calls: list[int] = []
    program = program_with(register(counted(calls)))
    run(program, way)
    assert len(calls) == 1


@DROPPING
@REGISTRATIONS
@NAMINGS
def test_an_op_that_is_declared_replayable_is_replayed(way: Way, register, naming) -> None:
    calls: list[int] = []
    op = register(counted(calls))
    retape.replayable(naming(op))
    program = program_with(op)
    found = run(program, way)
    assert len(calls) == 2
    assert_same_bits(found, run(program, plain))


def test_a_declaration_holds_for_ops_that_ran_before_it() -> None:
    calls: list[int] = []
    op = by_library(counted(calls))
    program = program_with(op)
    run(program, retape.checkpoint)
    assert len(calls) == 1
    retape.replayable(by_name(op))
    run(program, retape.checkpoint)
    assert len(calls) == 3


def held_by(op: Any) -> int:
    """Bytes that a region which multiplies by the op's result leaves behind."""
    x = leaf(256, 256)
    with retape.memory.Meter() as meter:
        y = retape.checkpoint(lambda x: x * op(x.detach()), x)
        return meter.current - y.nbytes


def test_the_result_of_a_replayable_op_is_dropped() -> None:
    kept, dropped = by_library(torch.cos), by_library(torch.cos)
    retape.replayable(by_name(dropped))
    assert held_by(kept) - held_by(dropped) == 256 * 256 * 4


# ---- what a declaration would drop


def scaled_by(op: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: (x * op(x.detach())).sin()


@REGISTRATIONS
def test_a_scope_names_ops_whose_results_it_keeps_and_their_bytes(register) -> None:
    op, x = register(torch.cos), leaf(16, 16)
    for calls in (1, 2):
        with retape.recompute() as scope:
            for _ in range(calls):
                x = scaled_by(op)(x)
        (kept,) = scope.kept_ops
        assert (kept.op, kept.values, kept.bytes) == (by_name(op), calls, calls * 1024)


def test_what_an_op_saves_for_its_own_gradient_is_named_too() -> None:
    op, x = by_decorator(torch.exp), leaf(16, 16)
    torch.library.register_autograd(
        by_name(op),
        lambda ctx, grad: grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    with retape.recompute() as scope:
        op(x).sum()
    assert [kept.bytes for kept in scope.kept_ops] == [1024]


@pytest.mark.parametrize("policy", ["none", "cheap"])
def test_an_op_that_the_policy_keeps_in_any_case_is_not_named(policy: str) -> None:
    op = by_library(torch.cos)
    with retape.recompute(policy) as scope:
        scaled_by(op)(leaf(16, 16))
    assert scope.kept_ops == []


def test_a_replayable_op_is_not_named_nor_one_that_autograd_does_not_save() -> None:
    replayed, unsaved = by_library(torch.cos), by_library(torch.cos)
    retape.replayable(by_name(replayed))
    with retape.recompute() as scope:
        scaled_by(replayed)(leaf(16, 16)) + unsaved(leaf(16, 16).detach())
    assert scope.kept_ops == []


class Scales(torch.nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op, self.weight = op, torch.nn.Parameter(torch.ones(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return scaled_by(self.op)(x * self.weight)


def test_the_report_of_enabled_layers_names_kept_ops() -> None:
    op = by_library(torch.cos)
    model = torch.nn.Sequential(Scales(op), Scales(op))
    with retape.enable(model, [Scales]) as report:
        for _ in range(70):  # more than are counted one by one
            model(torch.ones(16, 16)).sum().backward()
        assert report.kept_ops == {by_name(op): 2 * 70 * 1024}
        assert f'143360 bytes kept that retape.replayable("{by_name(op)}") would drop' in str(
            report
        )


def test_verify_names_kept_ops() -> None:
    op = by_library(torch.cos)
    model = Scales(op)
    verdict = retape.verify(model, torch.ones(16, 16), orders=True)
    assert verdict
    assert [(kept.op, kept.values, kept.bytes) for kept in verdict.kept_ops] == [
        (by_name(op), 1, 1024)
    ]
    line = f'kept: {by_name(op)}, 1 result, 1024 bytes; replayable("{by_name(op)}") would let replay drop it'
    assert line in verdict.explain()
    assert verdict.to_dict()["kept_ops"] == [{"op": by_name(op), "values": 1, "bytes": 1024}]


def test_an_op_may_be_declared_before_its_library_is_loaded() -> None:
    name = f"op{next(numbers)}"
    retape.replayable(f"retape_test_ops::{name}")
    calls: list[int] = []
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    LIBRARY.impl(name, counted(calls), "CPU")
    run(program_with(getattr(torch.ops.retape_test_ops, name)), retape.checkpoint)
    assert len(calls) == 2


@WAYS
@REGISTRATIONS
@NAMINGS
def test_a_replayable_op_that_moves_the_default_generator_is_a_random_op(
    way: Way, register, naming
) -> None:
    op = register(lambda x: x + torch.rand_like(x))
    retape.replayable(naming(op))

    def program(way: Way):
        x = leaf(4, 4)
        y = way(lambda x: (x * op(x.detach() * 2)).sin() * torch.rand(4, 4), x)
        torch.rand(7)
        y.sum().backward()
        return y.detach(), x.grad, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
def test_a_replayable_op_that_draws_now_and_then(way: Way) -> None:
    """Whether an op is random is known for each call, and not once for all calls."""

    def kernel(x: Tensor) -> Tensor:
        return x * torch.rand(()) if x.shape[0] > 4 else x * 2

    op = by_library(kernel)
    retape.replayable(by_name(op))

    def program(way: Way):
        x = leaf(8, 4)
        y = way(lambda x: (x[:4] * op(x.detach()[:4])).sin() + (x * op(x.detach())).cos()[4:], x)
        y.sum().backward()
        return x.grad, torch.get_rng_state()

    assert_as_eager(program, way)


@pytest.mark.parametrize("name", ["cos", "", 3, None])
def test_what_names_no_op_is_refused(name: Any) -> None:
    with pytest.raises(retape.UsageError, match=r"\[replayable\].*Fix:"):
        retape.replayable(name)


@WAYS
@pytest.mark.parametrize(
    "schema",
    [
        "(Tensor x, Generator? g) -> Tensor",
        "(Tensor x, *, Generator? source) -> Tensor",
        "(Tensor x, Generator generator) -> Tensor",
    ],
)
def test_a_generator_is_restored_whatever_its_argument_is_called(way: Way, schema: str) -> None:
    name = f"op{next(numbers)}"

    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        (source,) = (*args, *kwargs.values())
        return x * torch.rand(x.shape, generator=source)

    LIBRARY.define(name + schema)
    LIBRARY.impl(name, kernel, "CPU")
    retape.replayable(f"retape_test_ops::{name}")
    op = getattr(torch.ops.retape_test_ops, name)

    def program(way: Way) -> Any:
        source = torch.Generator().manual_seed(7)
        given = {"source": source} if "*" in schema else {}
        x = leaf(4, 4)
        args = () if given else (source,)
        way(lambda x: (x * op(x.detach(), *args, **given)).sin(), x).sum().backward()
        return x.grad, source.get_state()

    assert_as_eager(program, way)


def test_an_op_that_draws_from_two_generators_is_kept() -> None:
    name = f"op{next(numbers)}"
    LIBRARY.define(f"{name}(Tensor x, Generator a, Generator b) -> Tensor")
    LIBRARY.impl(
        name,
        lambda x, a, b: x * torch.rand(x.shape, generator=a) * torch.rand(x.shape, generator=b),
        "CPU",
    )
    retape.replayable(f"retape_test_ops::{name}")
    op = getattr(torch.ops.retape_test_ops, name)

    def program(way: Way) -> Any:
        sources = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        x = leaf(4, 4)
        way(lambda x: (x * op(x.detach(), *sources)).sin(), x).sum().backward()
        return x.grad, *(source.get_state() for source in sources)

    assert_as_eager(program, retape.checkpoint)


@pytest.mark.parametrize(("name", "known"), [("_flash_attn_forward", True), ("another_op", False)])
def test_ops_of_popular_libraries_that_are_known_to_be_pure_are_replayed(
    name: str, known: bool
) -> None:
    calls: list[Tensor] = []

    def kernel(x: Tensor) -> Tensor:
        calls.append(x)
        return x.expand(8, -1) * 2

    with torch.library._scoped_library("flash_attn", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernel, "CPU")
        x = leaf(4)
        with retape.recompute(retape.Policy.full().anchors(False)):
            loss = (x.sin() * getattr(torch.ops.flash_attn, name)(x.detach())).sum()
        loss.backward()
    assert len(calls) == 1 + known
