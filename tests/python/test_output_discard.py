"""OutputDiscardCheckpoint gives what plain autograd gives: the probes that its models fail.

Each scenario (discard_scenarios.py) runs plain (the function is called, discard does nothing) and
with each backend. Results are compared bitwise; `freed` says how many bytes discard gave back, so that no
comparison is of plain autograd with itself. The names of the scenarios are those of
docs/output_discard.md.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.python.discard import (
    HIDDEN,
    Block,
    Counted,
    H,
    New,
    Plain,
    Result,
    equal,
    loss,
    with_backend,
)
from tests.python.discard_scenarios import FREED
from torch import Tensor, nn

import retape


@pytest.fixture(autouse=True)
def _counted() -> Iterator[None]:
    Counted.freed = 0
    yield
    assert torch.is_grad_enabled()


@pytest.fixture(params=["cpp", "python"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("scenario", FREED, ids=lambda scenario: scenario.__name__)
def test_gives_what_plain_autograd_gives(scenario: Callable[[New], Result], backend: str) -> None:
    plain = scenario(Plain)
    found = scenario(with_backend(backend))
    assert len(found) == len(plain)
    assert all(g.abs().max() > 0 for g in plain if isinstance(g, Tensor) and g.is_floating_point())
    assert [i for i, pair in enumerate(zip(plain, found, strict=True)) if not equal(*pair)] == []
    assert Counted.freed == FREED[scenario][0 if backend == "cpp" else 1]


# ---------------------------------------------------------------- where plain autograd raises


@contextlib.contextmanager
def says(text: str) -> Iterator[None]:
    with pytest.raises(RuntimeError, match=text):
        yield


def inplace_on_input_after(new: New) -> None:
    block = Block()
    x = block.x * 2
    z = block.forward(new, x)
    with torch.no_grad():
        x.mul_(3)
    loss(z).backward()


def param_changed_before_bwd(new: New) -> None:
    block = Block()
    wide = nn.Linear(HIDDEN, HIDDEN)
    z = block.forward(new, fn=lambda x: wide(block.inner(x)))
    with torch.no_grad():
        wide.weight.mul_(3)
    loss(z).backward()


def graph_freed(new: New) -> None:
    total = loss(Block().forward(new))
    total.backward()
    total.backward()


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        (inplace_on_input_after, "modified by an inplace operation"),
        (param_changed_before_bwd, "modified by an inplace operation"),
        (graph_freed, "backward through the graph a second time"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_raises_what_plain_autograd_raises(
    scenario: Callable[[New], None], text: str, backend: str
) -> None:
    with says(text):
        scenario(Plain)
    with says(text):
        scenario(with_backend(backend))
    assert Counted.freed == H


# ---------------------------------------------------------------- functions that are not the same twice


def _counter(change: Callable[[Tensor], Tensor]) -> Callable[[Block], Callable[[Tensor], Tensor]]:
    def make(block: Block) -> Callable[[Tensor], Tensor]:
        calls: list[int] = []

        def inner(x: Tensor) -> Tensor:
            calls.append(1)
            h = block.inner(x)
            return h if len(calls) == 1 else change(h)

        return inner

    return make


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nondeterministic_shape", lambda h: h[:1]),
        ("nondeterministic_dtype", lambda h: h.double()),
        ("nondeterministic_value", lambda h: h + 1),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_function_that_is_not_the_same_twice(
    name: str, change: Callable[[Tensor], Tensor], backend: str
) -> None:
    """The C++ backend never runs it twice; the Python one does, and notices."""

    def scenario(new: New) -> Result:
        block = Block()
        loss(block.forward(new, fn=_counter(change)(block))).backward()
        return block.grads()

    if backend == "python":
        with pytest.raises(retape.ReplayMismatch, match="did something else when it ran again"):
            scenario(with_backend(backend))
    else:
        assert all(map(equal, scenario(Plain), scenario(with_backend(backend))))
    assert Counted.freed == H


def test_module_hooks_run_once_where_the_function_does(backend: str) -> None:
    block = Block()
    calls: list[int] = []
    block.up.register_forward_hook(lambda *_: calls.append(1))
    loss(block.forward(with_backend(backend))).backward()
    assert len(calls) == {"cpp": 1, "python": 2}[backend]


def test_raise_in_recompute_then_retry(backend: str) -> None:
    armed = [False]

    def fragile(t: Tensor) -> Tensor:
        if armed.pop() if armed else False:
            raise MemoryError("the caller's own")
        return t.clone()

    with torch.library._scoped_library(f"retape_odc_{backend}", "FRAGMENT") as library:
        library.define("fragile(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
        library.impl("fragile", fragile, "CPU")
        retape.replayable(f"retape_odc_{backend}::fragile")
        op = getattr(torch.ops, f"retape_odc_{backend}").fragile

        def scenario(new: New, *, fails: bool) -> Result:
            block = Block()
            total = loss(block.forward(new, fn=lambda x: block.inner(x) * op(x.detach()).sum()))
            if fails:
                armed.append(True)
                with pytest.raises(MemoryError, match="the caller's own"):
                    total.backward(retain_graph=True)
                for tensor in [block.x, *block.up.parameters(), *block.down.parameters()]:
                    tensor.grad = None
            total.backward(retain_graph=True)
            return block.grads()

        plain = scenario(Plain, fails=False)
        assert all(map(equal, plain, scenario(with_backend(backend), fails=True)))
    assert Counted.freed == H


def test_leak_without_backward(backend: str) -> None:
    gc.collect()
    gc.disable()
    try:
        block = Block()
        ckpt = Counted(backend)
        with retape.memory.Meter() as meter:
            for discard in (True, False):
                h = ckpt.checkpoint(block.inner, block.x * 2)
                z = block.down(h)
                assert meter.current > 0
                if discard:
                    ckpt.discard_output_and_register_recompute(z)
                del h, z
                assert meter.current == 0
    finally:
        gc.enable()
    assert Counted.freed == H
