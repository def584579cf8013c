"""Memory that torch did not allocate: slices of numpy arrays, mapped files, at any address.

Kernels of MKL round differently at other alignments: a copy that the tape makes of a given tensor has
to be read at the address modulo 64 that the original had. Everything is compared bit for bit with
eager on the same addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.python.bits import explain_difference
from tests.python.test_every_op import (
    ENTRIES,
    _determined,
    _numel,
    _random_like,
    _same_text,
    _sine,
)
from tests.python.unaligned import offsets, placed
from torch.utils._pytree import tree_flatten, tree_unflatten

import retape

# Entries with no gradient on the CPU.
REASONS = {
    "torch_ops_aten__flash_attention_forward": "CUDA only: no dtype is supported on the CPU",
    "torch_ops_aten__efficient_attention_forward": "CUDA only: no dtype is supported on the CPU",
    "nn_functional_batch_norm_without_cudnn": "CUDA only: no dtype is supported on the CPU",
    "nn_functional_one_hot": "takes and returns integers: there is no gradient",
}


OF_DATABASE = (torch.float32, torch.complex64)
LARGEST = 1_000  # elements of a sample


def everything_dropped() -> Any:
    return retape.recompute(retape.Policy.full().anchors(False))


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _is_leaf(x: Any) -> bool:
    return _is_float(x) and x.requires_grad


def _at(x: Any, offset: int) -> Any:
    return placed(x, offset - offset % x.element_size()) if isinstance(x, torch.Tensor) else x


def _run(op: Any, sample: Any, offset: int, frozen: bool, recomputed: bool) -> dict[str, Any]:
    """Outputs and gradients. With `frozen`, of several inputs only one has a gradient."""
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    given = [_at(x, offset) for x in flat]
    leaves = [copy for x, copy in zip(flat, given, strict=True) if _is_leaf(x)]
    if frozen and len(leaves) > 1:
        leaves = [leaves[offset // 4 % len(leaves)]]
    for x in leaves:
        x.requires_grad_()
    torch.default_generator.manual_seed(1)  # torch.manual_seed takes a stack trace

    def forward() -> list[torch.Tensor]:
        input_, args, kwargs = tree_unflatten(given, spec)
        result = sample.output_process_fn_grad(op(input_, *args, **kwargs))
        outs = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
        return [_sine(x if x.layout == torch.strided else x.to_dense()) for x in outs]

    try:
        if recomputed:
            with everything_dropped():
                outs = forward()
        else:
            outs = forward()
        generator = torch.Generator().manual_seed(2)
        live = [x for x in outs if x.requires_grad]
        seeds = [_random_like(x, generator) for x in live]
        grads = torch.autograd.grad(live, leaves, seeds, allow_unused=True) if live else ()
    except Exception as error:
        return {"error": _same_text(error)}
    return {"outputs": [x.detach() for x in outs], "gradients": list(grads)}


def _sample(op: Any, dtype: torch.dtype) -> Any:
    """The largest one that is not too large: long sums round in more ways."""
    torch.default_generator.manual_seed(0)
    # op.sample_inputs takes a stack trace of each sample; its function does not.
    samples = list(
        itertools.islice(op.sample_inputs_func(op, torch.device("cpu"), dtype, True), 12)
    )
    fit = [s for s in samples if _numel(s) <= LARGEST and _determined(s)]
    return max(fit, key=_numel) if fit else min(samples, key=_numel)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", ENTRIES, ids=lambda op: op.formatted_name)
def test_every_op_reads_given_memory_at_its_own_alignment(op: Any) -> None:
    name = op.formatted_name
    dtype = next((d for d in OF_DATABASE if d in op.supported_backward_dtypes("cpu")), None)
    if dtype is None:
        assert name in REASONS, f"{name}: no gradient and no reason given"
        return
    sample = _sample(op, dtype)
    leaves = [x for x in tree_flatten((sample.input, sample.args, sample.kwargs))[0] if _is_leaf(x)]
    wrong, compared = [], 0
    ways = list(itertools.product(offsets(dtype), (False, True) if len(leaves) > 1 else (False,)))
    for offset, frozen in ways:
        eager = _run(op, sample, offset, frozen, recomputed=False)
        again = _run(op, sample, offset, frozen, recomputed=True)
        compared += "error" not in eager
        difference = explain_difference(eager, again, "")
        if difference is not None:
            twice = explain_difference(
                eager, _run(op, sample, offset, frozen, recomputed=False), ""
            )
            assert twice is None, f"{name}: eager differs from itself at {offset}: {twice}"
            wrong.append(f"offset {offset}, {'one leaf' if frozen else 'all leaves'}: {difference}")
    assert wrong == [], f"{name}: {len(wrong)} differ\n" + "\n".join(wrong[:4])
    assert compared == len(ways), f"{name}: eager raised {len(ways) - compared} times"


LENGTHS = (7, 33, 65, 100, 1000)
DTYPES = (torch.float32, torch.float64)


def _normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


# (n, dtype) -> the tensor with a gradient, the frozen one, and the op on both.
Case = tuple[torch.Tensor, torch.Tensor, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]


def _dot(n: int, dtype: torch.dtype) -> Case:
    return _normal(n, dtype=dtype), _normal(n, dtype=dtype), torch.dot


def _vdot(n: int, dtype: torch.dtype) -> Case:
    return _normal(n, dtype=dtype), _normal(n, dtype=dtype), torch.vdot


def _mv(n: int, dtype: torch.dtype) -> Case:
    return _normal(5, n, dtype=dtype), _normal(n, dtype=dtype), torch.mv


def _mv_of_frozen_matrix(n: int, dtype: torch.dtype) -> Case:
    return _normal(n, dtype=dtype), _normal(5, n, dtype=dtype), lambda x, w: torch.mv(w, x)


def _addmv(n: int, dtype: torch.dtype) -> Case:
    return (
        _normal(5, n, dtype=dtype),
        _normal(n, dtype=dtype),
        lambda x, v: torch.addmv(v[:5], x, v),
    )


def _matmul(n: int, dtype: torch.dtype) -> Case:
    return _normal(4, n, dtype=dtype), _normal(n, 3, dtype=dtype), torch.matmul


def _linear(n: int, dtype: torch.dtype) -> Case:
    return _normal(4, n, dtype=dtype), _normal(3, n, dtype=dtype), torch.nn.functional.linear


def _linear_of_vector(n: int, dtype: torch.dtype) -> Case:
    return _normal(n, dtype=dtype), _normal(3, n, dtype=dtype), torch.nn.functional.linear


def _bmm(n: int, dtype: torch.dtype) -> Case:
    return _normal(2, 1, n, dtype=dtype), _normal(2, n, 1, dtype=dtype), torch.bmm


def _conv1d(n: int, dtype: torch.dtype) -> Case:
    return _normal(1, 2, n + 3, dtype=dtype), _normal(2, 2, 3, dtype=dtype), torch.conv1d


def _sum_of_product(n: int, dtype: torch.dtype) -> Case:
    return _normal(n, dtype=dtype), _normal(n, dtype=dtype), lambda x, v: (x * v).sum()


CASES = {
    f.__name__.removeprefix("_"): f
    for f in (
        _dot,
        _vdot,
        _mv,
        _mv_of_frozen_matrix,
        _addmv,
        _matmul,
        _linear,
        _linear_of_vector,
        _bmm,
        _conv1d,
        _sum_of_product,
    )
}


def _combinations() -> itertools.product:
    return itertools.product(LENGTHS, DTYPES)


Step = Callable[[torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]], torch.Tensor]


def _only_read(
    x: torch.Tensor, given: torch.Tensor, op: Callable[..., torch.Tensor]
) -> torch.Tensor:
    return op(x, given).sin()


def _overwritten_after(
    x: torch.Tensor, given: torch.Tensor, op: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """What backward needs is made of a tensor that changes later: the tape has to copy that before."""
    made = op(x.detach(), given)
    out = (x.sum() * made).sin()
    given.mul_(0.5)
    return out


def _as_output(
    x: torch.Tensor, given: torch.Tensor, op: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """An out= argument at an unaligned address, read, written again, and read again."""
    torch.add(given.clone(), 0.25, out=given)
    first = (x.sum() * op(x.detach(), given)).sin()
    torch.mul(given.clone(), 2.0, out=given)
    return first.sum() + (x.sum() * op(x.detach(), given)).sin().sum()


def _result(
    name: str, n: int, dtype: torch.dtype, at: tuple[int, int], step: Step, recomputed: bool
) -> dict[str, Any]:
    x, given, op = CASES[name](n, dtype)
    x, given = placed(x, at[0]).requires_grad_(), placed(given, at[1])
    if recomputed:
        with everything_dropped():
            out = step(x, given, op)
    else:
        out = step(x, given, op)
    seed = _random_like(out, torch.Generator().manual_seed(4))
    (grad,) = torch.autograd.grad(out, x, seed)
    return {"output": out.detach(), "gradient": grad, "given": given}


@pytest.mark.parametrize(
    "step", [_only_read, _overwritten_after, _as_output], ids=lambda f: f.__name__[1:]
)
@pytest.mark.parametrize("name", CASES)
def test_products_with_a_frozen_operand_at_any_address(name: str, step: Step) -> None:
    wrong, compared = [], 0
    for n, dtype in _combinations():
        for offset in offsets(dtype):
            for at in ((0, offset), (offset, 0), (offset, offset)):
                eager = _result(name, n, dtype, at, step, recomputed=False)
                difference = explain_difference(
                    eager, _result(name, n, dtype, at, step, recomputed=True), ""
                )
                compared += 1
                if difference is not None:
                    wrong.append(f"{n} of {dtype} at {at}: {difference}")
    assert wrong == [], f"{name}: {len(wrong)} of {compared} differ\n" + "\n".join(wrong[:4])


def test_the_addresses_are_those_that_were_asked_for() -> None:
    for dtype in DTYPES:
        x = _normal(6, 4, dtype=dtype).t()
        for offset in offsets(dtype):
            copy = placed(x, offset)
            assert copy.untyped_storage().data_ptr() % 64 == offset
            assert copy.stride() == x.stride()
            assert torch.equal(copy, x)
