"""Every differentiable entry of torch's own operator database, recomputed and compared bit for bit.

Each sample runs plain and under a scope that drops everything, from the same seeds. Leaves hold half
of the sample and are doubled inside the scope (exact in binary), and the op's floating point outputs
go through `sin`: so what the op reads and what it returns are values of the tape, not roots, and
backward has to replay them. Compared: outputs, gradients, gradients of gradients, the state of the
default generator. Where eager raises, the scope must raise the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.python.bits import explain_difference
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

import retape

ENTRIES = [op for op in op_db if op.supports_autograd]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
SAMPLES = {torch.float32: 5}  # of other dtypes: 2
MAX_NUMEL = 20_000

# Entries with no gradient on the CPU in any dtype, or whose eager gradients differ from run to run.
REASONS = {
    "torch_ops_aten__flash_attention_forward": "CUDA only: no dtype is supported on the CPU",
    "torch_ops_aten__efficient_attention_forward": "CUDA only: no dtype is supported on the CPU",
    "nn_functional_batch_norm_without_cudnn": "CUDA only: no dtype is supported on the CPU; "
    "the same op is covered as nn_functional_batch_norm",
    "nn_functional_one_hot": "takes and returns integers: there is no gradient",
}

# Entries for which eager itself has no second derivative, in some dtype or for some sample.
NO_SECOND_DERIVATIVE = {
    "i0": "i1_backward is not implemented for bfloat16",
    "special_i0e": "i1e_backward is not implemented for bfloat16",
    "native_layer_norm": "the second derivative fails when only the mean's gradient is asked for",
    "nn_functional_ctc_loss": "_ctc_loss_backward has no derivative",
    "nn_functional_linear_cross_entropy_chunked_none": "its backward calls div(out=)",
    "nn_functional_scaled_dot_product_attention": "the CPU's flash backward has no derivative",
    "sparse_sampled_addmm": "its gradient is sparse CSR, which autograd cannot differentiate again",
}

# Entries that leave a tape nothing to drop.
NOTHING_TO_REPLAY = {
    "to_sparse": "saves nothing, and what is made of a sparse tensor is kept",
}


def _determined(sample: Any) -> bool:
    """Not lstsq's default driver: gelsy reads pivots that no one wrote, eager differs from itself."""
    return sample.kwargs.get("driver", "") not in (None, "gelsy")


