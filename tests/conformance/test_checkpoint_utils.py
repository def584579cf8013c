"""TestCheckpoint of test/test_utils.py: the calls, their arguments, random numbers, memory."""

import pytest
import torch
from torch import nn

import retape

from .support import (
    OPTIONS,
    RUNS,
    assert_same,
    checkpoint,
    checkpoint_sequential,
    every_way,
    grads,
    leaf,
    same_leaf,
    with_a_graph,
)


class Step(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x).tanh()


def steps(count: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Step() for _ in range(count)])


@every_way
@pytest.mark.parametrize("segments", [2, 3])
def test_checkpoint_trigger(how: str, segments: int) -> None:
    """Backward calls the pieces before the last once more, the last never.

    Better: replay calls none of them again.
    """
    model = steps()
    out = checkpoint_sequential(how, model, segments, leaf(4, 16))
    assert [step.calls for step in model] == [1] * 6
    out.sum().backward()
    last = 6 // segments
    assert [step.calls for step in model] == [RUNS[how]] * (6 - last) + [1] * last


@with_a_graph
def test_checkpoint_valid(how: str) -> None:
    """autograd.grad works and gives a graph: results, first and second gradients are eager's."""
    model, x = steps(), leaf(4, 16)
    wanted = [x, *model.parameters()]

    def two_orders(out: torch.Tensor) -> list[torch.Tensor]:
        first = torch.autograd.grad(out.square().sum(), wanted, create_graph=True)
        assert all(g.requires_grad for g in first)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), wanted)
        return [out, *first, *second]

    assert_same(two_orders(checkpoint_sequential(how, model, 2, x)), two_orders(model(x)))


