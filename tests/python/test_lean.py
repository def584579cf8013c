"""Lean backward nodes as Python sees them: the graph looks like torch's own."""

from __future__ import annotations

import pytest
import torch
from tests.python.bits import same_bits

import retape


def product() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(64, 64, requires_grad=True)
    w = torch.randn(64, 64, requires_grad=True)
    with retape.recompute("none"):
        y = (x + 1).mm(w)
    return x, w, y


def test_a_lean_node_shows_itself_as_the_stock_node() -> None:
    x, w, y = product()
    stock = (x + 1).mm(w).grad_fn
    assert type(y.grad_fn) is type(stock)
    assert y.grad_fn.name() == "MmBackward0"
    assert same_bits(y.grad_fn._saved_self, (x + 1))
    assert same_bits(y.grad_fn._saved_mat2, w)
    assert [type(fn) for fn, _ in y.grad_fn.next_functions] == [
        type(fn) for fn, _ in stock.next_functions
    ]


def test_hooks_on_a_lean_node_run() -> None:
    _, _, y = product()
    seen = []
    y.grad_fn.register_hook(lambda made, came: seen.append((len(made), len(came))))
    y.grad_fn.register_prehook(lambda came: seen.append(len(came)))
    y.sum().backward()
    assert seen == [1, (2, 1)]


def test_what_a_lean_node_saved_is_gone_after_backward_as_torchs_is() -> None:
    _, _, y = product()
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time|already been freed"):
        y.sum().backward()


def test_lean_can_be_switched_off_for_a_scope_and_for_a_policy() -> None:
    assert "not lean" in retape.Policy.full().lean(False).describe()
    peaks = {}
    for lean in (True, False):
        x = torch.randn(512, 512, requires_grad=True)
        with retape.recompute("none", lean=lean):
            loss = torch.nn.functional.silu(x + 1).neg().sum()
        with retape.memory.Meter() as meter:
            loss.backward()
        peaks[lean] = meter.peak
    assert peaks[False] - peaks[True] == x.nbytes


@pytest.mark.parametrize("batched", [False, True])
def test_jacobians_and_batched_gradients_are_torchs(batched: bool) -> None:
    def jacobian(lean: bool) -> torch.Tensor:
        x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        with retape.recompute("full", lean=lean):
            y = (torch.nn.functional.silu(x.mm(x)) * x).softmax(-1).pow(2).sum(1)
        if batched:
            return torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True)[0]
        return torch.stack([torch.autograd.grad(y[i], x, retain_graph=True)[0] for i in range(4)])

    assert same_bits(jacobian(True), jacobian(False))


def test_anomaly_mode_names_the_line() -> None:
    x = torch.full((4, 4), -1.0, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="PowBackward0"):
        with retape.recompute("full"):
            y = (x * 2).pow(0.5).sum()
        y.backward()
