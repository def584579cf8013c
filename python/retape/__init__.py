"""Train bigger models in the same memory, with gradients that did not change.

    with retape.recompute("cheap"):
        loss = model(**batch).loss
    loss.backward()

    hidden = retape.checkpoint(block, hidden, mask)

Retape records the ops that forward runs, lets autograd forget activations, and replays the recorded
ops in backward. It never runs your code a second time.
"""

from retape import _start

_start.start()

from retape import huggingface, memory  # noqa: E402
from retape._C import (  # noqa: E402
    Error,
    Policy,
    ReplayMismatch,
    Rows,
    RowsStats,
    Stats,
    UsageError,
    ValueInfo,
    __version__,
    check_every,
    check_stats,
    is_eager,
    is_recording,
    replayable_ops,
    will_write,
)
from retape._checkpoint import checkpoint, checkpoint_sequential  # noqa: E402
from retape._recompute import eager, recompute, replayable  # noqa: E402
from retape._step import Step  # noqa: E402
from retape._verdict import Verdict  # noqa: E402
from retape._verify import verify  # noqa: E402
from retape.layers import Enabled, disable, enable, enabled  # noqa: E402
from retape.output_discard import CheckpointWithoutOutput, OutputDiscardCheckpoint  # noqa: E402

__all__ = [
    "CheckpointWithoutOutput",
    "Enabled",
    "Error",
    "OutputDiscardCheckpoint",
    "Policy",
    "ReplayMismatch",
    "Rows",
    "RowsStats",
    "Stats",
    "Step",
    "UsageError",
    "ValueInfo",
    "Verdict",
    "__version__",
    "check_every",
    "check_stats",
    "checkpoint",
    "checkpoint_sequential",
    "disable",
    "eager",
    "enable",
    "enabled",
    "huggingface",
    "is_eager",
    "is_recording",
    "memory",
    "recompute",
    "replayable",
    "replayable_ops",
    "verify",
    "will_write",
]
