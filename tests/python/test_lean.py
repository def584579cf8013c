"""Lean backward nodes as Python sees them: the graph looks like torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
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
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="PowBackward0"),
    ):
        with retape.recompute("full"):
            y = (x * 2).pow(0.5).sum()
        y.backward()


Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def leaves_of(
    shape: tuple[int, ...], channels: tuple[int, ...], dtype: torch.dtype, of: torch.dtype
):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).requires_grad_()
    weight = torch.randn(channels).to(of).requires_grad_()
    bias = torch.randn(channels).to(of).requires_grad_()
    return x, weight, bias


def backward_of(step: Step, leaves: tuple[torch.Tensor, ...], lean: bool) -> tuple[list, int]:
    """Gradients and the peak of backward. The gradient of `y` is a product, and nobody else's."""
    with retape.recompute("none", lean=lean):
        y = step(leaves[0] + 1, *leaves[1:])
        factor = torch.linspace(-1, 1, y.numel()).to(y.dtype).view_as(y)
        loss = (y * factor).sum()
        del y
    with retape.memory.Meter() as meter:
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return list(gradients), meter.peak


def assert_lean_gives_stocks_bits(step: Step, *leaves: torch.Tensor) -> None:
    stock, _ = backward_of(step, leaves, lean=False)
    lean, _ = backward_of(step, leaves, lean=True)
    for a, b in zip(stock, lean, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (same_bits(a, b) and a.stride() == b.stride())


DTYPES = [
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),  # as under autocast
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "of"), DTYPES)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((1, 5), 1),
        ((7, 1), 1),
        ((33, 17), 1),
        ((300, 64), 1),
        ((5, 6, 4, 9), 2),
        ((6, 40), 2),
        ((3, 4099), 1),
    ],
)
def test_layer_norm_in_slices_has_stocks_bits(
    shape: tuple[int, ...], dims: int, dtype: torch.dtype, of: torch.dtype, threads: int
) -> None:
    leaves = leaves_of(shape, shape[-dims:], dtype, of)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_lean_gives_stocks_bits(lambda x, w, b: F.layer_norm(x, w.shape, w, b), *leaves)
        assert_lean_gives_stocks_bits(lambda x, w, b: F.layer_norm(x, w.shape, w), *leaves)
        assert_lean_gives_stocks_bits(lambda x, w, b: F.layer_norm(x, w.shape), *leaves)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("dtype", "of"), DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (6, 5),
        (4, 40, 6),
        (3, 7, 5, 9),
        (2, 33, 16, 16),
        (1, 5, 3, 3, 3),
        (8, 3, 1, 2),
        (4, 6, 1, 1),
    ],
)
def test_batch_norm_in_slices_has_stocks_bits(
    shape: tuple[int, ...], dtype: torch.dtype, of: torch.dtype, training: bool
) -> None:
    leaves = leaves_of(shape, shape[1:2], dtype, of)

    def step(x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor:
        mean, var = (torch.linspace(0.5, 1.5, shape[1]).to(of) for _ in range(2))
        return F.batch_norm(x, mean, var, w, b, training)

    assert_lean_gives_stocks_bits(step, *leaves)
    assert_lean_gives_stocks_bits(lambda x, w, b: step(x, None, None), *leaves)
    if training:
        assert_lean_gives_stocks_bits(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True), *leaves
        )
    if len(shape) == 4:
        last = leaves[0].detach().to(memory_format=torch.channels_last).requires_grad_()
        assert_lean_gives_stocks_bits(step, last, *leaves[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((7,), 0),
        ((64, 1), 1),
        ((33, 17), 1),
        ((4, 50257), 1),
        ((1000, 33), 0),
        ((4, 129, 257), 1),
        ((2, 40000, 3), 1),
    ],
)
def test_log_softmax_over_its_gradient_has_stocks_bits(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    leaves = leaves_of(shape, (1,), dtype, dtype)
    assert_lean_gives_stocks_bits(lambda x, w, b: x.log_softmax(dim), *leaves)
    assert_lean_gives_stocks_bits(lambda x, w, b: x.log_softmax(dim, torch.float32), *leaves)


NORMS = {
    "log_softmax": (lambda x, w, b: x.log_softmax(-1), 1.0),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), 15 / 16),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), 2 - 4 / 16),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_take_less_memory(name: str) -> None:
    step, saves = NORMS[name]
    shape, channels = ((8, 64, 512), (64,)) if name == "batch_norm" else ((512, 512), (512,))
    leaves = leaves_of(shape, channels, torch.float32, torch.float32)
    _, stock = backward_of(step, leaves, lean=False)
    _, lean = backward_of(step, leaves, lean=True)
    assert stock - lean == pytest.approx(saves * leaves[0].nbytes, abs=16384)


@pytest.mark.parametrize("name", NORMS)
def test_norms_compute_what_is_asked_for_and_can_be_asked_again(name: str) -> None:
    step, _ = NORMS[name]
    x, w, b = leaves_of((16, 16, 16), (16,), torch.float64, torch.float64)

    def gradients(lean: bool) -> list[torch.Tensor]:
        with retape.recompute("full", lean=lean):
            loss = (
                (step(x + 1, w, b).neg() * torch.linspace(-1, 1, 4096).double().view_as(x))
                .pow(2)
                .sum()
            )
        asked = [(w,), (b,), (x,), (x, b)] if name != "log_softmax" else [(x,), (x,)]
        made = [grad for of in asked for grad in torch.autograd.grad(loss, of, retain_graph=True)]
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return [*made, first, *torch.autograd.grad(first.square().sum(), x)]

    for a, c in zip(gradients(False), gradients(True), strict=True):
        assert same_bits(a, c)


