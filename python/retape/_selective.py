"""torch's selective checkpointing, as a policy of replay."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from retape import _C

_KEEP = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def policy_of(context: Any) -> _C.Policy | None:
    """The rule in a context of create_selective_checkpoint_contexts; None for any other context."""
    if not isinstance(context, torch_checkpoint._CachingTorchDispatchMode):
        return None
    choose = context.policy_fn
    moment = SelectiveCheckpointContext(is_recompute=False)

    def decide(info: _C.ValueInfo) -> bool:
        op = _overload(info.op, info.overload)
        try:
            answer = choose(moment, op)
        except (TypeError, IndexError, KeyError) as error:
            raise _C.UsageError(
                f"[checkpoint] the selective policy could not decide on {op} without the op's "
                'arguments, which replay does not keep. Fix: method="rerun", or decide by the op alone.'
            ) from error
        return answer if isinstance(answer, bool) else answer in _KEEP

    return _C.Policy.function(decide)


def _overload(op: str, overload: str) -> Any:
    namespace, name = op.split("::", 1)
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
