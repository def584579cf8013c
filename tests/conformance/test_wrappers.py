"""What stands on checkpoint: torch's wrapper module, the composable call, torchtitan's policies.

torch's own wrapper takes a function to checkpoint with; here that is `retape.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import retape

from .support import (
    OPTIONS,
    RUNS,
    Flops,
    assert_same,
    checkpoint,
    every_way,
    grads,
    leaf,
    with_a_graph,
)

aten = torch.ops.aten


def wrap(how: str, module: nn.Module, **options: Any) -> nn.Module:
    return checkpoint_wrapper(module, checkpoint_fn=retape.checkpoint, **OPTIONS[how], **options)


def layers(count: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    steps = [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(count)]
    return nn.Sequential(*steps)


def trained(model: nn.Module, run: Callable | None = None) -> list[torch.Tensor]:
    model.zero_grad()
    x = leaf(4, 16)
    (run or model)(x).square().sum().backward()
    return [x.grad, *grads(model.parameters())]


@every_way
def test_load_activation_checkpointed_module(how: str) -> None:
    """A state dict goes from a plain model to a wrapped one and back: the wrapper has no part in it."""
    plain, other = layers(), layers()
    wrapped = wrap(how, layers())
    for parameter in plain.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    wrapped.load_state_dict(plain.state_dict())
    assert_same(list(wrapped.parameters()), list(plain.parameters()))
    other.load_state_dict(wrapped.state_dict())
    assert_same(list(other.parameters()), list(plain.parameters()))
    assert_same(trained(wrapped), trained(other))


class Keyworded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, a: torch.Tensor, b: torch.Tensor, *, c: dict | None = None) -> torch.Tensor:
        self.calls += 1
        return self.linear((a * b).sin()) + (0 if c is None else c["d"].exp())


@every_way
def test_checkpoint_wrapper_kwarg_support(how: str) -> None:
    """Arguments by position, by name and in a dict, and the gradients of all of them."""
    torch.manual_seed(0)
    module = Keyworded()
    wrapped = wrap(how, module)

    def run(f: Callable) -> list[torch.Tensor]:
        module.zero_grad()
        a, b, d = leaf(3, 8, seed=1), leaf(3, 8, seed=2), leaf(3, 8, seed=3)
        f(a, b=b, c={"d": d}).sum().backward()
        return [a.grad, b.grad, d.grad, *grads(module.parameters())]

    expected = run(module)
    module.calls = 0
    assert_same(run(wrapped), expected)
    assert module.calls == RUNS[how]


def test_checkpoint_wrapper_args_forwarded() -> None:
    """What the wrapper is given for checkpoint reaches it, and so does what it does not know."""
    f = wrap("rerun", nn.Identity(), determinism_check="sometimes")
    with pytest.raises(ValueError, match="determinism_check should be one of"):
        f(leaf(3))
    entered = []

    def contexts() -> tuple:
        entered.append(1)
        return create_selective_checkpoint_contexts([aten.mm.default])

    wrap("replay", nn.Linear(16, 16), context_fn=contexts)(leaf(4, 16)).sum().backward()
    assert entered == [1]
    wrapped = wrap("replay", nn.Identity())
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        wrapped(leaf(3), foo=1)


@every_way
def test_checkpoint_wrapper_parity(how: str) -> None:
    """By the wrapper and by hand: the same bytes are held, the same peak, the same gradients."""

    def measure(by_wrapper: bool) -> tuple[int, int, list[torch.Tensor]]:
        model = layers(4)
        steps = [
            wrap(how, step) if by_wrapper else partial(checkpoint, how, step) for step in model
        ]

        def run(x: torch.Tensor) -> torch.Tensor:
            for step in steps:
                x = step(x)
            return x

        with retape.memory.Meter() as meter:
            found = trained(model, run)
        return meter.held, meter.peak, found

    by_hand, by_wrapper = measure(False), measure(True)
    assert by_wrapper[:2] == by_hand[:2]
    assert_same(by_wrapper[2], by_hand[2])
    assert_same(by_wrapper[2], trained(layers(4)))


@every_way
def test_forward_missing_attributes(how: str) -> None:
    """Attributes, methods and items of the module are the wrapper's too."""

    class Module(nn.Sequential):
        answer = 42

        def ask(self) -> int:
            return self.answer

    wrapped = wrap(how, Module(nn.Linear(4, 4), nn.Tanh()))
    assert wrapped.answer == 42
    assert wrapped.ask() == 42
    assert isinstance(wrapped[0], nn.Linear)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = wrapped.nothing_of_the_kind


