"""TestSelectiveActivationCheckpoint of test/test_autograd.py: torch's policies, by Retape."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import retape

from .support import RUNS, Counted, OpsSeen, assert_same, checkpoint, leaf, with_a_graph

aten = torch.ops.aten


def save_only(*ops: Any) -> Callable:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def selective(how: str, policy: Any, function: Callable, *args: Any, **options: Any) -> Any:
    context_fn = partial(create_selective_checkpoint_contexts, policy, **options)
    return checkpoint(how, function, *args, context_fn=context_fn)


POLICIES = {
    "list": [aten.mm.default],
    "function": save_only(aten.mm.default),
    "bool": lambda ctx, op, *args, **kwargs: op == aten.mm.default,
}
SIDE = 128
UNIT = SIDE * SIDE * 4


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.cos(), y).sin().sum()


def _cost(run: Callable) -> tuple[int, float, list[torch.Tensor]]:
    """Activations held after forward and products in backward, both in units of one matrix."""
    x, y = leaf(SIDE, SIDE, seed=1), leaf(SIDE, SIDE, seed=2)
    with retape.memory.Meter() as meter:
        out = run(_product, x, y)
        held = meter.current
    with FlopCounterMode(display=False) as flops:
        out.backward()
    return held // UNIT, flops.get_total_flops() / (2 * SIDE**3), [x.grad, y.grad]


@with_a_graph
def test_flops_and_mem(how: str) -> None:
    """Plain holds 2 matrices and multiplies twice in backward; a full checkpoint 0 and 3 times; with
    the product saved 1 and twice, for a list of ops, a policy and a policy that answers with bools."""
    plain = _cost(lambda f, *args: f(*args))
    assert plain[:2] == (2, 2.0)
    full = _cost(partial(checkpoint, how))
    assert full[:2] == (0, 3.0)
    assert_same(full[2], plain[2])
    for name, policy in POLICIES.items():
        found = _cost(partial(selective, how, policy))
        assert found[:2] == (1, 2.0), name
        assert_same(found[2], plain[2], name)


@with_a_graph
def test_output_already_has_autograd_meta(how: str) -> None:
    """A saved view of integers has autograd's metadata and no gradient: no trouble."""
    numbers = torch.tensor([1, 2, 3])
    y = leaf(3)
    view, out = selective(
        how, [aten.view.default], lambda a, b: (a.view(-1), b.sin().cos()), numbers, y
    )
    assert_same(view, numbers)
    out.sum().backward()
    z = leaf(3)
    z.sin().cos().sum().backward()
    assert_same(y.grad, z.grad, "y.grad")


class Sized(torch.Tensor):
    """A wrapper that is asked for its sizes."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Sized":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            inner.stride(),
            None,
            None,
            inner.dtype,
            inner.layout,
            inner.device,
            False,
            inner.requires_grad,
            "sizes",
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


@with_a_graph
def test_subclass_dispatching_sizes(how: str) -> None:
    """A policy that would save sizes does not: those of a subclass are asked for anew, so views
    remember the shape that they had."""

    def f(x: torch.Tensor) -> torch.Tensor:
        view = (x * x.sum()).view(-1).view(4, 3)
        assert list(view.grad_fn._saved_self_sym_sizes) == [12]
        return view.exp()

    def gradient(run: Callable) -> torch.Tensor:
        inner = leaf(4, 3)
        x = Sized(inner.detach()).requires_grad_()
        run(f, x).sum().backward()
        return x.grad.inner

    expected = gradient(lambda g, x: g(x))
    assert_same(gradient(partial(selective, how, save_only(aten.sym_size.default))), expected)


@with_a_graph
@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [
        ([2], ValueError, "Expected op in `op_list` to be an OpOverload"),
        ([aten.sin], ValueError, "update the OpOverloadPacket to a specific OpOverload"),
        (2, TypeError, "either a function or a list of ops"),
    ],
)
def test_bad_inputs(how: str, policy: Any, error: type[Exception], text: str) -> None:
    """A wrong policy is torch's own error, and comes before the function runs."""
    function = Counted(torch.sin)
    with pytest.raises(error, match=text):
        selective(how, policy, function, leaf(3))
    assert function.calls == 0
    assert not retape.is_recording()


@with_a_graph
def test_policy_with_state(how: str) -> None:
    """A policy that counts is asked once about each op, in forward only: its state cannot get out
    of step in backward. The function is run again by rerun alone."""
    seen: list[tuple[bool, Any]] = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append((ctx.is_recompute, op))
        return CheckpointPolicy.PREFER_RECOMPUTE

    x = leaf(3)
    function = Counted(lambda a: a.sin().sin().sin())
    out = selective(how, policy, function, x.sin(), allow_cache_entry_mutation=True)
    out.sum().backward()
    assert seen == [(False, aten.sin.default)] * 3
    assert function.calls == RUNS[how]
    y = leaf(3)
    y.sin().sin().sin().sin().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


