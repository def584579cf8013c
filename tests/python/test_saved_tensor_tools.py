"""Torch's own tools for saved tensors around a region, and nested tensors in a region that runs
again."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.python.as_eager import INPLACE, WAYS, Way, assert_as_eager, assert_raises_as_eager, leaf
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks

import retape

# ---- allow_mutation_on_saved_tensors


def writes_after_the_save(x: Tensor) -> Tensor:
    h = x * 2
    y = h.sin()
    h.mul_(3)
    return y * h.cos()


def writes_a_result(x: Tensor) -> Tensor:
    h = (x * 2).exp()
    y = h * x
    h.add_(1)
    return y + h


def writes_nothing(x: Tensor) -> Tensor:
    return F.dropout((x * 2).sin(), 0.5).exp()


REGIONS = pytest.mark.parametrize(
    "region", [writes_after_the_save, writes_a_result, writes_nothing]
)


@WAYS
@REGIONS
def test_mutation_of_saved_tensors_is_allowed_around_a_region(way: Way, region) -> None:
    def program(way: Way):
        x = leaf(4)
        with allow_mutation_on_saved_tensors():
            y = way(region, x)
            y.sum().backward()
        return y.detach(), x.grad, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
@REGIONS
def test_mutation_of_saved_tensors_is_allowed_inside_a_region(way: Way, region) -> None:
    def program(way: Way):
        x = leaf(4)

        def inside(x: Tensor) -> Tensor:
            with allow_mutation_on_saved_tensors():
                y = region(x)
                y.sum().backward()
            return x * 2

        way(inside, x).sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
def test_an_output_of_the_region_is_written_where_mutation_is_allowed(way: Way) -> None:
    def program(way: Way):
        x = leaf(4)
        with allow_mutation_on_saved_tensors():
            y = way(lambda x: (x * 2).exp(), x)
            y.mul_(3)
            y.sum().backward()
        return y.detach(), x.grad

    assert_as_eager(program, way)


@WAYS
def test_a_given_tensor_is_written_where_mutation_is_allowed(way: Way) -> None:
    def program(way: Way):
        x, w = leaf(4, 4), torch.full((4, 4), 0.5)
        with allow_mutation_on_saved_tensors():
            y = way(lambda x: (x * w).sin(), x)
            w.mul_(3)
            y.sum().backward()
        return x.grad, w

    assert_as_eager(program, way)


@WAYS
def test_after_the_context_a_write_to_a_saved_tensor_raises_again(way: Way) -> None:
    def program(way: Way):
        x = leaf(4)
        with allow_mutation_on_saved_tensors():
            way(writes_after_the_save, x).sum().backward()
        y = way(lambda x: (x * 2).exp(), x)
        y.mul_(3)
        y.sum().backward()

    assert_raises_as_eager(program, way, INPLACE)


# ---- hooks on one saved tensor


@WAYS
@pytest.mark.parametrize(
    ("op", "name"),
    [(torch.sin, "_raw_saved_self"), (torch.exp, "_raw_saved_result")],
    ids=["input", "output"],
)
def test_hooks_on_a_raw_saved_tensor_are_called_as_in_eager(way: Way, op, name: str) -> None:
    def program(way: Way):
        x, seen = leaf(4), []

        def pack(t: Tensor) -> tuple[str, Tensor]:
            seen.append(("pack", t.detach().clone()))
            return "packed", t.detach().clone()

        def unpack(packed: tuple[str, Tensor]) -> Tensor:
            seen.append(("unpack", packed[1].clone()))
            return packed[1] * 2

        y = way(lambda x: op(x * 2), x)
        getattr(y.grad_fn, name).register_hooks(pack, unpack)
        y.sum().backward()
        return x.grad, seen

    assert_as_eager(program, way)


@WAYS
def test_hooks_on_a_raw_saved_tensor_of_a_kept_leaf(way: Way) -> None:
    def program(way: Way):
        x = leaf(4)
        y = way(torch.sin, x)
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t.detach() * 2, lambda t: t)
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)


@WAYS
def test_a_second_pair_of_hooks_is_refused_as_in_eager(way: Way) -> None:
    def program(way: Way):
        y = way(lambda x: (x * 2).sin(), leaf(4))
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)

    assert_raises_as_eager(program, way, "hooks")


@WAYS
def test_a_pack_hook_that_writes_to_its_argument_raises_as_in_eager(way: Way) -> None:
    def program(way: Way):
        y = way(lambda x: (x * 2).sin(), leaf(4))
        with torch.no_grad():
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t.mul_(2), lambda t: t)

    assert_raises_as_eager(program, way, "pack hook is modifying its input in place")


@WAYS
def test_hooks_of_an_enclosing_context_see_every_saved_tensor(way: Way) -> None:
    def program(way: Way):
        x, sums = leaf(4), []

        def pack(t: Tensor) -> Tensor:
            sums.append(float(t.detach().sum()))
            return t

        def region(x: Tensor) -> Tensor:
            with saved_tensors_hooks(pack, lambda t: t):
                return (x * 2).sin().exp()

        way(region, x).sum().backward()
        return x.grad, sums

    assert_as_eager(program, way)


@WAYS
def test_offloading_around_a_region(way: Way) -> None:
    def program(way: Way):
        x = leaf(4)
        with save_on_cpu():
            y = way(writes_nothing, x)
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)


# ---- nested tensors in a region that runs again

RERUNS = pytest.mark.parametrize(
    "rerun",
    [
        partial(retape.checkpoint, method="rerun"),
        partial(retape.checkpoint, method="rerun", use_reentrant=False),
        retape.checkpoint,
    ],
    ids=["rerun", "rerun_not_reentrant", "replay"],
)
LAYOUTS = pytest.mark.parametrize(
    "layout", [torch.strided, torch.jagged], ids=["strided", "jagged"]
)


def nested_of(rows: list[Tensor], layout: torch.layout) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=layout)


@LAYOUTS
@RERUNS
def test_a_nested_tensor_is_given(rerun: Way, layout: torch.layout) -> None:
    def program(way: Way):
        rows = [leaf(2, 4), leaf(3, 4, seed=1)]
        w = leaf(4, 4, seed=2)
        nested = nested_of(rows, layout)
        y = way(lambda n, w: F.gelu(F.linear(n, w)), nested, w)
        torch.cat([row.reshape(-1) for row in y.unbind()]).sum().backward()
        return [row.grad for row in rows], w.grad

    assert_as_eager(program, rerun)


@RERUNS
def test_a_nested_tensor_is_made_inside(rerun: Way) -> None:
    """A jagged one gets a new ragged size in the second run, and torch does not take it for the first:
    docs/limits.md."""

    def program(way: Way):
        a, b, w = leaf(2, 4), leaf(3, 4, seed=1), leaf(4, 4, seed=2)

        def region(a: Tensor, b: Tensor) -> Tensor:
            n = nested_of([a * 2, b.sin()], torch.strided)
            return torch.cat(F.gelu(F.linear(n, w)).unbind()).cos()

        way(region, a, b).sum().backward()
        return a.grad, b.grad, w.grad

    assert_as_eager(program, rerun)


@LAYOUTS
@RERUNS
def test_a_nested_tensor_is_returned(rerun: Way, layout: torch.layout) -> None:
    def program(way: Way):
        a, b = leaf(2, 4), leaf(3, 4, seed=1)
        y = way(lambda a, b: nested_of([a * 2, b.sin()], layout), a, b)
        torch.cat([row.reshape(-1) for row in y.unbind()]).cos().sum().backward()
        return a.grad, b.grad

    assert_as_eager(program, rerun)


@LAYOUTS
@RERUNS
def test_dropout_of_a_nested_tensor(rerun: Way, layout: torch.layout) -> None:
    def program(way: Way):
        rows = [leaf(2, 4), leaf(3, 4, seed=1)]
        y = way(lambda n: F.dropout(n * 2, 0.5), nested_of(rows, layout))
        torch.cat([row.reshape(-1) for row in y.unbind()]).sum().backward()
        return [row.grad for row in rows], torch.get_rng_state()

    assert_as_eager(program, rerun)
