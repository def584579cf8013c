"""Recompute layer by layer: a region around each block of a model, switched on and off.

report = retape.enable(model)
loss = model(**batch).loss
loss.backward()
print(report)
retape.disable(model)
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from retape import _C, _choice
from retape._layer import COUNTS, How, Layer, Slices
from retape._recompute import PolicyLike


def enable(
    model: nn.Module,
    layers: _choice.LayersLike = None,
    policy: PolicyLike = "full",
    method: str = "replay",
    *,
    rows: int | _C.Rows | None = None,
    in_eval: bool = False,
    through: str = "forward",
    **rerun: Any,
) -> Enabled:
    """From now on each layer of `model` forgets its activations and backward brings them back.

    >>> report = retape.enable(model)
    >>> model(batch).loss.backward()
    >>> report.stats.ops_replayed

    layers: None for the blocks of every `nn.ModuleList` that looks like a stack: two of its elements
        are of one class, which has a forward, parameters and modules inside (`_choice.stacked`).
        Or qualified names ("encoder.layers.*"; `*` is one part of a name, `**` any number), a list's
        name for its elements, module classes, or a predicate `f(name, module)`.
    policy: what to forget, as in `retape.recompute`; "full" is all but what the layer is given.
    method: "replay" records ops and never calls the layer again; "rerun" calls it again in backward.
    rows: backward of each layer in that many slices of rows (tokens), as in `retape.checkpoint`: less
        memory still, and **equal to rounding, NOT bit for bit**. For layers that treat rows apart
        ("**.mlp"); others are replayed whole, with a warning. Of a `Rows` only what it was told is
        taken: the report counts, `report.rows`.
    in_eval: also where `layer.training` is false. Without gradients layers always run plain.
    through: "forward" needs nothing of the model. "huggingface" uses the switch that its layers
        have, `_gradient_checkpointing_func`, and no other part of it (`retape.huggingface`).
    rerun: options of `retape.checkpoint` for method="rerun": use_reentrant, preserve_rng_state...

    The model keeps its class, parameters, names, hooks and state_dict. Copies of it, by deepcopy or
    pickle, are enabled too and count for themselves. Under torch.compile layers run plain.
    UsageError if nothing would be recomputed, or a layer is enabled already; nothing has changed.
    """
    how = How(policy, method, in_eval, rerun, Slices.of(rows))
    attach = ATTACH.get(through)
    if attach is None:
        raise _C.UsageError(
            f'[enable] expected through="forward" or through="huggingface", got {through!r}.'
        )
    candidates = attach.choose(model, layers)
    taken = [name for name, module in candidates if _attached(module)]
    if taken:
        raise _C.UsageError(
            f"[enable] enabled already: {_choice.some(taken)}. Fix: retape.disable(model) first."
        )
    return Enabled([attach(module, Layer(name, how)) for name, module in candidates])


def disable(model: nn.Module) -> None:
    """Take all regions out again: the model is as it was before `enable`.

    Graphs that were recorded stay valid. Warns of layers in which nothing was recomputed, and why.
    """
    _remove([attached for module in model.modules() for attached in _attached(module)], warn=True)


def enabled(model: nn.Module) -> Enabled:
    """The report on all layers of `model` that are enabled now, by whomever."""
    return Enabled([attached for module in model.modules() for attached in _attached(module)])


class Enabled:
    """The layers that one `enable` switched on, and what came of it. `with` switches them off."""

    def __init__(self, attached: list[Attachment]) -> None:
        self._attached = attached
        self.layers = tuple(each.layer for each in attached)

    def disable(self, warn: bool = True) -> None:
        """Take these regions out again, as `retape.disable` does with all."""
        _remove(self._attached, warn)
        self._attached = []

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.disable(warn=kind is None)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def calls(self) -> int:
        """Calls of these layers that had a region."""
        return sum(layer.calls for layer in self.layers)

    @property
    def reruns(self) -> int:
        """Times that backward called a layer again. Always 0 with method="replay"."""
        return sum(layer.forwards - layer.calls for layer in self.layers)

    @property
    def stats(self) -> types.SimpleNamespace:
        """The counts of `retape.Stats`, summed over layers and calls.

        Replays are counted while at most 64 calls of a layer wait for their backward.
        """
        each = [layer.stats for layer in self.layers]
        return types.SimpleNamespace(**{n: sum(getattr(s, n) for s in each) for n in COUNTS})

    @property
    def kept_ops(self) -> dict[str, int]:
        """Custom ops whose results are kept, most bytes first.

        Results of ops outside of torch are not replayed, unless `retape.replayable(op)` says that they
        may be: so many bytes, summed over calls, would then be dropped.
        """
        return dict(sum((layer.kept_ops for layer in self.layers), Counter()).most_common())

    @property
    def rows(self) -> types.SimpleNamespace:
        """Of layers with `rows`: calls `sliced`, calls replayed `whole`, and `reasons` for those."""
        each = [layer.rows.stats for layer in self.layers if layer.rows is not None]
        return types.SimpleNamespace(
            sliced=sum(stats.sliced for stats in each),
            whole=sum(stats.whole for stats in each),
            reasons=sorted({stats.reason for stats in each if stats.reason}),
        )

    @property
    def never_ran(self) -> list[str]:
        """Names of layers that were not called at all."""
        return [layer.name for layer in self.layers if not layer.calls and not layer.plain]

    @property
    def idle(self) -> dict[str, str]:
        """Layers in which nothing was recomputed so far, with the reason."""
        return {layer.name: layer.idle for layer in self.layers if layer.idle}

    def __str__(self) -> str:
        stats = self.stats
        text = (
            f"{len(self)} layers, {self.calls} calls: {stats.ops_recorded} ops recorded, "
            f"{stats.bytes_dropped} bytes dropped, {stats.ops_replayed} ops replayed"
        )
        text += f", {self.reruns} calls again in backward" if self.reruns else ""
        if any(layer.rows is not None for layer in self.layers):
            text += f", {self.rows.sliced} calls in slices, {self.rows.whole} whole"
        for op, size in self.kept_ops.items():
            text += f'; {op}: {size} bytes kept that retape.replayable("{op}") would drop'
        return text + (f"; {_idle_text(self.layers)}" if self.idle else "")

    def __repr__(self) -> str:
        return f"<retape.Enabled {self}>"


class Attachment:
    """What `enable` puts into a layer's instance dictionary. Knows how to take itself out."""

    layer: Layer

    def __init__(self, module: nn.Module, layer: Layer) -> None:
        self.layer = layer
        self.module = weakref.ref(module)  # no cycle: a deleted model is freed at once

    @staticmethod
    def choose(model: nn.Module, layers: _choice.LayersLike) -> list[_choice.Named]:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError


class Forward(Attachment):
    """Stands as a layer's `forward`: class, parameters, names and hooks are untouched."""

    @staticmethod
    def choose(model: nn.Module, layers: _choice.LayersLike) -> list[_choice.Named]:
        modules = model.named_modules()
        flagged = [name for name, module in modules if _flag(module) and not _attached(module)]
        if flagged:
            raise _C.UsageError(
                "[enable] Hugging Face's gradient checkpointing is on: "
                f"{_choice.some(flagged, 3)}. Fix: model.gradient_checkpointing_disable() first, or "
                'retape.enable(model, through="huggingface").'
            )
        return _choice.choose(model, layers)

    def __init__(self, module: nn.Module, layer: Layer, earlier: Any = None) -> None:
        super().__init__(module, layer)
        own = module.__dict__.get("forward")  # an instance may have its own
        self.earlier = own if earlier is None else earlier
        functools.update_wrapper(self, self.inner, updated=())
        del self.__wrapped__  # would hold the module
        self.__signature__ = inspect.signature(self.inner)
        module.__dict__["forward"] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.module(), self.layer, self.earlier)

    @property
    def inner(self) -> Callable[..., Any]:
        if self.earlier is not None:
            return self.earlier
        module = self.module()
        return types.MethodType(type(module).forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module()
        inner = self.earlier
        if inner is None:  # a partial, not self.inner: torch.compile can look into it
            inner = functools.partial(type(module).forward, module)
        why = "" if module.training or self.layer.how.in_eval else "eval"
        if _flag(module) and module.training:
            why = "huggingface"
        return self.layer.run(inner, args, kwargs, why)

    def remove(self) -> None:
        module = self.module()
        if module is None:
            return
        # Others (accelerate's hooks) may have put their forward over ours and keep ours aside.
        for key in [key for key, value in module.__dict__.items() if value is self]:
            if key == "forward" and self.earlier is None:
                del module.__dict__[key]
            else:
                module.__dict__[key] = self.inner


ATTACH: dict[str, type[Attachment]] = {"forward": Forward}


def _flag(module: nn.Module) -> bool:
    own = module.__dict__.get("gradient_checkpointing")  # a miss in nn.Module.__getattr__ is slow
    return (getattr(type(module), "gradient_checkpointing", None) if own is None else own) is True


def _attached(module: nn.Module) -> list[Attachment]:
    found = {id(each): each for each in module.__dict__.values() if isinstance(each, Attachment)}
    return list(found.values())


def _remove(attached: list[Attachment], warn: bool) -> None:
    for each in attached:
        each.remove()
    idle = [each.layer for each in attached if each.layer.idle]
    if idle and warn:
        warnings.warn(
            f"[disable] nothing was recomputed in {len(idle)} of {len(attached)} layers: "
            f"{_idle_text(idle)}",
            stacklevel=3,
        )


def _idle_text(layers: Iterable[Layer]) -> str:
    reasons: dict[str, list[str]] = {}
    for layer in layers:
        if layer.idle:
            reasons.setdefault(layer.idle, []).append(layer.name)
    return "; ".join(f"{reason}: {_choice.some(names)}" for reason, names in reasons.items())