@with_a_graph
def test_storage_lifetime(how: str) -> None:
    """What a policy saved goes when the graph does, without the garbage collector."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cos().exp().sin()

    everything = save_only(aten.cos.default, aten.exp.default, aten.sin.default)
    x = leaf(1 << 14)
    gc.collect()
    gc.disable()
    try:
        with retape.memory.Meter() as meter:
            out = selective(how, everything, f, x)
            mark = type("Mark", (), {})()
            out.grad_fn.metadata["mark"] = mark
            alive = weakref.ref(mark)
            del mark
            assert meter.current >= 2 * x.nbytes
            del out
            assert alive() is None
            assert meter.current < x.nbytes
    finally:
        gc.enable()


@with_a_graph
def test_storage_lifetime_after_backward(how: str) -> None:
    """After a backward that retains the graph, rerun has let go of the entries, as torch's own does.

    Ours: replay keeps what the policy said to keep while the graph is retained, as plain autograd
    does, which is why a second backward works.
    """

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cos().exp().sin()

    everything = save_only(aten.cos.default, aten.exp.default, aten.sin.default)
    x = leaf(1 << 14)
    with retape.memory.Meter() as meter:
        out = selective(how, everything, f, x)
        out.sum().backward(retain_graph=True)
        x.grad = None
        held = meter.current - out.nbytes
        if how == "replay":
            assert held >= x.nbytes
            out.sum().backward()
            x.grad = None
            assert meter.current - out.nbytes < x.nbytes
        else:
            assert held < x.nbytes


def _writes_over_a_saved_value(x: torch.Tensor) -> torch.Tensor:
    return x.sin().mul_(2).cos().exp()


@pytest.mark.parametrize("allow", [False, True])
def test_version_counter(allow: bool) -> None:
    """A saved value that is changed in place afterwards: torch's cache refuses unless allowed.

    Better: replay records the change as the op it is, and gives eager's gradient either way.
    """
    x, y = leaf(3), leaf(3)
    _writes_over_a_saved_value(y).sum().backward()
    options = {"allow_cache_entry_mutation": allow}
    policy = save_only(aten.sin.default)
    selective("replay", policy, _writes_over_a_saved_value, x, **options).sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def test_version_counter_by_running_again() -> None:
    """Rerun uses torch's own contexts: their refusal."""
    out = selective("rerun", save_only(aten.sin.default), _writes_over_a_saved_value, leaf(3))
    with pytest.raises(RuntimeError, match="has been mutated"):
        out.sum().backward()


def test_version_counter_mutation_allowed_by_running_again() -> None:
    """Better: with the mutation allowed the second run gets a value that was doubled already; that
    is a mismatch, where torch's own goes on with a wrong gradient."""
    options = {"allow_cache_entry_mutation": True}
    policy = save_only(aten.sin.default)
    out = selective("rerun", policy, _writes_over_a_saved_value, leaf(3), **options)
    with pytest.raises(retape.ReplayMismatch, match="came out different"):
        out.sum().backward()


def test_policy_with_state_sees_the_functions_ops_only() -> None:
    """The policy is asked about what the function called, and about nothing else."""
    seen = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append(op)
        return CheckpointPolicy.PREFER_RECOMPUTE

    selective("rerun", policy, lambda a: a.sin().t().exp().t().sin(), leaf(4, 4))
    assert seen == [op.default for op in (aten.sin, aten.t, aten.exp, aten.t, aten.sin)]


@with_a_graph
def test_function_with_more_than_one_output(how: str) -> None:
    """An op with two results is saved with both."""

    def f(x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x)
        return (variance * mean).sin()

    x = leaf(64)
    out = selective(how, save_only(aten.var_mean.correction), f, x)
    with OpsSeen() as seen:
        (found,) = torch.autograd.grad(out, x)
    assert "var_mean" not in seen.names
    (expected,) = torch.autograd.grad(f(x), x)
    assert_same(found, expected, "gradient")


CALLS = []


@torch.library.custom_op("retape_conformance::sin_and_two", mutates_args=())
def sin_and_two(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    CALLS.append(1)
    return x.sin(), 2


def _remember(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _sin_backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:
    return grad * ctx.saved_tensors[0].cos()


sin_and_two.register_autograd(_sin_backward, setup_context=_remember)


@with_a_graph
def test_function_with_non_tensor_output(how: str) -> None:
    """A custom op with a number among its results, saved by the policy, is computed once."""

    def f(x: torch.Tensor) -> torch.Tensor:
        sine, two = sin_and_two(x)
        return (sine * x.sin().exp() * two).sin()

    x = leaf(3)
    CALLS.clear()
    out = selective(how, [torch.ops.retape_conformance.sin_and_two.default], f, x)
    (found,) = torch.autograd.grad(out.sum(), x)
    assert len(CALLS) == 1
    (expected,) = torch.autograd.grad(f(x).sum(), x)
    assert_same(found, expected, "gradient")


def test_can_only_trigger_recompute_once() -> None:
    """torch's cache is used up by one backward. Better: replay does as many as are asked for."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos().exp()

    x, y = leaf(3), leaf(3)
    out = selective("replay", save_only(aten.sin.default), f, x)
    plain = f(y)
    for times in (1, 2, 3):
        out.sum().backward(retain_graph=True)
        plain.sum().backward(retain_graph=True)
        assert_same(x.grad, y.grad, f"after {times}")


def test_can_only_trigger_recompute_once_two_losses() -> None:
    """Better: two losses through one selective checkpoint, each with a backward of its own."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x.sin().cos()
        return hidden.exp(), hidden.tanh().sin()

    x, y = leaf(3), leaf(3)
    first, second = selective("replay", save_only(aten.sin.default), f, x)
    a, b = f(y)
    for ours, plain in ((first, a), (second, b)):
        ours.sum().backward(retain_graph=True)
        plain.sum().backward(retain_graph=True)
    assert_same(x.grad, y.grad, "x.grad")


def test_can_only_trigger_recompute_once_by_running_again() -> None:
    """Rerun uses torch's own contexts, whose cache one backward uses up: their error."""
    x = leaf(3).tanh()
    out = selective("rerun", save_only(aten.sin.default), lambda a: a.sin().cos().exp(), x)
    out.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="Trying to backward an extra time"):
        out.sum().backward(retain_graph=True)
