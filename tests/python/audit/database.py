"""The audit over torch's operator database: every op below autograd that its samples run."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .check import Checker
from .variants import calls_of_variants

DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.bfloat16)
SAMPLES = {torch.float32: 4}  # of other dtypes: 1
LIMIT = 60  # samples that are looked at, for their keyword arguments


class Audit(TorchDispatchMode):
    """Checks each op that runs, and its variants, before the program goes on with the op's result."""

    def __init__(self, checker: Checker) -> None:
        super().__init__()
        self.checker = checker

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op.namespace == "aten" and self.checker.wants(op, args, kwargs):
            try:
                result = self.checker.call(op, args, kwargs)
            except Exception:
                return op(*args, **kwargs)  # raises it again, for the program to handle
            self.check_variants(op, args, kwargs, result)
        return op(*args, **kwargs)

    def check_variants(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        for other, args_, kwargs_ in calls_of_variants(op, args, kwargs, result):
            if self.checker.wants(other, args_, kwargs_):
                try:
                    self.checker.call(other, args_, kwargs_)
                except Exception:  # the variant does not take these
                    continue


def entries() -> list[str]:
    return [op.formatted_name for op in op_db]


def _quickly(op: Any, dtype: torch.dtype, grad: bool) -> Any:
    """op.sample_inputs without the stack trace that it takes of every sample."""
    return op.sample_inputs_func(op, torch.device("cpu"), dtype, grad)


def _samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """The first ones, and those with keyword arguments of a kind not seen before."""
    grad = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    seen: set[str] = set()
    chosen = []
    for sample in itertools.islice(_quickly(op, dtype, grad), LIMIT):
        key = str(sorted((k, str(v)[:20]) for k, v in sample.kwargs.items()))
        if key not in seen or len(chosen) < 2:
            seen.add(key)
            chosen.append(sample)
    return chosen[: SAMPLES.get(dtype, 1)]


def _forms(op: Any, sample: Any) -> list[Any]:
    forms = [op.get_op()]
    if op.inplace_variant is not None and not sample.broadcasts_input:
        forms.append(op.inplace_variant)
    return forms


def _run(function: Any, sample: Any, audit: Audit) -> None:
    def own(x: Any) -> Any:  # in-place forms write to what they get
        if not isinstance(x, torch.Tensor):
            return x
        return x.clone() if x.requires_grad else x.detach().clone()

    with audit:
        input_, args, kwargs = tree_map(own, (sample.input, sample.args, sample.kwargs))
        result = function(input_, *args, **kwargs)
        outs = [
            x
            for x in tree_flatten(result)[0]
            if isinstance(x, torch.Tensor) and x.requires_grad and x.layout == torch.strided
        ]
        leaves = [
            x
            for x in tree_flatten((sample.input, sample.args, sample.kwargs))[0]
            if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf
        ]
        if outs and leaves:
            torch.autograd.grad(outs, leaves, [torch.ones_like(x) for x in outs], allow_unused=True)


def audit_entry(name: str, checker: Checker) -> None:
    op = next(op for op in op_db if op.formatted_name == name)
    audit = Audit(checker)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in (d for d in DTYPES if d in op.supported_dtypes("cpu")):
            torch.default_generator.manual_seed(0)
            for sample in _samples(op, dtype):
                for form in _forms(op, sample):
                    try:
                        _run(form, sample, audit)
                    except Exception:  # what eager refuses shows nothing
                        continue
