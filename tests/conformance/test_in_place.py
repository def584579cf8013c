"""In-place changes around and inside a checkpoint: what eager does, or its error, never a guess.

Between the lines of torch's tests: test_version_counter, test_saved_variable_version_counter.
"""

import pytest
import torch

import retape

from .support import assert_same, checkpoint, every_way, leaf, with_a_graph

Tensor = torch.Tensor


@every_way
def test_in_place_op_inside(how: str) -> None:
    """A value that nobody saved is changed and then used: eager's gradient."""

    def f(v: Tensor) -> Tensor:
        hidden = v * 2
        before = hidden + 1
        hidden.mul_(3)
        return before * hidden.sin().exp()

    a, b = leaf(5), leaf(5)
    checkpoint(how, f, a).sum().backward()
    f(b).sum().backward()
    assert_same(a.grad, b.grad)


@every_way
def test_in_place_after_a_saved_op_inside(how: str) -> None:
    """A value that an op saved is changed afterwards: autograd's error, when backward comes to it."""

    def f(v: Tensor) -> Tensor:
        hidden = v * 2
        out = hidden.sin()
        hidden.mul_(3)
        return out

    out = checkpoint(how, f, leaf(5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*version 1"):
        out.sum().backward()


@with_a_graph
def test_in_place_on_a_saved_result_outside(how: str) -> None:
    """A region's result that its last op saved is changed outside: the same error."""
    out = checkpoint(how, lambda v: (v * 2).exp(), leaf(5))
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*version 1"):
        out.sum().backward()


def _write_over_input(v: Tensor) -> Tensor:
    return v.mul_(2).sin().exp()


def test_in_place_on_an_input_inside() -> None:
    """Better: replay takes a copy before the function writes over what it was given, so that works
    as in eager; torch's own runs again on what the first run left."""
    a, b = leaf(5), leaf(5)
    given, plain = a.clone(), b.clone()
    checkpoint("replay", _write_over_input, given).sum().backward()
    _write_over_input(plain).sum().backward()
    assert_same([a.grad, given], [b.grad, plain])


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("rerun", "modified by an inplace operation"),
        ("reentrant", "leaf Variable that requires grad"),
    ],
)
def test_in_place_on_an_input_inside_by_running_again(how: str, text: str) -> None:
    """Rerun has no input any more to run on: an error."""
    out = checkpoint(how, _write_over_input, leaf(5).clone())
    with pytest.raises(RuntimeError, match=text):
        out.sum().backward()


@pytest.mark.parametrize(
    "how",
    [
        "replay",
        "rerun",
        "reentrant",
    ],
)
def test_in_place_on_a_buffer_inside(how: str) -> None:
    """A buffer from outside that the function moves on: moved once, and eager's gradient."""

    def run(call) -> list[Tensor]:
        a, buffer = leaf(5), torch.zeros(5)

        def f(v: Tensor) -> Tensor:
            buffer.add_(v.detach())
            return (v * buffer).sin()

        call(f, a).sum().backward()
        return [a.grad, buffer]

    assert_same(run(lambda f, v: checkpoint(how, f, v)), run(lambda f, v: f(v)))


def test_in_place_on_what_was_given_afterwards() -> None:
    """What replay would need is changed after the region: an error that says where, no guess."""
    a, given = leaf(4, 5), torch.ones(4, 5)
    out = retape.checkpoint(lambda v: (v + given).sin(), a, name="block")
    given.add_(1)
    with pytest.raises(retape.ReplayMismatch, match='region "block".*modified by an inplace'):
        out.sum().backward()


def test_in_place_on_a_vector_that_was_given_afterwards() -> None:
    """Of vectors without gradient, as running statistics are, the tape has a copy: eager's gradient."""
    a, b = leaf(5), leaf(5)
    given = torch.ones(5)
    out = retape.checkpoint(lambda v: (v + given).sin(), a)
    given.add_(1)
    out.sum().backward()
    (b + torch.ones(5)).sin().sum().backward()
    assert_same(a.grad, b.grad)
