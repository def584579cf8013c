"""The JSON file that every verb leaves behind: what ran, where, and what came out."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

FORMAT = "retape/1"


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """Runnable processes over the last minute, or None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers. No host name, user or path."""
    import torch

    import retape

    return {
        "retape": retape.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": load_average(),
    }


def artefact(verb: str, arguments: dict[str, Any], result: dict[str, Any], code: int) -> dict:
    return {
        "format": FORMAT,
        "verb": verb,
        "environment": environment(),
        "arguments": arguments,
        "result": result,
        "exit_code": int(code),
    }


def prepare(path: str) -> None:
    """OSError now, not after minutes of work, where `path` cannot be written."""
    if path == "-":
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a", encoding="utf-8"):
        pass


def write(path: str, content: dict[str, Any]) -> None:
    """Writes to `path`, or to standard output where `path` is "-"."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text, encoding="utf-8")
