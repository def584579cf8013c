"""Random programs: made as data, printed as Python, given to `retape.verify`.

    python -m tests.python.programs --count 100000 --seed 0        the long run
    python -m tests.python.programs --show 17                      one program, as source

A program is a list of steps (`steps.py`) between markers that open and close blocks: scopes,
checkpointed functions, no_grad, autocast. `maker.py` makes one from a seed, `program.py` prints and
runs it, `shrink.py` reduces one that fails.
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
