"""What ranks tell the command that started them: files in a folder that only its user can read.

progress.json     done, total, what; by the first rank, replaced before each run
report.json       what the check found, and its text; by the first rank
process.N.json    of rank N
error.N.json      what rank N raised
done.N.json       rank N has come to its end
told_to_end.N     where rank N stood when SIGTERM came, if it did
exit_codes.json   of ranks that failed, the first to fail first; by torchrun
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Of the ranks, as the command line has them."""

    factory: str
    timeout: float  # seconds that ranks wait for one another
    seed: int | None = None
    self_test: bool = True


@dataclass(frozen=True)
class RankError:
    rank: int | None  # none: torchrun's
    kind: str  # name of the exception's class; empty: there was none
    text: str
    usage: bool = False  # a mistake of the caller's
    follows: bool = False  # another rank's


def write(path: Path, content: Any) -> None:
    """Whole or not at all, as others see it."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


def read(path: Path) -> Any:
    """None if it is not there yet."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write_settings(folder: Path, settings: Settings) -> None:
    write(folder / "settings.json", asdict(settings))


def read_settings(folder: Path) -> Settings:
    return Settings(**read(folder / "settings.json"))


def write_process(folder: Path, rank: int) -> None:
    write(folder / f"process.{rank}.json", os.getpid())


def process_of(folder: Path, rank: int) -> int | None:
    return read(folder / f"process.{rank}.json")


def mark_of(folder: Path, rank: int) -> Path:
    return folder / f"told_to_end.{rank}"


def was_told_to_end(folder: Path, rank: int) -> bool:
    mark = mark_of(folder, rank)
    return mark.exists() and mark.stat().st_size > 0


def write_exit_codes(folder: Path, codes: Mapping[int, int]) -> None:
    write(folder / "exit_codes.json", list(codes.items()))


def read_exit_codes(folder: Path) -> dict[int, int]:
    return dict(read(folder / "exit_codes.json") or [])


def write_error(folder: Path, error: RankError) -> None:
    write(folder / f"error.{error.rank}.json", asdict(error))


def write_done(folder: Path, rank: int) -> None:
    write(folder / f"done.{rank}.json", {})


def has_spoken(folder: Path, rank: int) -> bool:
    """It came to its end, or told what it raised."""
    return any((folder / f"{what}.{rank}.json").exists() for what in ("done", "error"))


def read_errors(folder: Path) -> list[RankError]:
    """In the order in which they were raised; not what others raised because of them."""
    paths = sorted(folder.glob("error.*.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [RankError(**read(path)) for path in paths]
    return [error for error in found if not error.follows] or found
