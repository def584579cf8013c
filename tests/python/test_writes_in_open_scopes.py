"""Writes while a scope is open that no forward op makes: in a backward inside the scope, in hooks, through
storages, on another thread; and writes after the scope to what it read through another tensor."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.python.as_eager import (
    EVERY_WAY,
    Way,
    assert_as_eager,
    assert_as_eager_or_mismatch,
    leaf,
    under,
)
from torch import Tensor

import retape

WAYS = pytest.mark.parametrize(
    "way",
    (
        every := EVERY_WAY
        | {
            "no anchors": under(retape.Policy.full().anchors(False)),
            "keeps products": under(retape.Policy.full().keep_ops(["aten::mul", "aten::mul_"])),
            "drops sin": under(retape.Policy.none().drop_ops(["aten::sin", "aten::add"])),
        }
    ).values(),
    ids=every,
)
SHAPES = pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["vector", "matrix"])

# ---- in a backward, or in one of its hooks


def backward_with(hook: Callable[[], Any]) -> None:
    """Runs `hook` in a backward of its own."""
    h = torch.ones(1, requires_grad=True)
    h.register_hook(lambda grad: (hook(), None)[1])
    h.sum().backward()


class Counts(torch.autograd.Function):
    """Its backward adds what flows through it to a state."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, state: Tensor) -> Tensor:
        ctx.state = state
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.state.add_(grad)
        return grad * 2, None


def counted(state: Tensor) -> None:
    Counts.apply(torch.ones(state.shape, requires_grad=True), state).sum().backward()


def counted_with_a_graph(state: Tensor) -> None:
    x = torch.ones(state.shape, requires_grad=True)
    torch.autograd.grad(Counts.apply(x, state).sin().sum(), x, create_graph=True)


def normed(state: Tensor) -> None:
    rows = state if state.dim() == 1 else state[0]
    batch = torch.arange(8.0 * len(rows)).view(8, len(rows))
    torch.nn.functional.batch_norm(batch, rows, torch.ones(len(rows)), training=True)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a hook": lambda t: backward_with(lambda: t.mul_(2)),
    "a hook, .data": lambda t: backward_with(lambda: t.data.mul_(2)),
    "a hook, a slice": lambda t: backward_with(lambda: t[:1].mul_(2)),
    "a hook, foreach": lambda t: backward_with(lambda: torch._foreach_mul_([t], 2)),
    "a hook, out=": lambda t: backward_with(lambda: torch.mul(t, 2, out=t)),
    "a hook, statistics": lambda t: backward_with(lambda: normed(t)),
    "a hook, numpy": lambda t: backward_with(lambda: torch.from_numpy(t.numpy()).mul_(2)),
    "a custom backward": counted,
    "a custom backward, create_graph": counted_with_a_graph,
}


