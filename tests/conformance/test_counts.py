"""Ideas from jax's tests of remat: how often, how many flops, what is residual, what is dead."""

import math
from collections.abc import Callable

import pytest
import torch

import retape

from .support import Flops, OpsSeen, assert_same, checkpoint, leaf, with_a_graph

Tensor = torch.Tensor


def test_each_op_is_replayed_once_in_a_backward() -> None:
    """A value that many ops saved is brought back once, however many ask for it."""

    def f(v: Tensor) -> Tensor:
        hidden = (v * 2).tanh()
        return hidden.sin() + hidden.cos() + hidden.exp().sin() + hidden * hidden

    a, b = leaf(5), leaf(5)
    with retape.recompute(retape.Policy.full().anchors(False)) as rec:
        loss = f(a).sum()
    for times in (1, 2):
        loss.backward(retain_graph=True)
        assert rec.stats.ops_replayed == 3 * times  # mul, tanh, exp
    plain = f(b).sum()
    for _ in range(2):
        plain.backward(retain_graph=True)
    assert_same(a.grad, b.grad)


@with_a_graph
def test_no_redundant_flops(how: str) -> None:
    """A product whose result nobody saved is not computed again."""
    x, weight, last = leaf(8, 8, seed=1), leaf(8, 8, seed=2), leaf(8, 8, seed=3)

    def f(v: Tensor) -> Tensor:
        return torch.mm(torch.mm(v.sin(), weight).sin(), last)

    one = 2 * 8**3
    plain, ours = f(x), checkpoint(how, f, x)
    with Flops() as flops:
        plain.sum().backward()
    assert flops.total == 4 * one
    with Flops() as flops:
        ours.sum().backward()
    # rerun ends after the op that saved last, which is the last product itself
    assert flops.total == (5 if how == "replay" else 6) * one


def test_dead_outputs_are_not_replayed() -> None:
    """Only what the backward in question needs comes back: the other result's half does not."""
    x = leaf(5)

    def f(v: Tensor) -> tuple[Tensor, Tensor]:
        return v.sin().tanh().exp().sin(), v.cos().sigmoid().exp().cos()

    first, second = checkpoint("replay", f, x)
    with OpsSeen() as seen:
        first.sum().backward()
    assert "tanh" in seen.names
    assert "sigmoid" not in seen.names
    with OpsSeen() as seen:
        second.sum().backward()
    assert "sigmoid" in seen.names
    assert "tanh" not in seen.names


def test_named_policies_choose_the_residuals() -> None:
    """What is held is what the policy names, to the byte; kept values are not computed again."""
    x, weight = leaf(8, 8, seed=1), leaf(8, 8, seed=2)

    def f(v: Tensor) -> Tensor:
        return torch.mm(v.sin(), weight).sin().sum()

    one = 8 * 8 * 4
    held, multiplied = {}, {}
    for name, policy in {
        "none": retape.Policy.none(),
        "products": retape.Policy.full().keep_ops(["aten::mm"]),
        "full": retape.Policy.full().anchors(False),
    }.items():
        with retape.memory.Meter() as meter:
            loss = retape.checkpoint(f, x, policy=policy)
            held[name] = (meter.current - loss.nbytes) // one
        with Flops() as flops:
            loss.backward()
        multiplied[name] = flops.total // (2 * 8**3)
    assert held == {"none": 2, "products": 1, "full": 0}
    assert multiplied == {"none": 2, "products": 2, "full": 3}


def test_residuals_can_be_listed() -> None:
    """A policy function is told of every value that is up for a decision, in order, with its name."""
    seen = []
    x, weight = leaf(4, 8, seed=1), leaf(8, 3, seed=2)

    def note(info: retape.ValueInfo) -> bool:
        seen.append((info.region, info.op, info.sizes, info.bytes))
        return False

    retape.checkpoint(lambda v: torch.mm(v.sin(), weight).exp(), x, policy=note, name="block")
    assert seen == [
        ("block", "aten::sin", (4, 8), 128),
        ("block", "aten::mm", (4, 3), 48),
        ("block", "aten::exp", (4, 3), 48),
    ]


@with_a_graph
def test_gradients_that_are_not_there_stay_not_there(how: str) -> None:
    """A result that nobody uses sends None to a Function that asked for it, as in eager."""
    seen = []

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x)
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, first, second):
            seen.append((first is None, second is None))
            return first * ctx.saved_tensors[0].cos()

    a, b = leaf(5), leaf(5)
    checkpoint(how, lambda v: Two.apply(v * 2), a)[0].sum().backward()
    Two.apply(b * 2)[0].sum().backward()
    assert seen == [(False, True), (False, True)]
    assert_same(a.grad, b.grad)


LENGTH = 64
SIZE = 1 << 12


def _binomial(call: Callable, first: int, last: int, x: Tensor) -> Tensor:
    """A chain whose halves are checkpoints of checkpoints."""
    if last - first == 1:
        return x.sin()
    middle = (first + last) // 2
    x = call(lambda v: _binomial(call, first, middle, v), x)
    return call(lambda v: _binomial(call, middle, last, v), x)


@pytest.mark.parametrize("how", ["rerun", "reentrant"])
def test_binomial_checkpointing(how: str) -> None:
    """Checkpoints nested by halving: the peak grows with the logarithm of the length."""
    peaks, found = [], []
    for call in (lambda f, v: f(v), lambda f, v: checkpoint(how, f, v)):
        x = leaf(SIZE)
        with retape.memory.Meter() as meter:
            _binomial(call, 0, LENGTH, x).sum().backward()
        peaks.append(meter.peak / x.nbytes)
        found.append(x.grad)
    assert_same(found[1], found[0])
    assert peaks[0] > LENGTH
    assert peaks[1] < 3 * math.log2(LENGTH)


def test_binomial_checkpointing_by_anchors() -> None:
    """Replay needs no nesting: the anchors of "full" cut a chain at the root of its length."""
    x, y = leaf(SIZE), leaf(SIZE)
    with retape.memory.Meter() as meter:
        with retape.recompute("full"):
            loss = _binomial(lambda f, v: f(v), 0, LENGTH, x).sum()
        loss.backward()
    _binomial(lambda f, v: f(v), 0, LENGTH, y).sum().backward()
    assert_same(x.grad, y.grad)
    assert meter.peak / x.nbytes < 3 * math.sqrt(LENGTH)
