"""TestNestedCheckpoint of test/test_autograd.py: checkpoints in checkpoints, and early stop."""

import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from .support import (
    Counted,
    OpsSeen,
    assert_same,
    checkpoint,
    every_way,
    leaf,
    same_leaf,
    with_a_graph,
)

Function = Callable[[torch.Tensor], torch.Tensor]
early_stops = pytest.mark.parametrize("early_stop", [True, False])


def grad(f: Function) -> Function:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(f(x).sum(), x, create_graph=True)[0]

    return gradient


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp().sin()


def with_backwards_inside(x: torch.Tensor) -> torch.Tensor:
    """Runs two backwards of its own and has nothing to do with their results."""
    for out in (x.sin().exp().sin(), x.cos().exp().sin()):
        torch.autograd.grad(out.sum(), x)
    return x.sin().tanh()


def _nodes(root: object) -> list:
    seen, queue = {root: None}, [root]
    while queue:
        for node, _ in queue.pop().next_functions:
            if node is not None and node not in seen:
                seen[node] = None
                queue.append(node)
    return list(seen)


def assert_graph_dies(function: Function) -> None:
    """No cycle: without the garbage collector every node of the graph goes with its result."""

    class Mark:
        pass

    def marks() -> list[weakref.ref]:
        refs = []
        for node in _nodes(function(leaf(3)).grad_fn):
            mark = Mark()
            node.metadata["mark"] = mark
            refs.append(weakref.ref(mark))
        return refs

    gc.disable()
    try:
        refs = marks()
        assert len(refs) > 1
        assert [ref() for ref in refs] == [None] * len(refs)
    finally:
        gc.enable()


@with_a_graph
@early_stops
@pytest.mark.parametrize("function", [f, with_backwards_inside])
def test_nested_checkpoint(how: str, early_stop: bool, function: Function) -> None:
    """f and its first three derivatives, with checkpoints at every level of nesting: eager's bits,
    and graphs that die by themselves."""

    def c(g: Function) -> Function:
        return partial(checkpoint, how, g)

    cases = [
        (function, [c(function), c(c(function))]),
        (grad(function), [grad(c(function)), grad(c(c(function))), c(grad(c(function)))]),
        (
            grad(grad(function)),
            [
                grad(c(grad(function))),
                c(grad(grad(c(function)))),
                grad(c(grad(c(function)))),
            ],
        ),
        (
            grad(grad(grad(function))),
            [grad(c(grad(grad(c(function))))), grad(c(grad(c(grad(c(function))))))],
        ),
    ]
    with set_checkpoint_early_stop(early_stop):
        for order, (plain, ways) in enumerate(cases):
            expected = plain(leaf(3))
            for i, way in enumerate(ways):
                assert_same(way(leaf(3)), expected, f"derivative {order}, way {i}")
                assert_graph_dies(way)


@every_way
def test_nested_checkpoint_by_any_way_in_any_way(how: str) -> None:
    """Each way inside each other way: one backward gives eager's gradient."""
    expected = grad(lambda x: f(f(x)).tanh())(leaf(3)).detach()
    for inner in ("replay", "rerun", "reentrant"):
        x = leaf(3)

        def outer(v: torch.Tensor, inner: str = inner) -> torch.Tensor:
            return f(checkpoint(inner, f, v)).tanh()

        checkpoint(how, outer, x).sum().backward()
        assert_same(x.grad, expected, f"{inner} inside {how}")


@with_a_graph
@early_stops
def test_nested_checkpoint_two_children(how: str, early_stop: bool) -> None:
    """Two checkpoints one after another in a third: second derivatives, and the graph dies."""

    def g(x: torch.Tensor) -> torch.Tensor:
        return x.cos().sin().exp()

    def c(function: Function) -> Function:
        return partial(checkpoint, how, function)

    def children(x: torch.Tensor) -> torch.Tensor:
        return c(g)(c(f)(x))

    expected = grad(grad(lambda x: g(f(x))))(leaf(3, 3))
    with set_checkpoint_early_stop(early_stop):
        for way in (grad(grad(c(children))), grad(c(grad(c(children))))):
            assert_same(way(leaf(3, 3)), expected)
            assert_graph_dies(way)
        assert_graph_dies(grad(c(children)))


