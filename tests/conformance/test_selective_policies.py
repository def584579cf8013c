"""What torch hands to the policy of selective checkpointing, Retape hands to it too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import retape

from .support import OpsSeen, assert_same, checkpoint, leaf, with_a_graph

aten = torch.ops.aten


def selective(how: str, policy: Any, function: Callable, *args: Any) -> Any:
    context_fn = partial(create_selective_checkpoint_contexts, policy)
    if how == "torch":
        run = torch_checkpoint.checkpoint
        return run(function, *args, use_reentrant=False, context_fn=context_fn)
    return checkpoint(how, function, *args, context_fn=context_fn)


def _described(tensor: torch.Tensor) -> tuple:
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.detach().reshape(-1).tolist(),
    )


class Log:
    """A policy that writes down all that it is given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        call = (ctx.is_recompute, op, args, kwargs, ctx.op_output)
        self.calls.append(tree_map_only(torch.Tensor, _described, call))
        return CheckpointPolicy.PREFER_RECOMPUTE


def _products(x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, x.sin(), x[0]).softmax(-1)


def _several_outputs(x: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x, dim=1, keepdim=True)
    values, places = x.topk(2)
    first, second = x.split(2)
    return (
        F.layer_norm(x, (4,)) * variance + mean + values.sum() + places.sum() + first[0] + second[1]
    )


