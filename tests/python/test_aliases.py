"""Tensors that share memory with others: `.data`, `set_`, and memory that torch did not allocate.

Each program writes to the memory through one name and reads it through another, inside the region
or after it.
"""

from __future__ import annotations

import pytest
import torch
from tests.python.as_eager import (
    INPLACE,
    WAYS,
    Way,
    assert_as_eager,
    assert_as_eager_or_mismatch,
    assert_raises_as_eager,
    leaf,
    under,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import retape


def by_data(t: Tensor) -> Tensor:
    return t.data


def by_detach(t: Tensor) -> Tensor:
    return t.detach()


def by_set(t: Tensor) -> Tensor:
    return torch.empty(0).set_(t.detach())


def by_set_storage(t: Tensor) -> Tensor:
    return torch.empty(0).set_(t.untyped_storage(), 0, t.shape, t.stride())


def by_view_of_data(t: Tensor) -> Tensor:
    return t.data.view(4)


def by_view_of_data_of_detach(t: Tensor) -> Tensor:
    return t.detach().data[...]


ALIASES = pytest.mark.parametrize(
    "alias_of",
    [by_data, by_detach, by_set, by_set_storage, by_view_of_data, by_view_of_data_of_detach],
)


# ---- a write through the alias, then a write to the tensor itself


@WAYS
@ALIASES
def test_a_given_tensor_written_through_an_alias_and_then_after_the_scope(
    way: Way, alias_of
) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            alias_of(w).mul_(2)
            return (x + w).sin()

        y = way(region, x)
        w.add_(1)
        y.sum().backward()
        return x.grad, w

    assert_as_eager_or_mismatch(program, way)


@WAYS
@ALIASES
def test_an_alias_made_before_the_scope_and_then_written_after_it(way: Way, alias_of) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)
        alias = alias_of(w)

        def region(x: Tensor) -> Tensor:
            alias.mul_(2)
            return (x + w).sin()

        y = way(region, x)
        w.add_(1)
        y.sum().backward()
        return x.grad, w

    assert_as_eager_or_mismatch(program, way)


GRADS = pytest.mark.parametrize("grad", [False, True], ids=["constant", "with_gradient"])


def made_from(x: Tensor, grad: bool) -> Tensor:
    return (x if grad else x.detach()) * 3


@WAYS
@ALIASES
@GRADS
def test_a_value_of_the_scope_written_through_an_alias_and_then_after_the_scope(
    way: Way, alias_of, grad: bool
) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = made_from(x, grad)
            alias_of(h).mul_(2)
            return (x + h).sin(), h

        y, h = way(region, x)
        h.add_(1)
        y.sum().backward()
        return x.grad, h.detach()

    assert_as_eager(program, way)


@WAYS
@ALIASES
@GRADS
def test_a_value_of_the_scope_written_through_an_alias_and_then_by_itself(
    way: Way, alias_of, grad: bool
) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = made_from(x, grad)
            alias_of(h).mul_(2)
            first = (x + h).sin()
            h.add_(0.5)
            return first * (x - h).cos(), h

        y, h = way(region, x)
        h.add_(1)
        y.sum().backward()
        return x.grad, h.detach()

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_a_row_of_an_alias_is_written_and_then_the_tensor_after_the_scope(
    way: Way, alias_of
) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = x.detach() * 3
            alias_of(h)[:1].mul_(2)
            return (x + h).sin(), h

        y, h = way(region, x)
        h.add_(1)
        y.sum().backward()
        return x.grad, h

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_the_alias_outlives_the_value_that_was_written_through_it(way: Way, alias_of) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = x.detach() * 3
            alias = alias_of(h)
            alias.mul_(2)
            return (x + h).sin(), alias

        y, alias = way(region, x)
        alias.add_(1)
        y.sum().backward()
        return x.grad, alias

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_a_tensor_written_through_an_alias_between_two_reads(way: Way, alias_of) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            first = (x + w).sin()
            alias_of(w).mul_(2)
            return first * (x - w).cos()

        y = way(region, x)
        y.sum().backward()
        return x.grad, w

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_a_written_alias_does_not_hide_that_a_saved_tensor_changed(way: Way, alias_of) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            alias_of(w).mul_(2)
            return x * w

        y = way(region, x)
        w.add_(1)
        y.sum().backward()

    assert_raises_as_eager(program, way, INPLACE)


@WAYS
@ALIASES
def test_as_many_writes_to_the_tensor_as_to_its_alias(way: Way, alias_of) -> None:
    """Their counters are apart, and equal by chance."""

    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)
        w.add_(0.25)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = x.detach() * w
            alias = alias_of(h)
            for _ in range(3):
                alias.mul_(2)
            return (x + h + w).sin(), h

        y, h = way(region, x)
        for _ in range(3):
            h.add_(1)
        y.sum().backward()
        return x.grad, h

    assert_as_eager(program, way)


@WAYS
def test_a_tensor_that_takes_the_memory_of_another_inside_the_scope(way: Way) -> None:
    def program(way: Way):
        x, a, b = leaf(2, 2), torch.full((2, 2), 0.5), torch.full((2, 2), 0.25)

        def region(x: Tensor) -> Tensor:
            first = (x + a).sin()
            a.set_(b)
            a.mul_(3)
            return first * (x + b).sin()

        y = way(region, x)
        b.add_(1)
        y.sum().backward()
        return x.grad, a, b

    assert_as_eager_or_mismatch(program, way)


@WAYS
def test_data_assigned_inside_the_scope_and_written_after_it(way: Way) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            w.data = torch.full((2, 2), 0.75)
            return (x + w).sin()

        y = way(region, x)
        w.add_(1)
        y.sum().backward()
        return x.grad, w

    assert_as_eager_or_mismatch(program, way)


def test_the_error_of_a_given_tensor_that_changed_names_the_op_that_reads_it() -> None:
    x, w = leaf(2, 2), torch.full((2, 2), 0.5)
    y = under("full")(lambda x: (x + w).sin(), x)
    w.add_(1)
    with pytest.raises(retape.ReplayMismatch, match=r"aten::add.*Fix:"):
        y.sum().backward()


class PassesOn(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@WAYS
def test_a_write_through_set_under_a_mode(way: Way) -> None:
    def program(way: Way):
        x = leaf(5, 3)

        def region(x: Tensor) -> Tensor:
            with PassesOn():
                norm = torch.linalg.vector_norm(x + 0.1, dim=0)
                torch.empty(0).set_(x.detach()).mul_(1.5)
            return norm

        y = way(region, x)
        y.sum().backward()
        return y.detach(), x.grad, x.detach()

    assert_as_eager(program, way)


@WAYS
@pytest.mark.parametrize("read_again", [False, True])
def test_what_a_region_returns_may_change_after_it(way: Way, read_again: bool) -> None:
    """A state that the region made, and that autograd has not saved: a legal write."""

    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 3
        return ((x + h).sin() if not read_again else x.sin()), h

    def program(way: Way) -> Tensor:
        x = leaf(4)

        def outer(x: Tensor) -> tuple[Tensor, Tensor]:
            y, h = way(region, x)
            return ((y + h).cos() if read_again else y), h

        y, h = way(outer, x)
        h.add_(1)
        (y.sum() + h.sum()).backward()
        return x.grad

    assert_as_eager(program, way)
