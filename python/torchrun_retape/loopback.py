"""One machine: torchrun serves the store, and ranks find it on loopback."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from torchrun_retape import BACKEND, LOOPBACK


class Loopback(RendezvousHandler):
    """`port`: of the first attempt; 0 for one that is free, as each later attempt has.

    Every attempt has a store of its own, as torch's ranks expect of whoever serves it: in that of the
    attempt before are addresses and agreements of ranks that have ended."""

    def __init__(self, run_id: str, port: int, timeout: timedelta) -> None:
        self._run_id = run_id
        self._port = port
        self._timeout = timeout

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True  # ranks meet in it, too

    def next_rendezvous(self) -> RendezvousInfo:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())  # ranks inherit it
        listener = socket.create_server((LOOPBACK, self._port), backlog=128)
        self._port = 0  # whose store may still be open when the next attempt begins
        port = listener.getsockname()[1]
        served = TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=self._timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        store = PrefixStore(f"torchrun/{self._run_id}", served)  # which torchrun holds
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def create(parameters: RendezvousParameters) -> Loopback:
    host, port = parse_rendezvous_endpoint(parameters.endpoint, default_port=0)
    if host not in ("localhost", LOOPBACK):
        _refuse(f"--rdzv-endpoint={parameters.endpoint}: expected {LOOPBACK}, got {host}")
    if parameters.max_nodes != 1:
        _refuse(f"--nnodes={parameters.max_nodes}: expected 1")
    timeout = timedelta(seconds=int(parameters.get("timeout", 900)))  # as for torchrun's own
    return Loopback(parameters.run_id, port, timeout)


def _refuse(what: str) -> None:
    raise ValueError(
        f"[torchrun --rdzv-backend={BACKEND}] {what}. Fix: leave it out; this is for ranks of one machine."
    )
