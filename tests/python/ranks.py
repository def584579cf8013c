"""Programs for tests that several ranks run: started by torchrun, on loopback, once for many questions.

A program is a module with `main() -> None`, called when ranks have met, which prints one JSON object per
line (`tell`). Starting ranks costs seconds, so a test module starts them once, in a fixture, and each of
its tests looks at the lines that are its own.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

from retape.gradchecking import rank, torchrun

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0  # seconds for which ranks wait for one another


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
        program = ["tests.python.ranks", module, name]
        ended = subprocess.run(
            torchrun.command(Path(name), ranks, program, show=True),
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * TIMEOUT,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        lines = [path.read_text().splitlines() for path in sorted(Path(name).glob("told.*"))]
    return [json.loads(line) for each in lines for line in each]


def tell(**told: Any) -> None:
    """One line of this rank's."""
    with _told.open("a") as file:
        file.write(json.dumps({"rank": torch_dist.get_rank(), **told}) + "\n")


def _main(module: str, folder: str, parent: str) -> None:
    rank.end_with_parent(int(parent))
    torch.set_num_threads(1)
    # This file is __main__ here, and another module for those that import it.
    sys.modules["tests.python.ranks"] = sys.modules["__main__"]
    global _told
    _told = Path(folder) / f"told.{os.environ['RANK']}"
    torch_dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    importlib.import_module(module).main()
    torch_dist.barrier()
    rank.leave()


if __name__ == "__main__":
    _main(*sys.argv[1:])
