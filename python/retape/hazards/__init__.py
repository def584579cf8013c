"""Small models that are silently wrong once their code runs a second time.

    retape verify --hazards

Each hazard runs plain, under torch.utils.checkpoint (non-reentrant and reentrant) and under Retape
(replay and rerun); gradients, buffers, generators and outputs are compared bit for bit.
"""

# The order of these imports is the order of the table.
from retape.hazards import caches, state, randomness, between, reentrant  # noqa: F401, I001
from retape.hazards.compare import (
    DIFFERENT,
    EQUAL,
    ERROR,
    OURS,
    Cell,
    Row,
    is_right,
    is_vacuous,
    run,
    run_all,
)
from retape.hazards.hazard import HAZARDS, Hazard, addresses
from retape.hazards.ways import WAYS

__all__ = [
    "DIFFERENT",
    "EQUAL",
    "ERROR",
    "HAZARDS",
    "OURS",
    "WAYS",
    "Cell",
    "Hazard",
    "Row",
    "addresses",
    "is_right",
    "is_vacuous",
    "run",
    "run_all",
]