def test_checkpoint_valid_reentrant() -> None:
    """Reentrant refuses autograd.grad, and says what to use; backward() still works after that."""
    model, x = steps(), leaf(4, 16)
    out = checkpoint_sequential("reentrant", model, 2, x)
    with pytest.raises(retape.UsageError, match=r"autograd\.grad.*use_reentrant=False"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
    checkpoint_sequential("reentrant", model, 2, x).sum().backward()
    y = same_leaf(x)
    model(y).sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


def _compare_sequential(how: str, functions: object, model: nn.Module, segments: int) -> None:
    def gradients(run) -> list[torch.Tensor]:
        model.zero_grad()
        x = leaf(4, 16)
        out = run(x)
        out.square().sum().backward()
        return [out, x.grad, *grads(model.parameters())]

    def plain(value: torch.Tensor) -> torch.Tensor:
        for step in functions:
            value = step(value)
        return value

    expected = gradients(plain)
    assert all(value is not None for value in expected)
    assert_same(gradients(lambda x: checkpoint_sequential(how, functions, segments, x)), expected)


@every_way
@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_checkpoint(how: str, segments: int) -> None:
    """Result, gradient of the input, of every parameter: a Sequential, and a list of functions."""
    model = steps(5)
    _compare_sequential(how, model, model, segments)
    functions = [model[0], torch.sin, model[1], lambda x: x * 0.5, model[2], model[3], model[4]]
    _compare_sequential(how, functions, model, segments)


@every_way
def test_checkpoint_module_list(how: str) -> None:
    """The same for a ModuleList."""
    model = nn.ModuleList(steps(4))
    _compare_sequential(how, model, model, 2)


@every_way
def test_checkpoint_sequential_deprecated_multiple_args(how: str) -> None:
    """There is one input: a second one is a TypeError."""
    options = {"use_reentrant": None, **OPTIONS[how]}
    with pytest.raises(TypeError, match="multiple values for argument 'use_reentrant'"):
        retape.checkpoint_sequential(steps(), 2, leaf(4, 16), leaf(4, 16), **options)


@every_way
def test_checkpoint_sequential_deprecated_no_args(how: str) -> None:
    """No input at all is a TypeError."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'input'"):
        retape.checkpoint_sequential(steps(), 2, **OPTIONS[how])


@every_way
def test_checkpoint_rng_cpu(how: str) -> None:
    """Two dropouts, the second checkpointed: the masks of forward, five times over.

    Better: the generator is afterwards where eager leaves it.
    """
    dropout = nn.Dropout(0.5)
    for seed in range(5):

        def gradients(run, seed: int = seed) -> list[torch.Tensor]:
            x = leaf(2000, seed=100 + seed)
            torch.manual_seed(seed)
            out = run(dropout(x)).sin()
            out.sum().backward()
            return [out, x.grad, torch.get_rng_state()]

        expected = gradients(dropout)
        assert 0 < expected[1].count_nonzero() < 2000
        assert_same(gradients(lambda h: checkpoint(how, dropout, h)), expected)


@with_a_graph
def test_checkpoint_not_preserve_rng_state_and_without_reentrant(how: str) -> None:
    """preserve_rng_state=False runs where nothing is compared, and rerun draws another mask.

    Better: replay has nothing to switch off, so its gradient is that of forward's mask.
    """
    x = leaf(2000)
    torch.manual_seed(0)
    options = {"preserve_rng_state": False, "determinism_check": "none"}
    out = checkpoint(how, lambda v: nn.functional.dropout(v, 0.5), x, **options)
    before = torch.get_rng_state()
    out.sum().backward()
    of_forward = (out != 0).float() * 2
    assert set(x.grad.unique().tolist()) == {0.0, 2.0}
    if how == "replay":
        assert_same(x.grad, of_forward, "x.grad")
        assert_same(torch.get_rng_state(), before, "generator")
    else:
        assert not torch.equal(x.grad, of_forward)
        assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("how", ["rerun", "reentrant"])
def test_checkpoint_not_preserve_rng_state_another_mask_is_a_mismatch(how: str) -> None:
    """Better: upstream takes the other mask's gradients without a word; here that raises."""
    x = leaf(2000)
    dropout = nn.Dropout(0.5)
    out = checkpoint(how, lambda v: dropout(v).sin(), x, preserve_rng_state=False)
    with pytest.raises(retape.ReplayMismatch, match="Fix: preserve_rng_state=True"):
        out.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("how", ["rerun", "reentrant"])
def test_checkpoint_not_preserve_rng_state_is_right_where_nothing_is_random(how: str) -> None:
    x = leaf(8)
    before = torch.get_rng_state()
    checkpoint(how, lambda v: v.sin().exp(), x, preserve_rng_state=False).sum().backward()
    y = same_leaf(x)
    y.sin().exp().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")
    assert_same(torch.get_rng_state(), before, "generator")


@every_way
def test_checkpoint_non_tensor(how: str) -> None:
    """None is an argument like any other."""

    def f(a: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        return a.exp() if b is None else a * b

    x = leaf(8)
    checkpoint(how, f, x, None).sin().sum().backward()
    y = same_leaf(x)
    y.exp().sin().sum().backward()
    assert_same(x.grad, y.grad, "x.grad")


@every_way
def test_checkpoint_non_tensor_inputs_outputs(how: str) -> None:
    """Tensors among other things, in and out, an input among the results; three backwards, then
    none: the graph is gone after one that does not retain it."""

    def f(a, scale, b, flag, c):
        assert flag is True
        return a.sin() * b, scale, None, True, "text", c.exp() * scale, b

    def inputs() -> tuple[torch.Tensor, ...]:
        return leaf(5, seed=1), leaf(5, seed=2), leaf(5, seed=3)

    a, b, c = inputs()
    out = checkpoint(how, f, a, 10, b, True, c)
    assert out[1:5] == (10, None, True, "text")
    assert_same(out[6], b, "the input among the results")
    loss = (out[0] + out[5] + out[6]).sum()
    for _ in range(2):
        loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()

    d, e, g = inputs()
    plain = f(d, 10, e, True, g)
    loss = (plain[0] + plain[5] + plain[6]).sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
    assert_same([a.grad, b.grad, c.grad], [d.grad, e.grad, g.grad])


@every_way
def test_checkpoint_no_tensors(how: str) -> None:
    """A function of plain values gives plain values."""
    calls = []

    def f(a: int, b: dict) -> dict:
        calls.append(a)
        return {"sum": a + b["x"], "rest": [None, "t"]}

    assert checkpoint(how, f, 1, {"x": 2}) == {"sum": 3, "rest": [None, "t"]}
    assert calls == [1]


@every_way
def test_checkpoint_partial_grad(how: str) -> None:
    """A result without gradient is fine beside one that has one."""
    x = leaf(5)
    constant = torch.randn(5)
    with_grad, without = checkpoint(how, lambda a, b: (a.exp(), b * 2), x, constant)
    assert_same(without, constant * 2)
    assert with_grad.requires_grad
    with_grad.sum().backward()
    assert_same(x.grad, x.detach().exp(), "x.grad")


@every_way
def test_checkpoint_partial_grad_none_at_all(how: str) -> None:
    """If no result has a gradient, backward raises what it raises on the plain result."""
    x = leaf(5)
    out = checkpoint(how, lambda a: a.detach() * 2, x)
    assert not out.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        out.sum().backward()
    assert x.grad is None


def _memory_at_each_step(run, retain_graph: bool) -> list[int]:
    """Bytes that are live when the gradient comes by each of ten steps."""
    size, found = 1 << 16, []
    with retape.memory.Meter() as meter:
        x = torch.ones(size, requires_grad=True)

        class Note(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a):
                return a.clone()

            @staticmethod
            def backward(ctx, grad):
                found.append(meter.current)
                return grad.clone()

        def chain(a: torch.Tensor) -> torch.Tensor:
            for _ in range(10):
                a = Note.apply(a).exp().mul(0.1)
            return a

        run(chain, x).sum().backward(retain_graph=retain_graph)
    return [bytes_ // (size * 4) for bytes_ in found]


@with_a_graph
@pytest.mark.parametrize("retain_graph", [False, True])
def test_checkpointing_without_reentrant_early_free(how: str, retain_graph: bool) -> None:
    """What backward brought back goes step by step, also when the graph is retained."""
    plain = _memory_at_each_step(lambda f, x: f(x), False)
    assert all(a > b for a, b in zip(plain, plain[1:], strict=False)), plain
    found = _memory_at_each_step(lambda f, x: checkpoint(how, f, x), retain_graph)
    assert all(a > b for a, b in zip(found, found[1:], strict=False)), found
    assert found[-1] <= plain[-1]
    assert max(found) <= max(plain)


@every_way
def test_get_device_states_recursive(how: str) -> None:
    """Tensors inside lists, tuples, dicts and keyword arguments count: their device's generator is
    put back, and they get gradients."""

    def f(items: list, *, more: dict) -> torch.Tensor:
        total = items[0] * items[1][0] + more["deep"]["c"]
        return nn.functional.dropout(total, 0.5).exp()

    def gradients(run) -> list[torch.Tensor]:
        a, b, c = leaf(500, seed=1), leaf(500, seed=2), leaf(500, seed=3)
        torch.manual_seed(0)
        run(f, [a, (b,)], more={"deep": {"c": c}}).sum().backward()
        return [a.grad, b.grad, c.grad, torch.get_rng_state()]

    expected = gradients(lambda g, *args, **kwargs: g(*args, **kwargs))
    assert all(value is not None for value in expected)
    assert_same(gradients(lambda g, *args, **kwargs: checkpoint(how, g, *args, **kwargs)), expected)


@every_way
def test_infer_device_state_recursive_meta(how: str) -> None:
    """Meta tensors have no values; checkpointing them gives meta gradients."""
    x = torch.empty(4, 8, device="meta", requires_grad=True)
    weight = torch.empty(8, 3, device="meta", requires_grad=True)
    out = checkpoint(how, lambda a, b: (a @ b["w"]).exp(), x, {"w": weight})
    out.sum().backward()
    assert (x.grad.device.type, x.grad.shape) == ("meta", x.shape)
    assert (weight.grad.device.type, weight.grad.shape) == ("meta", weight.shape)


@every_way
def test_infer_device_state_recursive_meta_random(how: str) -> None:
    """A random op on meta tensors draws nothing: no generator is asked for."""
    x = torch.empty(8, device="meta", requires_grad=True)
    checkpoint(how, lambda a: nn.functional.dropout(a, 0.5).exp(), x).sum().backward()
    assert (x.grad.device.type, x.grad.shape) == ("meta", x.shape)


@every_way
def test_checkpoint_preserves_device_context(how: str) -> None:
    """A tensor made without saying where lands on the device of forward, also when backward runs
    outside `with torch.device(...)`."""
    seen = []

    def f(a: torch.Tensor) -> torch.Tensor:
        made = torch.ones(6)
        seen.append(made.device.type)
        return (a * made).exp()

    x = torch.empty(6, device="meta", requires_grad=True)
    with torch.device("meta"):
        out = checkpoint(how, f, x)
    out.sum().backward()
    assert seen == ["meta"] * RUNS[how]
    assert x.grad.device.type == "meta"
