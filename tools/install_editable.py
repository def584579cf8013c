"""Installs this work tree's Python package: the path to python/, and the metadata that pip keeps of it.

A changed .py needs no new installation then. CMake installs the libraries beside the sources (see the
Makefile), so the package has the layout that it has in a wheel.
"""

import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from scikit_build_core import build

ROOT = Path(__file__).resolve().parents[1]
WHEEL = "Wheel-Version: 1.0\nGenerator: retape\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def record(files: dict[str, bytes], name: str) -> bytes:
    """Of a wheel: each file with its hash and size, and the list itself with neither."""
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}\n")
    return "".join([*rows, f"{name},,\n"]).encode()


def make_wheel(folder: Path) -> Path:
    info = folder / build.prepare_metadata_for_build_wheel(str(folder))
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(info.rglob("*"))
        if path.is_file()
    }
    files[f"{info.name}/WHEEL"] = WHEEL.encode()
    files["retape.pth"] = f"{ROOT / 'python'}\n".encode()
    files[f"{info.name}/RECORD"] = record(files, f"{info.name}/RECORD")
    wheel = folder / f"{info.name.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        wheel = make_wheel(Path(folder))
        options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
        return subprocess.call([sys.executable, "-m", "pip", "install", *options, str(wheel)])


if __name__ == "__main__":
    sys.exit(main())
