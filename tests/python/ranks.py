"""Programs for tests that several ranks run: forked on this machine, once for many questions.

A program is a module with `main() -> None`, called when ranks have met, which prints one JSON object per
line (`tell`). A test module starts it once, in a fixture, and each of its tests looks at the lines that are
its own. A module may have

    LAUNCHES    arguments of main, for ranks that start anew each time; by default one launch without any
    LOST        ranks that will not end by themselves; how the others have is told for them: words, exit_code

Ranks are forks of a process that has imported all that they need (`forks`). Ranks that torchrun starts are in
test_gradcheck.py and test_ranks_page.py.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
from tests.python import forks

from retape.cli.gradcheck import rank
from torchrun_retape import LOOPBACK, loopback

TIMEOUT = 120.0  # seconds for which ranks wait for one another
_folder = _told = Path()  # where ranks tell, and where this one does


def run_once(module: str, ranks: int, base: Path) -> list[dict[str, Any]]:
    """The same for all workers of xdist: the first that asks runs it. `base`: pytest's, of this worker."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    kept = base / f"{module}.json"
    with (base / f"{module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(run(module, ranks)))
    return json.loads(kept.read_text())


def run(module: str, ranks: int) -> list[dict[str, Any]]:
    """What ranks told, in no order. Fails with all that they wrote if one of them does."""
    with tempfile.TemporaryDirectory(prefix="retape-") as name:
        program = ("tests.python.ranks", module, str(ranks), name)
        ended = forks.nursery().run(*program, output=Path(name) / "output")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        lines = [path.read_text().splitlines() for path in sorted(Path(name).glob("told.*"))]
    return [json.loads(line) for each in lines for line in each]


def tell(**told: Any) -> None:
    """One line of this rank's."""
    with _told.open("a") as file:
        file.write(json.dumps({"rank": int(os.environ["RANK"]), **told}) + "\n")


def fork(ranks: int, body: Callable[[], None]) -> tuple[list[int], torch_dist.TCPStore]:
    """Processes that have met and do `body`, and the store in which they meet, served here."""
    forks.check_one_thread()
    listener = socket.create_server((LOOPBACK, 0), backlog=128)
    port = listener.getsockname()[1]
    parent = os.getpid()
    processes = []
    for number in range(ranks):
        process = os.fork()
        if process == 0:
            listener.close()
            _be(number, ranks, port, parent, body)
        processes.append(process)
    store = torch_dist.TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return processes, store


def _be(number: int, ranks: int, port: int, parent: int, body: Callable[[], None]) -> None:
    """One rank. It ends as any program does where `body` raises SystemExit; else at once, when all have come."""
    rank.end_with_parent(parent)
    os.environ.update(
        RANK=str(number), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME=loopback.interface()
    )
    os.environ.update(
        MASTER_ADDR=LOOPBACK, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True"
    )
    try:
        torch_dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
        body()
        torch_dist.barrier()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    rank.leave()


def join(processes: list[int], lost: Collection[int]) -> list[int]:
    """Exit codes. `lost` are ended when the others have; those that wait for one that failed, at once."""
    codes: dict[int, int] = {}
    waited = {process for number, process in enumerate(processes) if number not in lost}
    while waited - codes.keys():
        process, status = os.wait()
        codes[process] = os.waitstatus_to_exitcode(status)
        if process in waited and codes[process] != 0 and not lost:
            break
    for process in processes:
        if process not in codes:
            os.kill(process, signal.SIGKILL)
            codes[process] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return [codes[process] for process in processes]


def _launch(module: Any, ranks: int, words: tuple[str, ...]) -> list[int]:
    """Ranks that have failed."""
    lost = getattr(module, "LOST", ())

    def body() -> None:
        global _told
        _told = _folder / f"told.{os.environ['RANK']}"
        torch.set_num_threads(1)
        module.main(*words)

    processes, store = fork(ranks, body)
    codes = join(processes, lost)
    del store
    if lost:
        codes_of = {number: code for number, code in enumerate(codes) if number not in lost}
        with (_folder / "told.ended").open("a") as file:
            for number, code in codes_of.items():
                file.write(json.dumps({"rank": number, "words": words, "exit_code": code}) + "\n")
    failed = [number for number, code in enumerate(codes) if code != 0 and number not in lost]
    if failed:
        print(f"{words}: ranks {failed} failed, exit codes {codes}", file=sys.stderr)
    return failed


def _main(name: str, ranks: str, folder: str) -> int:
    rank.end_with_parent(os.getppid())
    # This file is __main__ here, and another module for those that import it.
    sys.modules["tests.python.ranks"] = sys.modules["__main__"]
    global _folder
    _folder = Path(folder)
    module = importlib.import_module(name)
    launches = getattr(module, "LAUNCHES", [()])
    return int(any([_launch(module, int(ranks), words) for words in launches]))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
