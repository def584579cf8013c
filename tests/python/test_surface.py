"""The Python surface: the scope, its statistics, policies, checkpoint, the meter, and errors."""

import contextlib
import gc
import threading
import time
import weakref

import pytest
import torch
from tests.python.bits import assert_same_bits
from torch import nn

import retape
from retape import _torch_version

DROP = retape.Policy.full().anchors(False)
STATS = (
    "ops_recorded values_saved values_kept values_dropped bytes_kept bytes_given bytes_dropped "
    "anchors bytes_anchored ops_replayed"
).split()


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().exp().tanh().sum()


def gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(chain(x), x)[0]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_scope_counts_what_it_did(x: torch.Tensor) -> None:
    with retape.recompute(DROP, name="block") as rec:
        loss = chain(x)
    before = {name: getattr(rec.stats, name) for name in STATS}
    assert before["ops_recorded"] == 5
    assert before["values_saved"] == before["values_kept"] + before["values_dropped"] == 3
    assert before["bytes_dropped"] == 3 * x.nbytes
    assert before["ops_replayed"] == 0
    loss.backward()
    assert rec.stats.ops_replayed == 4
    assert_same_bits(x.grad, gradient(x.detach().requires_grad_()), "x.grad")


@pytest.mark.parametrize("timed", [True, False])
def test_time_in_replay_is_counted_where_it_is_asked_for(timed: bool, x: torch.Tensor) -> None:
    with retape.recompute(DROP, timed=timed) as rec:
        loss = chain(x)
    assert rec.stats.replay_ns == 0
    start = time.monotonic_ns()
    loss.backward()
    whole = time.monotonic_ns() - start
    assert rec.stats.ops_replayed > 0
    assert (0 < rec.stats.replay_ns <= whole) if timed else rec.stats.replay_ns == 0


@pytest.mark.parametrize("policy", ["none", "full", "cheap", DROP, lambda info: "drop"])
def test_policies_by_name_value_or_function(policy: object, x: torch.Tensor) -> None:
    with retape.recompute(policy):
        loss = chain(x)
    loss.backward()
    assert_same_bits(x.grad, gradient(x.detach().requires_grad_()), "x.grad")


def test_function_is_told_what_it_decides_on(x: torch.Tensor) -> None:
    seen = []

    def decide(info: retape.ValueInfo) -> bool:
        seen.append((info.op, info.overload, info.region, info.sizes, info.dtype, info.bytes))
        return True

    with retape.recompute(decide, name="here"):
        (x @ x).sin()
    assert seen == [
        ("aten::mm", "", "here", (8, 8), torch.float32, 256),
        ("aten::sin", "", "here", (8, 8), torch.float32, 256),
    ]


def test_exception_of_a_policy_function_is_the_users_own(x: torch.Tensor) -> None:
    class Mine(Exception):
        pass

    def decide(info: retape.ValueInfo) -> bool:
        raise Mine

    with pytest.raises(Mine), retape.recompute(decide):
        x.sin()
    assert not retape.is_recording()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: retape.recompute("ful"), 'no policy is called "ful"'),
        (lambda: retape.recompute(3), "expected a policy name, a Policy or a function, got int"),
        (lambda: retape.Policy.full().keep_ops(["aten::mmm"]), 'did you mean "aten::'),
        (lambda: retape.Policy.full().drop_ops(["aten::linear"]), "composite op"),
    ],
)
def test_bad_policies_are_usage_errors(make: object, text: str) -> None:
    with pytest.raises(retape.UsageError, match=text):
        make()


def test_errors_are_runtime_errors() -> None:
    assert issubclass(retape.Error, RuntimeError)
    assert issubclass(retape.UsageError, retape.Error)
    assert issubclass(retape.ReplayMismatch, retape.Error)


def test_scope_closed_out_of_order_says_so_and_closes_both(x: torch.Tensor) -> None:
    outer, inner = retape.recompute(DROP), retape.recompute(DROP)
    outer.__enter__()
    inner.__enter__()
    loss = chain(x)
    with pytest.raises(retape.UsageError, match="still open"):
        outer.close()
    assert not retape.is_recording()
    for scope in (inner, outer):
        with pytest.raises(retape.UsageError, match="closed already"):
            scope.close()
    loss.backward()
    assert_same_bits(x.grad, gradient(x.detach().requires_grad_()), "x.grad")


def test_scope_closed_on_another_thread_says_so() -> None:
    scope = retape.recompute(DROP)
    caught = []

    def close() -> None:
        with contextlib.suppress(SystemExit):
            try:
                scope.close()
            except retape.UsageError as error:
                caught.append(str(error))

    with scope:
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
    assert "another thread" in caught[0]


def test_scope_is_used_once() -> None:
    scope = retape.recompute(DROP)
    with scope:
        pass
    with pytest.raises(retape.UsageError, match="opened before"), scope:
        pass