@every_way
@pytest.mark.parametrize("by_policy", [True, False])
def test_apply_activation_checkpointing(how: str, by_policy: bool) -> None:
    """Every module of a kind gets wrapped, chosen by a function or a wrap policy; it trains as before."""
    model = layers(3)
    expected = trained(model)
    choice = (
        {"auto_wrap_policy": ModuleWrapPolicy({nn.Linear})}
        if by_policy
        else {"check_fn": lambda module: isinstance(module, nn.Linear)}
    )
    apply_activation_checkpointing(model, checkpoint_wrapper_fn=partial(wrap, how), **choice)
    wrappers = [m for m in model.modules() if isinstance(m, CheckpointWrapper)]
    assert len(wrappers) == 6
    assert all(isinstance(w._checkpoint_wrapped_module, nn.Linear) for w in wrappers)
    calls = [0] * 6
    for i, wrapper in enumerate(wrappers):
        wrapper._checkpoint_wrapped_module.register_forward_pre_hook(
            lambda *_, i=i: calls.__setitem__(i, calls[i] + 1)
        )
    assert_same(trained(model), expected)
    assert calls == [RUNS[how]] * 6


@every_way
def test_fqn(how: str) -> None:
    """Names of parameters, of state and of buffers are those of the plain model."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    expected = [name for name, _ in model.named_parameters()]
    state = list(model.state_dict())
    model[1] = wrap(how, model[1])
    wrapped = wrap(how, model)
    assert [name for name, _ in wrapped.named_parameters()] == expected
    assert list(wrapped.state_dict()) == state


class Offloaded(torch.autograd.graph.saved_tensors_hooks):
    """save_on_cpu without a GPU: a copy, counted."""

    def __init__(self, packed: list) -> None:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tuple(tensor.shape))
            return tensor.detach().clone()

        super().__init__(pack, lambda tensor: tensor)


@with_a_graph
def test_checkpoint_wrapper_cpu_offload(how: str) -> None:
    """Offloading around checkpointed layers: only what lies between the layers is offloaded."""
    expected = trained(layers(3))
    model = layers(3)
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=partial(wrap, how),
        check_fn=lambda m: isinstance(m, nn.Sequential),
    )
    packed: list = []

    def run(x: torch.Tensor) -> torch.Tensor:
        with Offloaded(packed):
            return model(x)

    assert_same(trained(model, run), expected)
    assert (4, 32) not in packed, "an activation inside a layer was offloaded"
    plain: list = []

    def without(x: torch.Tensor) -> torch.Tensor:
        with Offloaded(plain):
            return layers(3)(x)

    trained(layers(3), without)
    assert plain.count((4, 32)) == 6


class Composable(nn.Module):
    """checkpoint as a property of the module: its forward is checkpointed, its class is its own."""

    def __init__(self, how: str | None, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(100, 100), nn.Linear(100, 100)
        self.dropout = nn.Dropout(dropout)
        if how is not None:
            self.forward = partial(checkpoint, how, self.forward)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        hidden = self.dropout(self.first(x).relu()).sin()
        out = self.second(hidden).tanh()
        return out if y is None else (out + y.exp(), out * y)


def _step(how: str | None, dropout: float = 0.0, second: bool = False) -> tuple[int, int, list]:
    module = Composable(how, dropout)
    x, y = leaf(20, 100, seed=1), leaf(20, 100, seed=2)
    torch.manual_seed(1)
    with retape.memory.Meter() as meter:
        out = module(x, y=y) if second else module(x)
        loss = sum(part.sum() for part in out) if second else out.sum()
        held = meter.current
    nodes = _graph_size(loss)
    loss.backward()
    return held, nodes, [loss, x.grad, *([y.grad] if second else []), *grads(module.parameters())]


def _graph_size(loss: torch.Tensor) -> int:
    seen, queue = {loss.grad_fn}, [loss.grad_fn]
    while queue:
        for node, _ in queue.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                queue.append(node)
    return len(seen)


@every_way
def test_tensor_only_cpu(how: str) -> None:
    """Less is held, gradients are the same. The graph is eager's, but for reentrant: one node."""
    held, nodes, expected = _step(None)
    ours, our_nodes, found = _step(how)
    assert ours < held / 2
    assert our_nodes < nodes if how == "reentrant" else our_nodes == nodes
    assert_same(found, expected)


@every_way
def test_random_cpu(how: str) -> None:
    """Random numbers in forward come out the same in backward."""
    _, _, expected = _step(None, dropout=0.5)
    assert not torch.equal(expected[1], _step(None)[2][1])
    assert_same(_step(how, dropout=0.5)[2], expected)


@every_way
def test_multi_args(how: str) -> None:
    """Two arguments, one by name, and two results."""
    assert_same(_step(how, second=True)[2], _step(None, second=True)[2])