@WAYS
@SHAPES
@pytest.mark.parametrize("given", [True, False], ids=["given", "made here"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_backward_inside_the_scope_writes_what_was_read(
    way: Way, shape: tuple[int, ...], given: bool, write: Callable[[Tensor], Any]
) -> None:
    def program(way: Way) -> Any:
        x, state = leaf(*shape), torch.full(shape, 0.5)

        def body(x: Tensor) -> Tensor:
            w = state if given else x.detach() * 0 + 0.5
            y = (x + w).sin()
            write(w)
            return y * (x - w).cos()

        y = way(body, x)
        y.sum().backward()
        return x.grad, state

    assert_as_eager(program, way)


@WAYS
@SHAPES
@pytest.mark.parametrize("given", [True, False], ids=["given", "made here"])
def test_a_gradient_is_read_and_then_accumulated_to(
    way: Way, shape: tuple[int, ...], given: bool
) -> None:
    def program(way: Way) -> Any:
        x, p = leaf(*shape), torch.ones(shape, requires_grad=True)
        if given:
            p.grad = torch.full(shape, 2.0)

        def body(x: Tensor) -> Tensor:
            (p * 2).sum().backward()
            y = (x + p.grad).sin()
            (p * 3).sum().backward()
            return y * (x - p.grad).cos()

        way(body, x).sum().backward()
        return x.grad, p.grad

    assert_as_eager(program, way)


@WAYS
def test_an_optimizer_steps_in_the_backward_of_an_open_scope(way: Way) -> None:
    def program(way: Way) -> Any:
        x, layer = leaf(3, 4), torch.nn.Linear(4, 4)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(16.0).view(4, 4) / 16)
            layer.bias.fill_(0.5)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for p in layer.parameters():
            p.register_post_accumulate_grad_hook(lambda p: optimizer.step())

        def body(x: Tensor) -> Tensor:
            frozen = layer.weight.detach().sum()
            layer(x.detach()).sin().sum().backward()
            return (x * frozen).sin() + layer(x).cos()

        way(body, x).sum().backward()
        return x.grad, layer.weight, layer.bias

    assert_as_eager(program, way)


# ---- past the dispatcher, by methods of a storage


def resized(t: Tensor) -> None:
    storage, size = t.untyped_storage(), t.untyped_storage().nbytes()
    storage.resize_(0)
    storage.resize_(size)
    t.fill_(2)


def byteswapped(t: Tensor) -> None:
    t.untyped_storage().byteswap(torch.float32)
    t.nan_to_num_()


def from_file(t: Tensor) -> None:
    with tempfile.TemporaryFile() as file:
        torch.full_like(t, 9).untyped_storage()._write_file(file, True, True, 4)
        file.seek(0)
        t.untyped_storage()._set_from_file(file, 0, True, 4)


STORAGES: dict[str, Callable[[Tensor], Any]] = {
    "resize_": resized,
    "byteswap": byteswapped,
    "from file": from_file,
    "fill_": lambda t: t.untyped_storage().fill_(1),
    "copy_": lambda t: t.untyped_storage().copy_(torch.full_like(t, 3).untyped_storage()),
    "item": lambda t: t.untyped_storage().__setitem__(1, 7),
}


@WAYS
@SHAPES
@pytest.mark.parametrize("given", [True, False], ids=["given", "made here"])
@pytest.mark.parametrize("write", STORAGES.values(), ids=STORAGES)
def test_a_storage_is_written_between_two_reads(
    way: Way, shape: tuple[int, ...], given: bool, write: Callable[[Tensor], Any]
) -> None:
    def program(way: Way) -> Any:
        x, state = leaf(*shape), torch.full(shape, 0.5)

        def body(x: Tensor) -> Tensor:
            w = state if given else x.detach() * 0 + 0.5
            y = (x + w).sin()
            write(w)
            return y * (x - w).cos()

        way(body, x).sum().backward()
        return x.grad, state

    assert_as_eager(program, way)


# ---- on another thread: nothing is recorded there


def on_a_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@WAYS
@SHAPES
@pytest.mark.parametrize("given", [True, False], ids=["given", "made here"])
def test_another_thread_writes_what_the_scope_has_read(
    way: Way, shape: tuple[int, ...], given: bool
) -> None:
    def program(way: Way) -> Any:
        x, state = leaf(*shape), torch.full(shape, 0.5)

        def body(x: Tensor) -> Tensor:
            w = state if given else x.detach() * 0 + 0.5
            y = (x + w).sin()
            on_a_thread(lambda: w.mul_(2))
            return y * (x - w).cos()

        way(body, x).sum().backward()
        return x.grad

    assert_as_eager_or_mismatch(program, way)


def test_another_thread_writes_through_data() -> None:
    """Neither an op nor a version tells: docs/limits.md."""

    def program(way: Way) -> Any:
        x, state = leaf(2, 2), torch.full((2, 2), 0.5)

        def body(x: Tensor) -> Tensor:
            y = (x + state).sin()
            on_a_thread(lambda: state.data.mul_(2))
            return y

        way(body, x).sum().backward()
        return x.grad

    with pytest.raises(AssertionError):
        assert_as_eager_or_mismatch(program, EVERY_WAY["full"])


# ---- after the scope, to what it read through another tensor


@torch.library.custom_op("open_scopes::triple", mutates_args=())
def triple(x: Tensor) -> Tensor:
    return x * 3


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(x.shape),
    "full": lambda x: torch.full(x.shape, 0.5),
    "tensor": lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(x.shape),
    "a custom op": lambda x: triple(x.detach()),
    "from_numpy": lambda x: torch.from_numpy(np.full(x.shape, 0.5, np.float32)),
    "an op": lambda x: x.detach() * 3,
    "written": lambda x: x.detach().cos().mul_(3),
    "a gradient": lambda x: torch.autograd.grad(x.square().sum(), x)[0],
}
READ: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda h: h,
    "a view": lambda h: h.view(h.shape),
    ".data": lambda h: h.data,
    "from_numpy": lambda h: torch.from_numpy(h.numpy()),
    "as_tensor": lambda h: torch.as_tensor(h.numpy()),
    "dlpack": lambda h: torch.from_dlpack(h),
    "set_": lambda h: torch.empty(0).set_(h),
}


@WAYS
@SHAPES
@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_the_scope_made_and_read_through_an_alias_is_written_after_it(
    way: Way,
    shape: tuple[int, ...],
    make: Callable[[Tensor], Tensor],
    read: Callable[[Tensor], Tensor],
) -> None:
    def program(way: Way) -> Any:
        x = leaf(*shape)
        made = []

        def body(x: Tensor) -> Tensor:
            made.append(make(x))
            return (x + read(made[0])).sin()

        y = way(body, x)
        made[0].add_(1)
        y.sum().backward()
        return x.grad, made[0]

    assert_as_eager(program, way)