@with_a_graph
@early_stops
def test_nested_checkpoint_non_tensor_inputs_and_outputs(how: str, early_stop: bool) -> None:
    """Numbers and functions go in, numbers and text come out."""

    def mixed(k: int, a: torch.Tensor, b: torch.Tensor, then: Function) -> tuple:
        return then(k * a * b.exp()), 1, "text"

    a, b = leaf(4, seed=1), leaf(4, seed=2)
    with set_checkpoint_early_stop(early_stop):
        out, one, text = checkpoint(how, partial(checkpoint, how, mixed), 3, a, b, f)
    assert (one, text) == (1, "text")
    found = torch.autograd.grad(out.sum(), (a, b))
    expected = torch.autograd.grad(mixed(3, a, b, f)[0].sum(), (a, b))
    assert_same(found, expected)


@with_a_graph
@early_stops
def test_nested_checkpoint_kwargs(how: str, early_stop: bool) -> None:
    """A tensor by keyword gets its gradient."""

    def scaled(a: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
        out = a.sin().exp()
        return (out if factor is None else out * factor).sin().exp()

    a, b = leaf(4, seed=1), leaf(4, seed=2)
    with set_checkpoint_early_stop(early_stop):
        out = checkpoint(how, partial(checkpoint, how, scaled), a, factor=b)
    found = torch.autograd.grad(out.sum(), (a, b))
    assert_same(found, torch.autograd.grad(scaled(a, factor=b).sum(), (a, b)))


@with_a_graph
@early_stops
def test_nested_checkpoint_same_graph(how: str, early_stop: bool) -> None:
    """Backward goes through the graph of forward: a hook on one of its nodes fires, once."""
    fired = []
    x = leaf(3)
    with set_checkpoint_early_stop(early_stop):
        out = checkpoint(how, lambda a: a.sin().cos().sin(), x)
    out.grad_fn.next_functions[0][0].register_hook(lambda *_: fired.append(1))
    out.sum().backward()
    assert fired == [1]


@with_a_graph
@early_stops
def test_nested_checkpoint_reentrant_backwards(how: str, early_stop: bool) -> None:
    """A hook of one node runs a backward through another part of the same checkpoint."""

    def run(call: Callable) -> torch.Tensor:
        a = leaf(3)
        middle, out = call(lambda v: ((m := v.sin().cos()), m.sin().exp()), a)
        ones = torch.ones(3)
        out.grad_fn.register_hook(lambda *_: middle.backward(ones, retain_graph=True))
        out.sum().backward(retain_graph=True)
        return a.grad

    with set_checkpoint_early_stop(early_stop):
        assert_same(run(partial(checkpoint, how)), run(lambda g, v: g(v)), "a.grad")


@pytest.mark.parametrize(
    ("settings", "argument", "stops"),
    [
        ([], None, True),
        ([], False, False),
        ([], True, True),
        ([False], None, False),
        ([True], None, True),
        ([False, True], False, True),
        ([True, False], True, False),
        ([False], True, False),
        ([True], False, True),
    ],
)
@with_a_graph
def test_nested_checkpoint_set_early_stop(
    how: str, settings: list[bool], argument: bool | None, stops: bool
) -> None:
    """With early stop the second run ends before the clone at the end, which saves nothing. The
    inner context manager decides, over the argument; what counts is the moment of forward.

    Better: replay never comes to the clone again, whatever is set.
    """
    clone = Counted(torch.clone)
    x = leaf(3)

    def run() -> torch.Tensor:
        options = {} if argument is None else {"early_stop": argument}
        return checkpoint(how, lambda a: clone(a.sin().cos()), x, **options)

    for setting in reversed(settings):
        run = partial(_under, setting, run)
    run().sum().backward()
    assert clone.calls == (1 if stops or how == "replay" else 2)
    y = same_leaf(x)
    y.sin().cos().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def _under(setting: bool, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    with set_checkpoint_early_stop(setting):
        return run()


@with_a_graph
@early_stops
def test_nested_checkpoint_set_early_stop_no_recomputation_needed(
    how: str, early_stop: bool
) -> None:
    """Only an input is saved, or nothing: nothing needs to be computed again.

    Better: an input that is alive anyway is held, so not even the function is called; torch's own
    calls it and stops inside. Without early stop neither makes a difference.
    """
    for body in (torch.sin, torch.clone):
        function = Counted(body)
        a = leaf(3)
        with set_checkpoint_early_stop(early_stop):
            out = checkpoint(how, function, a)
        with OpsSeen() as seen:
            out.sum().backward()
        assert function.calls == 1
        assert seen.names.count(body.__name__) == 0
        b = leaf(3)
        body(b).sum().backward()
        assert_same(a.grad, b.grad, "grad")
