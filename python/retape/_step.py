"""What `verify` runs: a step, and how to make a fresh start of it as often as it takes."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from retape import _C
from retape._tensors import cast, copied, generators_of, named_tensors

Named = list[tuple[str, torch.Tensor]]
LossLike = Callable[[Any], Any]
OptimizerLike = Callable[[Any], torch.optim.Optimizer]


@dataclass
class Step:
    """A forward pass over objects that exist already.

    >>> step = retape.Step(lambda: loss_of(model(batch)), modules=[model])
    >>> retape.verify(step).raise_if_different()

    forward: takes nothing; returns a loss, several by name, or an output (see `retape.verify`).
    modules: whose parameters are compared. Parameters and buffers are put back, in place, before
        every run and at the end.
    leaves: more tensors whose gradients are compared, by name.
    generators: private ones that forward draws from, besides those that modules hold.
    """

    forward: Callable[[], Any]
    modules: Sequence[nn.Module] = ()
    leaves: Mapping[str, torch.Tensor] = field(default_factory=dict)
    generators: Sequence[torch.Generator] = ()


def losses_of(output: Any, loss: LossLike | None) -> Named:
    """Scalars to run backward from: what `loss` makes of the output; else its `.loss`; else itself,
    if it is one number; else a weighed mean of every float tensor in it that has a gradient."""
    if loss is not None:
        return list(named_tensors(loss(output), "loss"))
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return [("loss", own)]
    tensors = [(name, t) for name, t in named_tensors(output, "output") if _is_float(t)]
    if len(tensors) == 1 and tensors[0][1].dim() == 0:
        return [("loss", tensors[0][1])]
    alive = [(name, t) for name, t in tensors if t.requires_grad] or tensors
    return [(f"mean of {name}", _weighed_mean(t)) for name, t in alive]


def _weighed_mean(tensor: torch.Tensor) -> torch.Tensor:
    """Each element by a weight of its own: a plain mean, or the mean square, is a constant behind a
    LayerNorm, and gradients would be 0."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    weights = torch.arange(real.numel(), device=real.device).mul(0.7).sin().to(real.dtype)
    return (real * weights.view(real.shape)).mean()


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def outcome(output: Any, loss: LossLike | None) -> tuple[Named, Named]:
    losses = losses_of(output, loss)
    taken = {id(tensor) for _, tensor in losses}
    return losses, [pair for pair in named_tensors(output, "output") if id(pair[1]) not in taken]


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(*inputs)`, or `model(**inputs)` for a dict."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (list, tuple)) else model(inputs)


@dataclass
class Maker:
    """Makes starts. `on_model` changes a model (layers), `around` how its forward is called (rerun)."""

    loss: LossLike | None
    optimizer: OptimizerLike | None
    dtype: torch.dtype | None
    on_model: Callable[[nn.Module], None]
    around: Callable[[Callable[[], Any]], Any]

    def of_model(self, model: nn.Module, inputs: Any, *, copy: bool) -> SimpleNamespace:
        generators = generators_of(model)
        if copy:
            model = copied(model, generators, "verify")
            inputs = copied(inputs, generators, "verify")
        if self.dtype is not None:
            model = model.to(self.dtype)
            inputs = cast(inputs, self._cast)
        self.on_model(model)
        given = [(f"input {name}", tensor) for name, tensor in named_tensors(inputs, "0")]
        leaves = _parameters_of(model)
        leaves += [(name, tensor) for name, tensor in given if tensor.requires_grad]
        written = [(name, tensor) for name, tensor in given if _may_be_written(tensor)]
        return self._start(
            partial(call, model, inputs),
            leaves,
            lambda: [*model.named_buffers(), *written],
            generators,
            [parameter for parameter in model.parameters() if parameter.requires_grad],
        )

    def of_made(self, product: Any) -> SimpleNamespace:
        """Of what a factory made, which is nobody else's."""
        if isinstance(product, Step):
            return self.of_step(product)
        return self.of_model(*product, copy=False)

    def of_step(self, step: Step) -> SimpleNamespace:
        if self.dtype is not None:
            raise _C.UsageError(
                f"[verify] dtype={self.dtype} for a retape.Step, whose forward has tensors of its own. "
                "Fix: make them in that dtype, or give a model and its inputs."
            )
        prefixes = ["" if len(step.modules) == 1 else f"{i}." for i in range(len(step.modules))]
        modules = list(zip(prefixes, step.modules, strict=True))
        for _, module in modules:
            self.on_model(module)
        leaves = [
            (p + name, tensor) for p, module in modules for name, tensor in _parameters_of(module)
        ]

        def buffers() -> Named:
            return [(p + name, b) for p, module in modules for name, b in module.named_buffers()]

        generators = [g for module in step.modules for g in generators_of(module)]
        generators += [g for g in step.generators if g not in generators]
        parameters = [tensor for _, tensor in leaves if tensor.requires_grad]
        leaves += step.leaves.items()
        return self._start(step.forward, leaves, buffers, generators, parameters)

    def _start(
        self,
        forward: Callable[[], Any],
        leaves: Named,
        buffers: Callable[[], Named],
        generators: list[torch.Generator],
        parameters: list[torch.Tensor],
    ) -> SimpleNamespace:
        optimize = None
        if self.optimizer is not None and parameters:
            optimize = self.optimizer(parameters).step
        return SimpleNamespace(
            forward=lambda: outcome(self.around(forward), self.loss),
            leaves=leaves,
            buffers=buffers,
            optimize=optimize,
            generators=generators,
            states=python_states,
        )

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(self.dtype).requires_grad_(tensor.requires_grad)


def _parameters_of(module: nn.Module) -> Named:
    """Frozen ones, too: forward may write them."""
    return [
        (name, p) for name, p in module.named_parameters() if p.requires_grad or _may_be_written(p)
    ]


def _may_be_written(tensor: torch.Tensor) -> bool:
    """A cache or a mask that forward is given: compared as buffers are. What requires grad cannot be."""
    has_bytes = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_meta)
    return has_bytes and type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.requires_grad


def python_states() -> Named:
    """Of Python's and NumPy's global generators."""
    _, words, gauss = random.getstate()  # the last: of a pair, the number that is still to come
    states = [("random", [*words, float("nan") if gauss is None else gauss])]
    if numpy := sys.modules.get("numpy"):
        _, key, *rest = numpy.random.get_state()
        states.append(("numpy.random", [*key.tolist(), *rest]))
    return [(name, torch.tensor(state, dtype=torch.float64)) for name, state in states]


@contextlib.contextmanager
def same_python_numbers() -> Iterator[Callable[[], None]]:
    """Gives a function that puts Python's and NumPy's global generators to where they are now; at the
    end they are put there for good. torch's own are looked after in C++."""
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None

    def put_back() -> None:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)

    try:
        yield put_back
    finally:
        put_back()


@contextlib.contextmanager
def same_state(step: Step) -> Iterator[Callable[[], None]]:
    """Gives a function that puts parameters, buffers and other leaves of a live step, in place, to
    what they are now, without gradients; at the end gradients too are what they were."""
    tensors = [t for module in step.modules for t in (*module.parameters(), *module.buffers())]
    tensors += step.leaves.values()
    state = [(tensor, tensor.detach().clone(), tensor.grad) for tensor in tensors]
    tables = [
        (table, dict(table))
        for module in step.modules
        for each in module.modules()
        for table in (each._parameters, each._buffers)
    ]

    def put_back() -> None:
        for table, entries in tables:  # forward may have put another tensor there
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for tensor, value, _ in state:
                tensor.copy_(value)
                tensor.grad = None

    try:
        yield put_back
    finally:
        put_back()
        for tensor, _, grad in state:
            tensor.grad = grad


def made(factory: Callable[[], Any]) -> Any:
    """What a factory makes: a Step, or a model and its inputs."""
    product = factory()
    if isinstance(product, Step):
        return product
    if isinstance(product, tuple) and len(product) == 2 and isinstance(product[0], nn.Module):
        return product
    raise _C.UsageError(
        "[verify] expected a function that makes (model, inputs) or a retape.Step, it gave "
        f"{type(product).__name__}. Fix: for a function that computes a loss, "
        "retape.Step(function, modules=[model])."
    )
