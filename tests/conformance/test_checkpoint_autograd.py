"""TestAutograd of test/test_autograd.py, as far as it is about checkpoint."""

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

import retape

from . import support
from .support import (
    RUNS,
    Counted,
    assert_same,
    checkpoint,
    every_way,
    grads,
    leaf,
    same_leaf,
    with_a_graph,
)


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().exp().tanh()


def grad_of_chain(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(chain(x).sum(), x)[0]


@every_way
def test_checkpointing(how: str) -> None:
    """Two thousand small checkpoints of one module, then one backward through their mean."""

    def gradients(run) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))
        rows = torch.randn(2000, 10).requires_grad_()
        out = torch.stack([run(module, row) for row in rows.unbind()])
        out.mean().backward()
        return [out, rows.grad, *grads(module.parameters())]

    expected = gradients(lambda module, row: module(row))
    assert_same(gradients(lambda module, row: checkpoint(how, module, row)), expected)


@every_way
def test_checkpointing_non_reentrant_autocast_cpu(how: str) -> None:
    """Forward under autocast, backward outside: what comes back has forward's dtype."""
    dtypes = []

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = a @ b
        dtypes.append(product.dtype)
        return product.float().sin() @ b

    def gradients(run) -> list[torch.Tensor]:
        a, b = leaf(8, 8, seed=1), leaf(8, 8, seed=2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run(f, a, b)
        out.float().sum().backward()
        return [out, a.grad, b.grad]

    expected = gradients(lambda g, *args: g(*args))
    assert expected[0].dtype == torch.bfloat16
    dtypes.clear()
    assert_same(gradients(lambda g, *args: checkpoint(how, g, *args)), expected)
    assert dtypes == [torch.bfloat16] * RUNS[how]


@every_way
def test_checkpointing_without_reentrant_memory_savings(how: str) -> None:
    """Less is held after forward, and the peak of the whole step is lower."""

    def measure(run) -> tuple[retape.memory.Meter, list[torch.Tensor]]:
        x = leaf(64, 256)
        layers = [lambda a: a.sin().exp().tanh().sin() for _ in range(8)]
        with retape.memory.Meter() as meter:
            out = x
            for layer in layers:
                out = run(layer, out)
            out.sum().backward()
        return meter, [x.grad]

    plain, expected = measure(lambda f, a: f(a))
    ours, found = measure(lambda f, a: checkpoint(how, f, a))
    assert ours.peak < plain.peak * 0.6
    assert ours.held < plain.held * 0.4
    assert_same(found, expected)


@every_way
def test_checkpointing_without_reentrant_custom_function_works(how: str) -> None:
    """A custom Function's saved tensors come back.

    Better: they can be read any number of times in a backward; torch's own errors the second time.
    """

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b, c):
            ctx.save_for_backward(a, b * 2, c)
            return a * b * c

        @staticmethod
        def backward(ctx, grad):
            first = ctx.saved_tensors
            second = ctx.saved_tensors
            assert_same(second, first, "second reading")
            a, twice_b, c = second
            return grad * twice_b * c / 2, grad * a * c, grad * a * twice_b / 2

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return Product.apply(a.sin(), b.exp(), a * b).tanh()

    def gradients(run) -> list[torch.Tensor]:
        a, b = leaf(6, seed=1), leaf(6, seed=2)
        run(f, a, b).sum().backward()
        return [a.grad, b.grad]

    expected = gradients(lambda g, *args: g(*args))
    assert_same(gradients(lambda g, *args: checkpoint(how, g, *args)), expected)


class Entered(contextlib.AbstractContextManager):
    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        pass


