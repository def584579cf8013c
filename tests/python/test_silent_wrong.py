"""Cases in which torch.utils.checkpoint returns wrong gradients, or repeats side effects, in silence.

Each case is a small program that takes `way`: how a region of forward is run. Under Retape it must
show, bit for bit, what plain eager shows, or raise the error that eager raises. `torch_differs` says
that torch.utils.checkpoint(use_reentrant=False) does not, so that the case is known to bite.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.python.bits import assert_same_bits, same_bits
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import retape

Way = Callable[..., Any]
Case = Callable[[Way], Any]
INPLACE = "modified by an inplace operation"


def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def by_torch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)


def by_scope(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with retape.recompute(retape.Policy.full().anchors(False)):
        return function(*args, **kwargs)


WAYS = pytest.mark.parametrize("way", [retape.checkpoint, by_scope], ids=["checkpoint", "scope"])


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32).requires_grad_()


def run(case: Case, way: Way) -> Any:
    torch.manual_seed(0)
    random.seed(0)
    return case(way)


def check(case: Case, way: Way, *, torch_differs: bool = True) -> None:
    """The same result as eager. With `torch_differs`, torch.utils.checkpoint has another."""
    expected = run(case, plain)
    assert_same_bits(run(case, way), expected, case.__name__)
    if torch_differs:
        try:
            assert not same_bits(run(case, by_torch), expected), "torch is right: no longer a case"
        except RuntimeError:
            return  # CheckpointError: not silent, and still not the gradient


def check_raises(case: Case, way: Way, *, torch_is_silent: bool = True) -> None:
    with pytest.raises(RuntimeError, match=INPLACE):
        run(case, plain)
    with pytest.raises(RuntimeError, match=INPLACE):
        run(case, way)
    if torch_is_silent:
        run(case, by_torch)


# ---- random numbers


@WAYS
def test_noise_of_rrelu_is_the_noise_of_forward(way: Way) -> None:
    """Where noise is not replayed, it is memory that no one wrote: NaN in deterministic mode."""

    def case(way: Way) -> Any:
        x = leaf(64, 64)
        torch.use_deterministic_algorithms(True)
        try:
            y = way(lambda x: F.rrelu(x * 1.5, training=True), x)
            y.sum().backward()
        finally:
            torch.use_deterministic_algorithms(False)
        return y.detach(), x.grad, torch.get_rng_state()

    check(case, way)


@WAYS
def test_a_private_generator_is_replayed_and_moves_once(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(1000)
        g = torch.Generator().manual_seed(3)

        def masked(x: torch.Tensor) -> torch.Tensor:
            mask = torch.empty(1000).bernoulli_(0.5, generator=g)
            return (x * mask).sin() * mask

        way(masked, x).sum().backward()
        return x.grad, g.get_state()

    check(case, way)


@WAYS
def test_python_random_is_drawn_once(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(8)
        way(lambda x: (x * random.random()).sin(), x).sum().backward()
        return x.grad, random.getstate()

    check(case, way)


@WAYS
def test_the_default_generator_is_left_where_forward_left_it(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(32, 32)
        y = way(lambda x: F.dropout(x.sin(), 0.5).cos(), x)
        torch.rand(3)
        before = torch.get_rng_state()
        y.sum().backward()
        return x.grad, before, torch.get_rng_state()

    check(case, way, torch_differs=False)


# ---- tensors that change between forward and backward: eager raises


@WAYS
def test_a_keyword_tensor_changed_after_forward_raises_as_eager_does(way: Way) -> None:
    def case(way: Way) -> Any:
        x, w = leaf(4), leaf(4, seed=1).detach()
        y = way(lambda x, w: (x * w).sin(), x, w=w)
        w.mul_(3)
        y.sum().backward()
        return x.grad

    check_raises(case, way)


@WAYS
def test_a_tensor_in_a_list_changed_after_forward_raises_as_eager_does(way: Way) -> None:
    def case(way: Way) -> Any:
        x, w = leaf(4), leaf(4, seed=1).detach()
        y = way(lambda x, ws: (x * ws[0]).sin(), x, [w])
        w.mul_(3)
        y.sum().backward()
        return x.grad

    check_raises(case, way)


@WAYS
def test_a_weight_that_stepped_before_backward_raises_as_eager_does(way: Way) -> None:
    def case(way: Way) -> Any:
        x, layer = leaf(3, 4), nn.Linear(4, 4)
        y = way(lambda x: layer(x).tanh(), x)
        layer(x.detach()).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        y.sum().backward()
        return x.grad

    check_raises(case, way)


@WAYS
def test_a_saved_output_changed_in_place_raises_as_eager_does(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(4)
        y = way(lambda x: (x * 2).exp(), x)
        y.mul_(2)
        y.sum().backward()
        return x.grad

    check_raises(case, way, torch_is_silent=False)


# ---- state outside the arguments


@WAYS
def test_a_captured_number_that_changes_does_not_change_the_gradient(way: Way) -> None:
    def case(way: Way) -> Any:
        x, config = leaf(4), {"scale": 1.0, "flag": True}

        def body(x: torch.Tensor) -> torch.Tensor:
            return (x * config["scale"]).sin() if config["flag"] else x.exp()

        y = way(body, x)
        config.update(scale=2.0, flag=False)
        y.sum().backward()
        return x.grad

    check(case, way)


@WAYS
def test_a_buffer_that_the_region_updates_moves_once(way: Way) -> None:
    def case(way: Way) -> Any:
        x, buffer = leaf(4), torch.zeros(4)

        def body(x: torch.Tensor) -> torch.Tensor:
            buffer.add_(1)
            return (x * 1.0 + buffer.clone()).sin()

        way(body, x).sum().backward()
        return x.grad, buffer

    check(case, way)


@WAYS
def test_a_counter_and_a_cache_are_written_once(way: Way) -> None:
    def case(way: Way) -> Any:
        x, calls, cache = leaf(2, 3), [0], [torch.ones(1, 3)]

        def body(x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            cache[0] = torch.cat([cache[0], x.detach()])
            return x * cache[0].softmax(0).sum()

        way(body, x).sin().sum().backward()
        return x.grad, calls, cache

    check(case, way)


@WAYS
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d], ids=["batch", "instance"])
def test_running_statistics_move_once(way: Way, kind: type[nn.Module]) -> None:
    def case(way: Way) -> Any:
        x = leaf(4, 3, 5)
        norm = kind(3, affine=True, track_running_stats=True)
        y = way(lambda x: norm(x * 1.5).sin(), x)
        y.sum().backward()
        return x.grad, norm.weight.grad, dict(norm.named_buffers())

    check(case, way)


@WAYS
def test_a_branch_on_item_is_not_taken_again(way: Way) -> None:
    def case(way: Way) -> Any:
        x, threshold = leaf(4), torch.zeros(())

        def body(x: torch.Tensor) -> torch.Tensor:
            return (x * 1.5).exp() if threshold.item() < 1 else (x * 1.5).tanh()

        y = way(body, x)
        threshold.fill_(2)
        y.sum().backward()
        return x.grad

    check(case, way)


@WAYS
def test_code_that_would_save_more_the_second_time_runs_once(way: Way) -> None:
    def case(way: Way) -> Any:
        x, calls = leaf(4), [0]

        def body(x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            y = x.exp() if calls[0] > 1 else x
            return y.sin()

        way(body, x).sum().backward()
        return x.grad

    check(case, way)


@WAYS
def test_strides_that_would_change_the_second_time_do_not_matter(way: Way) -> None:
    """The second call would read the same storage transposed: same shape, other elements."""

    def case(way: Way) -> Any:
        x, calls = leaf(4, 4), [0]

        def body(x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return (x.T if calls[0] > 1 else x).sin()

        y = way(body, x)
        strides = y.stride()
        y.sum().backward()
        return x.grad, strides

    check(case, way)


@WAYS
def test_forward_hooks_run_once(way: Way) -> None:
    def case(way: Way) -> Any:
        x, layer, events = leaf(3, 4), nn.Linear(4, 4), []
        layer.register_forward_pre_hook(lambda *_: events.append("before"))
        layer.register_forward_hook(lambda *_: events.append("after"))
        way(lambda x: layer(x).sin() * 2, x).sum().backward()
        return x.grad, events

    check(case, way)


@WAYS
def test_looking_at_a_saved_tensor_does_not_run_the_function(way: Way) -> None:
    def case(way: Way) -> Any:
        x, calls = leaf(4), [0]

        def body(x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return (x * 1.5).sin()

        y = way(body, x)
        looks = [y.grad_fn._saved_self.detach().clone() for _ in range(3)]
        y.sum().backward()
        return looks, x.grad, calls

    check(case, way)


@WAYS
@pytest.mark.parametrize(
    ("first", "then"),
    [(torch.float32, torch.float64), (torch.float16, torch.bfloat16)],
    ids=["wider", "as_wide"],
)
def test_a_new_default_dtype_does_not_reach_replay(
    way: Way, first: torch.dtype, then: torch.dtype
) -> None:
    def case(way: Way) -> Any:
        x = leaf(4)
        try:
            torch.set_default_dtype(first)
            y = way(lambda x: (x * torch.full((4,), 0.3) + torch.ones(4)).sin(), x)
            torch.set_default_dtype(then)
            y.sum().backward()
        finally:
            torch.set_default_dtype(torch.float32)
        return x.grad

    check(case, way)


@WAYS
def test_eval_between_forward_and_backward_does_not_reach_replay(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(6, 4)
        layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh(), nn.BatchNorm1d(4))
        y = way(layers, x)
        layers.eval()
        y.square().sum().backward()
        return x.grad, [p.grad for p in layers.parameters()], dict(layers.named_buffers())

    check(case, way)


@WAYS
def test_autocast_and_attention_choice_are_those_of_forward(way: Way) -> None:
    def case(way: Way) -> Any:
        x, w = leaf(2, 2, 8, 16), leaf(16, 16, seed=1)

        def body(x: torch.Tensor) -> torch.Tensor:
            q = x @ w
            return F.scaled_dot_product_attention(q, q, x.to(q.dtype)).float()

        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            y = way(body, x)
        y.sin().sum().backward()
        return x.grad, w.grad

    check(case, way)


# ---- asked more than once


class ReadsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (ctx.saved_tensors[0] + ctx.saved_tensors[0])


@WAYS
def test_saved_tensors_may_be_read_twice(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(4)
        way(lambda x: ReadsTwice.apply(x * 1.5), x).sum().backward()
        return x.grad

    check(case, way)


@WAYS
def test_two_losses_double_backward_and_retained_graphs_replay_the_same_noise(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(16)
        y = way(lambda x: F.dropout((x * 1.5).tanh(), 0.5).sin(), x)
        y.sum().backward(retain_graph=True)
        y.square().sum().backward(retain_graph=True)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.square().sum().backward()
        return x.grad, first.detach(), torch.get_rng_state()

    check(case, way, torch_differs=False)


@WAYS
def test_an_in_place_change_of_its_own_input_works_as_in_eager(way: Way) -> None:
    def case(way: Way) -> Any:
        x = leaf(4)

        def body(h: torch.Tensor) -> torch.Tensor:
            h.mul_(2)
            return h.sin()

        h = x + 1
        way(body, h).sum().backward()
        return x.grad, h.detach()

    check(case, way)


@WAYS
def test_what_was_made_from_a_version_that_an_unused_graph_saved_does_not_see_later_ones(
    way: Way,
) -> None:
    def case(way: Way) -> Any:
        x, given, alive = leaf(2, 4), torch.linspace(0, 1, 64), []

        def body(x: torch.Tensor) -> torch.Tensor:
            h = x * given[:4]  # of which a tape has to hold all
            alive.append((h, h.sin()))  # which saves h; no gradient will flow there
            y = (h * 2).exp().sin() + (h * 3).exp().sin()
            with torch.no_grad():
                h.zero_()
            return y

        way(body, x).sum().backward()
        return x.grad

    check(case, way, torch_differs=False)
