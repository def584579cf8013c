"""Memory that several storages share, and writes that do not pass through the dispatcher.

`from_numpy`, `from_dlpack` and `frombuffer` make storages that do not own their memory. `apply_`,
`map_` and `map2_` write without an op. `_unsafe_preserve_version_counter` takes a version back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.python.as_eager import WAYS, Way, assert_as_eager, assert_as_eager_or_mismatch, leaf
from tests.python.programs.extensions import Wrapped
from torch import Tensor

import retape

Alias = Callable[[Tensor], Tensor]


def by_numpy(t: Tensor) -> Tensor:
    return torch.from_numpy(t.detach().numpy())


def by_as_tensor(t: Tensor) -> Tensor:
    return torch.as_tensor(t.detach().numpy())


def by_dlpack(t: Tensor) -> Tensor:
    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(t.detach()))


def by_dlpack_of_numpy(t: Tensor) -> Tensor:
    return torch.from_dlpack(t.detach().numpy())


def by_buffer(t: Tensor) -> Tensor:
    return torch.frombuffer(t.detach().numpy(), dtype=t.dtype).view(t.shape)


ALIASES = pytest.mark.parametrize(
    "alias_of", [by_numpy, by_as_tensor, by_dlpack, by_dlpack_of_numpy, by_buffer]
)


def foreign(value: float) -> Tensor:
    return torch.from_numpy(np.full((2, 2), value, dtype=np.float32))


# ---- one memory, several storages


@WAYS
@ALIASES
def test_a_given_tensor_is_written_through_foreign_memory_between_two_reads(
    way: Way, alias_of: Alias
) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            first = (x + w).sin()
            alias_of(w).mul_(2)
            return first * (x - w).cos()

        way(region, x).sum().backward()
        return x.grad, w

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_two_storages_of_foreign_memory_are_written_in_turn(way: Way, alias_of: Alias) -> None:
    def program(way: Way):
        x, a = leaf(2, 2), foreign(0.5)
        b = alias_of(a)

        def region(x: Tensor) -> Tensor:
            h = (x + a).sin()
            b.mul_(2)
            h = h * (x - a).cos()
            a.add_(1)
            return h * (x + b).cos()

        way(region, x).sum().backward()
        return x.grad, a, b

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_a_value_of_the_scope_is_written_through_foreign_memory(way: Way, alias_of: Alias) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            h = x.detach() * 3
            alias_of(h).mul_(2)
            return (x + h).sin()

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_a_saved_value_of_the_scope_is_written_through_foreign_memory(
    way: Way, alias_of: Alias
) -> None:
    """Plain autograd does not notice either: it reads what is there in backward."""

    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            h = x * 3
            y = h.sin()
            alias_of(h).mul_(2)
            return y

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
@ALIASES
def test_a_value_is_read_through_foreign_memory_and_then_written_after_the_scope(
    way: Way, alias_of: Alias
) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = x.detach() * 3
            alias = alias_of(h)
            h.mul_(2)
            return (x + alias).sin(), h

        y, h = way(region, x)
        h.add_(1)
        y.sum().backward()
        return x.grad, h

    assert_as_eager(program, way)


@WAYS
def test_arrays_that_overlap_in_part(way: Way) -> None:
    def program(way: Way):
        x, array = leaf(2, 2), np.arange(8, dtype=np.float32)
        low, high = torch.from_numpy(array[:4]).view(2, 2), torch.from_numpy(array[2:6])

        def region(x: Tensor) -> Tensor:
            first = (x + low).sin()
            high.mul_(0.25)
            return first * (x - low).cos()

        way(region, x).sum().backward()
        return x.grad, low, high

    assert_as_eager(program, way)


@WAYS
def test_an_op_with_out_writes_to_foreign_memory(way: Way) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            first = (x + w).sin()
            torch.mul(w, 3, out=by_numpy(w))
            return first * (x - w).cos()

        way(region, x).sum().backward()
        return x.grad, w

    assert_as_eager(program, way)


# ---- writes that are not ops


def by_apply(t: Tensor) -> None:
    t.detach().apply_(lambda v: 2 * v + 1)


def by_map(t: Tensor) -> None:
    t.detach().map_(torch.ones_like(t), lambda v, one: 2 * v + one)


def by_map2(t: Tensor) -> None:
    t.detach().map2_(torch.ones_like(t), torch.ones_like(t), lambda v, a, b: v + a + b)


WRITES = pytest.mark.parametrize("write", [by_apply, by_map, by_map2])


@WAYS
@WRITES
def test_a_value_of_the_scope_is_written_without_an_op(way: Way, write) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            h = x.detach() * 3
            write(h)
            return (x + h).sin()

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
@WRITES
def test_a_saved_value_of_the_scope_is_written_without_an_op(way: Way, write) -> None:
    """Plain autograd does not notice either: it reads what is there in backward."""

    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            h = x * 3
            y = h.sin()
            write(h)
            return y

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
@WRITES
def test_a_given_tensor_is_written_without_an_op_between_two_reads(way: Way, write) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            first = (x + w).sin()
            write(w)
            return first * (x - w).cos()

        way(region, x).sum().backward()
        return x.grad, w

    assert_as_eager(program, way)


# ---- versions that are put back


def write_and_put_back(t: Tensor) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(t):
        t.mul_(2)


@WAYS
@pytest.mark.parametrize("grad", [False, True], ids=["constant", "with_gradient"])
def test_a_version_is_put_back_and_the_tensor_written_after_the_scope(way: Way, grad) -> None:
    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = (x if grad else x.detach()) * 3
            write_and_put_back(h)
            return (x + h).sin(), h

        y, h = way(region, x)
        h.add_(1)
        y.sum().backward()
        return x.grad, h.detach()

    assert_as_eager(program, way)


@WAYS
def test_a_version_is_put_back_between_two_reads_of_a_given_tensor(way: Way) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), torch.full((2, 2), 0.5)

        def region(x: Tensor) -> Tensor:
            first = (x + w).sin()
            write_and_put_back(w)
            return first * (x - w).cos()

        y = way(region, x)
        w.add_(1)
        y.sum().backward()
        return x.grad, w

    assert_as_eager_or_mismatch(program, way)


@WAYS
def test_a_saved_tensor_whose_version_is_put_back_is_read_as_it_is(way: Way) -> None:
    """Plain autograd saved the tensor itself, and the version says that nothing happened."""

    def program(way: Way):
        x = leaf(2, 2)

        def region(x: Tensor) -> Tensor:
            h = x * 3
            y = h.sin()
            write_and_put_back(h)
            return y

        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
def test_a_weight_whose_version_is_put_back_twice(way: Way) -> None:
    def program(way: Way):
        x, w = leaf(2, 2), leaf(2, 2, seed=1)

        def region(x: Tensor) -> Tensor:
            first = (x @ w).sin()
            write_and_put_back(w)
            second = (x @ w).cos()
            write_and_put_back(w)
            return first * second * (x @ w)

        way(region, x).sum().backward()
        return x.grad, w.grad, w.detach()

    assert_as_eager(program, way)


def written_past_the_tape(t: Tensor) -> Tensor:
    """An op that also writes this one is not replayed."""
    other = t * 5
    by_numpy(other).mul_(2)
    return other


WRITES = pytest.mark.parametrize(
    "write",
    [
        lambda t: by_numpy(t).mul_(2),
        lambda t: by_dlpack(t).mul_(2),
        lambda t: t.apply_(lambda x: 2 * x),
        lambda t: t.data.mul_(2),
        lambda t: torch._foreach_mul_([t, written_past_the_tape(t)], 2),
        lambda t: Wrapped.of(t.mul_(2)).mul_(2),
    ],
    ids=["numpy", "dlpack", "apply_", "data", "foreach", "handler"],
)


@WAYS
@WRITES
def test_a_value_written_past_the_tape_may_change_after_the_region(
    way: Way, write: Callable[[Tensor], Tensor]
) -> None:
    def program(way: Way) -> Tensor:
        x = leaf(4, 4)

        def region(x: Tensor) -> tuple[Tensor, Tensor]:
            h = x.detach() * 3
            write(h)
            return (x + h).sin(), h

        y, h = way(region, x)
        h.add_(1)
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)


def test_a_value_that_a_graph_has_held_may_change_after_the_scope() -> None:
    def program(scope) -> Tensor:
        x = leaf(4, 4)
        with scope:
            h = x.sigmoid()
            torch.autograd.grad(
                h.sum(), x, retain_graph=False
            )  # the graph that h was kept for is gone
            h = h.detach()
            y = (x + h).sin()
        h.add_(1)
        y.sum().backward()
        return x.grad

    plain = program(contextlib.nullcontext())
    for policy in (retape.Policy.full(), retape.Policy.cheap()):
        assert torch.equal(plain, program(retape.recompute(policy)))
    with pytest.raises(retape.ReplayMismatch):  # docs/limits.md: autograd has saved the very tensor
        program(retape.recompute(retape.Policy.full().keep_ops(["aten::sigmoid"])))


NOT_RECORDED: dict[str, Callable[[Tensor], Tensor]] = {
    "kept by name": lambda x: x.detach() * 3,
    "written and kept by name": lambda x: x.detach().cos().mul_(3),
    "a custom op": lambda x: counts_its_calls(x.detach()),
    "a small pick": lambda x: x.detach().sin()[[0, 1]],
    "a gradient": lambda x: torch.autograd.grad(x.square().sum(), x)[0],
    "an accumulated gradient": lambda x: accumulated(x),
}


@torch.library.custom_op("foreign_memory::counts_its_calls", mutates_args=())
def counts_its_calls(x: Tensor) -> Tensor:
    return x * 3


def accumulated(x: Tensor) -> Tensor:
    other = x.detach().clone().requires_grad_()
    for _ in range(2):
        other.square().sum().backward()
    return other.grad


@pytest.mark.parametrize("kind", NOT_RECORDED)
@pytest.mark.parametrize(
    "policy", [retape.Policy.full().anchors(False), retape.Policy.cheap()], ids=["full", "cheap"]
)
def test_what_the_scope_made_and_did_not_record_may_change_after_it(
    kind: str, policy: retape.Policy
) -> None:
    def program(scope) -> tuple[Tensor, Tensor]:
        x = leaf(4, 4)
        with scope:
            start = NOT_RECORDED[kind](x)
            y = (x[: len(start)] + start).sin().sin()
        start.add_(1)
        y.sum().backward()
        return start, x.grad

    recomputed = program(retape.recompute(policy.keep_ops(["aten::mul", "aten::mul_"])))
    for plain, own in zip(program(contextlib.nullcontext()), recomputed, strict=True):
        assert torch.equal(plain, own)


@pytest.mark.parametrize("method", ["replay", "rerun"])
def test_a_region_moves_a_tensor_to_shared_memory(method: str) -> None:
    def region(x: Tensor) -> Tensor:
        h = x.detach() * 2
        h.share_memory_()
        return (x * h).sin()

    def program(way: Way) -> Tensor:
        x = leaf(4, 4)
        way(region, x).sum().backward()
        return x.grad

    assert_as_eager(program, lambda f, *args: retape.checkpoint(f, *args, method=method))