@with_a_graph
def test_checkpointing_without_reentrant_with_context_fn(how: str) -> None:
    """context_fn gives one context for forward and one for the second run.

    Ours: replay makes no second run. It never enters the second context, and warns about that.
    """
    first, second = Entered(), Entered()
    x = leaf(8)
    with warnings.catch_warnings(record=True):
        out = checkpoint(how, chain, x, context_fn=lambda: (first, second))
    assert (first.count, second.count) == (1, 0)
    out.sum().backward()
    assert (first.count, second.count) == (1, RUNS[how] - 1)
    assert_same(x.grad, grad_of_chain(same_leaf(x)), "x.grad")


def test_replay_warns_once_that_it_does_not_enter_the_second_context() -> None:
    class Logging(contextlib.nullcontext):
        pass

    def run() -> None:
        checkpoint("replay", chain, leaf(8), context_fn=lambda: (Logging(), Logging()))

    with pytest.warns(UserWarning, match="does not enter the second context.*Logging") as caught:
        run()
    assert caught[0].filename == support.__file__  # the line that calls retape.checkpoint
    assert 'method="rerun"' in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


@pytest.mark.parametrize(
    ("how", "contexts"),
    [
        ("replay", torch_checkpoint.noop_context_fn),
        ("replay", lambda: (Entered(), contextlib.nullcontext())),
        ("replay", lambda: (torch.autocast("cpu"), torch.autocast("cpu"))),
        ("replay", lambda: torch_checkpoint.create_selective_checkpoint_contexts([])),
        ("rerun", lambda: (Entered(), Entered())),
    ],
    ids=["noop", "nothing in backward", "autocast", "selective", "rerun"],
)
def test_no_warning_where_nothing_is_lost(how: str, contexts: Callable) -> None:
    x = leaf(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint(how, chain, x, context_fn=contexts).sum().backward()
    assert_same(x.grad, grad_of_chain(same_leaf(x)), "x.grad")


def test_checkpointing_with_context_fn_reentrant() -> None:
    """Reentrant has no place for it, and refuses before it runs anything."""
    f = Counted(chain)
    with pytest.raises(ValueError, match="only supported when use_reentrant=False"):
        checkpoint("reentrant", f, leaf(8), context_fn=lambda: (Entered(), Entered()))
    assert f.calls == 0


@pytest.mark.parametrize("method", ["replay", "rerun"])
def test_checkpoint_warns_if_use_reentrant_not_passed_explicitly(method: str) -> None:
    """torch warns that the mode was not chosen. Ours: there is nothing to choose, so no warning."""
    x = leaf(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        retape.checkpoint(chain, x, method=method).sum().backward()
    assert_same(x.grad, grad_of_chain(same_leaf(x)), "x.grad")


@pytest.mark.parametrize("method", ["replay", "rerun"])
def test_checkpoint_sequential_warns_if_use_reentrant_not_passed_explicitly(method: str) -> None:
    """The same for checkpoint_sequential."""
    x = leaf(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = retape.checkpoint_sequential([chain, torch.sin], 2, x, method=method)
        out.sum().backward()
    y = same_leaf(x)
    chain(y).sin().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def _both(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return v.sin().exp(), v.cos().tanh()


@with_a_graph
def test_checkpoint_graph_execution_group(how: str) -> None:
    """Two backwards through one checkpoint, disjoint in it: in a GraphExecGroup the function runs
    again once for both, without one once for each. The same group may be entered again.

    Better: replay calls the function in neither.
    """
    group = torch_checkpoint.GraphExecGroup()
    for contexts, again in (
        ((contextlib.nullcontext(), contextlib.nullcontext()), 2),
        ((group, group), 1),
        ((torch_checkpoint.GraphExecGroup(), torch_checkpoint.GraphExecGroup()), 2),
    ):
        f = Counted(_both)
        x, y = leaf(8), leaf(8)
        results = checkpoint(how, f, x)
        for context, out in zip(contexts, results, strict=True):
            with context:
                out.sum().backward()
        assert f.calls == (1 if how == "replay" else 1 + again)
        for value in _both(y):
            value.sum().backward()
        assert_same(x.grad, y.grad, "x.grad")


@pytest.mark.parametrize(
    "function",
    [lambda v: _both(v.tanh()), lambda v: (v.sin(), v.cos())],
    ids=["made inside", "given"],
)
def test_checkpoint_graph_execution_group_overlap_by_running_again(function: Any) -> None:
    """Backwards of one group that need the same saved tensor are refused, as torch's are; outside a
    group, and in another one, the second is right."""

    def run(first: Any, second: Any, backward: Callable) -> torch.Tensor:
        x = leaf(8)
        a, b = backward(x)
        with first:
            a.sum().backward(retain_graph=True)
        with second:
            (a + b).sum().backward()
        return x.grad

    def ours(x: torch.Tensor) -> Any:
        return checkpoint("rerun", function, x, name="two heads")

    def torchs(x: torch.Tensor) -> Any:
        return torch_checkpoint.checkpoint(function, x, use_reentrant=False)

    group = torch_checkpoint.GraphExecGroup
    with pytest.raises(RuntimeError, match="two backward calls that overlap"):
        run(same := group(), same, torchs)
    with pytest.raises(retape.UsageError, match="two backward calls that overlap") as caught:
        run(same := group(), same, ours)
    assert 'region "two heads"' in str(caught.value)
    none = contextlib.nullcontext()
    expected = run(none, none, function)
    for first, second in ((none, none), (group(), none), (group(), group())):
        assert_same(run(first, second, ours), expected)


def test_checkpoint_graph_execution_group_overlap_by_replay() -> None:
    """Better: replay brings back what each backward needs, in a group too."""

    def run(call: Callable) -> torch.Tensor:
        x = leaf(8)
        a, b = call(x)
        with torch_checkpoint.GraphExecGroup():
            a.sum().backward(retain_graph=True)
            (a + b).sum().backward()
        return x.grad

    assert_same(run(lambda x: checkpoint("replay", _both, x)), run(_both))


def test_checkpoint_graph_execution_group_frees_what_it_brought_back() -> None:
    """What the second run made for backwards that have not come yet goes with the graph, and not
    only with the group."""
    x = leaf(1 << 14)
    group = torch_checkpoint.GraphExecGroup()
    with retape.memory.Meter() as meter:
        a, b = checkpoint("rerun", lambda v: (v.sin().cos(), v.cos().sin()), x)
        with group:
            a.sum().backward()
        x.grad = None
        assert meter.current - a.nbytes - b.nbytes >= x.nbytes  # cos(v), for the backward of b
        with group:
            b.sum().backward()
        x.grad = None
        assert meter.current - a.nbytes - b.nbytes < x.nbytes

        a, b = checkpoint("rerun", lambda v: (v.sin().cos(), v.cos().sin()), x)
        with group:
            a.sum().backward()
        x.grad = None
        del a, b
        assert meter.current < x.nbytes


class Changing:
    """Another function the second time."""

    def __init__(self, first, then) -> None:
        self.first, self.then, self.calls = first, then, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.first(x) if self.calls == 1 else self.then(x)


CHANGES = {
    "fewer": (lambda x: x.sin().exp().tanh(), lambda x: x.sin().exp()),
    "more": (lambda x: x.sin().exp(), lambda x: x.sin().exp().tanh()),
    "shape": (lambda x: x.sin().exp(), lambda x: x[:4].sin().exp()),
    "values": (lambda x: x.sin().exp(), lambda x: (x * 2).sin().exp()),
}
TEXTS = {
    "fewer": "fewer tensors.*expected 3, got 2",
    "more": "more tensors.*expected 2, got 3",
    "shape": "came out different",
    "values": "came out different",
}


@pytest.mark.parametrize("change", ["fewer", "shape", "values"])
@pytest.mark.parametrize("early_stop", [True, False])
def test_checkpoint_detects_non_determinism(change: str, early_stop: bool) -> None:
    """A second run that saves something else is an error.

    Better: the same number of tensors of the same shapes with other values is one too.
    """
    x = leaf(8).sin()
    out = checkpoint("rerun", Changing(*CHANGES[change]), x, early_stop=early_stop)
    with pytest.raises(retape.ReplayMismatch, match=TEXTS[change]):
        out.sum().backward()


def test_checkpoint_detects_non_determinism_more_saved() -> None:
    """More saved: an error without early stop; with it the second run ended before, and is right."""
    x = leaf(8)
    out = checkpoint("rerun", Changing(*CHANGES["more"]), x.sin(), early_stop=False)
    with pytest.raises(retape.ReplayMismatch, match=TEXTS["more"]):
        out.sum().backward()
    checkpoint("rerun", Changing(*CHANGES["more"]), x.sin()).sum().backward()
    y = same_leaf(x)
    y.sin().sin().exp().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


@pytest.mark.parametrize("change", list(CHANGES))
def test_checkpoint_detects_non_determinism_replay(change: str) -> None:
    """Better: replay calls nothing again, so there is nothing to differ: forward's gradient."""
    first, then = CHANGES[change]
    x = leaf(8)
    checkpoint("replay", Changing(first, then), x).sum().backward()
    y = same_leaf(x)
    first(y).sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def test_checkpoint_detects_non_determinism_not_checked() -> None:
    """determinism_check="none" believes the second run; another word for it is a ValueError."""
    x = leaf(8)
    f = Changing(*CHANGES["values"])
    checkpoint("rerun", f, x.sin(), determinism_check="none").sum().backward()
    assert f.calls == 2
    with pytest.raises(ValueError, match="determinism_check should be one of"):
        checkpoint("rerun", f, x, determinism_check="some")


def test_checkpoint_detects_non_determinism_debug() -> None:
    """debug=True lists the ops of both runs; torch's context manager decides over the argument."""

    def text(**options: object) -> str:
        out = checkpoint("rerun", Changing(*CHANGES["fewer"]), leaf(8).sin(), **options)
        with pytest.raises(retape.ReplayMismatch) as error:
            out.sum().backward()
        return str(error.value)

    assert "ops of the" not in text()
    full = text(debug=True)
    first, second = full.split("ops of the first run:")[1].split("ops of the second run:")
    assert first.split() == ["aten::sin", "aten::exp", "aten::tanh"]
    assert second.split() == ["aten::sin", "aten::exp"]
    with torch_checkpoint.set_checkpoint_debug_enabled(True):
        assert "ops of the second run" in text()
        assert "ops of the second run" in text(debug=False)
    with torch_checkpoint.set_checkpoint_debug_enabled(False):
        assert "ops of the" not in text(debug=True)
    with torch_checkpoint.set_checkpoint_debug_enabled(None):
        assert "ops of the second run" in text(debug=True)


@with_a_graph
def test_access_saved_tensor_twice_without_recomputation_works(how: str) -> None:
    """A saved tensor can be read outside backward, twice; after a backward it is gone.

    Better: replay calls the function for none of it.
    """
    f = Counted(chain)
    x = leaf(8)
    out = checkpoint(how, f, x)
    expected = chain(same_leaf(x)).detach()
    for reads in (1, 2):
        assert_same(out.grad_fn._saved_result, expected, "saved")
        assert f.calls == (1 if how == "replay" else 1 + reads)
    out.sum().backward()
    assert f.calls == (1 if how == "replay" else 4)
    assert_same(x.grad, grad_of_chain(same_leaf(x)), "x.grad")
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = out.grad_fn._saved_result


@every_way
@pytest.mark.parametrize("input_requires_grad", [True, False])
def test_checkpointing_without_reentrant(how: str, input_requires_grad: bool) -> None:
    """Gradients of parameters, whether or not an input wants one, by position and by keyword.

    Better: reentrant gives them too when no input wants one.
    """

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(10, 32), nn.Linear(32, 10)

        def forward(self, data: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
            return self.second(self.first(data).relu() * scale)

    def gradients(run) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        block = Block()
        data = leaf(6, 10).requires_grad_(input_requires_grad)
        for call in (
            lambda: run(block, data),
            lambda: run(block, data, scale=0.5),
            lambda: run(block, data=data, scale=2.0),
        ):
            call().square().mean().backward()
        return [data.grad, *grads(block.parameters())]

    expected = gradients(lambda f, *args, **kwargs: f(*args, **kwargs))
    assert (expected[0] is not None) == input_requires_grad
    assert_same(gradients(lambda f, *args, **kwargs: checkpoint(how, f, *args, **kwargs)), expected)


@every_way
def test_checkpoint_valid_reset_on_error(how: str) -> None:
    """A backward that failed leaves nothing behind: the next one works."""
    x = leaf(8)
    if how == "reentrant":
        with pytest.raises(retape.UsageError, match="cannot give gradients"):
            torch.autograd.grad(checkpoint(how, chain, x).sum(), x)
    else:

        class Broken(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a):
                return a.clone()

            @staticmethod
            def backward(ctx, grad):
                raise KeyError("mine")

        out = checkpoint(how, lambda v: Broken.apply(chain(v)).exp(), x)
        with pytest.raises(KeyError, match="mine"):
            out.sum().backward()
    assert x.grad is None
    checkpoint(how, chain, x).sum().backward()
    assert_same(x.grad, grad_of_chain(same_leaf(x)), "x.grad")
    assert not retape.is_recording()


@every_way
@pytest.mark.parametrize("outside_graph", [True, False])
def test_checkpointing_without_reentrant_detached_tensor(how: str, outside_graph: bool) -> None:
    """A part under no_grad: no gradient goes through it, and none is invented."""
    x = leaf(8)
    weight = leaf(8, seed=1)

    def f(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = a.exp().sin()
        return hidden if outside_graph else hidden * weight

    out = checkpoint(how, f, x)
    if not outside_graph:
        out.tanh().sum().backward()
        v = same_leaf(weight)
        (x.detach().exp().sin() * v).tanh().sum().backward()
        assert_same(weight.grad, v.grad, "weight.grad")
        assert x.grad is None
    else:
        (out * x).sum().backward()
        assert_same(x.grad, x.detach().exp().sin(), "x.grad")


@every_way
def test_checkpointing_without_reentrant_saved_object_identity(how: str) -> None:
    """An input without gradient that a Function saves is, in its backward, the very same object."""
    seen = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(b)
            return a.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad, None

    a, b = leaf(3), torch.ones(3)
    Keep.apply(a, b).sum().backward()
    checkpoint(how, Keep.apply, a, b).sum().backward()
    assert len(seen) == 2
    assert seen[0] is b
    if how == "reentrant":  # as in torch's own: its inputs come in detached
        assert seen[1].data_ptr() == b.data_ptr()
    else:
        assert seen[1] is b


@with_a_graph
def test_checkpointing_without_reentrant_correct_grad(how: str) -> None:
    """backward() and autograd.grad() give the same, which is eager's."""
    x = leaf(2, 2)
    expected = grad_of_chain(same_leaf(x))
    by_grad = torch.autograd.grad(checkpoint(how, chain, x).sum(), x)[0]
    checkpoint(how, chain, x).sum().backward()
    assert_same([by_grad, x.grad], [expected, expected])
    y = leaf(2, 2)
    checkpoint(how, chain, y).sum().backward(inputs=[y])
    assert_same(y.grad, expected, "inputs=")


@every_way
def test_checkpointing_without_reentrant_dataparallel(how: str) -> None:
    """Replicas of a checkpointed model on threads of their own (torch's has GPUs for that): each
    gets its gradients, as if it had been alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    parts = leaf(32, 16).detach().chunk(4)

    def gradients(part: torch.Tensor, run) -> list[torch.Tensor]:
        copy = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        copy.load_state_dict(model.state_dict())
        x = part.clone().requires_grad_()
        run(copy, x).square().sum().backward()
        return [x.grad, *grads(copy.parameters())]

    found: dict[int, list[torch.Tensor]] = {}

    def work(i: int) -> None:
        found[i] = gradients(parts[i], lambda f, x: checkpoint(how, f, x))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, part in enumerate(parts):
        assert_same(found[i], gradients(part, lambda f, x: f(x)), f"replica {i}")


@every_way
def test_checkpointing_without_reentrant_parameter_used_in_an_out(how: str) -> None:
    """A weight used inside and outside: right gradient; its hook fires once.

    Reentrant runs a backward of its own, so there the hook fires once more.
    """
    x = leaf(4, 4)

    def gradients(run) -> tuple[torch.Tensor, int]:
        weight = leaf(4, 4, seed=1)
        fired = []
        weight.register_hook(lambda grad: fired.append(1))
        out = run(lambda v: (v @ weight).exp(), x.detach().requires_grad_())
        (out @ weight).sum().backward()
        return weight.grad, len(fired)

    expected, once = gradients(lambda f, v: f(v))
    assert once == 1
    found, fired = gradients(lambda f, v: checkpoint(how, f, v))
    assert fired == (2 if how == "reentrant" else 1)
    assert_same(found, expected, "weight.grad")


@every_way
def test_checkpointing_without_reentrant_arbitrary_input_output(how: str) -> None:
    """A dict in, a dict of nested things out.

    Better: reentrant gives gradients to tensors in containers as well.
    """

    def f(given: dict) -> dict:
        return {"sum": (given["a"] + given["b"][0]).exp(), "more": [given["b"][0].sin(), 3]}

    def gradients(run) -> list[torch.Tensor]:
        a, b = leaf(5, seed=1), leaf(5, seed=2)
        out = run(f, {"a": a, "b": [b]})
        assert out["more"][1] == 3
        (out["sum"] * out["more"][0]).sum().backward()
        return [a.grad, b.grad]

    expected = gradients(lambda g, v: g(v))
    assert_same(gradients(lambda g, v: checkpoint(how, g, v)), expected)


@every_way
def test_save_on_cpu_and_checkpoint(how: str) -> None:
    """Offloading hooks around a checkpoint, and inside one."""
    a = leaf(2, 2)
    (expected,) = torch.autograd.grad(a.pow(2).pow(2).pow(2).pow(2).sum(), a)

    b = same_leaf(a)
    with torch.autograd.graph.save_on_cpu():
        hidden = checkpoint(how, lambda x: x.pow(2).pow(2), b.pow(2))
        out = hidden.pow(2)
    out.sum().backward()
    assert_same(b.grad, expected, "hooks around")

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.pow(2)
        with torch.autograd.graph.save_on_cpu():
            x = x.pow(2).pow(2)
        return x.pow(2)

    c = same_leaf(a)
    checkpoint(how, f, c).sum().backward()
    assert_same(c.grad, expected, "hooks inside")


def test_checkpoint_detects_non_determinism_reentrant() -> None:
    """Better than torch's own, which goes on: another result of the second run is an error."""
    first, then = CHANGES["values"]
    out = checkpoint("reentrant", Changing(first, then), leaf(8))
    with pytest.raises(retape.ReplayMismatch):
        out.sum().backward()


def test_replay_warns_where_only_the_second_context_is_the_users_own() -> None:
    class Counting(contextlib.nullcontext):
        pass

    def contexts() -> tuple:
        selective, _ = torch_checkpoint.create_selective_checkpoint_contexts(
            [torch.ops.aten.mm.default]
        )
        return selective, Counting()

    with pytest.warns(UserWarning, match="does not enter the second context.*Counting"):
        checkpoint("replay", chain, leaf(8), context_fn=contexts)
