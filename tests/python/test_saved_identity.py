"""What autograd hands back is what it was given: the object, its class and its attributes.

A Function saves a tensor and looks at what `ctx.saved_tensors` returns. Plain autograd answers
what is expected: an input comes back as the very object, an output as a new tensor. A tensor that the
region made, and that is nothing but its bits, may be dropped and then comes back as a new one
(docs/limits.md).
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tests.python.as_eager import INPLACE, WAYS, Way, assert_as_eager, assert_raises_as_eager, leaf
from torch import Tensor, nn


class Named(Tensor):
    """A subclass with `__torch_function__` only: no wrapper, no dispatch."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def plain_tensor(t: Tensor) -> Tensor:
    return t


def with_attribute(t: Tensor) -> Tensor:
    t.tag = ("layer", 3)
    return t


def with_slot_object(t: Tensor) -> Tensor:
    t.owner = [1, 2]
    return t


def as_named(t: Tensor) -> Tensor:
    return t.as_subclass(Named)


def as_named_with_attribute(t: Tensor) -> Tensor:
    return with_attribute(as_named(t))


KINDS = pytest.mark.parametrize(
    "kind", [plain_tensor, with_attribute, with_slot_object, as_named, as_named_with_attribute]
)

# Of tensors that a region makes: what is more than its bits when it is saved.
OBJECTS = pytest.mark.parametrize(
    "kind", [with_attribute, with_slot_object, as_named, as_named_with_attribute]
)
# Saved by an op of torch, which does not look at attributes.
SUBCLASSES = pytest.mark.parametrize("kind", [as_named, as_named_with_attribute])


class Saves(torch.autograd.Function):
    """Saves its input and its output, and reports what comes back."""

    facts: ClassVar[list[Any]] = []
    given: ClassVar[list[Tensor]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        for t in ctx.saved_tensors:
            same = [t is given for given in Saves.given]
            Saves.facts.append(
                (type(t).__name__, sorted(vars(t).items()), same, t.requires_grad, t.is_leaf)
            )
        x, y = ctx.saved_tensors
        return grad * x.as_subclass(Tensor) * y.as_subclass(Tensor)


def facts_of(way: Way, region, *args: Tensor) -> Any:
    """What `Saves` saw in backward. `region` returns a result, and tensors it may see again."""
    Saves.facts, Saves.given = [], []
    y, *Saves.given = way(region, *args)
    y.as_subclass(Tensor).sum().backward()
    facts, Saves.given = Saves.facts, []
    return facts


@WAYS
@KINDS
def test_a_leaf_comes_back_as_itself(way: Way, kind) -> None:
    def program(way: Way):
        x = kind(leaf(4).detach()).requires_grad_()
        return facts_of(way, lambda x: (Saves.apply(x), x), x), x.grad.as_subclass(Tensor)

    assert_as_eager(program, way)


@WAYS
@KINDS
def test_a_leaf_that_the_region_reads_without_being_given_it_comes_back_as_itself(
    way: Way, kind
) -> None:
    def program(way: Way):
        x, w = leaf(4), kind(leaf(4, seed=1).detach()).requires_grad_()
        return (
            facts_of(way, lambda x: (Saves.apply(w) * x, w), x),
            x.grad,
            w.grad.as_subclass(Tensor),
        )

    assert_as_eager(program, way)


@WAYS
@OBJECTS
def test_a_value_of_the_region_comes_back_as_itself(way: Way, kind) -> None:
    def program(way: Way):
        x = leaf(4)

        def region(x: Tensor):
            h = kind(x.sin())
            return Saves.apply(h), h

        return facts_of(way, region, x), x.grad

    assert_as_eager(program, way)


@WAYS
@KINDS
def test_a_value_of_the_region_that_nothing_else_holds_comes_back_with_its_attributes(
    way: Way, kind
) -> None:
    def program(way: Way):
        x = leaf(4)
        return facts_of(way, lambda x: (Saves.apply(kind(x.sin())),), x), x.grad

    assert_as_eager(program, way)


@WAYS
@KINDS
def test_a_given_value_comes_back_as_itself(way: Way, kind) -> None:
    def program(way: Way):
        x = leaf(4)
        return facts_of(way, lambda h: (Saves.apply(h), h), kind(x.sin())), x.grad

    assert_as_eager(program, way)


@WAYS
@OBJECTS
def test_a_constant_comes_back_as_itself(way: Way, kind) -> None:
    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: Tensor) -> Tensor:
            ctx.save_for_backward(by)
            return x * by.as_subclass(Tensor)

        @staticmethod
        def backward(ctx: Any, grad: Tensor):
            (by,) = ctx.saved_tensors
            Saves.facts.append((type(by).__name__, sorted(vars(by).items()), by is Saves.given[0]))
            return grad * by.as_subclass(Tensor), None

    def program(way: Way):
        x = leaf(4)

        def region(x: Tensor):
            by = kind(torch.ones(4) * 3)
            return Scales.apply(x, by), by

        return facts_of(way, region, x), x.grad

    assert_as_eager(program, way)


