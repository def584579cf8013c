"""A run that was killed goes on with the same bits; what is no saved run is refused."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.python.examples.training import (
    CPP,
    PYTHON,
    STEPS,
    TINY,
    Ended,
    Program,
    assert_continues,
    assert_same_run,
    beside_saved,
    built,
    program,
    references,
    saved,
    small_run,
    step_of,
)

from retape._text import Exit

__all__ = ["program", "references", "small_run"]  # fixtures


def read_lines(process: subprocess.Popen[bytes], count: int) -> str:
    """No more than asked for: the process cannot get further ahead than a pipe is long."""
    return b"".join(process.stderr.readline() for _ in range(count)).decode()


def kill(process: subprocess.Popen[bytes], seen: str) -> Ended:
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stderr.read().decode()
    process.stderr.close()
    return Ended(process.wait(), "", seen + rest)


def start_with_a_short_pipe(program: Program, *words: object) -> subprocess.Popen[bytes]:
    process = program.start(*words)
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)  # about 55 lines
    return process


@pytest.mark.parametrize("moment", ["after a line", "about when it saves"])
def test_killed_at_any_moment_it_goes_on_to_the_last_bit(
    program: Program,
    moment: str,
    references: dict[str, tuple[Ended, Path]],
    tmp_path: Path,
    record_property,
) -> None:
    expected, folder = references[program.name]
    words = [*TINY, "--steps", STEPS, "--out", tmp_path, "--resume"]
    words += ["--save-every", 3 if moment == "after a line" else 1]
    beside = beside_saved(tmp_path)
    dice = random.Random(moment)
    rounds = 6 if program is CPP else 2
    kills = 0
    for number in range(rounds):
        after = step_of(tmp_path)
        process = start_with_a_short_pipe(program, *words)
        seen = read_lines(process, 1 if number == 0 else dice.randrange(1, 12))
        if moment == "about when it saves":
            # Until it saves, or waits for somebody to read what it has to say.
            until = time.monotonic() + 10
            while not beside.exists() and process.poll() is None and time.monotonic() < until:
                pass
        ended = kill(process, seen)
        assert ended.code in (0, -signal.SIGKILL), ended.err  # 0: it was there before the signal
        assert_continues(ended, expected.losses, after)
        kills += ended.code != 0
        record_property("killed between the temporary file and its new name", beside.exists())
    assert kills  # the first for certain: its pipe is shorter than what it has to say
    after = step_of(tmp_path)
    ended = program.run(*words)
    assert ended.code == 0, ended.err
    assert_continues(ended, expected.losses, after)
    assert after + len(ended.losses) == STEPS
    assert_same_run(tmp_path, folder)


@pytest.mark.parametrize("moment", ["half-written", "before-rename", "after-rename"])
def test_killed_within_a_save_it_goes_on_from_a_whole_one(
    program: Program, moment: str, references: dict[str, tuple[Ended, Path]], tmp_path: Path
) -> None:
    """RETAPE_TRAIN_KILL: the process sends itself SIGKILL at that moment of that save."""
    expected, _ = references[program.name]
    words = [*TINY, "--steps", 12, "--save-every", 3, "--out", tmp_path, "--resume"]
    ended = program.in_process(*words, environment={"RETAPE_TRAIN_KILL": f"{moment}:9"})
    assert ended.code == -signal.SIGKILL, ended.err
    assert_continues(ended, expected.losses, after=0)
    assert list(ended.losses)[-1] == 9
    whole, beside = saved(tmp_path).stat().st_size, beside_saved(tmp_path)
    if moment == "after-rename":
        assert not beside.exists()
    else:
        written = beside.stat().st_size
        assert 0 < written < whole if moment == "half-written" else written == whole
    known = {"run.safetensors", "run.safetensors.tmp", "report.json"}
    assert {
        path.name for path in tmp_path.iterdir()
    } <= known  # what nobody knows nobody would remove
    after = 9 if moment == "after-rename" else 6
    assert step_of(tmp_path) == after
    ended = program.run(*words)
    assert ended.code == 0, ended.err
    assert f"Going on after step {after}." in ended.err
    assert_continues(ended, expected.losses, after)
    assert step_of(tmp_path) == 12
    assert not beside.exists()


def test_killed_within_its_first_save_it_begins_again(
    program: Program, references: dict[str, tuple[Ended, Path]], tmp_path: Path
) -> None:
    expected, _ = references[program.name]
    words = [*TINY, "--steps", 4, "--save-every", 2, "--out", tmp_path, "--resume"]
    ended = program.in_process(*words, environment={"RETAPE_TRAIN_KILL": "before-rename:2"})
    assert ended.code == -signal.SIGKILL, ended.err
    assert beside_saved(tmp_path).exists() and not saved(tmp_path).exists()
    ended = program.run(*words)
    assert "from the start." in ended.err
    assert_continues(ended, expected.losses, after=0)
    assert len(ended.losses) == 4


def test_what_a_kill_has_left_is_removed_where_nothing_is_to_be_done(
    program: Program, small_run: Path, tmp_path: Path
) -> None:
    shutil.copy(saved(small_run), saved(tmp_path))
    beside_saved(tmp_path).write_bytes(b"half of a save")
    ended = program.run(*TINY, "--steps", 1, "--out", tmp_path, "--resume")
    assert "Nothing to do" in ended.out
    assert not beside_saved(tmp_path).exists()


def limited_file_size(bytes_: int):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    return limit


def test_ended_in_the_middle_of_a_write_the_save_before_it_is_whole(
    program: Program, references: dict[str, tuple[Ended, Path]], tmp_path: Path
) -> None:
    expected, _ = references[program.name]
    words = [*TINY, "--out", tmp_path, "--save-every", 1, "--resume"]
    assert program.run(*words, "--steps", 4).code == 0
    before = saved(tmp_path).read_bytes()
    half = limited_file_size(len(before) // 2)
    ended = program.in_process(*words, "--steps", 8, preexec_fn=half)
    if program is CPP:
        assert ended.code == -signal.SIGXFSZ
        assert beside_saved(tmp_path).stat().st_size == len(before) // 2
    else:  # Python ignores that signal: an error of the write
        assert ended.code == Exit.USAGE
        assert "cannot write" in ended.err
    assert saved(tmp_path).read_bytes() == before
    ended = program.run(*words, "--steps", 8)
    assert_continues(ended, expected.losses, after=4)
    assert step_of(tmp_path) == 8


@pytest.mark.parametrize("order", [(CPP, PYTHON), (PYTHON, CPP)], ids=["cpp first", "python first"])
def test_what_one_language_saved_the_other_resumes(
    order: tuple[Program, Program], references: dict[str, tuple[Ended, Path]], tmp_path: Path
) -> None:
    built(CPP)
    first, second = order
    words = [*TINY, "--out", tmp_path, "--resume"]
    assert first.run(*words, "--steps", 5).code == 0
    ended = second.run(*words, "--steps", 9, "--policy", "cheap")  # a policy may change
    assert_continues(ended, references[first.name][0].losses, after=5)
    assert len(ended.losses) == 4


def test_resume_where_all_is_done_does_nothing(program: Program, tmp_path: Path) -> None:
    words = [*TINY, "--steps", 2, "--out", tmp_path, "--resume"]
    first = program.run(*words)
    assert f"No saved run in {tmp_path}: from the start." in first.err
    assert len(first.losses) == 2
    before = saved(tmp_path).read_bytes()
    ended = program.run(*words)
    assert ended.code == 0
    assert "Going on after step 2." in ended.err
    assert "Nothing to do: the saved run is at step 2." in ended.out
    assert saved(tmp_path).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--layers", 3], "--layers (saved 2, now 3)"),
        (["--heads", 2, "--seed", 7], "--heads (saved 4, now 2), --seed (saved 0, now 7)"),
        (["--lr", "3e-4"], "--lr (saved 0.001, now 0.0003)"),
        (["--dropout", 0], "--dropout (saved 0.1, now 0)"),
        (["--text", __file__], "--text (saved "),
    ],
)
def test_other_settings_are_refused_by_name(
    program: Program, small_run: Path, words: list[object], told: str, tmp_path: Path
) -> None:
    shutil.copy(saved(small_run), saved(tmp_path))
    ended = program.run(*TINY, "--steps", 2, "--out", tmp_path, "--resume", *words)
    assert ended.code == Exit.USAGE
    assert "with other settings: " + told in ended.err
    assert saved(tmp_path).read_bytes() == saved(small_run).read_bytes()


def foreign_files(whole: bytes, folder: Path) -> dict[str, bytes]:
    header = int.from_bytes(whole[:8], "little")
    save_file({"x": torch.zeros(2)}, folder / "x")
    save_file({"x": torch.zeros(2)}, folder / "y", {"format": "retape-train/1"})
    save_file({"x": torch.zeros(2)}, folder / "z", {"format": "pt"})
    return {
        "empty": b"",
        "five bytes": whole[:5],
        "within its header": whole[: 8 + header // 2],
        "without tensors": whole[: 8 + header],
        "without the last byte": whole[:-1],
        "with a byte more": whole + b"\0",
        "a text": b"It was a cold and stormy night, and nobody had saved anything.",
        "a header that is no JSON": (16).to_bytes(8, "little") + b"{" * 16,
        "of something else": (folder / "x").read_bytes(),
        "of something else with a format": (folder / "z").read_bytes(),
        "without settings": (folder / "y").read_bytes(),
        "with a generator that is none": with_a_broken_generator(whole),
    }


def with_a_broken_generator(whole: bytes) -> bytes:
    header = int.from_bytes(whole[:8], "little")
    begin, end = json.loads(whole[8 : 8 + header])["generator"]["data_offsets"]
    return whole[: 8 + header + begin] + b"\xff" * (end - begin) + whole[8 + header + end :]


def test_a_saved_run_has_the_rights_that_the_user_gives_to_files(
    small_run: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    made.write_text("")
    assert saved(small_run).stat().st_mode == made.stat().st_mode


def test_a_truncated_or_foreign_file_is_refused_and_left_alone(
    program: Program, small_run: Path, tmp_path: Path
) -> None:
    for kind, content in foreign_files(saved(small_run).read_bytes(), tmp_path).items():
        saved(tmp_path).write_bytes(content)
        ended = program.run(*TINY, "--steps", 2, "--out", tmp_path, "--resume")
        assert ended.code == Exit.USAGE, kind
        assert f"{saved(tmp_path)} is not a whole saved run: " in ended.err or (
            kind == "without settings" and "with other settings" in ended.err
        ), kind
        assert saved(tmp_path).read_bytes() == content


def changed_copy(
    whole: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    with saved(whole).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = load_file(saved(whole))
    change(tensors)
    save_file(tensors, saved(folder), header["__metadata__"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda tensors: tensors.pop("adamw.exp_avg.positions"),
            "there is no tensor adamw.exp_avg.positions in it",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}),
            "tensor model.norm.weight has another type or shape",
        ),
        (
            lambda tensors: tensors.update({"generator": torch.zeros(2)}),
            "tensor generator has another type or shape",
        ),
        (
            lambda tensors: tensors["model.positions"].fill_(torch.nan),
            "step 2: the loss is not finite. Fix: a smaller --lr",
        ),
    ],
)
def test_what_is_wrong_with_a_tensor_is_told_and_nothing_is_saved(
    program: Program, small_run: Path, change: Callable, told: str, tmp_path: Path
) -> None:
    changed_copy(small_run, tmp_path, change)
    before = saved(tmp_path).read_bytes()
    ended = program.run(*TINY, "--steps", 2, "--out", tmp_path, "--resume")
    assert ended.code == Exit.USAGE
    assert told in ended.err
    assert saved(tmp_path).read_bytes() == before


def test_a_saved_run_is_not_written_over_without_resume(
    program: Program, small_run: Path, tmp_path: Path
) -> None:
    shutil.copy(saved(small_run), saved(tmp_path))
    ended = program.run(*TINY, "--steps", 2, "--out", tmp_path)
    assert ended.code == Exit.USAGE
    assert "there is a saved run in" in ended.err
    assert "Fix: --resume, or another --out" in ended.err
    assert saved(tmp_path).read_bytes() == saved(small_run).read_bytes()


def test_two_runs_do_not_write_to_one_folder(program: Program, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    ended = program.run(*TINY, "--steps", 2, "--out", tmp_path)
    os.close(folder)
    assert ended.code == Exit.USAGE
    assert "another run is writing to" in ended.err
