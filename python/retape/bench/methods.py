"""What people use to train in less memory, each as a way to call a stack of layers.

A method is one line in METHODS. `apply(layers, *given)` calls them in order and returns the last output,
within a `scope` that is open for the whole forward pass; one that is not installed here says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint

import retape
from retape._recompute import REGION
from retape.bench.task import Apply, Layers, Named, Task, in_order, name_of, named_region, plain


@dataclass(frozen=True)
class Method:
    name: str
    family: str
    around: str  # "inner", "block" or "model"
    apply: Apply = plain
    needs: str = ""  # a package
    unfit: str = ""  # why it is not for this subject
    needs_cuda: bool = False
    is_eager: bool = True
    groups_layers: bool = False  # calls several at once
    in_rows: bool = False  # for layers that treat every token by itself; sums in another order
    scope: Callable[[], Any] = contextlib.nullcontext

    def loss(self, task: Task) -> torch.Tensor:
        with self.scope():
            return task.loss(self.apply)

    def with_names(self, task: Task) -> Method:
        """The same, with names of layers in a timeline."""

        def apply(layers: Layers, *given: Any) -> Any:
            named = [
                Named(layer, task.path(layer) or f"layer {i}") for i, layer in enumerate(layers)
            ]
            return self.apply(named, *given)

        return replace(self, apply=apply)

    @property
    def replays(self) -> bool:
        """Ops, if any: others run functions again."""
        return self.family in ("plain", "retape") or self.name == "output discard"

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        if self.unfit:
            return self.unfit
        if self.needs and importlib.util.find_spec(self.needs.partition(".")[0]) is None:
            return f"needs the package {self.needs.partition('.')[0]}"
        if self.needs_cuda and not torch.cuda.is_available():
            return "needs a CUDA device"
        return ""


def _around_block(call: Callable[..., Any]) -> Apply:
    """`call(function, *given)` around every layer."""
    return functools.partial(in_order, lambda index, layer, *given: call(layer, *given))


def _around_inner(call: Callable[..., Any]) -> Apply:
    """`call(function, x)` around what peers wrap; the consumer of its output stands outside."""

    def apply(layers: Layers, x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer.outer(call(layer.inner, x), x)
        return x

    return apply


# ---- Retape

# What `selective` drops too: on a CPU, random numbers take longer than memory does.
RANDOM = retape.Policy.cheap().drop_ops(["aten::bernoulli_"])


def _scope_per_block(policy: Any) -> Apply:
    return _scopes(lambda index, layers: policy)


def _in_rows(slices: int) -> Apply:
    def call(layer: Callable[..., Any], *given: Any) -> Any:
        return retape.checkpoint(layer, *given, rows=retape.Rows(slices, strict=True))

    return _around_block(call)


def keep_last(kept: int) -> Apply:
    """The last layers keep their matrix products: they are the first that backward asks for."""
    return _scopes(lambda index, layers: "cheap" if index >= layers - kept else REGION)


def _scopes(policy_of: Callable[[int, int], Any]) -> Apply:
    """One for each layer: `policy_of(index, number of layers)`."""

    def apply(layers: Layers, *given: Any) -> Any:
        def call(index: int, layer: Callable[..., Any], *given: Any) -> Any:
            with retape.recompute(policy_of(index, len(layers)), name_of(layer, index)):
                return layer(*given)

        return in_order(call, layers, *given)

    return apply


def _discarding(make: Callable[[], Any], layers: Layers, x: torch.Tensor) -> torch.Tensor:
    """With output discard, Retape's or a peer's: they share their names."""
    for layer in layers:
        checkpoint = make()
        y = layer.outer(checkpoint.checkpoint(layer.inner, x), x)
        checkpoint.discard_output_and_register_recompute(y)
        x = y
    return x


def _discard(backend: str) -> Apply:
    make = functools.partial(retape.OutputDiscardCheckpoint, backend=backend)
    return functools.partial(_discarding, make)


# ---- torch


def _checkpoint(reentrant: bool) -> Callable[..., Any]:
    return functools.partial(torch_checkpoint.checkpoint, use_reentrant=reentrant)


def _keeps_products() -> Any:
    aten = torch.ops.aten
    kept = [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    ]
    return torch_checkpoint.create_selective_checkpoint_contexts(kept)


_selective = functools.partial(
    torch_checkpoint.checkpoint, use_reentrant=False, context_fn=_keeps_products
)


def _groups(layers: Layers, *given: Any) -> Any:
    """The square root of n groups, each a checkpoint."""
    size = max(1, round(len(layers) ** 0.5))
    groups = [list(layers)[start : start + size] for start in range(0, len(layers), size)]
    calls = [functools.partial(plain, group) for group in groups]
    return _around_block(_checkpoint(False))(calls, *given)


def _compiled(budget: float) -> Apply:
    """Each layer by itself, as peers' regions are."""

    def apply(layers: Layers, x: torch.Tensor) -> torch.Tensor:
        import torch._functorch.config as config

        with config.patch(activation_memory_budget=budget):
            for layer in layers:
                with named_region(layer):
                    module: Any = layer.layer if isinstance(layer, Named) else layer
                    size = replace(module.size, layers=1)  # stacks of any height share it
                    x = _compiled_forward(type(module), size, budget)(module, x)
        return x

    return apply


