"""Memory never above eager's: programs in which recording could hold what autograd does not need.

Every number is read from a Meter that was opened before the forward. A policy may hold at most what
plain autograd holds after forward, and may peak at most one window of results above its peak.
"""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import retape

KIB, MIB = 1 << 10, 1 << 20
POLICIES: dict[str, Callable[[], AbstractContextManager]] = {
    "none": lambda: retape.recompute("none"),
    "full": lambda: retape.recompute("full"),
    "cheap": lambda: retape.recompute("cheap"),
    "everything": lambda: retape.recompute(retape.Policy.full().anchors(False)),
}
SCOPES = pytest.mark.parametrize("scope", POLICIES.values(), ids=POLICIES)


@pytest.fixture(autouse=True)
def _no_cycle_collector() -> Iterator[None]:
    """What dies must die by reference counts alone, at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@dataclass
class Bytes:
    """Of one step: the peak, and what is there after forward and after backward."""

    peak: int
    held: int
    left: int


def measure(forward: Callable[[], Tensor], scope: Callable[[], AbstractContextManager]) -> Bytes:
    """`forward` returns a loss; all that it needs and that is not to be counted exists before."""
    with retape.memory.Meter() as meter:
        with scope():
            loss = forward()
        held = meter.current
        if loss.requires_grad:
            loss.backward()
        del loss
        return Bytes(meter.peak, held, meter.current)


def assert_as_small_as_eager(
    forward: Callable[[], Tensor], scope: Callable[[], AbstractContextManager], window: int
) -> None:
    measure(forward, nullcontext)  # what torch allocates once, gradients among it
    eager = measure(forward, nullcontext)
    ours = measure(forward, scope)
    assert ours.held <= eager.held, (ours, eager)
    assert ours.peak <= eager.peak + window, (ours, eager)
    assert ours.left <= eager.left, (ours, eager)


def mib(count: int = 1) -> Tensor:
    return torch.linspace(-1, 1, count * MIB // 4)


def leaf_of(t: Tensor) -> Tensor:
    t.requires_grad_()
    t.grad = torch.zeros_like(t)
    return t


# ---- stretches without gradient: nothing is saved, nothing is held


def ending(x: Tensor, teacher: Tensor) -> Tensor:
    return (x.sin() * teacher).sum()


def sins(t: Tensor) -> Tensor:
    for _ in range(60):
        t = t.sin()
    return t


@SCOPES
@pytest.mark.parametrize("guard", [torch.no_grad, nullcontext], ids=["no_grad", "constants"])
def test_a_chain_of_which_no_gradient_is_asked_holds_one_value(scope, guard) -> None:
    x, frozen = leaf_of(mib()), mib()

    def forward() -> Tensor:
        with guard():
            teacher = sins(frozen)
        return ending(x, teacher)

    assert_as_small_as_eager(forward, scope, 2 * MIB)


@SCOPES
def test_a_chain_under_no_grad_of_a_parameter_holds_one_value(scope) -> None:
    x = leaf_of(mib())

    def forward() -> Tensor:
        with torch.no_grad():
            teacher = sins(x)
        return ending(x, teacher)

    assert_as_small_as_eager(forward, scope, 2 * MIB)


@SCOPES
def test_a_chain_after_detach_holds_one_value(scope) -> None:
    x = leaf_of(mib())
    assert_as_small_as_eager(lambda: ending(x, sins(x.detach())), scope, 2 * MIB)


@SCOPES
def test_a_chain_that_alternates_with_a_trained_one(scope) -> None:
    x, frozen = leaf_of(mib()), mib()

    def forward() -> Tensor:
        h, t = x, frozen
        for _ in range(20):
            with torch.no_grad():
                t = t.sin().cos()
            h = h * t
        return h.sum()

    assert_as_small_as_eager(forward, scope, 2 * MIB)


@SCOPES
@pytest.mark.parametrize("kind", ["frozen", "no_grad"])
def test_a_frozen_backbone_under_a_trained_head(scope, kind: str) -> None:
    torch.manual_seed(0)
    layers = [
        layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())
    ]
    backbone, head = nn.Sequential(*layers), nn.Linear(128, 8)
    for parameter in backbone.parameters():
        parameter.requires_grad_(kind == "no_grad")
    for parameter in head.parameters():
        leaf_of(parameter)
    x = torch.randn(1024, 128)  # 512 KiB

    def forward() -> Tensor:
        with torch.no_grad() if kind == "no_grad" else nullcontext():
            features = backbone(x)
        return head(features).square().mean()

    assert_as_small_as_eager(forward, scope, 3 * 512 * KIB)


@SCOPES
def test_evaluation_in_the_middle_of_a_scope(scope) -> None:
    """A validation loop of many batches runs while the scope is open."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    for parameter in model.parameters():
        leaf_of(parameter)
    x = torch.randn(256, 64)

    def forward() -> Tensor:
        losses = []
        with torch.no_grad():
            for step in range(30):
                losses.append(model(x * step).square().mean())
        return model(x).square().mean() + torch.stack(losses).mean()

    assert_as_small_as_eager(forward, scope, 3 * 256 * KIB)


