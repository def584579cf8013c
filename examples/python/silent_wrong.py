"""Code that torch.utils.checkpoint differentiates wrongly without a word, and what Retape does.

Each case runs three ways: plain, with torch's checkpoint (non-reentrant, defaults) and with
retape.checkpoint. "wrong" means: no error was raised and the result differs from plain.
Results are gradients, and where a case has side effects, what they left behind.
"""

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import retape


def rrelu(region: Callable) -> list:
    x = torch.linspace(-1, 1, 64).requires_grad_()
    region(nn.RReLU(), x).sum().backward()
    return [x.grad]


def private_generator(region: Callable) -> list:
    x, g = torch.ones(1000, requires_grad=True), torch.Generator().manual_seed(5)
    region(lambda v: v * torch.empty(1000).bernoulli_(0.5, generator=g), x).sum().backward()
    return [x.grad]


def python_random(region: Callable) -> list:
    random.seed(3)
    x = torch.ones(4, requires_grad=True)
    region(lambda v: (v * random.random()).sin(), x).sum().backward()
    return [x.grad]


def flag_changed_later(region: Callable) -> list:
    x, state = torch.ones(4, requires_grad=True), {"scale": 1.0}
    y = region(lambda v: (v * state["scale"]).sin(), x)
    state["scale"] = 2.0
    y.sum().backward()
    return [x.grad]


def branch_on_a_value(region: Callable) -> list:
    x, seen = torch.ones(4, requires_grad=True), torch.zeros(())

    def body(v):
        seen.add_(1)
        return v.exp() if seen.item() < 2 else v.tanh()

    region(body, x).sum().backward()
    return [x.grad]


def more_saved_the_second_time(region: Callable) -> list:
    x, calls = torch.ones(4, requires_grad=True), []

    def body(v):
        calls.append(1)
        return v.sin() if len(calls) == 1 else v.exp().sin()

    region(body, x).sum().backward()
    return [x.grad]


def buffer_updated(region: Callable) -> list:
    x, step = torch.ones(4, requires_grad=True), torch.zeros(())

    def body(v):
        step.add_(1)
        return (v * step.clone()).sin()

    region(body, x).sum().backward()
    return [x.grad, step]


def batch_norm_statistics(region: Callable) -> list:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm1d(4), torch.randn(16, 4, requires_grad=True)
    region(norm, x).square().sum().backward()
    return [x.grad, norm.running_mean, norm.num_batches_tracked]


def keyword_tensor_changed(region: Callable) -> list:
    x, w = torch.ones(4, requires_grad=True), torch.full((4,), 2.0)
    y = region(lambda v, w: (v * w).sin(), x, w=w)
    w.mul_(5)
    y.sum().backward()
    return [x.grad]


def tensor_in_a_list_changed(region: Callable) -> list:
    x, ws = torch.ones(4, requires_grad=True), [torch.full((4,), 2.0)]
    y = region(lambda v, ws: (v * ws[0]).sin(), x, ws)
    ws[0].mul_(5)
    y.sum().backward()
    return [x.grad]


def weight_stepped_before_backward(region: Callable) -> list:
    torch.manual_seed(0)
    linear, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    y = region(lambda v: linear(v).sin(), x)
    with torch.no_grad():
        linear.weight.add_(1)
    y.sum().backward()
    return [x.grad]


CASES = [
    rrelu,
    private_generator,
    python_random,
    flag_changed_later,
    branch_on_a_value,
    more_saved_the_second_time,
    buffer_updated,
    batch_norm_statistics,
    keyword_tensor_changed,
    tensor_in_a_list_changed,
    weight_stepped_before_backward,
]

WAYS = {
    "torch": partial(checkpoint, use_reentrant=False),
    "retape": retape.checkpoint,
}


def plain(fn: Callable, *args, **kwargs):
    return fn(*args, **kwargs)


def outcome(case: Callable, region: Callable) -> list | str:
    torch.manual_seed(11)
    try:
        return case(region)
    except RuntimeError:
        return "raises"


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    return left == right


def judge(expected: list | str, found: list | str) -> str:
    if isinstance(expected, str) or isinstance(found, str):
        return "raises" if isinstance(found, str) else "wrong"
    return "right" if all(map(same, expected, found)) else "wrong"


if __name__ == "__main__":
    print(f"{'':<34}{'plain':<10}{'torch':<10}retape")
    failed = []
    for case in CASES:
        expected = outcome(case, plain)
        verdicts = {way: judge(expected, outcome(case, region)) for way, region in WAYS.items()}
        wanted = "raises" if isinstance(expected, str) else "right"
        name = case.__name__.replace("_", " ")
        print(f"{name:<34}{wanted:<10}{verdicts['torch']:<10}{verdicts['retape']}")
        if verdicts["retape"] != wanted:
            failed.append(name)
    raise SystemExit(f"Retape differs from plain: {failed}" if failed else 0)
