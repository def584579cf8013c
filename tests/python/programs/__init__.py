"""Random programs: made as data, printed as Python, given to `retape.verify`.

    python -m tests.python.programs --count 100000 --seed 0        the long run
    python -m tests.python.programs --show 17                      one program, as source

A program is a list of steps between markers that open and close blocks: scopes, checkpointed
functions, no_grad, autocast, dispatch modes. `maker.py` makes one from a seed, `program.py` prints and
runs it, `shrink.py` reduces one that fails.

| file | holds |
|---|---|
| `kinds.py` | what a kind of step is |
| `steps.py` | steps that call torch's own ops |
| `steps_extensions.py` | custom ops, subclasses, higher-order ops, lists of tensors, saved objects |
| `steps_memory.py` | unaligned memory, aliases, caches, statistics, training inside a scope |
| `prelude.py`, `extensions.py` | what programs call; printed in front of a program that failed |

A write that no version counter shows is made only where eager does not depend on it: to memory that
autograd has not saved and that no closed scope has seen. Elsewhere eager's own result is undefined
(docs/limits.md).
"""

from . import steps, steps_extensions, steps_memory  # noqa: F401 - they add kinds
from .kinds import KINDS
from .maker import make
from .program import BACKWARDS, BLOCKS, Program, check, compiled, difference, printed, run, source
from .shrink import report, shrink

__all__ = [
    "BACKWARDS",
    "BLOCKS",
    "KINDS",
    "Program",
    "check",
    "compiled",
    "difference",
    "make",
    "printed",
    "report",
    "run",
    "shrink",
    "source",
]
