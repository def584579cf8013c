"""torch's selective checkpointing, as a policy of replay."""

from __future__ import annotations

from typing import Any

from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from retape import _C

_KEEP = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def policy_of(context: Any) -> _C.Policy | None:
    """The rule in a context of create_selective_checkpoint_contexts; None for any other context."""
    if not isinstance(context, torch_checkpoint._CachingTorchDispatchMode):
        return None
    choose = context.policy_fn

    def decide(op: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> bool:
        if op in torch_checkpoint.SAC_IGNORED_OPS:
            return False
        moment = SelectiveCheckpointContext(is_recompute=False, op_output=output)
        answer = choose(moment, op, *args, **kwargs)
        if isinstance(answer, bool):
            return answer
        if answer is None or isinstance(answer, CheckpointPolicy):  # None: recompute, as in torch
            return answer in _KEEP
        raise _C.UsageError(
            f"[checkpoint] {op}: expected a CheckpointPolicy or a bool from the selective policy, got "
            f"{answer!r}. Fix: return CheckpointPolicy.MUST_SAVE or CheckpointPolicy.PREFER_RECOMPUTE."
        )

    return _C.Policy.selective(decide)
