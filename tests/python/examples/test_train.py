"""train.py and train_gpt, its twin in C++: the same bits, little memory, clear refusals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.python.examples.training import (
    CPP,
    ENVIRONMENT,
    PYTHON,
    TINY,
    Ended,
    Program,
    assert_same_run,
    built,
    corpus,
    options,
    program,
    references,
    saved,
    saved_run,
    step_of,
)

from retape._text import MIB, Exit

__all__ = ["program", "references"]  # fixtures


def test_the_corpus_is_the_same_everywhere(references: dict[str, tuple[Ended, Path]]) -> None:
    text = corpus.tiny_corpus()
    assert 30_000 < len(text) < 60_000
    assert corpus.digest(text) == "a9d577631ba9dfaa"
    for name in ("cpp", "python"):
        with safe_open(saved(references[name][1]), framework="pt") as run:
            assert run.metadata()["text"] == "a9d577631ba9dfaa"


def test_what_a_step_sees_depends_on_seed_and_position_alone() -> None:
    text = corpus.Text(corpus.tiny_corpus())
    together = text.batch(seed=3, position=0, batch=8, context=16)
    assert torch.equal(together[4:], text.batch(seed=3, position=4, batch=4, context=16))
    assert not torch.equal(together, text.batch(seed=4, position=0, batch=8, context=16))
    assert bytes(text.alphabet[i] for i in together[0]) in corpus.tiny_corpus()
    assert corpus.digest(b"") == "cbf29ce484222325"
    assert corpus.digest(b"a") == "af63dc4c8601ec8c"


def test_it_learns(references: dict[str, tuple[Ended, Path]]) -> None:
    losses = [float(loss) for loss in references["python"][0].losses.values()]
    assert losses[-1] < 3.3 < 4 < losses[0]


@pytest.mark.parametrize("policy", ["none", "cheap", "full"])
def test_no_policy_changes_a_bit(program: Program, policy: str, tmp_path: Path) -> None:
    words = [*TINY, "--steps", 6, "--batch", 8]
    expected = program.run(*words, "--policy", "none", "--out", tmp_path / "plain")
    ended = program.run(*words, "--policy", policy, "--out", tmp_path / "ours")
    assert ended.losses == expected.losses
    assert len(ended.losses) == 6
    assert_same_run(tmp_path / "plain", tmp_path / "ours")
    plain, ours = (
        json.loads((tmp_path / name / "report.json").read_text())["result"]
        for name in ("plain", "ours")
    )
    assert ours["losses"] == plain["losses"] == [float(loss) for loss in expected.losses.values()]
    assert plain["replay_share"] == 0
    if policy != "none":
        assert 0 < ours["replay_share"] < 1
        assert ours["peak_bytes"] < plain["peak_bytes"]


def test_both_languages_compute_the_same_bits(references: dict[str, tuple[Ended, Path]]) -> None:
    built(CPP)
    assert references["cpp"][0].losses == references["python"][0].losses
    assert_same_run(references["cpp"][1], references["python"][1])


HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--polcy", "full"], "unknown argument --polcy. Did you mean --policy?"),
        (["--step=3"], "unknown argument --step. Did you mean --steps?"),
        (["--memory-limt", "3"], "Did you mean --memory-limit?"),
        (["--policy", "ful"], "no such value for --policy: 'ful'. Did you mean full?"),
        (["--policy", "xyzzy"], "There is: none, cheap, full."),
        (["--steps", "many"], "--steps: expected a whole number, got 'many'"),
        (["--steps", "0"], "--steps: expected at least 1, got 0"),
        (["--steps"], "--steps: expected one argument"),
        (["--steps", HUGE], f"--steps: expected at most 9223372036854775807, got {HUGE}"),
        (["--steps", f"-{HUGE}"], f"--steps: expected at least 1, got -{HUGE}"),
        (["--seed", HUGE], f"--seed: expected at most 9223372036854775807, got {HUGE}"),
        (["--layers", HUGE], f"--layers: expected at most 10000, got {HUGE}"),
        (["--width", "1000001"], "--width: expected at most 1000000, got 1000001"),
        (["--threads", "1025"], "--threads: expected at most 1024, got 1025"),
        (
            ["--memory-limit", "99999999999GiB"],
            "--memory-limit: expected at most 1000000000000000 bytes, got '99999999999GiB'",
        ),
        (
            ["--memory-limit", "9" * 400],
            "--memory-limit: expected at most 1000000000000000 bytes, got '999",
        ),
        (["--text", "/dev/null"], "--text: expected more than 64 characters (--context), got 0"),
        (["--text", "/"], "--text: cannot read / (Is a directory)"),
        (["--width", "30"], "--width: expected a multiple of 4 (--heads), got 30"),
        (["--lr", "0"], "--lr: expected a number above 0 and below 10, got '0'"),
        (["--dropout", "1"], "--dropout: expected a number from 0 and below 1, got '1'"),
        (
            ["--memory-limit", "12MB"],
            "expected a size like 256MiB (B, KiB, MiB or GiB), got '12MB'",
        ),
        (
            ["--text", "no/such/file"],
            "--text: cannot read no/such/file (No such file or directory)",
        ),
        (["--json", "/dev/null/x.json"], "cannot write /dev/null/x.json ("),
        (["--context", "99999"], "--text: expected more than 99999 characters (--context), got"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_meant(
    program: Program, words: list[str], told: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = program.run(*words)
    assert ended.code == Exit.USAGE
    assert told in ended.err
    assert ended.out == ""
    assert not saved(tmp_path / "build/train").exists()


def test_both_languages_have_the_same_options() -> None:
    pages = [built(program).run("--help").out for program in (CPP, PYTHON)]
    cpp, python = (sorted(set(re.findall(r"--[a-z][a-z-]+", page))) for page in pages)
    assert cpp == python
    assert all(page.rstrip().splitlines()[-2] == "example:" for page in pages)


def test_sizes_and_numbers_as_text() -> None:
    assert options.size_in_bytes("256MiB") == options.size_in_bytes("256 MiB") == 256 * MIB
    assert options.size_in_bytes("1.5KiB") == 1536
    assert options.size_in_bytes("17") == options.size_in_bytes("17B") == 17
    assert [saved_run.shortest(x) for x in (0.001, 3e-4, 1e-5, 0.1, 1 / 3)] == [
        "0.001",
        "0.0003",
        "1e-05",
        "0.1",
        "0.3333333333333333",
    ]


def test_an_interrupted_run_says_where_it_can_go_on(tmp_path: Path) -> None:
    words = [*TINY, "--steps", 10_000, "--save-every", 3, "--out", tmp_path]
    # What a shell starts in the background ignores Ctrl-C, and so does what that starts.
    process = PYTHON.start(*words, preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL))
    seen = b"".join(process.stderr.readline() for _ in range(5))
    process.send_signal(signal.SIGINT)
    seen += process.stderr.read()
    process.stderr.close()
    assert process.wait() == 130
    assert f"--resume goes on after step {step_of(tmp_path)}" in seen.decode()
    assert step_of(tmp_path) >= 3
    assert "Traceback" not in seen.decode()


def test_json_to_standard_output_is_json_and_nothing_else(program: Program, tmp_path: Path) -> None:
    ended = program.run(*TINY, "--steps", 2, "--out", tmp_path, "--json", "-", "--quiet")
    left = json.loads(ended.out)
    assert left["format"] == "retape/1"
    assert left["verb"] == "train"
    assert left["exit_code"] == 0
    assert left["arguments"]["layers"] == 2
    assert left["result"]["step"] == 2
    assert len(left["result"]["losses"]) == 2
    assert ended.losses == {}  # --quiet
    assert "2 steps of" in ended.err
    assert not (tmp_path / "report.json").exists()


def test_on_a_terminal_there_is_one_live_line(program: Program, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*program.command, *TINY, "--steps", "3", "--out", str(tmp_path)],
        env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "160"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait() == 0
    assert b"step 3/3" in shown
    assert b"replay" in shown
    assert shown.count(b"\n") < 3
    assert b"\r" in shown


# By layers. Plain, MOST is the largest that fits into the limit; LARGE has three times its parameters.
PARAMETERS = {5: 262_592, 6: 312_576, 16: 812_416}
MOST, MORE, LARGE = PARAMETERS
LIMIT = "95MiB"


NO_BUFFERS = {"MKL_DISABLE_FAST_MM": "1"}  # of MKL, which are as large as its CPU likes


@pytest.mark.parametrize(
    ("layers", "policy", "fits"),
    [(MOST, "none", True), (MORE, "none", False), (LARGE, "full", True)],
)
def test_a_model_three_times_as_large_fits_into_the_same_hard_limit(
    program: Program, layers: int, policy: str, fits: bool, tmp_path: Path
) -> None:
    words = f"--width 64 --context 64 --batch 32 --steps 2 --layers {layers}".split()
    words += ["--policy", policy, "--memory-limit", LIMIT, "--out", tmp_path]
    ended = program.in_process(*words, environment=NO_BUFFERS)
    result = json.loads((tmp_path / "report.json").read_text())["result"]
    assert result["parameters"] == PARAMETERS[layers]
    assert PARAMETERS[LARGE] > 3 * PARAMETERS[MOST] and MORE == MOST + 1
    if fits:
        assert ended.code == 0, ended.err
        assert step_of(tmp_path) == 2
    else:
        assert ended.code == Exit.BUDGET
        told = "out of memory at step 1: --memory-limit is 95.0 MiB, policy none."
        assert f"{told} Fix: try --policy full." in ended.err
        assert not saved(tmp_path).exists()


@pytest.mark.parametrize("policy", ["none", "full"])
def test_limits_with_room_for_next_to_nothing_are_enough_or_end_with_4(
    program: Program, policy: str, tmp_path: Path
) -> None:
    codes = set()
    for number, limit in enumerate(("1KiB", "256KiB", "1MiB", "2MiB")):
        out = tmp_path / str(number)
        words = "--steps 2 --layers 1 --width 16 --heads 2 --context 16 --batch 2 --policy".split()
        ended = program.in_process(*words, policy, "--memory-limit", limit, "--out", out)
        assert ended.code in (0, Exit.BUDGET), (limit, ended.err)
        assert json.loads((out / "report.json").read_text())["exit_code"] == ended.code
        codes.add(ended.code)
    assert Exit.BUDGET in codes


ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"\| `--layers (\d+)` \| ([\d,]+) \| (\d+) MiB \| (\d+) MiB \| (\d+) MiB \|")
CELLS = [
    (int(layers), int(count.replace(",", "")), policy, int(limit))
    for layers, count, *limits in ROW.findall((ROOT / "docs/train.md").read_text())
    for policy, limit in zip(("none", "cheap", "full"), limits, strict=True)
]
# Python takes seconds to start: one row of it.
RUNS = [(CPP, *cell) for cell in CELLS] + [(PYTHON, *cell) for cell in CELLS if cell[0] == 4]


def test_the_page_has_two_models_of_limits() -> None:
    assert len(CELLS) == 6


@pytest.mark.parametrize(
    ("program", "layers", "count", "policy", "limit"),
    RUNS,
    ids=[f"{program.name} {layers} {policy}" for program, layers, _, policy, _ in RUNS],
)
def test_limits_of_the_page_are_the_smallest_to_7_percent_or_4_mib(
    program: Program, layers: int, count: int, policy: str, limit: int, tmp_path: Path
) -> None:
    words = (
        f"--width 64 --context 64 --batch 32 --steps 2 --layers {layers} --policy {policy}".split()
    )
    # What malloc has free when the limit begins does not count, and is a MiB or two, whatever the limit.
    about = max(0.07 * limit, 4)
    for mib, code in ((limit - about, Exit.BUDGET), (limit + about, Exit.OK)):
        out = tmp_path / str(mib)
        limit_words = ["--memory-limit", f"{mib:.2f}MiB", "--out", out]
        ended = built(program).in_process(*words, *limit_words, environment=NO_BUFFERS)
        assert ended.code == code, ended.err
        result = json.loads((out / "report.json").read_text())["result"]
        assert result["parameters"] == count
