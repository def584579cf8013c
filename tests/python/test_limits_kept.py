"""Lines of docs/limits.md on what comes back, where Retape stands aside and rows, that no other test shows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import retape

DROP = retape.Policy.full().anchors(False)


def leaf(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape).requires_grad_()


class Saves(torch.autograd.Function):
    """x times a number; saves `other`, and hands what comes back to `seen`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: list[Tensor], seen: list[Any]) -> Tensor:
        ctx.save_for_backward(
            other[0]
        )  # in a list: torch takes no nested tensors as arguments here
        ctx.seen = seen
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.seen.append(ctx.saved_tensors[0])
        return grad * 2, None, None


# ---------------------------------------------------------------- identity


@pytest.mark.parametrize("policy", ["none", DROP], ids=["none", "full"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_attribute_that_is_set_after_the_save_is_lost(policy: object, when: str) -> None:
    x, seen = leaf(8), []
    with retape.recompute(policy):
        h = x.sin()
        if when == "before":
            h.tag = 7
        loss = Saves.apply(x, [h], seen).sum()
        if when == "after":
            h.tag = 7
    loss.backward()
    assert torch.equal(seen[0], h)
    assert hasattr(seen[0], "tag") == (policy == "none" or when == "before")


def test_a_look_at_a_saved_tensor_brings_it_back_until_the_graph_is_freed() -> None:
    x = torch.ones(1 << 16, requires_grad=True)
    with retape.memory.Meter() as meter:
        with retape.recompute(DROP):
            y = x.sin().cos()
        held = meter.current
        assert torch.equal(y.grad_fn._saved_self, x.sin())
        gc.collect()
        assert meter.current == held + x.nbytes
        y.sum().backward()
        x.grad = None
        assert meter.current == held  # y alone


class Scaled(nn.Module):
    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() * self.scale


@pytest.mark.parametrize("enabled", [False, True])
def test_a_replica_of_data_parallel_of_an_enabled_layer_calls_the_original(enabled: bool) -> None:
    model = nn.Sequential(Scaled())
    if enabled:
        retape.enable(model, layers="*")
    replica = model[0]._replicate_for_data_parallel()  # what nn.DataParallel calls for every device
    replica.scale = 100.0
    x = leaf(8)
    assert torch.equal(replica(x), x.sin() if enabled else x.sin() * 100)


# ---------------------------------------------------------------- where Retape stands aside


class Wrapper(Tensor):
    """Has a plain tensor inside."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*(x.inner if isinstance(x, Wrapper) else x for x in args), **(kwargs or {}))
        return cls(result) if isinstance(result, Tensor) else result


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "sparse": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.as_nested_tensor([x[:1], x[1:]]),
    "jagged": lambda x: torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "wrapper": lambda x: Wrapper(x).sin(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tensor_that_is_not_plain_is_kept(kind: str) -> None:
    x, row, seen = leaf(3, 4), torch.linspace(-1, 1, 4), []
    with retape.recompute(DROP) as scope:
        made = KINDS[kind](row.expand(3, 4) * 2)
        loss = Saves.apply(x, [made], seen).sum()
        saved = type(made), made.layout, made.dtype
        del made
    loss.backward()
    assert (type(seen[0]), seen[0].layout, seen[0].dtype) == saved
    dropped = kind == "plain"
    assert (scope.stats.values_dropped > 0) == (scope.stats.ops_replayed > 0) == dropped


def test_plain_tensors_inside_a_wrapper_are_recorded() -> None:
    x = leaf(8)
    with retape.recompute(DROP) as scope:
        inside = Wrapper(x.detach()).sin().cos().inner
        loss = (x.exp() * inside).sum()
    del inside
    loss.backward()
    assert scope.stats.values_dropped == 2
    assert scope.stats.ops_replayed == 3  # exp, and both inside
    assert torch.equal(x.grad, x.detach().sin().cos() * x.detach().exp())


def test_everything_is_kept_where_mutation_of_saved_tensors_is_allowed() -> None:
    def dropped() -> int:
        with retape.recompute(DROP) as scope:
            leaf(8).sin().cos().exp().sum().backward()
        return scope.stats.values_dropped

    assert dropped() > 0
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        assert dropped() == 0


def jagged_region(use: str, offsets: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    def region(a: Tensor, b: Tensor) -> Tensor:
        rows = [a * 2, b.sin()]
        if offsets is None:
            n = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        else:
            n = torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets)
        return {
            "return": lambda: n,
            "sin": lambda: n.sin(),
            "unbind": lambda: torch.cat(n.unbind()),
        }[use]()

    return region


def jagged_gradients(call: Callable[..., Tensor], region: Callable[..., Tensor]) -> list[Tensor]:
    a, b = leaf(2, 4), leaf(3, 4)
    y = call(region, a, b)
    (torch.cat(y.unbind()) if y.is_nested else y).cos().sum().backward()
    return [a.grad, b.grad]


def plain(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@pytest.mark.parametrize("given_offsets", [False, True])
@pytest.mark.parametrize("use", ["return", "sin", "unbind"])
def test_a_jagged_tensor_that_a_second_run_makes(use: str, given_offsets: bool) -> None:
    offsets = torch.tensor([0, 2, 5]) if given_offsets else None
    region = jagged_region(use, offsets)
    rerun = partial(retape.checkpoint, method="rerun")
    expected = jagged_gradients(plain, region)
    torch.testing.assert_close(
        jagged_gradients(retape.checkpoint, region), expected, rtol=0, atol=0
    )
    if use == "return" or given_offsets:
        torch.testing.assert_close(jagged_gradients(rerun, region), expected, rtol=0, atol=0)
    else:
        with pytest.raises(RuntimeError, match=r"shapes? .*\bj\d+"):
            jagged_gradients(rerun, region)


@pytest.mark.parametrize(("backend", "drops"), [("aot_eager", True), ("inductor", False)])
def test_what_a_compiled_region_saves(backend: str, drops: bool) -> None:
    compiled = torch.compile(lambda x, w: ((x @ w).sin().cos() @ w).exp(), backend=backend)

    def gradients(policy: object) -> tuple[list[Tensor], Any]:
        x, w = leaf(8, 8), leaf(8, 8)
        with retape.recompute(policy) as scope:
            loss = compiled(x, w).sum()
        loss.backward()
        return [x.grad, w.grad], scope.stats

    found, stats = gradients(DROP)
    expected, _ = gradients("none")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert stats.values_saved > 2
    assert (stats.values_dropped > 0) == (stats.ops_replayed > 0) == drops


def test_ops_that_a_higher_order_op_runs_are_recorded() -> None:
    x = leaf(8)
    with retape.recompute(DROP) as scope:
        torch.cond(torch.tensor(True), lambda x: x.sin().cos().exp(), lambda x: x.cos(), (x,))
        assert scope.stats.ops_recorded >= 3


ROUTES: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda h: h.topk(2).indices,
    "sort": lambda h: h.sort().indices,
    "argsort": lambda h: h.argsort(),
    "argmax": lambda h: h.argmax(0, keepdim=True),
    "max": lambda h: h.max(0, keepdim=True).indices,
    "median": lambda h: h.median(0, keepdim=True).indices,
    "kthvalue": lambda h: h.kthvalue(2, keepdim=True).indices,
    "multinomial": lambda h: h.abs().multinomial(2),
    "bucketize": lambda h: torch.bucketize(h, torch.linspace(-1, 1, 7)),
    "a comparison": lambda h: (h > 0).long(),  # routes nothing
}


@pytest.mark.parametrize("route", ROUTES)
def test_integer_results_of_routing_are_kept(route: str) -> None:
    x, seen = leaf(8), []
    with retape.recompute(DROP) as scope:
        indices = ROUTES[route](x.detach().sin())
        loss = Saves.apply(x, [indices], seen).sum()
        del indices
    loss.backward()
    assert seen[0].dtype == torch.int64
    assert scope.stats.values_dropped == (route == "a comparison")


def test_what_another_thread_makes_is_given() -> None:
    x = leaf(8)
    with ThreadPoolExecutor(1) as pool, retape.recompute(DROP) as scope:
        made = pool.submit(lambda: x.detach().sin().cos()).result()
        assert scope.stats.ops_recorded == 0
        loss = (x * made).sum()
    del made
    loss.backward()
    assert torch.equal(x.grad, x.detach().sin().cos())
    assert scope.stats.ops_replayed == 0


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("rows", [None, 4])
def test_a_hook_on_what_a_sliced_function_put_elsewhere_misses_the_result(rows: int | None) -> None:
    elsewhere: list[Tensor] = []
    called: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        elsewhere.append((x * 2).sin())
        return elsewhere[0]

    y = retape.checkpoint(function, leaf(8, 4), rows=rows)
    elsewhere[0].register_hook(called.append)
    y.sum().backward()
    assert len(called) == (rows is None)


@pytest.mark.parametrize("rows", [None, 4])
def test_a_check_compares_nothing_of_a_sliced_call(rows: int | None) -> None:
    before = retape.check_stats().values_checked
    retape.check_every(1)
    try:
        retape.checkpoint(lambda x: (x * 2).sin().cos(), leaf(8, 4), rows=rows).sum().backward()
    finally:
        retape.check_every(0)
    assert (retape.check_stats().values_checked > before) == (rows is None)


def test_a_weight_of_bmm_has_its_gradient_made_anew_for_every_slice() -> None:
    def peak_and_gradient(product: Callable[[Tensor, Tensor], Tensor]) -> tuple[int, Tensor]:
        x, w = leaf(2, 32, 256), leaf(256, 256)
        rows = retape.Rows(8, strict=True)
        with retape.memory.Meter() as meter:
            loss = retape.checkpoint(lambda x: product(x, w).sin(), x, rows=rows).sum()
            meter.reset_peak()
            loss.backward()
            assert rows.stats.sliced == 1
            return meter.peak, w.grad

    of_mm, expected = peak_and_gradient(torch.matmul)
    of_bmm, found = peak_and_gradient(lambda x, w: torch.einsum("bsd,df->bsf", x, w))
    torch.testing.assert_close(found, expected)
    assert of_bmm >= of_mm + found.nbytes // 2
