"""Ops that run inside `__torch_dispatch__`: of wrapper subclasses, of DTensor, of dispatch modes.

A handler may read and write tensors that the region computes with. No version moves there, so plain
autograd reads what is in memory in backward; so must Retape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.python.as_eager import WAYS, Way, assert_as_eager, leaf
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode


class Wrapper(Tensor):
    """Holds a plain tensor and runs every op on it."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inner_args, inner_kwargs = tree_map_only(Wrapper, lambda t: t.inner, (args, kwargs))
        out = tree_map_only(Tensor, Wrapper, func(*inner_args, **inner_kwargs))
        return return_and_correct_aliasing(func, args, kwargs, out)


class PassOn(TorchDispatchMode):
    """Calls the op that it is handed."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class ByOut(TorchDispatchMode):
    """Computes an in-place multiplication by `out=`, and `copy_`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul_.Tensor:
            return args[0].copy_(torch.mul(*args, out=torch.empty_like(args[0])))
        return func(*args, **(kwargs or {}))


MODES = pytest.mark.parametrize(
    "mode",
    [PassOn, ByOut, lambda: FlopCounterMode(display=False)],
    ids=["own_mode", "mode_with_out", "flop_counter"],
)


@pytest.fixture
def dtensor_of() -> Iterator[Callable[[Tensor], Tensor]]:
    """Makes a replicated DTensor of a local tensor, in a group of one process without a network."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        yield lambda t: DTensor.from_local(t, mesh, [Replicate()], run_check=False)
    finally:
        torch.distributed.destroy_process_group()


def double_by_wrapper(t: Tensor) -> None:
    Wrapper(t.detach()).mul_(2)


def double_by_wrapper_in_a_list(t: Tensor) -> None:
    torch._foreach_mul_([Wrapper(t.detach())], 2)


def double_by_copy_from_wrapper(t: Tensor) -> None:
    Wrapper(t.detach()).copy_(Wrapper(t.detach() * 2))


def double_by_wrapper_twice(t: Tensor) -> None:
    Wrapper(Wrapper(t.detach())).mul_(2)


def double_by_view_of_wrapper(t: Tensor) -> None:
    Wrapper(t.detach()).view(-1).mul_(2)


def double_by_out(t: Tensor) -> None:
    torch.mul(Wrapper(t.detach()), 2, out=Wrapper(t.detach()))


def double_in_own_mode(t: Tensor) -> None:
    with PassOn():
        t.detach().mul_(2)


def double_by_out_in_a_mode(t: Tensor) -> None:
    with ByOut():
        t.detach().mul_(2)


def double_in_flop_counter(t: Tensor) -> None:
    with FlopCounterMode(display=False):
        t.detach().mul_(2)


def double_each_in_flop_counter(t: Tensor) -> None:
    with FlopCounterMode(display=False):
        torch._foreach_mul_([t.detach()], 2)


def double_each_in_own_mode(t: Tensor) -> None:
    with PassOn():
        torch._foreach_mul_([t.detach(), torch.ones(3)], 2)


def double_each_row_in_own_mode(t: Tensor) -> None:
    with PassOn():
        torch._foreach_mul_(list(t.detach().unbind()), 2)


DOUBLES = pytest.mark.parametrize(
    "double",
    [
        double_by_wrapper,
        double_by_wrapper_in_a_list,
        double_by_copy_from_wrapper,
        double_by_wrapper_twice,
        double_by_view_of_wrapper,
        double_by_out,
        double_in_own_mode,
        double_by_out_in_a_mode,
        double_in_flop_counter,
        double_each_in_flop_counter,
        double_each_in_own_mode,
        double_each_row_in_own_mode,
    ],
)

Double = Callable[[Tensor], None]


# ---- a handler writes to a tensor that the region computes with


def reads_after_the_write(way: Way, double: Double) -> Any:
    x = leaf(2, 2)

    def region(x: Tensor) -> Tensor:
        h = x * 3
        double(h)
        return h.sin()

    way(region, x).sum().backward()
    return x.grad


def saves_before_the_write(way: Way, double: Double) -> Any:
    x = leaf(2, 2)

    def region(x: Tensor) -> Tensor:
        h = x * 3
        y = h.sin()
        double(h)
        return y

    way(region, x).sum().backward()
    return x.grad


def reads_a_given_tensor_before_and_after(way: Way, double: Double) -> Any:
    x, w = leaf(2, 2), torch.full((2, 2), 0.5)

    def region(x: Tensor) -> Tensor:
        first = (x + w).sin()
        double(w)
        return first * (x - w).cos()

    way(region, x).sum().backward()
    return x.grad, w


def changes_a_constant_of_the_region(way: Way, double: Double) -> Any:
    x = leaf(2, 2)

    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.detach() * 3
        first = (x + h).sin()
        double(h)
        return first * (x - h).cos(), h

    y, h = way(region, x)
    h.add_(1)
    y.sum().backward()
    return x.grad, h


PROGRAMS = pytest.mark.parametrize(
    "program",
    [
        reads_after_the_write,
        saves_before_the_write,
        reads_a_given_tensor_before_and_after,
        changes_a_constant_of_the_region,
    ],
)


def as_eager_or_its_error(program, way: Way, double: Double) -> None:
    """Some handlers move versions (a mode above autograd), and plain autograd raises then."""

    def outcome(way: Way):
        try:
            return program(way, double)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error), error
            return "modified by an inplace operation"

    assert_as_eager(outcome, way)


@WAYS
@DOUBLES
@PROGRAMS
def test_a_write_of_a_handler_is_seen(way: Way, double: Double, program) -> None:
    as_eager_or_its_error(program, way, double)


@WAYS
@PROGRAMS
@pytest.mark.parametrize("in_a_list", [False, True], ids=["alone", "in_a_list"])
def test_a_write_of_dtensor_is_seen(way: Way, program, in_a_list: bool, dtensor_of) -> None:
    def double(t: Tensor) -> None:
        distributed = dtensor_of(t.detach())
        if in_a_list:
            torch._foreach_mul_([distributed], 2)
        else:
            distributed.mul_(2)

    as_eager_or_its_error(program, way, double)


@WAYS
def test_a_write_of_dtensor_with_gradients_is_seen(way: Way, dtensor_of) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            h = x * 3
            dtensor_of(h).mul_(2)
            return h.sin()

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


# ---- a handler writes to something that the op does not name


@WAYS
def test_a_mode_that_counts_into_a_buffer_that_the_region_reads(way: Way) -> None:
    def program(way: Way):
        x, count = leaf(2, 2), torch.zeros(2, 2)

        class Counts(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                count.add_(1)
                return func(*args, **(kwargs or {}))

        def region(x: Tensor) -> Tensor:
            h = (x + count).sin()
            with Counts():
                h = h * 2
            return h * (x - count).cos()

        way(region, x).sum().backward()
        return x.grad, count

    assert_as_eager(program, way)


@WAYS
def test_a_mode_that_changes_results_in_place(way: Way) -> None:
    def program(way: Way):
        class Rounds(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                return out.mul_(8).round_().div_(8) if func is torch.ops.aten.mul.Tensor else out

        def region(x: Tensor) -> Tensor:
            with Rounds():
                h = x * 0.3
            return h.sin() * h

        x = leaf(2, 2)
        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
def test_a_wrapper_that_changes_its_tensor_where_it_only_reads(way: Way) -> None:
    def program(way: Way):
        class Drains(Wrapper):
            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                (source,) = (t for t in args if isinstance(t, Drains))
                out = func(*tree_map_only(Wrapper, lambda t: t.inner, args), **(kwargs or {}))
                source.inner.zero_()
                return out

        def region(x: Tensor) -> Tensor:
            pool = x.detach() * 3
            first = (x + pool).sin()
            drained = Drains(pool) + 1
            return first * (x - pool).cos() * drained

        x = leaf(2, 2)
        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


# ---- whole models under a mode


def model_and_input() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(6)
    return nn.Sequential(*layers, nn.Linear(6, 6)), leaf(5, 6)


@WAYS
@MODES
@pytest.mark.parametrize("where", ["inside", "around", "around_backward_too"])
def test_a_model_under_a_mode(way: Way, mode: Callable[[], Any], where: str) -> None:
    def program(way: Way):
        model, x = model_and_input()

        def region(x: Tensor) -> Tensor:
            with mode() if where == "inside" else nullcontext():
                h = model(x)
                torch._foreach_mul_([b for b in model.buffers() if b.is_floating_point()], 0.5)
                return h.sin() * model(x)

        both: AbstractContextManager = mode() if where == "around_backward_too" else nullcontext()
        with both:
            with mode() if where == "around" else nullcontext():
                y = way(region, x)
            y.sum().backward()
        return x.grad, [p.grad for p in model.parameters()], list(model.buffers())

    assert_as_eager(program, way)


@WAYS
def test_a_mode_entered_in_the_middle_of_a_region(way: Way) -> None:
    def program(way: Way):
        x, scale = leaf(4, 4), torch.ones(4, 4)

        def region(x: Tensor) -> Tensor:
            h = F.dropout(x.sin() * scale, 0.4)
            with PassOn():
                scale.mul_(1.5)
                h = F.dropout(h.cos() * scale, 0.4)
                scale.mul_(1.5)
            return F.dropout(h.tanh() * scale.clone(), 0.4)

        way(region, x).sum().backward()
        return x.grad, scale, torch.get_rng_state()

    as_eager_or_its_error(lambda way, _: program(way), way, double_by_wrapper)


@WAYS
def test_wrapped_weights_and_their_gradients(way: Way) -> None:
    def program(way: Way):
        x, weight = leaf(3, 4), Wrapper(leaf(4, 4, seed=1).detach()).requires_grad_()

        def region(x: Tensor) -> Tensor:
            h = Wrapper(x * 1.5) @ weight
            return h.sin() @ weight

        y = way(region, x)
        y.backward(Wrapper(torch.ones(3, 4)))
        return weight.grad.inner

    assert_as_eager(program, way)