@SCOPES
def test_inside_inference_mode_a_chain_holds_one_value(scope) -> None:
    x, frozen = leaf_of(mib()), mib()

    def forward() -> Tensor:
        with torch.inference_mode():
            teacher = sins(frozen)
        return (x.sin() * teacher.clone()).sum()

    assert_as_small_as_eager(forward, scope, 3 * MIB)


# ---- state that is read and written in turn

ROWS, WIDTH = 64, 4096  # one row: 16 KiB, all rows: 1 MiB
ROW = WIDTH * 4


@SCOPES
def test_a_cache_that_is_read_and_written_in_turn_under_no_grad(scope) -> None:
    x, cache = leaf_of(torch.ones(WIDTH)), torch.zeros(ROWS, WIDTH)

    def forward() -> Tensor:
        total = torch.zeros(WIDTH)
        with torch.no_grad():
            for i in range(ROWS):
                cache[i] = x * i
                total = total + cache.sum(0)
        return (x * total).sum()

    assert_as_small_as_eager(forward, scope, 8 * ROW)


@SCOPES
def test_slices_of_a_cache_that_are_read_and_written_in_turn_with_gradients(scope) -> None:
    """Each read is of a slice that a later write leaves alone."""
    x, cache = leaf_of(torch.ones(WIDTH)), torch.zeros(ROWS, WIDTH)

    def forward() -> Tensor:
        h = x
        for i in range(ROWS):
            with torch.no_grad():
                cache[i] = h.detach()
            h = (h + cache[i]).tanh()
        return h.sum()

    assert_as_small_as_eager(forward, scope, 16 * ROW)


@SCOPES
def test_a_whole_cache_that_is_read_between_writes_of_slices(scope) -> None:
    x, cache = leaf_of(torch.ones(WIDTH)), torch.zeros(ROWS, WIDTH)

    def forward() -> Tensor:
        h = x
        for i in range(ROWS):
            with torch.no_grad():
                cache[i].copy_(h)
            h = (h + cache[: i + 1].mean(0)).tanh()
        return h.sum()

    # Without anchors the scope is one region, and comes back as a whole.
    is_one_region = scope is POLICIES["everything"]
    assert_as_small_as_eager(forward, scope, (ROWS if is_one_region else 16) * ROW)


@SCOPES
def test_a_scan_that_writes_its_states_with_gradients(scope) -> None:
    x = leaf_of(torch.ones(WIDTH))

    def forward() -> Tensor:
        states = torch.zeros(ROWS, WIDTH)
        h = x
        for i in range(ROWS):
            h = (h * 0.5 + x).tanh()
            states[i] = h
        return states.sum()

    assert_as_small_as_eager(forward, scope, 3 * ROWS * ROW)


@SCOPES
def test_a_scan_that_reads_the_state_it_wrote_with_gradients(scope) -> None:
    x = leaf_of(torch.ones(WIDTH))

    def forward() -> Tensor:
        states = torch.zeros(ROWS, WIDTH)
        for i in range(1, ROWS):
            states[i] = (states[i - 1] + x).tanh()
        return states.sum()

    assert_as_small_as_eager(forward, scope, 2 * ROWS * ROW)


