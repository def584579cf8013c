"""Ops of libraries other than torch's own: kept, unless `retape.replayable` says that they are pure.

An op may draw random numbers, count its calls or read state that its schema does not name, and still
carry `pt2_compliant_tag`. A second call would then differ from the first.
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
