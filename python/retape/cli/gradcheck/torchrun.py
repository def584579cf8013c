"""`python -m retape.cli.gradcheck.torchrun FOLDER PARENT OPTION... -m PROGRAM`: torchrun, in a way of ours.

Ranks meet on loopback (`torchrun_retape`), and stay there whatever GLOO_SOCKET_IFNAME says. It ends with PARENT, and ranks can end with it: the last word that
they are given is its process. How ranks failed is left in FOLDER, with all that torchrun writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

import torchrun_retape
from retape.cli.gradcheck import messages, rank
from torchrun_retape import loopback


def command(folder: Path, ranks: int, program: Sequence[str], show: bool) -> list[str]:
    """Of a process that this one starts. `show`: what ranks print is shown as it comes, each line with its
    rank; else it is in files under `folder` alone."""
    return [
        *(sys.executable, "-m", "retape.cli.gradcheck.torchrun", str(folder), str(os.getpid())),
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        f"--rdzv-backend={torchrun_retape.BACKEND}",
        f"--rdzv-endpoint={torchrun_retape.LOOPBACK}",
        f"--log-dir={folder / 'output'}",
        "--tee=3" if show else "--redirects=3",
        "--role=rank",  # before each line
        "--shutdown-timeout=1",
        *("-m", *program),
    ]


def output_of(folder: Path, number: int) -> str:
    """What a rank has written."""
    paths = sorted((folder / "output").glob(f"*/attempt_0/{number}/std*.log"), reverse=True)
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


def main(folder: Path, parent: int, options: Sequence[str]) -> None:
    rank.end_with_parent(parent)
    os.environ["GLOO_SOCKET_IFNAME"] = loopback.interface()  # ranks inherit it
    rendezvous_handler_registry.register(torchrun_retape.BACKEND, torchrun_retape.create)
    try:
        run.run(run.parse_args([*options, str(os.getpid())]))
    except ChildFailedError as error:
        codes = {number: failure.exitcode for number, failure in error.failures.items()}
        messages.write_exit_codes(folder, codes)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