def test_users_exception_closes_the_scope(x: torch.Tensor) -> None:
    with pytest.raises(KeyError), retape.recompute(DROP):
        chain(x)
        raise KeyError("mine")
    assert not retape.is_recording()


def test_tensor_changed_in_place_raises_what_eager_raises(x: torch.Tensor) -> None:
    def broken() -> None:
        h = x * 2
        loss = h.sin().sum()
        h.mul_(3)
        loss.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation") as eager:
        broken()
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as ours:
        with retape.recompute(DROP):
            broken()
    assert "version 1; expected version 0" in str(eager.value)
    assert "version 1; expected version 0" in str(ours.value)


def test_given_tensor_changed_after_the_scope_is_a_replay_mismatch(x: torch.Tensor) -> None:
    given = torch.ones(8, 8)
    with retape.recompute(DROP, name="block"):
        loss = (x + given).sin().sum()
    given.add_(1)
    with pytest.raises(retape.ReplayMismatch, match='region "block".*modified by an inplace'):
        loss.backward()


@pytest.mark.parametrize(
    "make", [lambda: torch.rand(8, 8), lambda: torch.rand_like(torch.ones(8, 8))]
)
def test_factory_result_changed_after_the_scope_is_noticed(make: object, x: torch.Tensor) -> None:
    """Python's factories wrap their result anew; the version counter that counts is the last one."""

    def gradient_of(scope: object) -> torch.Tensor:
        torch.manual_seed(0)
        with scope:
            noise = make()
            loss = (x * noise.double().float()).sum()
        noise.fill_(7)
        return torch.autograd.grad(loss, x)[0]

    plain = gradient_of(contextlib.nullcontext())
    assert_same_bits(gradient_of(retape.recompute(DROP)), plain, "x.grad")


def test_graph_already_freed_raises_what_eager_raises(x: torch.Tensor) -> None:
    with retape.recompute(DROP):
        loss = chain(x)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_other_torch_is_refused_with_both_versions() -> None:
    _torch_version.check("2.13.1+cu130")
    with pytest.raises(ImportError, match=r"expected 2\.13, got 2\.12\.0"):
        _torch_version.check("2.12.0")


def test_checkpoint_takes_what_the_function_takes(x: torch.Tensor) -> None:
    calls = []

    def block(a: torch.Tensor, *, scale: float, extras: dict) -> dict:
        calls.append(1)
        return {"y": (a * scale).sin().exp() + extras["b"], "n": None}

    b = torch.randn(8, 8, requires_grad=True)
    out = retape.checkpoint(block, x, scale=1.5, extras={"b": b})
    assert out["n"] is None
    out["y"].sum().backward()
    assert calls == [1]
    y = x.detach().requires_grad_()
    ((y * 1.5).sin().exp() + b.detach()).sum().backward()
    assert_same_bits(x.grad, y.grad, "x.grad")
    assert_same_bits(b.grad, torch.ones(8, 8), "b.grad")


def test_checkpoint_without_gradients_is_a_plain_call(x: torch.Tensor) -> None:
    with torch.no_grad():
        assert retape.checkpoint(retape.is_recording) is False
    assert retape.checkpoint(retape.is_recording) is True


@pytest.mark.parametrize("backward", [True, False])
def test_graphs_die_by_themselves(backward: bool, x: torch.Tensor) -> None:
    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a.exp())
            return a.clone()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    class Sentinel:
        pass

    gc.disable()
    try:
        for policy in ("none", "full", "cheap", DROP):
            with retape.recompute(policy):
                y = Mark.apply((x * 2).sin()).exp()
                sentinel = Sentinel()
                y.grad_fn.metadata["sentinel"] = sentinel
                alive = weakref.ref(sentinel)
                loss = y.sum()
            if backward:
                loss.backward()
            del y, loss, sentinel
            assert alive() is None, policy
    finally:
        gc.enable()


def test_python_functions_saved_tensors_can_be_read_twice(x: torch.Tensor) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a, a.sin())
            return a * 3

        @staticmethod
        def backward(ctx, g):
            first, second = ctx.saved_tensors
            again, _ = ctx.saved_tensors
            return g * first * again + second

    y = x.detach().requires_grad_()
    Twice.apply(y * 2).sin().sum().backward()
    with retape.recompute(DROP) as rec:
        loss = Twice.apply(x * 2).sin().sum()
    loss.backward()
    assert rec.stats.values_dropped > 0
    assert_same_bits(x.grad, y.grad, "x.grad")


def test_users_own_hooks_inside_the_scope_win(x: torch.Tensor) -> None:
    packed = []
    with retape.recompute(DROP) as rec:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            loss = chain(x)
    assert len(packed) == 3
    assert rec.stats.values_saved == 0
    loss.backward()
    assert_same_bits(x.grad, gradient(x.detach().requires_grad_()), "x.grad")


