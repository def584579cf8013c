"""`retape verify` as its tests call it: in a folder that has models, in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retape import cli

MODELS = Path(__file__).with_name("verify_models.py")


@pytest.fixture(autouse=True)
def in_a_folder_with_models(tmp_path, monkeypatch):
    (tmp_path / "mymodels.py").write_text(MODELS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


def verify(*words: str) -> tuple[int, dict]:
    code = cli.main(["verify", *words, "--json", "out.json"])
    left = json.loads(Path("out.json").read_text())
    assert left["verb"] == "verify"
    assert left["exit_code"] == code
    return code, left["result"]


def in_process(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "retape", "verify", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err
