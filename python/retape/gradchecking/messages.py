"""What ranks tell the command that started them: files in a folder that only its user can read.

progress.json     done, total, what; by the first rank, replaced before each run
report.json       what the check found, and its text; by the first rank
error.N.json      what rank N raised
"""

from __future__ import annotations

import json
import os
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
    rank: int
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


def write_error(folder: Path, error: RankError) -> None:
    write(folder / f"error.{error.rank}.json", asdict(error))


def read_errors(folder: Path) -> list[RankError]:
    """In the order in which they were raised; not what others raised because of them."""
    paths = sorted(folder.glob("error.*.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [RankError(**read(path)) for path in paths]
    return [error for error in found if not error.follows] or found
