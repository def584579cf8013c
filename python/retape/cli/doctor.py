"""`retape doctor`: is this installation whole? Versions, ABI, gloo, hooks, and one replay for real.

Nothing that may be broken is imported before the check that is about it: neither torch nor the rest of
Retape at the top of this file. A check that raises is a failed check, and the others go on.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retape import _artefact
from retape._start import why_not
from retape._text import Exit, first_line
from retape._torch_version import NEEDED
from retape.cli import cmake_dir

if TYPE_CHECKING:
    import torch
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


def imports(broken: str) -> Check:
    """`broken`: why it cannot be, as `why_not` tells it. Errors of Retape's own have their fix with them."""
    if not broken:
        return extensions(Path(__file__).absolute().parents[1])
    found, _, fix = broken.partition(". Fix: ")
    missing = re.search(r"No module named '(?!retape)(\w+)", broken)
    return Check(
        "import", found, Exit.USAGE, fix or (f"pip install {missing[1]}" if missing else _REINSTALL)
    )


def extensions(package: Path) -> Check:
    """All that are there: `import retape` needs one of them only."""
    names = sorted(each.name.partition(".")[0] for each in package.glob("_*.so"))
    for name in names:
        try:
            importlib.import_module(f"retape.{name}")
        except ImportError as error:
            return Check("import", first_line(error), Exit.USAGE, _REINSTALL)
    return Check("import", f"retape with {', '.join(names)}")


def versions(installed: str, core: str, built_for: str, running: str) -> Check:
    """What is installed and its core are one version; the core was built for the torch that runs, up
    to the third number."""
    found = f"retape {installed}, built for torch {built_for}"
    if installed != core:
        text = f"installed as {installed}, C++ part {core}"
        return Check("versions", text, Exit.USAGE, _REINSTALL)
    if _minor(built_for) != _minor(running):
        fix = f"pip install 'torch=={'.'.join(_minor(built_for))}.*', or {_REINSTALL}"
        return Check("versions", f"{found}, runs with {running}", Exit.USAGE, fix)
    return Check("versions", found)


def _versions_that_run() -> Check:
    import torch

    from retape import _C

    installed = _version("retape") or _C.__version__
    return versions(installed, _C.__version__, _C.built_for_torch, torch.__version__)


def _versions_on_disk() -> Check:
    """Where the core cannot be asked."""
    installed = _version("retape") or "of a folder"
    return versions(installed, installed, NEEDED, _version("torch") or "no torch")


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
    import torch

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


def hooks() -> Check:
    """Autograd asks Retape what to save, by way of its engine, and Python's own hooks where a user has
    pushed them: in a scope they come first, behind it they are all there is."""
    import torch

    import retape
    from retape._bits import same_bits

    x = torch.linspace(-1, 1, 64, requires_grad=True)
    called: list[str] = []
    own = torch.autograd.graph.saved_tensors_hooks(
        lambda saved: called.append("pack") or saved, lambda saved: called.append("unpack") or saved
    )
    (expected,) = torch.autograd.grad(_chain(x).sum(), x)
    with retape.recompute(retape.Policy.full().anchors(False)) as scope:
        ours = _chain(x)
        with own:
            theirs = _chain(x)
    with own:
        behind = _chain(x)
    fix = "import retape before anything else that changes autograd's engine, or reinstall"
    dropped = scope.stats.values_dropped
    if dropped == 0:
        return Check("hooks", "autograd saves without asking Retape", Exit.VACUOUS, fix)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs, behind)]
    if not all(same_bits(expected, each) for each in gradients):
        return Check("hooks", "a gradient differs from eager's", Exit.DIFFERENT, fix)
    if sorted(called) != ["pack"] * 6 + ["unpack"] * 6:
        text = f"Python's own were called {len(called)} times, not 12"
        return Check("hooks", text, Exit.VACUOUS, fix)
    text = f"{dropped} saved tensors dropped in a scope; Python's own work in it and behind it"
    return Check("hooks", text)


def _chain(x: torch.Tensor) -> torch.Tensor:
    """Three ops, each of which saves one tensor."""
    return x.sin().exp().tanh()


def replay() -> Check:
    import torch

    import retape
    from retape._bits import same_bits

    x = torch.linspace(-1, 1, 4096, requires_grad=True)
    (expected,) = torch.autograd.grad(_chain(x).sum(), x)
    with retape.recompute(retape.Policy.full().anchors(False)) as scope:
        y = _chain(x)
    (got,) = torch.autograd.grad(y.sum(), x)
    fix = "reinstall for this torch, then run this again"
    if not same_bits(expected, got):
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


def _cxx11_abi() -> Check:
    import torch

    library = cmake_dir().parent.parent / "libretape.so"
    return cxx11_abi(library, torch.compiled_with_cxx11_abi())


def _ndebug() -> Check:
    import torch

    targets = cmake_dir() / "RetapeTargets.cmake"
    return ndebug(torch.__config__.show(), targets.read_text("utf-8") if targets.is_file() else "")


def checks(broken: str = "") -> list[Check]:
    """`broken`: why Retape cannot be imported. What needs it is not tried then, nor what needs torch if
    that is the reason."""
    missing = {"Retape": bool(broken), "torch": bool(broken and why_not("torch"))}
    made: list[tuple[str, str, Callable[[], Check]]] = [  # name, what it needs, and the check
        ("import", "", lambda: imports(broken)),
        ("versions", "", _versions_on_disk if broken else _versions_that_run),
        ("CMake package", "", cmake_package),
        ("C++ ABI", "torch", _cxx11_abi),
        ("NDEBUG", "torch", _ndebug),
        ("gloo", "torch", gloo),
        ("hooks", "Retape", hooks),
        ("replay", "Retape", replay),
    ]
    return [
        _not_tried(name, needed) if missing.get(needed) else _tried(name, make)
        for name, needed, make in made
    ]


def _not_tried(name: str, what: str) -> Check:
    text = f"not tried: {what} cannot be imported"
    return Check(name, text, Exit.USAGE, "what import says")


def _tried(name: str, make: Callable[[], Check]) -> Check:
    try:
        return make()
    except Exception as error:
        return Check(name, f"{type(error).__name__}: {first_line(error)}", Exit.USAGE, _REINSTALL)


def facts(broken: str = "") -> dict[str, Any]:
    """Of this machine: what every artefact says, or what can be said without torch."""
    if not broken:
        return _artefact.environment()
    return {
        "retape": _version("retape") or "not installed",
        "torch": _version("torch") or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _artefact.cpu_name(),
        "cores": os.cpu_count(),
        "load_average": _artefact.load_average(),
    }


def run(args: argparse.Namespace, console: Console) -> tuple[Exit, dict[str, Any]]:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    found, beside, here = checks(args.broken), peers(), facts(args.broken)
    args.environment = lambda: here
    told = {name.replace("_", " "): value for name, value in here.items()}
    present = ", ".join(f"{name} {version}" for name, version in beside.items() if version)
    absent = ", ".join(name for name, version in beside.items() if not version)
    table = Table(title="retape doctor", title_style="bold", show_header=False, box=SIMPLE)
    for name, value in {**told, "beside": present, "not installed": absent or "none"}.items():
        table.add_row("", name, Text(str(value)))
    table.add_section()
    styles = {"✓": "green", "–": "yellow", "✗": "bold red"}
    for check in found:
        table.add_row(Text(check.symbol, style=styles[check.symbol]), check.name, Text(check.found))
    console.print(table)
    for check in found:
        if check.fix:
            console.print(
                f"{check.symbol} {check.name}: {check.found}. Fix: {check.fix}", markup=False
            )
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
