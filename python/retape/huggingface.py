"""Hugging Face's own switch, with Retape behind it.

`retape.enable(model)` needs nothing from this page: it works on any model, and leaves the flag
`gradient_checkpointing` alone. This is for programs that say `gradient_checkpointing=True` already:

    retape.huggingface.install()  # once; then as always:
    trainer = Trainer(model, TrainingArguments(gradient_checkpointing=True), train_dataset=data)

From then on `model.gradient_checkpointing_enable()` means `retape.enable(model,
through="huggingface")`. Only the layers get the flag, not the models around them: a model that has
it switches caches off, takes another attention kernel (T5), or does nothing with it (CLVP).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from retape import _C, _choice, layers
from retape._layer import How, Layer
from retape._recompute import PolicyLike

_FUNCTION = "_gradient_checkpointing_func"
_FLAG = "gradient_checkpointing"
_KEEPS_CACHE = "_can_checkpoint_with_cache"
_RERUN = {
    "use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"
}  # fmt: skip


def install(policy: PolicyLike = "full", method: str = "replay") -> Installed:
    """Let `gradient_checkpointing_enable` of all Hugging Face models use Retape, until `uninstall`.

    `gradient_checkpointing_kwargs` may name another policy or method for one model. The options of
    torch's checkpoint in there (use_reentrant...) go to method="rerun"; replay has no use for them.
    Can be used in a `with` statement. UsageError if it is installed already.
    """
    How(policy, method)  # says what is wrong with them
    if _installed:
        raise _C.UsageError("[install] installed already. Fix: retape.huggingface.uninstall().")
    from transformers import PreTrainedModel

    handle = Installed(PreTrainedModel, policy, method)
    _installed.append(handle)
    return handle


def uninstall() -> None:
    """Give Hugging Face its own methods back. Models that are enabled stay so."""
    while _installed:
        _installed.pop().restore()


class Installed:
    """What `install` replaced. `with` puts it back."""

    def __init__(self, owner: type, policy: PolicyLike, method: str) -> None:
        self.policy = policy
        self.method = method
        self._owner = owner
        self._enable = owner.gradient_checkpointing_enable
        self._disable = owner.gradient_checkpointing_disable
        owner.gradient_checkpointing_enable = _enable_method(self, self._enable)
        owner.gradient_checkpointing_disable = _disable_method(self._disable)

    def restore(self) -> None:
        self._owner.gradient_checkpointing_enable = self._enable
        self._owner.gradient_checkpointing_disable = self._disable

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error: Any) -> None:
        if self in _installed:
            uninstall()


_installed: list[Installed] = []


def _enable_method(installed: Installed, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def gradient_checkpointing_enable(
        self: nn.Module,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        options = dict(gradient_checkpointing_kwargs or {})
        policy = options.pop("policy", installed.policy)
        method = options.pop("method", installed.method)
        unknown = sorted(set(options) - _RERUN)
        if unknown or offload:
            raise _C.UsageError(
                f"[gradient_checkpointing_enable] Retape has no {', '.join(unknown) or 'offload'}. "
                f"Fix: leave it out, or retape.huggingface.uninstall()."
            )
        if method == "replay" and options.get("context_fn"):
            raise _C.UsageError(
                "[gradient_checkpointing_enable] context_fn is for a second call, and replay makes "
                'none. Fix: policy=retape.Policy.full().keep_ops([...]), or method="rerun".'
            )
        layers.disable(self)
        chosen = [name for name, _ in Switch.choose(self, None)][::every_n_layers]
        rerun = options if method == "rerun" else {}
        layers.enable(self, chosen, policy, method, through="huggingface", **rerun)

    return gradient_checkpointing_enable


def _disable_method(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def gradient_checkpointing_disable(self: nn.Module) -> None:
        if len(layers.enabled(self)):
            layers.disable(self)
        else:
            original(self)

    return gradient_checkpointing_disable


class Switch(layers.Attachment):
    """Stands as `_gradient_checkpointing_func` of a layer whose flag is on."""

    @staticmethod
    def choose(model: nn.Module, wanted: _choice.LayersLike) -> list[_choice.Named]:
        reached = [named for named in model.named_modules() if _has_switch(named[1])]
        if wanted is not None:
            chosen = {module for _, module in _choice.choose(model, wanted)}
            reached = [named for named in reached if named[1] in chosen]
        if not reached:
            raise _C.UsageError(
                f"[enable] {type(model).__name__} has no layer that Hugging Face's switch reaches: "
                "with the flag on, nothing would be recomputed. Fix: retape.enable(model), which "
                "needs no switch."
            )
        return reached

    def __init__(self, module: nn.Module, layer: Layer, earlier: dict | None = None) -> None:
        super().__init__(module, layer)
        if layer.how.in_eval:
            raise _C.UsageError(
                "[enable] in_eval=True, but Hugging Face's switch works in train mode only. Fix: "
                "retape.enable(model, in_eval=True), without the switch."
            )
        state = module.__dict__
        names = (_FUNCTION, _FLAG, _KEEPS_CACHE)
        self.earlier = {k: state[k] for k in names if k in state} if earlier is None else earlier
        state.update({_FUNCTION: self, _FLAG: True, _KEEPS_CACHE: True})

    def __reduce__(self) -> tuple[Any, ...]:
        return Switch, (self.module(), self.layer, self.earlier)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(function, functools.partial):  # keywords are arguments like others
            kwargs = {**function.keywords, **kwargs}
            args = (*function.args, *args)
            function = function.func
        return self.layer.run(function, args, kwargs, "")

    def remove(self) -> None:
        module = self.module()
        if module is None:
            return
        for name in (_FUNCTION, _FLAG, _KEEPS_CACHE):
            module.__dict__.pop(name, None)
        module.__dict__.update(self.earlier)


def _has_switch(module: nn.Module) -> bool:
    """It, or model code that asks for it by name, as models on the hub do."""
    if not hasattr(module, _FLAG):
        return False
    from transformers.modeling_layers import GradientCheckpointingLayer

    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return isinstance(module, GradientCheckpointingLayer) or (
        code is not None and _FUNCTION in code.co_names
    )


layers.ATTACH["huggingface"] = Switch