@SCOPES
def test_running_statistics_that_many_layers_share(scope) -> None:
    x, mean = leaf_of(torch.ones(ROWS, WIDTH)), torch.zeros(ROWS, WIDTH)

    def forward() -> Tensor:
        h = x
        for _ in range(16):
            with torch.no_grad():
                mean.mul_(0.9).add_(h, alpha=0.1)
            h = h - mean.mean()
        return h.sum()

    assert_as_small_as_eager(forward, scope, 2 * MIB)


@SCOPES
def test_embedding_with_max_norm_many_times(scope) -> None:
    torch.manual_seed(0)
    weight = leaf_of(torch.randn(1024, 256))  # 1 MiB
    indices = [torch.arange(i, i + 16) for i in range(20)]

    def forward() -> Tensor:
        total = torch.zeros(())
        for rows in indices:
            total = total + F.embedding(rows, weight, max_norm=1.0).sum()
        return total

    assert_as_small_as_eager(forward, scope, 2 * MIB)


@SCOPES
def test_a_reader_that_is_gone_does_not_keep_the_written_tensor(scope) -> None:
    """The graph of each reading dies before the next write."""
    x, state = leaf_of(mib()), mib()

    def forward() -> Tensor:
        for _ in range(16):
            with torch.enable_grad():
                reading = (x + state).sin()
                del reading
            state.mul_(0.5)
        return (x * 2).sum()

    assert_as_small_as_eager(forward, scope, 2 * MIB)


# ---- a backward of which the graph lives on


@SCOPES
def test_a_backward_of_one_branch_gives_up_what_the_other_would_need(scope) -> None:
    x, y = leaf_of(mib()), leaf_of(mib())
    with retape.memory.Meter() as meter:
        with scope():
            shared = ((x * y).sin() * y).cos() * x
            losses = shared.exp().sum(), shared.tanh().sum()
            del shared
        held = meter.current
        losses[0].backward(retain_graph=True)
        assert meter.current == held


# ---- what recipes read and autograd does not save


@SCOPES
def test_a_batch_of_float64_of_which_a_float32_copy_is_saved(scope) -> None:
    weight = leaf_of(torch.ones(WIDTH))

    def forward() -> Tensor:
        return (
            torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH).float()
            * weight
        ).sum()

    assert_as_small_as_eager(forward, scope, 2 * ROWS * ROW)


@SCOPES
def test_rows_of_a_table_that_dies(scope) -> None:
    weight = leaf_of(torch.ones(WIDTH))

    def forward() -> Tensor:
        table = table_from_numpy()
        return (table[:2].sin() * weight).sum()

    assert_as_small_as_eager(forward, scope, ROWS * ROW)


def table_from_numpy() -> Tensor:
    """A tensor that no recipe makes: numpy did."""
    return torch.from_numpy(torch.ones(ROWS, WIDTH).numpy().copy())


# ---- a scope that stays open over many steps


