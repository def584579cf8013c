"""The step of a model that calls its layers itself, with whatever they take and return."""

from __future__ import annotations

import functools
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import retape
from retape._C import UsageError
from retape._choice import Named, NoLayers, some
from retape._given import call_with
from retape._layer import How
from retape._step import Maker, made
from retape.bench.task import Apply, Task, plain
from retape.layers import Forward
from retape.subjects.find import Subject

SEED = 0


@dataclass(frozen=True)
class Call:
    """One layer, to be called by position."""

    name: str  # where the model has it
    function: Callable[..., Any]
    names: Sequence[str] = ()  # of the last arguments

    def __call__(self, *given: Any) -> Any:
        return call_with(self.function, given, self.names)


@dataclass
class Switch:
    """How layers are called now, and which of them were, with gradients."""

    apply: Apply = plain
    called: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Stack:
    """What stands for a `Layer` in a module's forward. layers: of an nn.Sequential, whose own code does no more
    than calling them in order; else the module is the layer."""

    name: str
    switch: Switch
    layers: Sequence[Named] = ()
    how = How(in_eval=True)

    def run(
        self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any], why: str
    ) -> Any:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        self.switch.called.update([name for name, _ in self.layers] or [self.name])
        apply = self.switch.apply
        if apply is plain:
            return function(*args, **kwargs)
        calls = [Call(name, layer) for name, layer in self.layers] or [
            Call(self.name, function, tuple(kwargs))
        ]
        return apply(calls, *args, *kwargs.values())


class OwnTask(Task):
    """Its layers are wrapped once, and by a switch: no method pays for it while it is timed."""

    def __init__(
        self, start: SimpleNamespace, modules: Sequence[nn.Module], called: set[str]
    ) -> None:
        self.modules = modules
        self.leaves = dict(start.leaves)
        self.layers: list[Named] = []
        self.no_layers = ""  # what there is instead
        self.in_sequentials = False  # all of them: then they can be called in groups
        self._start = start
        self._switch = Switch(called=called)

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """As they are now: forward may put another tensor there."""
        return dict(self._start.buffers())

    def wrap(self, wanted: Sequence[str]) -> None:
        """NoLayers if there are none; wanted: names with *, or none for the layers that `retape.enable` finds."""
        if not self.modules:
            raise NoLayers("found no modules in its retape.Step")
        root = self.modules[0] if len(self.modules) == 1 else _Modules(self.modules)
        if taken := retape.enabled(root).names:
            raise UsageError(
                f"[bench] layers are enabled already: {some(taken)}. Then nothing is plain. Fix: make the model "
                "without retape.enable."
            )
        self.layers = Forward.choose(root, list(wanted) or None)
        sequentials = dict(_sequentials(root, self.layers))
        inside = {layer for each in sequentials.values() for _, layer in each}
        alone = [named for named in self.layers if named[1] not in inside]
        self.in_sequentials = not alone
        for module, layers in sequentials.items():
            Forward(module, Stack("", self._switch, layers))
        for name, layer in alone:
            Forward(layer, Stack(name, self._switch))

    def loss(self, apply: Apply) -> torch.Tensor:
        self._switch.apply = apply
        try:
            losses = [loss for _, loss in self._start.forward()[0]]
        finally:
            self._switch.apply = plain
        if not losses:
            raise UsageError(
                "[bench] expected a loss, or tensors of floats, from forward, got none."
            )
        return functools.reduce(operator.add, losses)

    def path(self, layer: Any) -> str:
        return layer.name

    def resident(self, live: int) -> int:
        return live  # inputs, and whatever else the factory made


class _Modules(nn.Module):
    """Those of a step, by the numbers that the names of their parameters begin with."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        for index, module in enumerate(modules):
            self.add_module(str(index), module)


def _sequentials(
    root: nn.Module, chosen: Sequence[Named]
) -> Iterator[tuple[nn.Module, list[Named]]]:
    """Those of which every element was chosen, and they were not themselves."""
    names = {module: name for name, module in chosen}
    for module in root.modules():
        is_one = type(module).forward is nn.Sequential.forward and "forward" not in vars(module)
        if is_one and module not in names and len(module) and all(each in names for each in module):
            yield module, [(names[each], each) for each in module]


def make_task(subject: Subject, dtype: torch.dtype | None, called: set[str]) -> OwnTask:
    """From the same random numbers every time, Python's and NumPy's too. NotBuilt, UsageError, or whatever a
    factory raises. called: gets the names of layers that are."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(SEED)
    product, inputs, options = subject.make(dtype, SEED)
    modules: list[nn.Module] = []
    maker = Maker(options.get("loss"), None, options.get("dtype"), modules.append, operator.call)
    start = maker.of_made(made(product) if inputs is None else (product, inputs))
    for _, leaf in start.leaves:
        leaf.grad = None  # of an input that is the same for all
    return OwnTask(start, modules, called)
