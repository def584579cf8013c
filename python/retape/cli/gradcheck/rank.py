"""`python -m retape.cli.gradcheck.rank FOLDER PARENT`: one rank of `retape gradcheck`, started by torchrun."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch.distributed as torch_dist

from retape.cli.gradcheck import messages
from retape.cli.gradcheck.messages import RankError, Settings

_PR_SET_PDEATHSIG = 1


def main(folder: Path, parent: int) -> None:
    end_with_parent(parent)
    rank = int(os.environ["RANK"])
    # SIGTERM leaves a mark, also while this waits below Python, and ends it all the same.
    mark = messages.mark_of(folder, rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGTERM, mark, chain=True)
    messages.write_process(folder, rank)
    try:
        settings = messages.read_settings(folder)
        torch_dist.init_process_group("gloo", timeout=timedelta(seconds=settings.timeout))
        _check(settings, folder, rank)
        torch_dist.destroy_process_group()
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        messages.write_error(folder, _told(rank, error))
        leave()  # with 0: else torchrun ends the others, which may be about to report the cause
    messages.write_done(folder, rank)
    leave()


def end_with_parent(parent: int) -> None:
    """Where there is no such call, ranks end by timeout."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)


def leave() -> NoReturn:
    """Without destructors: those of groups may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _check(settings: Settings, folder: Path, rank: int) -> None:
    from retape.cli.gradcheck import factory

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


def _told(rank: int, error: Exception | SystemExit) -> RankError:
    from retape import _C, _dist

    usage = isinstance(error, _C.UsageError)
    follows = isinstance(error, _dist.CollectiveError)
    text = " ".join([str(error), *getattr(error, "__notes__", ())])
    return RankError(rank, type(error).__name__, text, usage, follows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
