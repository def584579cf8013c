"""An exception of code that is not ours, in words: what it says, and the line of that code it came from."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary

import torch

_RETAPE = str(Path(__file__).resolve().parents[1])
_TORCH = str(Path(torch.__file__).parent)
_PYTHON = sysconfig.get_path("stdlib")
_INSTALLED = sysconfig.get_path("purelib")


def in_short(error: BaseException) -> str:
    """One line: "KeyError: 'data' (models.py:14 in forward)"."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    lines = _message(error)
    where = _where(frames[0]) if (frames := _from_the_users(error)) else ""
    return f"{type(error).__name__}: {lines[0]}" + (f" ({where})" if where else "")


def more(error: BaseException) -> str:
    """What a line has no room for: the rest of the message, and the calls that led there, from the user's
    own code on. No folder of this machine."""
    frames = _from_the_users(error)
    calls = [f"at {_where(frame)}: {frame.line}" for frame in frames if frame.line]
    return "\n".join([*_message(error)[1:], *calls])


def _message(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or ["no message"]


def _from_the_users(error: BaseException) -> Sequence[FrameSummary]:
    """The last frame of the user's, and those below it. Where all is installed, that of whoever is neither
    torch nor Retape."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")
    ]
    for others in ((_PYTHON, _INSTALLED, _RETAPE), (_PYTHON, _TORCH, _RETAPE)):
        own = [i for i, frame in enumerate(frames) if not _is_in(frame.filename, others)]
        if own:
            return frames[own[-1] :]
    return frames[-1:]


def _is_in(file: str, folders: Sequence[str]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _where(frame: FrameSummary) -> str:
    function = "" if frame.name == "<module>" else f" in {frame.name}"
    return f"{Path(frame.filename).name}:{frame.lineno}{function}"