@functools.cache
def _compiled_forward(layer: type[nn.Module], size: Any, budget: float) -> Callable[..., Any]:
    """Dynamo keeps what it compiled by code object and does not look at the budget again, and all
    functions of one `def` share theirs: each budget gets a copy. Each size too: Dynamo gives up, and runs
    the layer as it is, at the ninth version of one code object; with a whole graph asked for it raises."""

    def forward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return module(x)

    forward.__code__ = forward.__code__.replace(co_name=f"{layer.__name__}_at_{budget}")
    return torch.compile(forward, backend=_inductor, dynamic=False, fullgraph=True)


def _inductor(graph: Any, inputs: Any) -> Callable[..., Any]:
    """torch.compile's own backend. Compiles afresh: what a cache on disk has may come from a run that
    was dry where it must not be."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    with _wet(), config.patch(force_disable_caches=True):
        return compile_fx(graph, inputs)


@contextlib.contextmanager
def _wet() -> Iterator[None]:
    """Ops compute, in a dry run too: what fits into a budget is found out with tensors."""
    dry_key = "Fake"  # src/measure/dry_run.cpp
    was_on = torch._C._dispatch_tls_is_dispatch_key_included(dry_key)
    torch._C._dispatch_tls_set_dispatch_key_included(dry_key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(dry_key, was_on)


# ---- others


def _remat(function: Callable[..., Any], *given: Any) -> Any:
    import torch_remat

    return torch_remat.checkpoint(region_name="bench")(function)(*given)


def _olmo(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    from olmo_core.nn.output_discard_checkpoint import OutputDiscardCheckpoint

    return _discarding(OutputDiscardCheckpoint, layers, x)


def _megatron(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    return _discarding(CheckpointWithoutOutput, layers, x)


def _one_scope(name: str, policy: str) -> Method:
    return Method(
        name, "retape", "model", scope=functools.partial(retape.recompute, policy, "model")
    )


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("plain", "plain", ""),
        _one_scope("retape lean", "none"),
        Method("retape cheap", "retape", "block", _scope_per_block("cheap")),
        Method("retape cheap, random too", "retape", "block", _scope_per_block(RANDOM)),
        Method("retape full", "retape", "block", _scope_per_block(REGION)),
        Method("retape rows", "retape", "block", _in_rows(8), in_rows=True),
        _one_scope("retape cheap, one scope", "cheap"),
        _one_scope("retape full, one scope", "full"),
        Method("torch checkpoint", "torch", "block", _around_block(_checkpoint(False))),
        Method("torch checkpoint, inner", "torch", "inner", _around_inner(_checkpoint(False))),
        Method("torch reentrant", "torch", "block", _around_block(_checkpoint(True))),
        Method("torch reentrant, inner", "torch", "inner", _around_inner(_checkpoint(True))),
        Method("torch checkpoint, sqrt(n) groups", "torch", "model", _groups, groups_layers=True),
        Method("selective", "torch", "block", _around_block(_selective)),
        Method("selective, inner", "torch", "inner", _around_inner(_selective)),
        Method("output discard", "output discard", "inner", _discard("cpp")),
        Method("output discard, fallback", "output discard", "inner", _discard("python")),
        Method("torch_remat", "other", "block", _around_block(_remat), "torch_remat"),
        Method("torch_remat, inner", "other", "inner", _around_inner(_remat), "torch_remat"),
        Method("OLMo-core's output discard", "other", "inner", _olmo, "olmo_core"),
        Method(
            "Megatron's output discard", "other", "inner", _megatron, "megatron", needs_cuda=True
        ),
        Method("torch.compile, budget 1.0", "compile", "block", _compiled(1.0), is_eager=False),
        Method("torch.compile, budget 0.5", "compile", "block", _compiled(0.5), is_eager=False),
        Method("torch.compile, budget 0.0", "compile", "block", _compiled(0.0), is_eager=False),
    )
}


def fitting(chosen: Sequence[Method], asked: Sequence[str]) -> list[Method]:
    """Without what a model's layers cannot take; a row that says so, where it was asked for."""
    return [
        replace(method, unfit=unfit) if unfit else method
        for method in chosen
        if not (unfit := _unfit(method)) or method.name in asked
    ]


def _unfit(method: Method) -> str:
    """Why a model's layers cannot take it; empty if they can."""
    if method.around == "inner":
        return "a model's layers have no inner part"
    if method.in_rows:
        return "a model's layers mix tokens"
    return "" if method.is_eager else "a model's layers are not compiled one by one"


def frontier(layers: int) -> list[Method]:
    """Points between full and cheap: the last k layers keep their matrix products."""
    return [
        Method(f"retape full, last {k} cheap", "retape", "block", keep_last(k))
        for k in range(1, layers)
    ]
