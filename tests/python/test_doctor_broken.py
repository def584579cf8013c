"""`retape doctor` where Retape cannot be imported: a failed check with its fix, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import retape
from retape import _start
from retape._text import Exit

PACKAGE = Path(retape.__file__).absolute().parent

OTHER_TORCH = """
import importlib.metadata
true_version = importlib.metadata.version
importlib.metadata.version = lambda name: "2.14.0" if name == "torch" else true_version(name)
"""

NO_TORCH = """
import importlib.metadata, sys
true_version = importlib.metadata.version
def version(name):
    if name == "torch":
        raise importlib.metadata.PackageNotFoundError(name)
    return true_version(name)
importlib.metadata.version = version
sys.modules["torch"] = None  # as if there were none
"""

BROKEN_TORCH = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise OSError("libtorch_cpu.so: cannot open shared object file")
sys.meta_path.insert(0, Finder())
"""


def without_extension(folder: Path, name: str = "_C") -> Path:
    """This package without an extension, in a folder of its own."""
    copy = folder / "retape"
    copy.mkdir(parents=True)
    for each in PACKAGE.iterdir():
        if not each.name.startswith((f"{name}.", "__pycache__")):
            (copy / each.name).symlink_to(each)
    return copy


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs it as a user does, in an empty folder, behind folders that come first on Python's path."""

    def run(*words: str, first: Path, by_script: bool = False) -> subprocess.CompletedProcess[str]:
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        script = tmp_path / "bin/retape"  # as pip writes it
        script.parent.mkdir(exist_ok=True)
        script.write_text("import sys\nfrom retape.cli import main\nsys.exit(main())\n")
        begin = [str(script)] if by_script else ["-m", "retape"]
        places = [str(first), str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        wide = {"COLUMNS": "1000"}  # texts are looked for in one line
        return subprocess.run(
            [sys.executable, *begin, "doctor", *words],
            cwd=empty,
            env={**os.environ, **wide, "PYTHONPATH": os.pathsep.join(filter(None, places))},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def site(folder: Path, text: str) -> Path:
    """A folder whose sitecustomize does that to Python."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return folder


def failed(done: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    """What it found, by name. It must have said all of it, ended with 2, and left no traceback."""
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == Exit.USAGE, done.stderr
    left = json.loads((Path(done.args[-1])).read_text())
    assert left["exit_code"] == Exit.USAGE
    checks = {check["name"]: check for check in left["result"]["checks"]}
    said = " ".join(done.stdout.split())
    for name, check in checks.items():
        if check["code"]:
            assert f"✗ {name}: {' '.join(check['found'].split())}. Fix: " in said
            assert check["fix"]
    assert "Broken." in said
    return checks


@pytest.mark.parametrize("by_script", [False, True], ids=["python -m retape", "retape"])
def test_another_torch_is_told_with_both_versions(doctor, tmp_path, by_script):
    first = site(tmp_path / "site", OTHER_TORCH)
    done = doctor("--json", str(tmp_path / "d.json"), first=first, by_script=by_script)
    checks = failed(done)
    assert "expected 2.13, got 2.14.0" in checks["import"]["found"]
    assert checks["import"]["fix"].startswith("pip install torch==2.13.0")
    assert "2.14.0" in checks["versions"]["found"] and checks["versions"]["code"] == Exit.USAGE
    assert checks["gloo"]["code"] == checks["C++ ABI"]["code"] == Exit.OK  # torch is there
    assert "not tried" in checks["replay"]["found"]


def test_a_missing_torch_is_told(doctor, tmp_path):
    done = doctor("--json", str(tmp_path / "d.json"), first=site(tmp_path / "site", NO_TORCH))
    checks = failed(done)
    assert "torch is not installed" in checks["import"]["found"]
    assert checks["import"]["fix"] == "pip install torch==2.13.0"
    assert "not tried" in checks["gloo"]["found"]
    assert checks["CMake package"]["code"] == Exit.OK


def test_a_torch_that_does_not_load_is_told(doctor, tmp_path):
    done = doctor("--json", str(tmp_path / "d.json"), first=site(tmp_path / "site", BROKEN_TORCH))
    checks = failed(done)
    assert "libtorch_cpu.so: cannot open shared object file" in checks["import"]["found"]
    assert "not tried" in checks["gloo"]["found"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (None, "", "_C"),
        ("_C.so", "not a library", "_C.so"),
        ("_C.py", "__version__ = '0.0.1'", "cannot import name"),
        ("_C.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
    ids=["missing", "no library", "of another version", "crashes"],
)
def test_an_extension_that_does_not_load_is_told(doctor, tmp_path, name, content, told):
    copy = without_extension(tmp_path / "first")
    if name:
        (copy / name).write_text(content)
    checks = failed(doctor("--json", str(tmp_path / "d.json"), first=copy.parent))
    assert told in checks["import"]["found"]
    assert "pip install ." in checks["import"]["fix"]
    assert checks["versions"]["code"] == checks["gloo"]["code"] == Exit.OK
    assert "not tried" in checks["hooks"]["found"]


def test_an_extension_that_import_does_not_need_is_tried_too(doctor, tmp_path):
    copy = without_extension(tmp_path / "first", "_dist")
    (copy / "_dist.so").write_text("not a library")
    checks = failed(doctor("--json", str(tmp_path / "d.json"), first=copy.parent))
    assert "_dist.so" in checks["import"]["found"]
    assert checks["replay"]["code"] == Exit.OK


def test_a_missing_library_of_python_is_named(doctor, tmp_path):
    first = site(tmp_path / "site", "import sys\nsys.modules['rich'] = None\n")
    done = doctor(first=first)
    assert done.returncode == Exit.USAGE
    assert "Traceback" not in done.stderr
    assert "Fix: pip install rich" in done.stderr


def test_other_verbs_and_programs_are_refused_as_ever(tmp_path):
    first = site(tmp_path / "site", OTHER_TORCH)
    program = tmp_path / "mine.py"
    program.write_text("import retape\n")
    places = os.pathsep.join([str(first), str(PACKAGE.parent)])
    done = subprocess.run(
        [sys.executable, str(program), "doctor"],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ImportError: [retape] built for another torch" in done.stderr


@pytest.mark.parametrize(
    ("argv", "orig_argv", "asked"),
    [
        (["-m", "doctor"], ["python", "-m", "retape", "doctor"], True),
        (["-m", "doctor", "--json", "-"], ["python", "-mretape", "doctor", "--json", "-"], True),
        (["/bin/retape", "doctor"], ["python", "/bin/retape", "doctor"], True),
        (["-m", "doctor"], ["python", "-m", "mine", "doctor"], False),
        (["mine.py", "doctor"], ["python", "mine.py", "doctor"], False),
        (["/bin/retape", "train"], ["python", "/bin/retape", "train"], False),
        ([""], ["python"], False),
        ([], [], False),
    ],
)
def test_only_retape_doctor_asks_for_the_doctor(argv, orig_argv, asked):
    assert _start.doctor_is_asked(argv, orig_argv) is asked
