"""`retape doctor`: is this installation whole? Versions, ABI, gloo, and one replay for real."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape import _C, _artefact
from retape._bits import same_bits
from retape._text import Exit, first_line
from retape.cli import cmake_dir

if TYPE_CHECKING:
    from rich.console import Console

# Not needed to import Retape; each has a part of it that is for its users.
PEERS = (
    *("numpy", "transformers", "accelerate", "peft", "pytest", "rich", "jinja2", "pebble"),
    *("torch_remat", "ai2-olmo-core", "megatron-core"),  # that retape bench runs beside
)


@dataclass(frozen=True)
class Check:
    name: str
    found: str
    code: Exit = Exit.OK  # what the command ends with if nothing is worse
    fix: str = ""  # also of something that is only missing

    @property
    def symbol(self) -> str:
        return "✗" if self.code else "–" if self.fix else "✓"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""


_REINSTALL = "pip install . --no-build-isolation --force-reinstall"


def versions(python: str, core: str, built_for: str, running: str) -> Check:
    """Python part and core are one version; the core was built for the torch that runs, up to the
    third number."""
    found = f"retape {python}, built for torch {built_for}"
    if python != core:
        text = f"Python part {python}, C++ part {core}"
        return Check("versions", text, Exit.USAGE, _REINSTALL)
    if _minor(built_for) != _minor(running):
        return Check("versions", f"{found}, runs with {running}", Exit.USAGE, _REINSTALL)
    return Check("versions", found)


def _minor(version: str) -> list[str]:
    return re.split(r"[.+]", version)[:2]


def cxx11_abi(library: Path, of_torch: bool) -> Check:
    """_GLIBCXX_USE_CXX11_ABI of both. Where it differs, strings that cross are garbage."""
    name = "C++ ABI"
    if not library.is_file():
        return Check(name, f"no {library.name}", Exit.USAGE, _REINSTALL)
    ours = b"__cxx1112basic_string" in library.read_bytes()
    found = f"_GLIBCXX_USE_CXX11_ABI: retape {int(ours)}, torch {int(of_torch)}"
    if ours == of_torch:
        return Check(name, found)
    return Check(name, found, Exit.USAGE, _REINSTALL)


def ndebug(config: str, targets: str) -> Check:
    """Members of at::RecordFunction and others exist only without NDEBUG: it must be the same in torch
    and in everything that includes its headers."""
    torchs, ours = "-DNDEBUG" in config, '"NDEBUG"' in targets
    words = {True: "with NDEBUG", False: "without"}
    if not targets:
        return Check("NDEBUG", f"torch {words[torchs]}")
    found = f"torch {words[torchs]}, Retape's C++ users {words[ours]}"
    if ours == torchs:
        return Check("NDEBUG", found)
    return Check("NDEBUG", found, Exit.USAGE, "a torch wheel, or a build of it with NDEBUG")


def gloo() -> Check:
    """A reduction for real, by one rank."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        return Check("gloo", "not in this torch", fix="a torch wheel, if you train with ranks")
    try:
        limit = datetime.timedelta(seconds=30)
        group = distributed.ProcessGroupGloo(distributed.HashStore(), 0, 1, limit)
        group.allreduce([torch.ones(1)]).wait()
    except RuntimeError as error:
        fix = "GLOO_SOCKET_IFNAME=lo, if ranks are on one machine"
        return Check("gloo", first_line(error), Exit.RANK, fix)
    return Check("gloo", "one rank reduced")


def cmake_package() -> Check:
    if (cmake_dir() / "RetapeConfig.cmake").is_file():
        return Check("CMake package", "installed")
    return Check("CMake package", "missing", fix="pip install . --no-build-isolation")


def replay() -> Check:
    x = torch.linspace(-1, 1, 4096, requires_grad=True)
    x.sin().exp().tanh().sum().backward()
    expected, x.grad = x.grad, None
    with retape.recompute(retape.Policy.full().anchors(False)) as scope:
        y = x.sin().exp().tanh()
    y.sum().backward()
    fix = "reinstall for this torch, then run this again"
    if not same_bits(expected, x.grad):
        return Check("replay", "a replayed gradient differs from eager's", Exit.DIFFERENT, fix)
    if scope.stats.ops_replayed == 0:
        text = "nothing was dropped, so nothing was replayed"
        return Check("replay", text, Exit.VACUOUS, fix)
    return Check("replay", f"{scope.stats.ops_replayed} ops replayed, gradient bit-identical")


def peers() -> dict[str, str | None]:
    """Versions of what Retape works beside; None: not installed."""
    return {name: _version(name) for name in PEERS}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def checks() -> list[Check]:
    targets = cmake_dir() / "RetapeTargets.cmake"
    library = cmake_dir().parent.parent / "libretape.so"
    made: list[Callable[[], Check]] = [
        lambda: versions(
            retape.__version__, _C.__version__, _C.built_for_torch, torch.__version__
        ),
        lambda: cxx11_abi(library, torch.compiled_with_cxx11_abi()),
        lambda: ndebug(
            torch.__config__.show(), targets.read_text("utf-8") if targets.is_file() else ""
        ),
        cmake_package,
        gloo,
        replay,
    ]
    return [make() for make in made]


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    found, beside = checks(), peers()
    facts = {name.replace("_", " "): value for name, value in _artefact.environment().items()}
    here = ", ".join(f"{name} {version}" for name, version in beside.items() if version)
    absent = ", ".join(name for name, version in beside.items() if not version)
    table = Table(title="retape doctor", title_style="bold", show_header=False, box=SIMPLE)
    for name, value in {**facts, "beside": here, "not installed": absent or "none"}.items():
        table.add_row("", name, Text(str(value)))
    table.add_section()
    styles = {"✓": "green", "–": "yellow", "✗": "bold red"}
    for check in found:
        table.add_row(Text(check.symbol, style=styles[check.symbol]), check.name, Text(check.found))
    console.print(table)
    for check in found:
        if check.fix:
            console.print(f"{check.symbol} {check.name}: {check.found}. Fix: {check.fix}", markup=False)
    code = _worst(found)
    console.print("Everything works." if code is Exit.OK else "Broken.", markup=False)
    return code, {
        "checks": [{**asdict(check), "code": int(check.code)} for check in found],
        "peers": beside,
    }


def _worst(found: list[Check]) -> Exit:
    """Of what is broken: wrong gradients first, then what explains the rest."""
    codes = {check.code for check in found}
    order = (Exit.DIFFERENT, Exit.USAGE, Exit.VACUOUS, Exit.RANK)
    return next((code for code in order if code in codes), Exit.OK)
