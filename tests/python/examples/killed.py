"""Runs examples/python/train/train.py and kills it within a save: RETAPE_TRAIN_KILL=before-rename:9.

Moments: half-written, before-rename, after-rename. The number is the step whose save is meant.
"""

from __future__ import annotations

import os
import signal
import sys

from tests.python.examples import training

MOMENT, STEP = os.environ["RETAPE_TRAIN_KILL"].split(":")
whole_save, fsync, replace = training.saved_run.SavedRun.save, os.fsync, os.replace


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fsync_half(descriptor: int) -> None:
    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
    kill()


def replace_around(old: os.PathLike, new: os.PathLike) -> None:
    if MOMENT == "after-rename":
        replace(old, new)
    kill()


def save(run: object, step: int, *args: object, **more: object) -> None:
    if step == int(STEP):
        os.fsync = fsync_half if MOMENT == "half-written" else fsync
        os.replace = replace_around
    whole_save(run, step, *args, **more)


if __name__ == "__main__":
    training.saved_run.SavedRun.save = save
    sys.exit(training.train.main())
