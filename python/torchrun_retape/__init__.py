"""`torchrun --rdzv-backend=retape`: ranks of one machine that meet on loopback, with nothing pickled.

torchrun's own ways to meet are "c10d" (and --standalone), which pickles its state into a store, and "static",
whose store listens on every interface. Here torchrun serves the store, a new one for each restart, on loopback
alone, and what it keeps there are numbers and JSON. Gloo is told to use the loopback interface, unless GLOO_SOCKET_IFNAME is set.

A package of its own, so that torchrun starts without importing retape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "retape"
LOOPBACK = "127.0.0.1"


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    from torchrun_retape import loopback  # torch asks for `handler` while it is being imported

    return loopback.create(parameters)


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point in the group torchrun.handlers."""
    return create
