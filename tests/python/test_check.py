"""RETAPE_CHECK and check_every: digests of what forward made, compared with what replay makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy
import pytest
import torch

import retape


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    before = retape.check_every()
    yield
    retape.check_every(before)


def changed_unseen() -> torch.Tensor:
    """A loss whose backward replays from an input that numpy has changed since forward."""
    memory = numpy.ones((4, 8), dtype=numpy.float32)
    given = torch.from_numpy(memory)  # made inside the scope, it would be copied
    w = torch.full((4, 8), 0.5, requires_grad=True)
    with retape.recompute("full", name="block"):
        loss = (given * 2 + w).sin().cos().sum()  # saves more than it was given
    memory[0, 0] = 7
    return loss


def test_unchecked_a_change_past_the_dispatcher_is_not_noticed() -> None:
    retape.check_every(0)
    changed_unseen().backward()


def test_checked_it_raises_and_names_op_region_values_and_a_fix() -> None:
    retape.check_every(1)
    with pytest.raises(retape.ReplayMismatch) as raised:
        changed_unseen().backward()
    text = str(raised.value)
    for part in ('region "block"', "aten::mul", "element 0 was 2 and is now 14", "Fix:"):
        assert part in text


def step(w: torch.Tensor) -> None:
    """Two regions, so that a step is not a scope."""
    with retape.recompute("full"):
        h = (w * 2).sin()
    with retape.recompute("full"):
        loss = (h * 3).cos().sum()
    del h
    loss.backward()


def test_every_third_step_is_checked_with_all_its_regions() -> None:
    w = torch.rand(8, requires_grad=True)
    retape.check_every(3)
    checked = []
    for _ in range(7):
        before = retape.check_stats().values_checked
        step(w)
        checked.append(retape.check_stats().values_checked - before)
    assert retape.check_stats().steps == 7
    assert [count > 0 for count in checked] == [True, False, False, True, False, False, True]
    assert checked[0] == checked[3] == checked[6] >= 2


def test_an_observer_tells_a_write_past_the_dispatcher_from_memory_that_was_lost() -> None:
    w = torch.full((4, 8), 0.5, requires_grad=True)
    with retape._C.Observer() as observer:
        with retape.recompute("full"):
            h = w * 2
            h.detach().numpy()[0, 0] = 9  # as a kernel of one's own would
            loss = (h + 1).sin().sum()
        del h
        loss.backward()
    finding = observer.findings[0]
    assert (finding.kind, finding.op) == ("changed unseen", "aten::add.Tensor")
    assert "past the dispatcher" in finding.what
    assert finding.source.startswith("test_check.py:")


@pytest.mark.parametrize("folder", ["torch", "retape"])
def test_a_line_of_the_users_is_told_wherever_their_folders_lie(folder, tmp_path) -> None:
    file = tmp_path / folder / "model.py"
    code = (
        "def forward(w):\n    h = w * 2\n    h.detach().numpy()[0] = 9\n    return (h + 1).sin()\n"
    )
    names: dict = {}
    exec(compile(code, str(file), "exec"), names)
    with retape._C.Observer() as observer:
        with retape.recompute("full"):
            loss = names["forward"](torch.full((4,), 0.5, requires_grad=True)).sum()
        loss.backward()
    assert observer.findings[0].source == "model.py:4 in forward"


def test_a_graph_that_dies_does_not_count_as_a_step() -> None:
    retape.check_every(5)
    with retape.recompute("full"):
        loss = (torch.rand(4, requires_grad=True) * 2).sin().sum()
    del loss
    assert retape.check_stats().steps == 0


def test_gradients_of_a_checked_step_are_the_same() -> None:
    torch.manual_seed(0)
    w = torch.rand(8, requires_grad=True)
    grads = []
    for every in (0, 1):
        retape.check_every(every)
        w.grad = None
        step(w)
        grads.append(w.grad.clone())
    assert torch.equal(*grads)


def test_what_a_storage_holds_beyond_its_tensor_is_not_compared() -> None:
    x = torch.rand(3, 3, 32, requires_grad=True)
    retape.check_every(1)
    for _ in range(5):
        with retape.recompute("full"):
            scale = torch.nn.functional.mse_loss(x, 0 * x)  # one number, in a larger storage
            scale.mul_(0.75)
            loss = (x / (scale.abs() + 1)).mean()
        del scale
        loss.backward()


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ("1", 0, "1"),
        ("0", 0, "0"),
        ("", 0, "0"),
        ("18446744073709551615", 0, "18446744073709551615"),
        ("often", 1, "RETAPE_CHECK=100"),
        ("-3", 1, 'got "-3"'),
        (" -5", 1, 'got " -5"'),
        (" 5", 1, 'got " 5"'),
        ("+5", 1, 'got "+5"'),
        ("5 ", 1, 'got "5 "'),
        ("18446744073709551616", 1, "below 2^64"),
    ],
)
def test_the_environment_sets_it(value: str, code: int, said: str) -> None:
    program = (
        "import torch, retape\n"
        "with retape.recompute('full'):\n    torch.ones(2, requires_grad=True).sin()\n"
        "print(retape.check_every())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RETAPE_CHECK": value},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
