"""A checkpoint that also frees its own output, under the names that OLMo-core and Megatron use.

    ckpt = retape.OutputDiscardCheckpoint()
    h = ckpt.checkpoint(lambda x: F.silu(up(x)), x)
    z = down(h)                                       # saves h for its backward
    ckpt.discard_output_and_register_recompute(z)     # the memory of h is free from here on

In backward the storage of `h` is filled again before anything reads it. `retape.recompute("cheap")`
around the same code drops `h` too, with nobody calling anything.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from retape import _C, _output_discard_python
from retape._output_discard_python import DISCARD, captured_by

__all__ = ["CheckpointWithoutOutput", "OutputDiscardCheckpoint"]

_BACKENDS = {
    "cpp": _C.OutputDiscardCheckpoint,
    "python": _output_discard_python.Checkpoint,
}


class OutputDiscardCheckpoint:
    """Calls a function, and frees what it returned once its consumer has run.

    backend: "cpp" replays the recorded ops of the function, which runs once, and swaps the data
    pointer of the storage. "python" needs nothing but torch: it runs the function again and copies.
    None: what the environment variable RETAPE_OUTPUT_DISCARD says, else "cpp".

    name: of the region, for errors.

    One object may serve any number of calls, one after another or all before the first discard.
    """

    def __init__(self, backend: str | None = None, name: str = "") -> None:
        backend = backend or os.environ.get("RETAPE_OUTPUT_DISCARD") or "cpp"
        if backend not in _BACKENDS:
            raise _C.UsageError(
                f'[OutputDiscardCheckpoint] expected backend "cpp" or "python", got "{backend}". '
                "Fix: pass one of these, or set RETAPE_OUTPUT_DISCARD to one."
            )
        self._region = f'region "{name}": ' if name else ""
        self._checkpoint = _BACKENDS[backend](name)
        self._captured: list[str] = []
        self._outputs: list[weakref.ref[torch.Tensor]] | None = None

    @property
    def outputs(self) -> tuple[torch.Tensor, ...] | None:
        """The tensors that the last `checkpoint` call returned, flat.

        None before the first call, after `clear()`, and once backward has reached the hook tensor.
        They are not kept alive: tensors that the caller has dropped are missing.
        """
        if self._outputs is None:
            return None
        return tuple(tensor for ref in self._outputs if (tensor := ref()) is not None)

    def checkpoint(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`fn(*args, **kwargs)`: a tensor, or tensors in tuples, lists and dicts."""
        self._captured.clear()
        self._outputs = None
        call = functools.partial(fn, *args, **kwargs)
        result, unmade = self._checkpoint.call(call, _tensors_in((args, kwargs)), _tensors_in)
        outputs = _tensors_in(result)
        self._outputs = [weakref.ref(output) for output in outputs]
        if unmade and len(unmade) == len(outputs):
            self._captured = _names_of(outputs, fn)
        return result

    def discard_output_and_register_recompute(self, hook_tensor: torch.Tensor) -> int:
        """Frees the outputs of the calls that `hook_tensor` was made from; returns how many bytes.

        They come back when its gradient arrives, or when something else reads them first.
        """
        if not isinstance(hook_tensor, torch.Tensor):
            raise _C.UsageError(
                f"{DISCARD}{self._region}expected the tensor that the consumer made, got "
                f"{type(hook_tensor).__name__}. Fix: pass its result, or one tensor of it."
            )
        if self._captured:
            raise _C.UsageError(
                f"{DISCARD}{self._region}the output shares its storage with {self._captured[0]}, which "
                "was there before the call: expected an output that the function made. Nothing was "
                "freed. Fix: let the function return a clone(), or do not discard it."
            )
        freed = self._checkpoint.discard(hook_tensor)
        if hook_tensor.requires_grad:
            hook_tensor.register_hook(_forget_outputs(weakref.ref(self), self._outputs))
        return freed

    def clear(self) -> None:
        """Forgets calls that were not discarded. What was discarded comes back as always."""
        self._captured.clear()
        self._outputs = None
        self._checkpoint.clear()


class CheckpointWithoutOutput(OutputDiscardCheckpoint):
    """Megatron's name for it, with Megatron's constructor.

    fp8: ignored by the C++ backend, whatever it is: replay repeats the ops that ran, and needs no
    context for it. The Python one would have to enter Transformer Engine's contexts, and refuses.

    ckpt_manager: not needed, so refused. Regions whose inputs were discarded bring those back first.
    """

    def __init__(
        self, fp8: bool | None = False, ckpt_manager: object = None, *, backend: str | None = None
    ) -> None:
        super().__init__(backend)
        if ckpt_manager is not None:
            raise _C.UsageError(
                "[CheckpointWithoutOutput] expected no ckpt_manager, got "
                f"{type(ckpt_manager).__name__}: chained regions bring each other back in any order. "
                "Fix: leave it out, and discard each region's output after its consumer."
            )
        if fp8 and isinstance(self._checkpoint, _output_discard_python.Checkpoint):
            raise _C.UsageError(
                "[CheckpointWithoutOutput] the Python backend runs the function again without "
                'Transformer Engine\'s fp8 contexts: expected fp8=False, got True. Fix: backend="cpp".'
            )


def _forget_outputs(
    owner: weakref.ref[OutputDiscardCheckpoint], outputs: list[weakref.ref[torch.Tensor]] | None
) -> Callable[[torch.Tensor], None]:
    def forget(_: torch.Tensor) -> None:
        checkpoint = owner()
        if checkpoint is not None and checkpoint._outputs is outputs:
            checkpoint._outputs = None

    return forget


def _tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _names_of(tensors: list[torch.Tensor], fn: Callable[..., Any]) -> list[str]:
    """What `fn` has captured and returned, by the names that it has there."""
    wanted = {tensor.untyped_storage()._cdata for tensor in tensors}
    return [
        name
        for name, tensor in captured_by(fn)
        if tensor.layout == torch.strided and tensor.untyped_storage()._cdata in wanted
    ]
