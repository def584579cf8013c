"""Policies in Python: answers of policy functions, and the ways to name ops."""

import pytest
import torch

import retape

DROP = retape.Policy.full().anchors(False)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("answer", [3, None, "Keep", [True]])
def test_wrong_answer_of_a_policy_function_is_a_usage_error_that_names_the_op(
    answer: object, x: torch.Tensor
) -> None:
    with pytest.raises(retape.UsageError) as caught, retape.recompute(lambda info: answer):
        x.add(1)
    text = str(caught.value)
    assert text.startswith("[Policy.function] aten::add.Tensor: ")
    assert f"got {answer!r}" in text
    assert 'expected True, False, "keep" or "drop"' in text
    assert not retape.is_recording()


def test_selective_policies_need_no_context_fn(x: torch.Tensor) -> None:
    """Asked once per op, with the op's arguments and result, in any scope."""
    seen = []

    def decide(op: object, args: tuple, kwargs: dict, output: object) -> str:
        seen.append((op, args[0] is x, kwargs, tuple(output.shape), output.requires_grad))
        return "keep" if op == torch.ops.aten.mm.default else "drop"

    assert replayed_ops(retape.Policy.selective(decide), x) == 2  # sin, add
    names = [op.name() for op, *_ in seen]
    assert names == ["aten::mm", "aten::sin", "aten::add.Tensor", "aten::mul.Tensor", "aten::sum"]
    assert seen[0] == (torch.ops.aten.mm.default, True, {}, (8, 8), False)


def test_wrong_answer_of_a_selective_policy_is_a_usage_error(x: torch.Tensor) -> None:
    with pytest.raises(retape.UsageError, match=r"\[Policy.selective\] aten.sin.default: .* got 3"):
        with retape.recompute(retape.Policy.selective(lambda *_: 3)):
            x.sin()
    assert not retape.is_recording()


def replayed_ops(policy: retape.Policy, x: torch.Tensor) -> int:
    with retape.recompute(policy) as rec:
        loss = x.mm(x).sin().add(1).mul(x).sum()
    loss.backward()
    return rec.stats.ops_replayed


@pytest.mark.parametrize(
    "ops",
    [
        [torch.ops.aten.mm.default],
        [torch.ops.aten.mm],
        (torch.ops.aten.mm.default,),
        {"aten::mm.default"},
        ["aten::mm"],
        ["aten::mm", torch.ops.aten.mm],
    ],
    ids=repr,
)
def test_ops_are_named_by_strings_overloads_or_packets(ops: object, x: torch.Tensor) -> None:
    assert replayed_ops(DROP, x) == 3  # mm, sin, add
    assert replayed_ops(DROP.keep_ops(ops), x) == 2
    assert replayed_ops(retape.Policy.none().drop_ops(ops), x) == 1


def test_an_overload_names_no_other_overload(x: torch.Tensor) -> None:
    add = torch.ops.aten.add
    assert replayed_ops(DROP.keep_ops([add.Scalar]), x) == replayed_ops(DROP, x) == 3
    assert replayed_ops(DROP.keep_ops([add.Tensor]), x) == 1  # mm, which sin saved
    assert replayed_ops(DROP.keep_ops([add]), x) == 1
    assert "keep aten::mm.default" in DROP.keep_ops([torch.ops.aten.mm.default]).describe()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda p: p.keep_ops([torch.mm]),
            "keep_ops.*expected op names or torch.ops.* got <built-in",
        ),
        (lambda p: p.drop_ops([3]), "drop_ops.*expected op names or torch.ops.* got 3"),
        (lambda p: p.keep_ops("aten::mm"), 'expected a list of ops, got "aten::mm"'),
        (lambda p: p.keep_ops(torch.ops.aten.mm), "expected a list of ops, got .*aten.mm"),
        (lambda p: p.keep_ops(3), "expected a list of ops, got 3"),
        (lambda p: p.keep_ops([torch.ops.aten.linear.default]), "composite op"),
    ],
)
def test_what_names_no_op_is_a_usage_error(make: object, text: str) -> None:
    with pytest.raises(retape.UsageError, match=text):
        make(retape.Policy.full())
