"""`python -m retape.gradchecking.rank PORT`: one rank of `retape gradcheck`; torchrun starts it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch.distributed as torch_dist

from retape.gradchecking import messages
from retape.gradchecking.launch import LOOPBACK
from retape.gradchecking.messages import RankError, Settings

_PR_SET_PDEATHSIG = 1


def main(port: str) -> None:
    _end_with_parent()
    # torchrun's rendezvous is a file, and the port that it tells ranks about is nobody's.
    os.environ["MASTER_ADDR"] = LOOPBACK
    os.environ["MASTER_PORT"] = port
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # a launcher serves it
    folder = Path(os.environ["RETAPE_GRADCHECK"])
    rank = int(os.environ["RANK"])
    try:
        settings = messages.read_settings(folder)
        torch_dist.init_process_group("gloo", timeout=timedelta(seconds=settings.timeout))
        _check(settings, folder, rank)
        torch_dist.destroy_process_group()
    except Exception as error:
        traceback.print_exc()
        messages.write_error(folder, _told(rank, error))
        _leave(1)
    _leave(0)


def _end_with_parent() -> None:
    """When torchrun is killed, it does not end ranks. Where there is no such call, they end by timeout."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave(code: int) -> None:
    """Without destructors: those of groups may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _check(settings: Settings, folder: Path, rank: int) -> None:
    from retape.gradchecking import factory

    check = factory.make(settings.factory)
    if settings.seed is not None:
        check.seed = settings.seed
    check.self_test = check.self_test and settings.self_test

    def progress(done: int, total: int, what: str) -> None:
        messages.write(folder / "progress.json", {"done": done, "total": total, "what": what})

    def raised(text: str) -> None:
        kind, _, said = text.partition(": ")
        messages.write_error(folder, RankError(rank, kind, said))

    report = check.run(progress if rank == 0 else None, raised)
    if rank == 0:
        told = {"report": report.to_dict(), "text": report.explain()}
        messages.write(folder / "report.json", told)


def _told(rank: int, error: Exception) -> RankError:
    from retape import _C, _dist

    usage = isinstance(error, _C.UsageError)
    follows = isinstance(error, _dist.CollectiveError)
    return RankError(rank, type(error).__name__, str(error), usage, follows)


if __name__ == "__main__":
    main(sys.argv[1])
