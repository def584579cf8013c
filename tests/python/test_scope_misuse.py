"""Scopes that are left in the wrong order raise, and leave the thread as if they were closed."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.python.as_eager import leaf
from tests.python.bits import assert_same_bits
from torch import Tensor

import retape

POLICIES = pytest.mark.parametrize("policy", ["none", "full", "cheap"])
NO_EXCEPTION = (None, None, None)
ROOT = Path(__file__).resolve().parents[2]

# Scopes that a failing test leaves open on its thread must not be destroyed by another.
_opened: list[retape._C.Scope] = []


def scope_of(policy: str) -> retape._C.Scope:
    _opened.append(retape.recompute(policy))
    return _opened[-1]


def on_its_own_thread(test: Callable[..., None]) -> Callable[..., None]:
    """Recording is a state of the thread: what a failing test leaves open ends with its thread."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, **arguments).result()

    return run


def chain(x: Tensor) -> Tensor:
    return (x * 2).sin().exp()


def assert_nothing_is_recorded(*scopes) -> None:
    """Ops are not counted by a scope, and autograd saves the tensor itself."""
    assert not retape.is_recording()
    before = [(s.stats.ops_recorded, s.stats.values_saved) for s in scopes]
    x = leaf(4)
    h = x * 2
    y = h.sin()
    assert y.grad_fn._saved_self is h
    assert [(s.stats.ops_recorded, s.stats.values_saved) for s in scopes] == before
    y.sum().backward()
    expected = leaf(4)
    (expected * 2).sin().sum().backward()
    assert_same_bits(x.grad, expected.grad)


def open_scopes(policy: str, count: int) -> list:
    scopes = [scope_of(policy) for _ in range(count)]
    for scope in scopes:
        scope.__enter__()
    return scopes


@POLICIES
@on_its_own_thread
def test_leaving_the_outer_scope_first_raises_and_ends_the_recording(policy: str) -> None:
    outer, inner = open_scopes(policy, 2)
    with pytest.raises(retape.UsageError, match="still open"):
        outer.__exit__(*NO_EXCEPTION)
    assert_nothing_is_recorded(outer, inner)


@POLICIES
@on_its_own_thread
def test_leaving_both_in_the_wrong_order_ends_the_recording(policy: str) -> None:
    outer, inner = open_scopes(policy, 2)
    with pytest.raises(retape.UsageError, match="still open"):
        outer.__exit__(*NO_EXCEPTION)
    with contextlib.suppress(retape.UsageError):
        inner.__exit__(*NO_EXCEPTION)
    assert_nothing_is_recorded(outer, inner)


@POLICIES
@on_its_own_thread
def test_leaving_the_outermost_of_three_ends_the_recording(policy: str) -> None:
    scopes = open_scopes(policy, 3)
    with pytest.raises(retape.UsageError, match="still open"):
        scopes[0].__exit__(*NO_EXCEPTION)
    assert_nothing_is_recorded(*scopes)


@POLICIES
@on_its_own_thread
def test_a_generator_that_holds_a_scope_open(policy: str) -> None:
    """The generator is suspended inside its scope when the scope around it is left."""
    inner = scope_of(policy)
    outer = scope_of(policy)

    def batches() -> Iterator[Tensor]:
        with inner:
            yield leaf(4)

    suspended = batches()
    with pytest.raises(retape.UsageError, match="still open"), outer:
        chain(next(suspended))
    assert_nothing_is_recorded(outer, inner)
    with contextlib.suppress(retape.UsageError):
        suspended.close()
    assert_nothing_is_recorded(outer, inner)


@POLICIES
@on_its_own_thread
def test_an_exit_stack_that_is_split(policy: str) -> None:
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    outer = first.enter_context(scope_of(policy))
    inner = second.enter_context(scope_of(policy))
    with pytest.raises(retape.UsageError, match="still open"):
        first.close()
    with contextlib.suppress(retape.UsageError):
        second.close()
    assert_nothing_is_recorded(outer, inner)