class TwoProducts(nn.Module):
    """A layer of a transformer, as far as products go: four of them, two shapes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.wq, self.wo = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.w1 = nn.Linear(width, 2 * width, bias=False)
        self.w2 = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.wo(self.wq(x).sin()).sin()
        return x + self.w2(self.w1(x).sin()).sin()


def every_second_product() -> Callable:
    """torchtitan's: of the products every second one is saved."""
    count = 0

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        nonlocal count
        if op == aten.mm.default:
            count += 1
            if count % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


ROWS, WIDTH = 32, 64
FULL, SELECTIVE = "full", "selective"


def _titan(how: str | None, mode: str = FULL) -> tuple[int, int, list[torch.Tensor]]:
    """Bytes held after forward, flops of backward, gradients, of two such layers."""
    torch.manual_seed(0)
    model = nn.Sequential(TwoProducts(), TwoProducts())

    def options() -> dict:
        if mode == FULL:
            return {}
        return {"context_fn": partial(create_selective_checkpoint_contexts, every_second_product())}

    x = leaf(ROWS, WIDTH)
    with retape.memory.Meter() as meter:
        hidden = x
        for layer in model:
            hidden = layer(hidden) if how is None else checkpoint(how, layer, hidden, **options())
        loss = hidden.sum()
        held = meter.current
    with Flops() as flops:
        loss.backward()
    return held, flops.total, [loss, x.grad, *grads(model.parameters())]


@with_a_graph
def test_flops(how: str) -> None:
    """Backward multiplies least without checkpoints, most with full ones, between with selective;
    by exactly the products that were not saved."""
    plain, selective, full = (_titan(None)[1], _titan(how, SELECTIVE)[1], _titan(how)[1])
    one = 2 * ROWS * WIDTH * WIDTH
    assert plain == 2 * 2 * 6 * one
    assert full == plain + 2 * 6 * one  # wq, wo, w1, w2: 1 + 1 + 2 + 2 of them; sin needs w2
    assert selective == plain + 2 * 3 * one  # wo and w2


@with_a_graph
def test_mem(how: str) -> None:
    """Held after forward: least with full checkpoints, most without, between with selective."""
    plain, selective, full = (_titan(None)[0], _titan(how, SELECTIVE)[0], _titan(how)[0])
    row = ROWS * WIDTH * 4
    assert full < selective < plain
    assert selective - full == 2 * 3 * row  # wq and w1, of both layers


@with_a_graph
@pytest.mark.parametrize("mode", [FULL, SELECTIVE])
def test_correctness(how: str, mode: str) -> None:
    """Loss and all gradients are those of the model without checkpoints, bit for bit."""
    assert_same(_titan(how, mode)[2], _titan(None)[2])


def _recompute_by_shape(shape: tuple[int, ...]) -> Callable:
    """torchtitan's: products with a weight of this shape are never saved, others are."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        save = op == aten.mm.default and tuple(args[1].shape) != shape
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def test_force_recompute_mm_fqns() -> None:
    """A policy that looks at the weight of a product decides by the op's arguments, in replay and
    rerun. Replay has policies besides that decide by what comes out and where."""
    torch.manual_seed(0)
    layer = TwoProducts()
    shape = tuple(layer.w1.weight.t().shape)
    context_fn = partial(create_selective_checkpoint_contexts, _recompute_by_shape(shape))
    one = 2 * ROWS * WIDTH * WIDTH

    def run(call: Callable) -> tuple[int, list[torch.Tensor]]:
        layer.zero_grad()
        x = leaf(ROWS, WIDTH)
        loss = call(x).sum()
        with Flops() as flops:
            loss.backward()
        return flops.total, [x.grad, *grads(layer.parameters())]

    plain, expected = run(layer)

    for how in ("rerun", "replay"):
        flops, found = run(lambda x, how=how: checkpoint(how, layer, x, context_fn=context_fn))
        assert flops == plain + 2 * one  # w1
        assert_same(found, expected, how)

    def by_result(info: retape.ValueInfo) -> bool:
        return info.op == "aten::mm" and info.sizes[-1] != shape[-1]

    flops, found = run(lambda x: retape.checkpoint(layer, x, policy=by_result))
    assert flops == plain + 2 * one
    assert_same(found, expected)

    def by_name(info: retape.ValueInfo) -> bool:
        return info.op == "aten::mm" and info.region != "w1"

    def named(x: torch.Tensor) -> torch.Tensor:
        def w1(v: torch.Tensor) -> torch.Tensor:
            return retape.checkpoint(lambda u: layer.w1(u).sin(), v, policy=by_name, name="w1")

        x = x + layer.wo(layer.wq(x).sin()).sin()
        return x + layer.w2(w1(x)).sin()

    flops, found = run(lambda x: retape.checkpoint(named, x, policy=by_name))
    assert flops == plain + 2 * one
    assert_same(found, expected)