@WAYS
@KINDS
def test_an_output_comes_back_as_plain_autograd_returns_it(way: Way, kind) -> None:
    def program(way: Way):
        x = leaf(4)

        def region(x: Tensor):
            y = Saves.apply(x)
            kind(y)
            return y, y

        return facts_of(way, region, x), x.grad

    assert_as_eager(program, way)


@WAYS
def test_a_parameter_comes_back_as_a_parameter(way: Way) -> None:
    def program(way: Way):
        weight = nn.Parameter(leaf(4).detach())
        return facts_of(way, lambda w: (Saves.apply(w), w), weight), weight.grad

    assert_as_eager(program, way)


@WAYS
@SUBCLASSES
def test_the_saved_tensor_of_a_node_is_the_tensor(way: Way, kind) -> None:
    def program(way: Way):
        x = leaf(4)

        def region(x: Tensor):
            h = kind(x * 2)
            return h.sin(), h

        y, h = way(region, x)
        node = y.grad_fn
        while "Sin" not in node.name():
            node = node.next_functions[0][0]
        saved = node._saved_self
        facts = saved is h, type(saved).__name__, sorted(vars(saved).items())
        y.as_subclass(Tensor).sum().backward()
        return facts, x.grad

    assert_as_eager(program, way)


# ---- writes to what a node has saved


def the_tensor(t: Tensor) -> Tensor:
    return t


def a_view(t: Tensor) -> Tensor:
    return t[:2]


def a_detached_tensor(t: Tensor) -> Tensor:
    return t.detach()


PARTS = pytest.mark.parametrize("part", [the_tensor, a_view, a_detached_tensor])


@WAYS
@PARTS
@pytest.mark.parametrize(
    ("op", "name"),
    [(torch.sin, "_saved_self"), (torch.exp, "_saved_result"), (torch.tanh, "_saved_result")],
    ids=["sin", "exp", "tanh"],
)
def test_a_write_to_the_saved_tensor_of_a_node_raises_in_backward(
    way: Way, part, op, name: str
) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(lambda x: op(x * 2), x)
        with torch.no_grad():
            part(getattr(y.grad_fn, name)).mul_(3)
        y.sum().backward()

    assert_raises_as_eager(program, way, INPLACE)


@WAYS
@PARTS
def test_a_write_to_a_tensor_that_a_function_saved_raises_in_backward(way: Way, part) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(lambda x: Saves.apply(x.sin()), x)
        with torch.no_grad():
            part(y.grad_fn.saved_tensors[0]).mul_(3)
        y.sum().backward()

    assert_raises_as_eager(program, way, INPLACE)


@WAYS
@pytest.mark.parametrize(
    ("op", "name"), [(torch.sin, "_saved_self"), (torch.exp, "_saved_result")], ids=["sin", "exp"]
)
def test_a_write_through_data_of_a_saved_tensor_reaches_backward(way: Way, op, name: str) -> None:
    """Without a version that moves, plain autograd computes with the new values."""

    def program(way: Way):
        x = leaf(4)
        y = way(lambda x: op(x * 2), x)
        getattr(y.grad_fn, name).data.mul_(3)
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
def test_a_second_look_at_a_saved_tensor_sees_the_write(way: Way) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(lambda x: (x * 2).sin(), x)
        with torch.no_grad():
            y.grad_fn._saved_self.mul_(3)
            return y.grad_fn._saved_self.clone()

    assert_raises_as_eager(program, way, INPLACE)


@WAYS
@pytest.mark.parametrize(
    "op", [lambda h: h * h, lambda h: h.sin() * h, torch.sin], ids=["mul", "two", "sin"]
)
def test_a_write_to_one_saved_slot_reaches_every_slot_of_that_tensor(way: Way, op: Any) -> None:
    """Through `.data`, which no version shows: autograd holds one tensor in all of them."""

    def program(way: Way) -> Tensor:
        x = leaf(4)
        y = way(lambda x: op(x * 2), x)
        y.grad_fn._saved_self.data.mul_(3)
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)