def test_scope_inside_the_users_hooks_wins(x: torch.Tensor) -> None:
    with torch.autograd.graph.save_on_cpu(), retape.recompute(DROP) as rec:
        loss = chain(x)
    assert rec.stats.values_dropped == 3
    loss.backward()
    assert_same_bits(x.grad, gradient(x.detach().requires_grad_()), "x.grad")


def test_torch_func_stays_eager(x: torch.Tensor) -> None:
    with retape.recompute(DROP) as rec:
        got = torch.func.grad(chain)(x.detach())
        rows = torch.func.vmap(torch.func.grad(chain))(x.detach())
    assert rec.stats.values_dropped == 0
    assert_same_bits(got, gradient(x), "grad")
    assert_same_bits(rows, gradient(x), "vmap(grad)")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_torchs_own_checkpoint_goes_on_working(use_reentrant: bool, x: torch.Tensor) -> None:
    def torch_checkpoint(f, v):
        return torch.utils.checkpoint.checkpoint(f, v, use_reentrant=use_reentrant)

    expected = gradient(x)
    with retape.recompute(DROP):
        inside = torch_checkpoint(chain, x)
    outside = torch_checkpoint(lambda v: retape.checkpoint(chain, v), x)
    for loss in (inside, outside):
        x.grad = None
        loss.backward()
        assert_same_bits(x.grad, expected, "x.grad")


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_still_finds_the_nan(x: torch.Tensor) -> None:
    with torch.autograd.set_detect_anomaly(True):
        with retape.recompute(DROP):
            loss = (x.detach().requires_grad_().abs() * 0).sqrt().mul(0).sum()
        with pytest.raises(RuntimeError, match="SqrtBackward0.*nan values"):
            loss.backward()


def test_settings_of_forward_hold_in_replay(x: torch.Tensor) -> None:
    """Deterministic algorithms and oneDNN are put back around each replayed op."""
    seen = []

    def probe(t: torch.Tensor) -> torch.Tensor:
        seen.append((torch.are_deterministic_algorithms_enabled(), torch._C._get_mkldnn_enabled()))
        return t.clone()

    library = torch.library.Library("retape_tests", "DEF")
    library.define("probe(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    library.impl("probe", probe, "CPU")
    retape.replayable("retape_tests::probe")
    with torch.backends.mkldnn.flags(enabled=False), retape.recompute(DROP) as rec:
        torch.use_deterministic_algorithms(True)
        try:
            loss = ((x * 2) * torch.ops.retape_tests.probe(x.detach() * 3)).sin().sum()
        finally:
            torch.use_deterministic_algorithms(False)
    loss.backward()
    assert rec.stats.ops_replayed > 0
    assert seen == [(True, False)] * 2
    assert torch.backends.mkldnn.enabled
    assert not torch.are_deterministic_algorithms_enabled()


def test_custom_op_without_the_compliance_tag_is_not_called_again(x: torch.Tensor) -> None:
    calls = []

    def count(t: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return t.clone()

    library = torch.library.Library("retape_tests_untagged", "DEF")
    library.define("count(Tensor x) -> Tensor")
    library.impl("count", count, "CPU")
    with retape.recompute(DROP):
        loss = ((x * 2) * torch.ops.retape_tests_untagged.count(x.detach())).sin().sum()
    loss.backward()
    assert calls == [1]


def test_modules_and_optimizers_train_bit_for_bit() -> None:
    def train(policy: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(10):
            data = torch.randn(32, 16)
            scope = retape.recompute(policy) if policy else contextlib.nullcontext()
            with scope:
                loss = (model(data) - data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [*model.state_dict().values(), torch.get_rng_state()]

    plain = train(None)
    for policy in ("none", "full", "cheap"):
        for a, b in zip(plain, train(policy), strict=True):
            assert_same_bits(a, b, policy)


def test_meter_reads_after_its_block(x: torch.Tensor) -> None:
    with retape.memory.Meter(timeline=True) as m:
        y = torch.ones(1000)
        del y
        chain(x).backward()
    assert m.peak >= 4000
    assert m.current == x.nbytes
    assert {event.phase for event in m.timeline} == {"forward", "backward"}
    assert "aten::sin" in {event.op for event in m.timeline}
    with pytest.raises(retape.UsageError, match="not opened"):
        _ = retape.memory.Meter().peak


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a build without CUDA says")
def test_meter_of_a_device_that_is_not_there_says_so() -> None:
    with pytest.raises(retape.UsageError, match="no caching allocator for cuda"):
        retape.memory.Meter(device="cuda:0").__enter__()


def test_compiled_autograd_gets_an_error_that_says_what_to_do(x: torch.Tensor) -> None:
    with retape.recompute("full"):
        y = x.sin().exp().sum()
    enable = torch._dynamo.compiled_autograd._enable
    with (
        pytest.raises(RuntimeError, match=r"cannot trace replay\. Fix: run this backward without"),
        enable(torch.compile(backend="eager")),
    ):
        y.backward()
    y.backward()
    assert x.grad is not None