@POLICIES
@on_its_own_thread
def test_a_function_that_leaves_a_scope_open_inside_a_checkpoint(policy: str) -> None:
    inner = scope_of(policy)

    def careless(x: Tensor) -> Tensor:
        inner.__enter__()
        return chain(x)

    with pytest.raises(retape.UsageError, match="still open"):
        retape.checkpoint(careless, leaf(4))
    assert_nothing_is_recorded(inner)


@POLICIES
@on_its_own_thread
def test_an_exception_keeps_its_type_where_scopes_are_left_in_order(policy: str) -> None:
    outer, inner = scope_of(policy), scope_of(policy)
    with pytest.raises(ZeroDivisionError), outer, inner:
        chain(leaf(4)).mul(1 / 0)
    assert_nothing_is_recorded(outer, inner)


@POLICIES
@on_its_own_thread
def test_what_was_computed_before_the_error_has_the_bits_of_eager(policy: str) -> None:
    outer, inner = open_scopes(policy, 2)
    x = leaf(4)
    y = chain(x)
    with pytest.raises(retape.UsageError, match="still open"):
        outer.__exit__(*NO_EXCEPTION)
    y.sum().backward()
    expected = leaf(4)
    chain(expected).sum().backward()
    assert_same_bits(x.grad, expected.grad)
    assert_nothing_is_recorded(outer, inner)


@POLICIES
@on_its_own_thread
def test_a_new_scope_works_after_the_error(policy: str) -> None:
    outer, _ = open_scopes(policy, 2)
    with pytest.raises(retape.UsageError, match="still open"):
        outer.__exit__(*NO_EXCEPTION)
    x = leaf(4)
    with retape.recompute(policy) as scope:
        assert retape.is_recording()
        y = chain(x)
    assert not retape.is_recording()
    y.sum().backward()
    assert scope.stats.ops_recorded > 0 or policy == "none"
    assert_nothing_is_recorded(outer, scope)


@POLICIES
@on_its_own_thread
def test_a_scope_that_is_left_twice_is_closed(policy: str) -> None:
    (scope,) = open_scopes(policy, 1)
    scope.__exit__(*NO_EXCEPTION)
    with pytest.raises(retape.UsageError, match="closed already"):
        scope.__exit__(*NO_EXCEPTION)
    assert_nothing_is_recorded(scope)


@POLICIES
@on_its_own_thread
def test_the_error_on_one_thread_does_not_close_the_scopes_of_another(policy: str) -> None:
    errors: list[str] = []

    def misuse() -> None:
        outer, _ = open_scopes(policy, 2)
        try:
            outer.__exit__(*NO_EXCEPTION)
        except retape.UsageError as error:
            errors.append(str(error))

    with retape.recompute(policy) as scope:
        thread = threading.Thread(target=misuse)
        thread.start()
        thread.join()
        assert retape.is_recording()
    assert len(errors) == 1
    assert_nothing_is_recorded(scope)


# ---- scopes that are destroyed while they are open, in a process of its own since they may crash

OPENED = """
import threading, torch, retape
scopes = []

def ops():
    return (torch.ones(4, requires_grad=True) * 2).sin()

def opens():
    for _ in range(2):
        scopes.append(retape.recompute("full"))
        scopes[-1].__enter__()
    ops()

def destroys_in_a_scope_of_its_own():
    with retape.recompute("full"):
        ops()
        scopes.clear()
        assert retape.is_recording()
        ops()
    print("DONE")

def on_threads(*functions):
    for function in functions:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(
    "program",
    [
        # The second thread may have the id of the first, which has ended.
        "on_threads(opens, destroys_in_a_scope_of_its_own)",
        "on_threads(opens, scopes.clear)",
        "on_threads(opens, lambda: [scope.close() for scope in reversed(scopes)])",
        "on_threads(opens); scopes.clear()",
        "on_threads(opens, ops, opens, ops); scopes.clear()",
        "opens(); on_threads(scopes.clear)",
        "opens(); del scopes[0]; ops(); del scopes[0]; assert not retape.is_recording()",
        "opens(); del scopes[1]; ops(); del scopes[0]; assert not retape.is_recording()",
        "opens()",
    ],
)
def test_a_scope_that_is_destroyed_while_it_is_open_does_not_crash(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENED + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "AssertionError" not in done.stderr, (
        f"exit {done.returncode}\n{done.stderr[-2000:]}"
    )
