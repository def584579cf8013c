"""`retape doctor`: is this installation whole? Versions, build, and one replay for real."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape import _C, _artefact
from retape._bits import same_bits
from retape._text import Exit
from retape.cli import cmake_dir

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""


def _build_facts() -> dict[str, Any]:
    """What the compiled part says about itself."""
    facts = {"built for torch": _C.built_for_torch, "compiler": getattr(_C, "compiler", None)}
    return {name: value for name, value in facts.items() if value is not None}


def _replay_works() -> tuple[Exit, str]:
    x = torch.linspace(-1, 1, 4096, requires_grad=True)
    x.sin().exp().tanh().sum().backward()
    expected, x.grad = x.grad, None
    with retape.recompute(retape.Policy.full().anchors(False)) as scope:
        y = x.sin().exp().tanh()
    y.sum().backward()
    if not same_bits(expected, x.grad):
        return Exit.DIFFERENT, "a replayed gradient differs from eager's"
    if scope.stats.ops_replayed == 0:
        return Exit.VACUOUS, "nothing was dropped, so nothing was replayed"
    return Exit.OK, f"{scope.stats.ops_replayed} ops replayed, gradient bit-identical"


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    from rich.table import Table

    code, replay = _replay_works()
    config = (cmake_dir() / "RetapeConfig.cmake").is_file()
    build = _build_facts()
    facts = {
        **_artefact.environment(),
        **build,
        "CMake package": "installed" if config else "missing: pip install . --no-build-isolation",
        "replay": replay,
    }
    table = Table(title="retape doctor", show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), str(value))
    console.print(table)
    if code is Exit.OK:
        console.print(
            "Everything works." if config else "Python works; C++ users lack CMake files."
        )
    else:
        console.print(f"Broken: {replay}. Fix: reinstall for this torch, then run this again.")
    return code, {"build": build, "cmake_package": config, "replay": replay}
