"""Lines of docs/limits.md that no other test shows, those that say "not noticed" among them."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import retape

DROP = retape.Policy.full().anchors(False)
ROOT = Path(__file__).parents[2]


def gradient(forward: Callable[[Tensor], Tensor], after: Callable[[], None], scope: bool) -> Tensor:
    x = torch.linspace(-1, 1, 8).requires_grad_()
    if scope:
        with retape.recompute(DROP):
            loss = forward(x)
    else:
        loss = forward(x)
    after()
    loss.backward()
    return x.grad


def nothing() -> None:
    pass


def is_right(make: Callable[[], tuple[Callable[[Tensor], Tensor], Callable[[], None]]]) -> bool:
    """Whether the recomputed gradient is plain autograd's."""
    plain, recomputed = (gradient(*make(), scope=scope) for scope in (False, True))
    return torch.equal(plain, recomputed)


def test_memory_from_empty_that_numpy_fills_is_kept() -> None:
    def make():
        def forward(x: Tensor) -> Tensor:
            filled = torch.empty(8)
            filled.numpy()[:] = 3
            return (x * filled).sin().sum()

        return forward, nothing

    assert is_right(make)


@pytest.mark.parametrize("announced", [False, True])
def test_a_recorded_result_that_numpy_changes_must_be_announced(announced: bool) -> None:
    def make():
        def forward(x: Tensor) -> Tensor:
            made = x.detach().exp()
            if announced:
                retape.will_write(made)
            made.numpy()[:] = 3
            return (x * made).sin().sum()

        return forward, nothing

    assert is_right(make) == announced


def test_apply_after_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: given.apply_(lambda y: y + 1)

    assert not is_right(make)


def test_numpy_after_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: given.numpy().fill(2)

    assert not is_right(make)


def test_a_write_after_a_scope_that_saw_only_data_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given.data).sin().sin().sum(), lambda: given.mul_(2)

    assert not is_right(make)


def test_data_that_is_written_after_the_scope_is_read_as_it_is_then() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: given.data.mul_(2)

    assert not is_right(make)


@pytest.mark.parametrize(
    "look", [lambda t: t, lambda t: t.expand(3, 8), lambda t: t.view(2, 4).mT.reshape(8), lambda t: t[None]]
)
def test_a_batch_norm_after_the_scope_does_not_reach_replay(look: Callable[[Tensor], Tensor]) -> None:
    def make():
        mean, var = torch.zeros(8), torch.ones(8)

        def after() -> None:
            F.batch_norm(torch.arange(16.0).view(2, 8), mean, var, training=True)

        return lambda x: (x + look(mean)).sin().sin().sum(), after

    assert is_right(make)


def mul_in_a_handler(tensor: Tensor) -> None:
    """Moves no version: torch decomposes the op below the kernels that would."""
    before = tensor._version
    with FlopCounterMode(display=False), torch.no_grad():
        torch._foreach_mul_([tensor], 2)
    assert tensor._version == before


def test_what_a_handler_writes_after_the_scope_is_not_noticed() -> None:
    def make():
        given = torch.ones(2, 8)
        return lambda x: (x + given).sin().sin().sum(), lambda: mul_in_a_handler(given)

    assert not is_right(make)


@pytest.mark.parametrize("write", [mul_in_a_handler, lambda t: t.data.mul_(2), lambda t: t.apply_(abs)])
def test_a_later_scope_sees_a_write_that_moves_no_version(write: Callable[[Tensor], object]) -> None:
    given = torch.full((2, 8), -1.0)
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(DROP):
        loss = (x + given).sin().sin().sum()
    with retape.recompute(DROP):
        write(given)
    with pytest.raises(retape.ReplayMismatch, match="aten::add read in forward.*inplace"):
        loss.backward()


def test_a_released_storage_is_not_gathered_again() -> None:
    given = torch.ones(2, 8)
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(DROP):
        loss = (x + given).sin().sin().sum()
    given.untyped_storage().resize_(0)
    with pytest.raises(retape.ReplayMismatch, match="aten::add"):
        loss.backward()


def test_integer_results_of_routing_are_kept() -> None:
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with retape.recompute(DROP) as scope:
        values, indices = x.sin().topk(2)
        loss = values.sum()
        del values, indices
    loss.backward()
    assert scope.stats.values_saved == 2  # x and the indices
    assert scope.stats.values_dropped == 0


def test_what_another_thread_makes_is_given() -> None:
    x = torch.linspace(-1, 1, 8).requires_grad_()
    with ThreadPoolExecutor(1) as pool, retape.recompute(DROP) as scope:
        pool.submit(lambda: x.sin().cos()).result()
    assert scope.stats.ops_recorded == 0


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\b(test_\w+)(?:::(\w+))?", (ROOT / "docs/limits.md").read_text()))
    assert len(named) > 20
    for module, test in named:
        (path,) = ROOT.glob(f"tests/*/{module}.py")
        assert not test or f"def {test}(" in path.read_text(), (module, test)