@pytest.mark.parametrize("name", NORMS)
def test_norms_do_not_write_over_a_gradient_that_somebody_gave(name: str) -> None:
    step, _ = NORMS[name]
    x, w, b = leaves_of((16, 16, 16), (16,), torch.float32, torch.float32)
    with retape.recompute("none"):
        y = step(x + 1, w, b)
    given = torch.ones_like(y)
    y.backward(given)
    assert bool(given.eq(1).all())


# Of the input of a norm, [6, 40, 6, 8]: how it lies in memory.
LAID = {
    "contiguous": lambda x: x + 1,
    "transposed": lambda x: x.transpose(0, 2) + 1,
    "a view with gaps": lambda x: (x + 1).repeat_interleave(2, 3)[..., ::2],
    "expanded": lambda x: (x[:1] + 1).expand(6, 40, 6, 8),
    "channels last": lambda x: (x + 1).to(memory_format=torch.channels_last),
    "a part of a larger one": lambda x: torch.cat([x, x])[2:8],
}

# What comes back to it.
COMES = {
    "fresh": lambda y, f: (y * f).sum(),
    "zero strides": lambda y, f: y.sum(),
    "of two users": lambda y, f: (y * f).sum() + (y.sin() * f).sum(),
    "transposed": lambda y, f: (y.transpose(1, 3) * f.transpose(1, 3)).sum(),
    "non-contiguous": lambda y, f: (y.transpose(1, 3).contiguous() * f.view(6, 8, 6, 40)).sum(),
    "of a part": lambda y, f: (y[2:4] * f[2:4]).sum(),
    "a view": lambda y, f: (y.flatten(1) * f.flatten(1)).sum(),
    "not finite": lambda y, f: (y * f.log()).sum(),
}

ON_FOUR = {
    "log_softmax": lambda x, w, b: x.log_softmax(-1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, (8,), w[:8], b[:8]),
    "layer_norm, no bias": lambda x, w, b: F.layer_norm(x, (6, 8), w.repeat(2)[:48].view(6, 8)),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "batch_norm, no weight": lambda x, w, b: F.batch_norm(x, None, None, None, b, True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("laid", LAID)
@pytest.mark.parametrize("name", ON_FOUR)
def test_norms_have_stocks_bits_whatever_comes_and_however_it_lies(
    name: str, laid: str, dtype: torch.dtype
) -> None:
    x, w, b = leaves_of((6, 40, 6, 8), (40,), dtype, dtype)
    factor = torch.linspace(0, 2, x.numel()).to(dtype).view(6, 40, 6, 8)
    for comes, loss_of in COMES.items():
        for needs in [
            (True, True, True),
            (True, False, False),
            (False, True, True),
            (True, False, True),
        ]:
            leaves = [
                t.detach().requires_grad_(needed)
                for t, needed in zip((x, w, b), needs, strict=True)
            ]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]

            def gradients(lean: bool, loss_of=loss_of, leaves=leaves, wanted=wanted) -> list:
                with retape.recompute("none", lean=lean):
                    y = ON_FOUR[name](LAID[laid](leaves[0]), *leaves[1:])
                    if not y.requires_grad:
                        return []
                    loss = loss_of(y, factor)
                    del y
                return list(torch.autograd.grad(loss, wanted, allow_unused=True))

            for stock, lean in zip(gradients(False), gradients(True), strict=True):
                assert (stock is None) == (lean is None), (comes, needs)
                if stock is not None:
                    assert same_bits(stock, lean), (comes, needs)
                    assert stock.stride() == lean.stride(), (comes, needs)


@pytest.mark.parametrize("name", ON_FOUR)
def test_norms_leave_alone_what_a_hook_has_seen_and_take_what_it_gives(name: str) -> None:
    def run(lean: bool) -> list[torch.Tensor]:
        x, w, b = leaves_of((6, 40, 6, 8), (40,), torch.float32, torch.float32)
        seen = []
        with retape.recompute("none", lean=lean):
            z = x + 1
            y = ON_FOUR[name](z, w, b)
            kept = y * 1
            y.retain_grad()
            z.retain_grad()
            y.register_hook(lambda grad: seen.append(grad))
            kept.register_hook(lambda grad: grad * 2)
            y.grad_fn.register_hook(lambda made, came: seen.extend([*came, made[0]]))
            loss = (kept * torch.linspace(0, 1, y.numel()).view_as(y)).sum()
        loss.backward()
        return [*seen, y.grad, z.grad, x.grad]

    for stock, lean in zip(run(False), run(True), strict=True):
        assert same_bits(stock, lean)


@pytest.mark.parametrize("name", ON_FOUR)
def test_norms_of_no_gradient_give_none(name: str) -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    x, w, b = leaves_of((6, 40, 6, 8), (40,), torch.float32, torch.float32)
    with retape.recompute("none"):
        loss = Cut.apply(ON_FOUR[name](x + 1, w, b)).sum()
    assert torch.autograd.grad(loss, [x, w, b], allow_unused=True) == (None, None, None)