@SCOPES
@pytest.mark.parametrize("backward", [True, False], ids=["with_backward", "without"])
def test_200_steps_inside_one_open_scope_stay_flat(scope, backward: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))
    for parameter in model.parameters():
        leaf_of(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, current = torch.ones(64, 32), []
    with retape.memory.Meter() as meter, scope():
        for _ in range(200):
            loss = model(x).square().mean()
            if backward:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            del loss
            current.append(meter.current)
        # The first steps may fill a window; what comes after must not add to it.
        assert max(current[100:]) <= max(current[:20]), current[::20]


@SCOPES
def test_200_steps_inside_one_open_scope_peak_no_higher_than_eager_plus_one_step(scope) -> None:
    size = 128 * KIB
    x = leaf_of(torch.linspace(-1, 1, size // 4))

    def peak_under(scope: Callable[[], AbstractContextManager]) -> int:
        with retape.memory.Meter() as meter, scope():
            for _ in range(200):
                h = x
                for _ in range(8):
                    h = h.sin()
                h.sum().backward()
                del h
            return meter.peak

    assert peak_under(scope) <= peak_under(nullcontext) + 8 * size


@SCOPES
def test_the_bytes_of_200_open_steps_are_gone_when_the_scope_closes(scope) -> None:
    x = leaf_of(mib())
    with retape.memory.Meter() as meter:
        with scope():
            for _ in range(200):
                x.sin().exp().sum().backward()
        assert meter.current == 0


class Mallinfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def heap_bytes() -> int:
    """That malloc has handed out on this thread's arena: records are not tensors."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    info = mallinfo()
    return info.uordblks + info.hblkhd


def checkpointed(x: Tensor) -> Tensor:
    return retape.checkpoint(torch.sin, x)


def rerun(x: Tensor) -> Tensor:
    return retape.checkpoint(torch.sin, x, method="rerun")


def scoped(x: Tensor) -> Tensor:
    with retape.recompute("full"):
        return x.sin()


def plainly(x: Tensor) -> Tensor:
    return x.sin().exp()


def without_gradient(x: Tensor) -> Tensor:
    return x.detach().sin().exp()


@SCOPES
@pytest.mark.parametrize("backward", [True, False], ids=["with_backward", "without"])
@pytest.mark.parametrize("call", [checkpointed, rerun, scoped, plainly, without_gradient])
def test_calls_in_an_open_scope_leave_no_records_behind(scope, call, backward: bool) -> None:
    x = leaf_of(torch.ones(4))

    def heap_after(calls: int) -> int:
        for _ in range(calls):
            y = call(x)
            if backward and y.requires_grad:
                y.sum().backward()
        return heap_bytes()

    with scope():
        heap_after(1500)
        # Tables are swept now and then, so the heap goes up and down: what counts is where it is lowest.
        early, late = (min(heap_after(1000) for _ in range(4)) for _ in range(2))
        assert (late - early) / 4000 <= 64  # bytes per call; pools grow in steps


# ---- results that are not replayed, and that autograd does not save

WIDTH, ROWS, OPERANDS = 64, 256, 4


@torch.library.custom_op("retape_memory_bounds::product", mutates_args=())
def custom_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


custom_product.register_autograd(
    lambda ctx, grad: (grad @ ctx.saved_tensors[0].T, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)
PRODUCTS = ["aten::mm"]
NOT_REPLAYED = {
    "full, products kept": (torch.mm, retape.Policy.full().keep_ops(PRODUCTS)),
    "no anchors, products kept": (torch.mm, retape.Policy.full().anchors(False).keep_ops(PRODUCTS)),
    "cheap, products kept": (torch.mm, retape.Policy.cheap().keep_ops(PRODUCTS)),
    "cheap": (torch.mm, retape.Policy.cheap()),
    "full, custom op": (custom_product, retape.Policy.full()),
    "no anchors, custom op": (custom_product, retape.Policy.full().anchors(False)),
    "cheap, custom op": (custom_product, retape.Policy.cheap()),
}


@pytest.mark.parametrize("depth", [12, 48, 96])
@pytest.mark.parametrize("product, policy", NOT_REPLAYED.values(), ids=NOT_REPLAYED)
def test_results_that_are_not_replayed_do_not_pile_up_while_the_scope_is_open(
    product: Callable[[Tensor, Tensor], Tensor], policy: retape.Policy, depth: int
) -> None:
    """Frozen weights with a low-rank pair each: of the products autograd saves the narrow one alone."""
    torch.manual_seed(0)
    layers = [
        (
            torch.rand(WIDTH, WIDTH) / WIDTH,
            leaf_of(torch.rand(WIDTH, 2)),
            leaf_of(torch.rand(2, WIDTH)),
        )
        for _ in range(depth)
    ]
    x = torch.rand(ROWS, WIDTH)

    def forward() -> Tensor:
        h = x
        for weight, down, up in layers:
            h = (product(h, weight) + product(h @ down, up.detach()) + h @ down @ up).relu()
        return h.sum()

    def measured(scope: AbstractContextManager) -> tuple[int, Bytes]:
        peaks = []
        with retape.memory.Meter() as meter:
            step = measure(lambda: (forward(), peaks.append(meter.peak))[0], lambda: scope)
        return peaks[0], step

    scope = retape.recompute(policy)
    peak_of_plain, plain = measured(nullcontext())
    peak_of_forward, under = measured(scope)
    activation = x.nbytes
    window = scope.stats.window_bytes + OPERANDS * activation
    assert scope.stats.window_bytes <= 16 * activation  # however deep
    assert under.held <= plain.held
    assert peak_of_forward <= peak_of_plain + window
    # Where results are replayed from such roots, backward holds these and what one segment brings back.
    # Without anchors the whole is one segment.
    anchored = "no anchors" not in repr(policy)
    segment = math.sqrt(2 * depth) * activation if anchored else plain.held
    assert under.peak <= plain.peak + window + segment


# ---- something small lives on from each step of an open scope

OPEN_POLICIES: dict[str, Callable[[], AbstractContextManager]] = POLICIES | {
    "full, keeps products": lambda: retape.recompute(
        retape.Policy.full().keep_ops(["aten::addmm"])
    ),
    "cheap, keeps products": lambda: retape.recompute(
        retape.Policy.cheap().keep_ops(["aten::addmm"])
    ),
}
LIVES_ON: dict[str, Callable[[list[Tensor], Tensor], None]] = {
    "a list of losses": lambda kept, loss: kept.append(loss.detach()),
    "a running total": lambda kept, loss: kept.__setitem__(
        slice(None), [sum(kept) + loss.detach()]
    ),
    "nothing": lambda kept, loss: None,
}


@pytest.mark.parametrize("scope", OPEN_POLICIES.values(), ids=OPEN_POLICIES)
@pytest.mark.parametrize("live_on", LIVES_ON.values(), ids=LIVES_ON)
@pytest.mark.parametrize("how", ["trained", "no_grad", "checkpointed"])
def test_400_steps_inside_one_open_scope_of_which_a_number_lives_on(scope, live_on, how) -> None:
    """One step's results are 64 KiB each: what stays of 400 steps is a few of them."""
    x, layer = torch.ones(64, 256), nn.Linear(256, 256)

    def model(x: Tensor) -> Tensor:
        return layer(x).sin().mean()

    def measured(around: AbstractContextManager) -> tuple[int, int]:
        kept: list[Tensor] = []
        for p in layer.parameters():
            p.grad = torch.zeros_like(p)
        with retape.memory.Meter() as meter:
            with around:
                for _ in range(400):
                    if how == "no_grad":
                        with torch.no_grad():
                            live_on(kept, model(x))
                        continue
                    loss = retape.checkpoint(model, x) if how == "checkpointed" else model(x)
                    loss.backward()
                    live_on(kept, loss)
                    del loss
                held = meter.current
            return held, meter.peak

    measured(nullcontext())
    held, peak = measured(nullcontext())
    ours_held, ours_peak = measured(scope())
    window = 8 * 64 * KIB
    assert ours_held <= held + window, (ours_held, held)
    assert ours_peak <= peak + window, (ours_peak, peak)


def moving_average(x: Tensor) -> Tensor:
    state, h = torch.zeros(512, 256), x
    for _ in range(20):
        state.mul_(0.9).add_(h.detach(), alpha=0.1)
        h = (h - state * state).tanh() * state.mean()
    return h.sum()


def test_a_rule_for_an_op_that_never_comes_changes_nothing() -> None:
    """Naming ops to drop is obeyed for these ops alone: all else is weighed as ever."""
    x = leaf_of(torch.ones(512, 256))
    for policy in (retape.Policy.full(), retape.Policy.cheap()):
        plainly = measure(lambda: moving_average(x), lambda policy=policy: retape.recompute(policy))
        named = policy.drop_ops(["aten::mm"])
        assert (
            measure(lambda: moving_average(x), lambda named=named: retape.recompute(named))
            == plainly
        )


@SCOPES
def test_a_moving_average_that_every_step_overwrites(scope) -> None:
    """Each version is read and then overwritten: as many copies as what autograd saves. A scope without
    anchors replays all of it at once, beside the copies (docs/limits.md)."""
    x = leaf_of(torch.ones(512, 256))
    everything = scope is POLICIES["everything"]
    assert_as_small_as_eager(lambda: moving_average(x), scope, (22 if everything else 6) * x.nbytes)
