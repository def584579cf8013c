"""Ranks, started by torchrun, on this machine alone.

Nothing listens but on loopback. Ranks meet in a store that this process serves there: torchrun's own
would listen on every interface, and ask nobody for a password, so it is told to make none. Its rendezvous
is a file in a folder that only the user can read, and Gloo is told to use the loopback interface.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as torch_dist

from retape.gradchecking import messages
from retape.gradchecking.messages import RankError, Settings

LOOPBACK = "127.0.0.1"
_LOOK = 0.1  # seconds between looks at how far ranks are
_GRACE = 5.0  # seconds that ranks have to end by themselves when one has raised
# In torchrun's account of what failed: the rank that ended first, and how.
_FIRST_FAILURE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


@dataclass(frozen=True)
class Ended:
    """How ranks have ended."""

    told: dict[str, Any] | None  # the first rank's report and its text
    errors: list[RankError]
    exit_code: int  # torchrun's
    output: str  # the last lines that ranks and torchrun wrote, if there is no report


def run(
    settings: Settings, ranks: int, progress: Callable[[dict[str, Any]], None], show: bool = False
) -> Ended:
    """`progress` is called whenever the first rank has got on. `show`: what ranks print is shown as it
    comes; else only where they fail."""
    with tempfile.TemporaryDirectory(prefix="retape-") as name:  # mode 0700
        folder = Path(name)
        messages.write_settings(folder, settings)
        with _store() as port:
            exit_code = _wait(_start(folder, ranks, port, show), folder, progress)
        told = messages.read(folder / "report.json")
        return Ended(told, _errors(folder), exit_code, _last_lines(folder))


@contextlib.contextmanager
def _store() -> Iterator[int]:
    """Serves a store on loopback, at the port that it gives."""
    listener = socket.create_server((LOOPBACK, 0), backlog=128)
    port = listener.getsockname()[1]
    store = torch_dist.TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    yield port
    del store


def _start(folder: Path, ranks: int, port: int, show: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += [
        "--nnodes=1",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        "--shutdown-timeout=2",
    ]
    command += ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-id=gradcheck"]
    command += [f"--rdzv-endpoint={folder / 'rendezvous'}", f"--local-addr={LOOPBACK}"]
    if not show:
        command += [f"--log-dir={folder / 'logs'}", "--redirects=3"]
    command += ["-m", "retape.gradchecking.rank", str(port)]
    environment = {
        **os.environ,
        "RETAPE_GRADCHECK": str(folder),
        "GLOO_SOCKET_IFNAME": _loopback_interface(),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # else torchrun serves one, on every interface
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # else torchrun says so
    }
    output = None if show else (folder / "torchrun.log").open("wb")
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output or sys.stderr,
            stderr=output,
            start_new_session=True,  # Ctrl-C is ours, who end it
        )
    finally:
        if output is not None:
            output.close()


def _loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def _wait(
    process: subprocess.Popen[bytes], folder: Path, progress: Callable[[dict[str, Any]], None]
) -> int:
    seen = None
    until = math.inf
    try:
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK)
            told = messages.read(folder / "progress.json")
            if told is not None and told != seen:
                seen = told
                progress(told)
            if math.isinf(until) and any(folder.glob("error.*.json")):
                # The others may wait for that rank until they time out.
                until = time.monotonic() + _GRACE
    finally:
        if process.poll() is None:
            process.kill()  # ranks end with it
            process.wait()
    return process.returncode


def _errors(folder: Path) -> list[RankError]:
    """What ranks raised, after the rank that ended without a word, if one did."""
    errors = messages.read_errors(folder)
    log = folder / "torchrun.log"
    first = _FIRST_FAILURE.search(log.read_text(errors="replace")) if log.is_file() else None
    if first is None or (folder / f"error.{first[1]}.json").exists():
        return errors
    code = int(first[2])
    how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    return [RankError(int(first[1]), "", f"ended {how}, without an exception"), *errors]


def _last_lines(folder: Path, count: int = 20) -> str:
    """Of the rank that wrote last, or of torchrun."""
    logs = [path for path in folder.glob("logs/**/stderr.log") if path.stat().st_size > 0]
    logs = sorted(logs, key=lambda path: path.stat().st_mtime)[-1:] or [folder / "torchrun.log"]
    if not logs[0].is_file():
        return ""
    lines = logs[0].read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-count:])