class Outcome:
    """What one run of a sample showed: named tensors, or the error it raised."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.error: Exception | None = None
        self.replayed = 0

    def difference(self, other: Outcome) -> str | None:
        if (self.error is None) != (other.error is None):
            return f"error: {self.error!r} against {other.error!r}"
        if self.error is not None and _same_text(self.error) != _same_text(other.error):
            return f"error: {self.error!r} against {other.error!r}"
        return explain_difference(self.values, other.values, "")


def _same_text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


class Leaf:
    """Half of a sample's tensor; `doubled` gives it back, as a value that the scope has made.

    A sample that is a view of a part of its storage comes back as the same view of a dropped value.
    """

    def __init__(self, sample: torch.Tensor) -> None:
        sample = sample.detach()
        bits = sample.layout != torch.strided or sample.is_conj() or sample.is_neg()
        self.view = None
        if not bits and sample.untyped_storage().nbytes() != sample.nbytes:
            self.view = (sample.shape, sample.stride(), sample.storage_offset())
            sample = torch.empty(0, dtype=sample.dtype).set_(sample.untyped_storage())
        self.tensor = sample.clone().mul_(0.5).requires_grad_()

    def doubled(self) -> torch.Tensor:
        whole = self.tensor * 2.0
        return whole if self.view is None else whole.as_strided(*self.view)


def _sine(x: torch.Tensor) -> torch.Tensor:
    if not _is_float(x):
        return x
    return (x.to(torch.complex64) if x.dtype == torch.complex32 else x).sin()


def _random_like(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # Drawn in float32 whatever the dtype, so that every dtype gets a full-rank gradient.
    dtype = torch.complex64 if x.is_complex() else torch.float32
    return torch.randn(x.shape, generator=generator, dtype=dtype).to(x.dtype)


def _grads(
    outs: list[torch.Tensor], inputs: list[torch.Tensor], seeds: list[torch.Tensor], create: bool
) -> tuple[torch.Tensor | None, ...]:
    return torch.autograd.grad(outs, inputs, seeds, create_graph=create, allow_unused=True)


# Calls forward; what was replayed or run again can be counted once backward is over.
Way = Callable[[Callable[[], list[torch.Tensor]]], tuple[list[torch.Tensor], Callable[[], int]]]


def plain(
    forward: Callable[[], list[torch.Tensor]],
) -> tuple[list[torch.Tensor], Callable[[], int]]:
    return forward(), lambda: 0


def everything_dropped(
    forward: Callable[[], list[torch.Tensor]],
) -> tuple[list[torch.Tensor], Callable[[], int]]:
    with retape.recompute(retape.Policy.full().anchors(False)) as scope:
        outs = forward()
    return outs, lambda: scope.stats.ops_replayed


def run_again(
    forward: Callable[[], list[torch.Tensor]],
) -> tuple[list[torch.Tensor], Callable[[], int]]:
    calls = []

    def counted() -> list[torch.Tensor]:
        calls.append(None)
        return forward()

    return retape.checkpoint(counted, method="rerun"), lambda: len(calls) - 1


def run(function: Callable[..., Any], sample: Any, twice: bool, way: Way) -> Outcome:
    """Forward in that way, then backward; with `twice`, gradients of the gradients too."""
    outcome = Outcome()
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = {id(x): Leaf(x) for x in flat if isinstance(x, torch.Tensor) and x.requires_grad}
    untouched = [
        x.detach().clone() if isinstance(x, torch.Tensor) and id(x) not in leaves else x
        for x in flat
    ]

    def forward() -> list[torch.Tensor]:
        doubled = {key: leaf.doubled() for key, leaf in leaves.items()}
        given = [doubled.get(id(x), copy) for x, copy in zip(flat, untouched, strict=True)]
        input_, args, kwargs = tree_unflatten(given, spec)
        result = sample.output_process_fn_grad(function(input_, *args, **kwargs))
        outs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
        dense = [x if x.layout == torch.strided else x.to_dense() for x in outs]
        return [_sine(x) for x in dense]

    torch.manual_seed(1)
    inputs = [leaf.tensor for leaf in leaves.values()]
    generator = torch.Generator().manual_seed(2)
    try:
        outs, replayed = way(forward)
        outcome.values["outputs"] = [x.detach().clone() for x in outs]
        live = [x for x in outs if x.requires_grad]
        seeds = [_random_like(x, generator).requires_grad_(twice) for x in live]
        grads = _grads(live, inputs, seeds, twice) if live else ()
        outcome.values["gradients"] = [None if g is None else g.detach() for g in grads]
        again = [g for g in grads if g is not None and g.requires_grad]
        if twice and again:
            second = [_random_like(g, generator) for g in again]
            outcome.values["second gradients"] = list(_grads(again, inputs + seeds, second, False))
        outcome.replayed = replayed()
    except Exception as error:
        outcome.error = error
    outcome.values["generator"] = torch.get_rng_state()
    return outcome


def _numel(sample: Any) -> int:
    flat, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    return sum(x.numel() for x in flat if isinstance(x, torch.Tensor))


def _chosen(op: Any, dtype: torch.dtype) -> list[Any]:
    """Varied samples: the first, the middle, the last, and then new sets of keyword arguments."""
    wanted = SAMPLES.get(dtype, 2)
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    while len(samples) < wanted and samples:
        samples += list(op.sample_inputs("cpu", dtype, requires_grad=True))  # new random values
    samples = [s for s in samples if _determined(s)]
    small = [s for s in samples if _numel(s) <= MAX_NUMEL]
    samples = small if len(small) >= min(3, wanted) else sorted(samples, key=_numel)[:wanted]
    picks = list(dict.fromkeys((0, len(samples) // 2, len(samples) - 1)))[: max(wanted, 2)]
    seen = {str(sorted(samples[i].kwargs.items(), key=str)) for i in picks}
    for i, sample in enumerate(samples):
        kwargs = str(sorted(sample.kwargs.items(), key=str))
        if len(picks) < wanted + 2 and kwargs not in seen:
            seen.add(kwargs)
            picks.append(i)
    picks += [i for i in range(len(samples)) if i not in picks][: max(0, wanted - len(picks))]
    return [samples[i] for i in picks]


def _forms(op: Any, sample: Any, first: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function itself; for the first samples also its method and its in-place variant."""
    yield "function", op
    if first and isinstance(sample.input, torch.Tensor):
        if op.method_variant is not None:
            yield "method", op.method_variant
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield "in place", op.inplace_variant


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", ENTRIES, ids=lambda op: op.formatted_name)
def test_gradients_are_bitwise_those_of_eager(op: Any, record_property: Any) -> None:
    name = op.formatted_name
    supported = op.supported_backward_dtypes("cpu")
    if not supported & set(DTYPES):
        assert name in REASONS, f"{name}: no dtype to test and no reason given"
        return
    replayed = compared = refused = 0
    for dtype in (d for d in DTYPES if d in supported):
        for index, sample in enumerate(_chosen(op, dtype)):
            for form, function in _forms(op, sample, index < 2):
                where = f"{name} {dtype} sample {index} {form}"
                twice = op.supports_gradgrad and form != "method"
                eager = run(function, sample, twice, plain)
                if eager.error is not None and twice and name in NO_SECOND_DERIVATIVE:
                    twice, refused = False, refused + 1
                    eager = run(function, sample, twice, plain)
                recomputed = run(function, sample, twice, everything_dropped)
                difference = eager.difference(recomputed)
                if difference is not None:
                    again = eager.difference(run(function, sample, twice, plain))
                    assert again is None, f"{where}: eager differs from itself: {again}"
                assert difference is None, f"{where}: {difference}\n{sample.summary()}"
                assert form == "in place" or eager.error is None, f"{where}: eager: {eager.error!r}"
                replayed += recomputed.replayed
                compared += eager.error is None
    assert compared > 0, f"{name}: no sample could be compared"
    assert (refused > 0) == (name in NO_SECOND_DERIVATIVE), f"{name}: refused {refused} times"
    record_property("entries with ops replayed", replayed > 0)
    if name not in NOTHING_TO_REPLAY:
        assert replayed > 0, f"{name}: nothing was replayed, so nothing was shown"


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", ENTRIES, ids=lambda op: op.formatted_name)
def test_gradients_of_a_second_run_are_bitwise_those_of_eager(op: Any) -> None:
    """The same, by checkpoint(method="rerun"): three samples in float32, their in-place forms too."""
    if torch.float32 not in op.supported_backward_dtypes("cpu"):
        return  # the test above says which entries have no float32 gradient, and why
    again = 0
    for index, sample in enumerate(_chosen(op, torch.float32)[:3]):
        for form, function in _forms(op, sample, index < 2):
            twice = op.supports_gradgrad and form == "function"
            eager = run(function, sample, twice, plain)
            if eager.error is not None and op.formatted_name in NO_SECOND_DERIVATIVE:
                eager = run(function, sample, twice := False, plain)
            second = run(function, sample, twice, run_again)
            difference = eager.difference(second)
            assert difference is None, f"{op.formatted_name} sample {index} {form}: {difference}"
            again += second.replayed
    assert again > 0, f"{op.formatted_name}: nothing ran again, so nothing was shown"