def _in_place(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    h.mul_(3)
    h[0].add_(1, alpha=2)
    return torch.add(h, x, alpha=3).relu_()


def _options(x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(4, 4, dtype=torch.bool)
    wide = x.to(torch.float64).clone(memory_format=torch.contiguous_format)
    ones = torch.ones_like(wide, dtype=torch.float32)
    return torch.cat([wide.float(), ones], dim=1)[:, [0, 2, 1, 3]].masked_fill(mask, 1.5)


def _read_back(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach().sum().item() + torch.einsum("ij,jk->ik", x, x)


FUNCTIONS = [_products, _several_outputs, _in_place, _options, _read_back]


@with_a_graph
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_policy_is_called_for_the_same_ops_with_the_same_values_as_torchs(
    how: str, function: Callable
) -> None:
    """Op, arguments, keyword arguments and output, call by call: values, strides, dtypes and
    whether a gradient is wanted. One call per op, however many outputs it has."""
    found, expected = Log(), Log()
    selective(how, found, function, leaf(4, 4))
    selective("torch", expected, function, leaf(4, 4))
    assert [call[1] for call in found.calls] == [call[1] for call in expected.calls]
    assert found.calls == expected.calls


@with_a_graph
def test_a_policy_that_reads_requires_grad_decides_as_torchs_does(how: str) -> None:
    """Products with a trained weight are kept, those with a frozen one are multiplied again."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        return op == aten.mm.default and args[1].requires_grad

    trained, frozen = leaf(4, 4, seed=1), leaf(4, 4, seed=2).detach()

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.mm(frozen).sin().mm(trained).sin()).sum()

    def run(way: str) -> tuple[int, list[torch.Tensor]]:
        x = leaf(4, 4)
        trained.grad = None
        out = selective(way, policy, function, x) if way != "plain" else function(x)
        with OpsSeen() as seen:
            out.backward()
        return seen.names.count("mm"), [x.grad, trained.grad]

    plain, found, expected = run("plain"), run(how), run("torch")
    assert found[0] == expected[0] == plain[0] + 1
    assert_same(found[1], plain[1])


@with_a_graph
def test_a_policy_may_decide_by_the_output(how: str) -> None:
    """The large result is replayed, the small one is kept."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        return op == aten.mm.default and ctx.op_output.numel() <= 16

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.t().mm(x).sin().sum() + x.mm(x.t()).sin().sum()

    def run(way: str) -> tuple[int, torch.Tensor]:
        x = leaf(8, 4)
        out = function(x) if way == "plain" else selective(way, policy, function, x)
        with OpsSeen() as seen:
            out.backward()
        return seen.names.count("mm"), x.grad

    plain, found = run("plain"), run(how)
    assert found[0] == run("torch")[0] == plain[0] + 1
    assert_same(found[1], plain[1])


@with_a_graph
def test_ops_of_the_policy_itself_are_neither_recorded_nor_differentiated(how: str) -> None:
    seen = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        largest = args[0].abs().amax()
        seen.append((op, largest.requires_grad))
        return bool(largest > 1e9)

    x, y = leaf(4, 4), leaf(4, 4)
    selective(how, policy, lambda v: v.sin().exp().sum(), x).backward()
    assert seen == [(op, False) for op in (aten.sin.default, aten.exp.default, aten.sum.default)]
    y.sin().exp().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def test_memory_that_nobody_has_written_is_not_kept_by_a_policy() -> None:
    """A policy that keeps every result of `empty` does not keep what is written there later."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        return op == aten.empty_like.default

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).copy_(x).sin()

    x, y = leaf(1 << 14), leaf(1 << 14)
    with retape.memory.Meter() as meter:
        out = selective("replay", policy, function, x)
        assert meter.current == out.nbytes
    out.sum().backward()
    function(y).sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def test_a_policy_that_keeps_every_second_op_keeps_the_same_ones_as_torchs() -> None:
    """It counts calls, so one call more or fewer (for a view, for a second output) would shift it."""

    def every_second() -> Callable:
        count = 0

        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
            nonlocal count
            count += 1
            kept.append(op) if count % 2 else None
            return count % 2 == 1

        return policy

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.t().sin(), (4,)).view(-1).exp().sum()

    kept: list[Any] = []
    selective("torch", every_second(), function, leaf(4, 4))
    expected, kept = kept, []
    selective("replay", every_second(), function, leaf(4, 4))
    assert kept == expected != []


@pytest.mark.parametrize("answer", [3, "save", torch.ones(1), CheckpointPolicy], ids=repr)
def test_a_wrong_answer_is_a_usage_error_that_names_the_op(answer: Any) -> None:
    """torch takes any other answer for "recompute"."""
    with pytest.raises(retape.UsageError) as caught:
        selective("replay", lambda *_, **__: answer, lambda x: x.sin().sum(), leaf(3))
    text = str(caught.value)
    assert text.startswith("[checkpoint] ")
    assert "aten.sin.default" in text
    assert repr(answer) in text
    assert "expected a CheckpointPolicy or a bool" in text
    assert not retape.is_recording()


@with_a_graph
def test_no_answer_means_recompute_as_torch_has_it(how: str) -> None:
    x, y = leaf(3), leaf(3)
    selective(how, lambda *_, **__: None, lambda v: v.sin().exp().sum(), x).backward()
    y.sin().exp().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


@with_a_graph
def test_an_exception_of_the_policy_is_the_users_own(how: str) -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        return args[7]

    with pytest.raises(IndexError):
        selective(how, policy, lambda x: x.sin().sum(), leaf(3))
    assert not retape.is_recording()


@pytest.mark.parametrize("how", ["torch", "replay", "rerun"])
def test_an_argument_that_is_written_is_shown_without_the_graph_that_it_gets(how: str) -> None:
    shown = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        if op == aten.add_.Tensor:
            shown.append([t.requires_grad for t in args if isinstance(t, torch.Tensor)])
        return False

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4).add_(x).sin()

    selective(how, policy, function, leaf(4))
    assert shown == [[False, True]]


def test_views_and_constants_may_be_shown_under_other_names() -> None:
    """Decisions about them change nothing: views are never replayed. Policies that count ops may differ."""
    names: dict[str, list[str]] = {"torch": [], "replay": []}
    for how, seen in names.items():

        def policy(ctx: Any, op: Any, *args: Any, seen: list[str] = seen, **kwargs: Any) -> bool:
            seen.append(op.name())
            return False

        selective(how, policy, lambda x: x.mT.reshape(-1) * torch.tensor([2.0]), leaf(4, 4))
    assert [n for n in names["replay"] if n not in names["torch"]] == ["aten::detach_"]
    assert {"aten::mul.Tensor", "aten::clone"} <= {*names["replay"]} & {*names["torch"]}


def _with_a_backward_inside(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)[0].cos()


@pytest.mark.parametrize("how", ["torch", "replay", "rerun"])
def test_a_policy_is_called_for_the_ops_of_a_backward_inside_the_region(how: str) -> None:
    def run(how: str) -> tuple[list[Any], torch.Tensor]:
        log, x = Log(), leaf(4)
        selective(how, log, _with_a_backward_inside, x).sum().backward()
        return [str(op) for _, op, *_ in log.calls], x.grad

    ops, grad = run(how)
    x = leaf(4)
    _with_a_backward_inside(x).sum().backward()
    assert torch.equal(grad, x.grad)
    again = ["aten.sin.default", "aten.mul.Tensor"]  # that a second run calls for the backward
    backward = ["aten.mul.Tensor", "aten.mul.Tensor", "aten.cos.default", "aten.mul.Tensor"]
    assert [op for op in ops if op not in again] == [
        "aten.sum.default",
        "aten.ones_like.default",
        "aten.expand.default",
        "aten.cos.default",
        "aten.add.Tensor",
        "aten.cos.default",
    ]
    for op in backward:
        assert ops.count(op) >= backward.count(op)
