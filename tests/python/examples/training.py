"""The two programs that train, train.py and train_gpt, and what a run of them leaves."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/python/train"
sys.path.insert(0, str(EXAMPLE))
corpus, options, saved_run, train = (
    importlib.import_module(name) for name in ("corpus", "options", "saved_run", "train")
)
BINARY = Path(os.environ.get("RETAPE_TRAIN_GPT", ROOT / "build/tests/examples/train_gpt"))
TINY = "--layers 2 --width 32 --context 32 --batch 4".split()
STEPS = 120
LINE = re.compile(r"step (\d+)/\d+  loss (\S+)  tokens/s \d+  peak \S+ \S+  replay (\S+) %")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "CI"}


@dataclass
class Ended:
    code: int
    out: str
    err: str
    losses: dict[int, str] = field(init=False)  # by step, as printed: enough digits for every bit

    def __post_init__(self) -> None:
        self.losses = {int(step): loss for step, loss, _ in LINE.findall(self.err)}


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple[str, ...]

    def start(self, *words: object, **more: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, *map(str, words)],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            **more,
        )

    def in_process(
        self, *words: object, environment: dict[str, str] | None = None, **more: object
    ) -> Ended:
        """In a process of its own."""
        kills = self.name == "python" and "RETAPE_TRAIN_KILL" in (environment or {})
        command = (sys.executable, "-m", "tests.python.examples.killed") if kills else self.command
        done = subprocess.run(
            [*command, *map(str, words)],
            env={**ENVIRONMENT, "PYTHONPATH": str(ROOT), **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            **more,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def run(self, *words: object) -> Ended:
        """As quickly as it can be had: Python need not be started again."""
        if self.name == "cpp":
            return self.in_process(*words)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = train.main([*map(str, words)])
            except SystemExit as ended:
                code = ended.code
        return Ended(code, out.getvalue(), err.getvalue())


CPP = Program("cpp", (str(BINARY),))
PYTHON = Program("python", (sys.executable, str(EXAMPLE / "train.py")))


def built(program: Program) -> Program:
    if program is CPP:
        assert BINARY.is_file(), "train_gpt is not built: make test-python does it"
    return program


def saved(folder: Path) -> Path:
    return folder / "run.safetensors"


def beside_saved(folder: Path) -> Path:
    """What a save is written to before it has its name."""
    return folder / "run.safetensors.tmp"


def assert_same_run(one: Path, other: Path) -> None:
    a, b = load_file(saved(one)), load_file(saved(other))
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def assert_continues(ended: Ended, expected: dict[int, str], after: int) -> None:
    steps = list(ended.losses)
    assert steps[:1] in ([], [after + 1])
    assert steps == list(range(after + 1, after + 1 + len(steps)))
    assert ended.losses == {step: expected[step] for step in steps}


def step_of(folder: Path) -> int:
    """Where the saved run is; 0 where none is saved yet."""
    if not saved(folder).exists():
        return 0
    with saved(folder).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return int(header["__metadata__"]["step"])


@pytest.fixture(params=[CPP, PYTHON], ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    return built(request.param)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ended, Path]]:
    """Runs that nobody has interrupted, made when they are first asked for."""

    class Runs(dict):
        def __missing__(self, name: str) -> tuple[Ended, Path]:
            folder = tmp_path_factory.mktemp(f"reference-{name}")
            program = {"cpp": CPP, "python": PYTHON}[name]
            ended = program.run(*TINY, "--steps", STEPS, "--save-every", 0, "--out", folder)
            assert ended.code == 0, ended.err
            assert list(ended.losses) == list(range(1, STEPS + 1))
            self[name] = ended, folder
            return self[name]

    return Runs()


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    assert PYTHON.run(*TINY, "--steps", 1, "--out", folder).code == 0
    return folder
