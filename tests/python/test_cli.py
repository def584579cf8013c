"""The command line: what it prints, the files it leaves, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import retape
from retape import _bits, _text, cli
from retape.bench import overhead, regions, timing
from retape.cli import demo, doctor
from retape.subjects.gpt import Size

TINY = ["--steps", "2", "--layers", "2", "--width", "32", "--context", "32", "--batch", "2"]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def usage_error(capsys, *words: str) -> str:
    """What a refused command line says; it must end with 2 and print nothing on stdout."""
    with pytest.raises(SystemExit) as refused:
        cli.main(words)
    assert refused.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def in_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "retape", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_cmake_dir_holds_the_package_config():
    done = in_process("--cmake-dir")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert (Path(lines[0]) / "RetapeConfig.cmake").is_file()


def test_version_names_retape_and_torch(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"retape {retape.__version__} (torch {torch.__version__})\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["dmeo"], "Did you mean demo?"),
        (["bensh"], "Did you mean bench?"),
        (["bench", "overheat"], "Did you mean overhead?"),
        (["bench", "swiglu"], "If it is a subject: retape bench --subject swiglu"),
        (["bench", "overhead", "--qick"], "Did you mean --quick?"),
        (["demo", "--step=3"], "Did you mean --steps?"),
        (["demo", "--json", "x.json", "--sede", "3"], "Did you mean --seed?"),
        (["xyzzy"], "There is: bench, demo, verify, gradcheck, report, doctor."),
    ],
)
def test_a_misspelt_word_is_refused_with_the_closest_one_there_is(capsys, words, offered):
    assert offered in usage_error(capsys, *words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "verb"),
        (["bench", "block"], "no such verb"),
        (["demo", "--steps", "many"], "--steps"),
        (["demo", "--steps", "0"], "expected at least 1"),
        (["demo", "--width", "30"], "multiple of 4"),
        (["demo", "--seed", "9" * 20], "expected at most 9223372036854775807"),
        (["bench", "overhead", "--rounds", "0"], "expected at least 1"),
        (["bench", "overhead", "--rounds", "9" * 20], "expected at most 100000"),
        (["bench", "check", "--rounds", "0"], "expected at least 1"),
        (["bench", "check", "--layers", "9" * 20], "expected at most 10000"),
        (["doctor", "--json", "/dev/null/report.json"], "cannot write /dev/null/report.json"),
    ],
)
def test_bad_arguments_are_refused_by_name_before_any_work(capsys, words, told):
    assert told in usage_error(capsys, *words)


def raising(error: Exception):
    def run(args, console):
        raise error

    return run


def test_an_error_of_retapes_own_is_one_line_and_no_word_of_gradients(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run", raising(TypeError("no\x1b[31m such thing\nat all")))
    assert cli.main(["doctor"]) == _text.Exit.INTERNAL == 70
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    expected = r"\[retape doctor\] internal error: TypeError: no�\[31m such thing \(retape/cli/__init__.py:\d+\)"
    assert re.fullmatch(expected + r"\. RETAPE_DEBUG=1 shows the stack\.\n", err)


def test_the_stack_of_an_error_of_retapes_own_is_shown_to_who_asks_for_it(monkeypatch, capsys):
    monkeypatch.setenv("RETAPE_DEBUG", "1")
    monkeypatch.setattr(doctor, "run", raising(KeyError("x")))
    assert cli.main(["doctor"]) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert (
        err.rstrip().splitlines()[-1].startswith("[retape doctor] internal error: KeyError: 'x' (")
    )


def test_what_a_user_can_mend_is_no_error_of_retapes_own(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run", raising(retape.UsageError("[check] expected a number")))
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "[retape doctor] expected a number\n"


def test_a_reader_that_is_gone_is_no_difference_of_gradients():
    program = "from retape._text import make_console\nfor _ in range(9):\n    make_console().print('x' * 99999)"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE
        )
    finally:
        os.close(writer)
    assert done.returncode == _text.Exit.UNREAD == 141, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [("report", "a.json"), ("report", "a.json", "--html", "/dev/full")]
)
def test_a_disk_that_is_full_is_no_error_of_retapes_own(tmp_path, words):
    made = [
        sys.executable,
        "-m",
        "retape",
        "bench",
        "--subject",
        "up_proj",
        "--memory-only",
        "--json",
        "a.json",
    ]
    subprocess.run([*made, "--layers", "1"], cwd=tmp_path, check=True, capture_output=True)
    with open("/dev/full" if "--html" not in words else os.devnull, "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "retape", *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert "No space left on device" in ended.stderr
    assert ended.returncode == 2


def test_a_program_without_standard_output_does_its_work():
    ended = subprocess.run(
        f"{sys.executable} -m retape doctor --json /dev/null >&-",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("verb", cli.VERBS, ids=lambda verb: verb.name)
def test_help_of_every_verb_ends_with_an_example_that_parses(capsys, verb):
    with pytest.raises(SystemExit) as ended:
        cli.main([*verb.name.split(), "--help"])
    assert ended.value.code == 0
    example = capsys.readouterr().out.rstrip().splitlines()[-1].strip()
    words = cli._completed(example.split()[1:])
    assert words[: len(verb.name.split())] == verb.name.split()
    assert cli.build_parser(words).parse_args(words).chosen is verb


def test_help_of_a_group_has_the_options_and_names_the_others(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    out = capsys.readouterr().out
    assert "--memory-only" in out
    assert "There is also: retape bench overhead, retape bench check." in out


@pytest.mark.parametrize("verb", ["demo"])
def test_help_names_the_folder_of_an_artefact_in_words(capsys, verb):
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    assert "FOLDER/report.json" in capsys.readouterr().out


def test_the_artefact_in_the_example_of_report_is_what_bench_writes():
    verbs = {verb.name: verb for verb in cli.VERBS}
    assert verbs["bench run"].artefact in verbs["report"].example


def test_doctor_replays_for_real_and_leaves_its_artefact(capsys):
    assert cli.main(["doctor"]) == 0
    assert "bit-identical" in capsys.readouterr().out
    left = json.loads(Path("build/doctor.json").read_text())
    assert left["format"] == "retape/1"
    assert left["verb"] == "doctor"
    assert left["exit_code"] == 0
    assert left["environment"]["torch"] == torch.__version__


def test_doctor_checks_where_it_can_write_nothing_and_says_so(capsys):
    Path("build").write_text("a file")
    assert cli.main(["doctor"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "bit-identical" in out and "Everything works." in out
    assert "No artefact: cannot write build/doctor.json (" in out and "Fix: --json PATH" in out
    assert "build/report.json (" in usage_error(capsys, "report", "run.json")  # others need theirs
    assert "build/mine.json (" in usage_error(
        capsys, "doctor", "--json", "build/mine.json"
    )  # so was it asked for


def test_json_to_stdout_is_json_and_nothing_else(capsys):
    assert cli.main(["doctor", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verb"] == "doctor"
    assert "retape doctor" in err
    assert not Path("build").exists()


def test_demo_proves_every_gradient_and_says_where_its_reports_are(capsys):
    assert cli.main(["demo", *TINY]) == 0
    out = capsys.readouterr().out
    assert out.count("every gradient bit-identical") == 2
    for path in ("build/demo/report.md", "build/demo/report.json"):
        assert path in out
        assert Path(path).is_file()

    copies = json.loads(Path("build/demo/report.json").read_text())["result"]["copies"]
    assert [entry["name"] for entry in copies] == ["plain", "full", "cheap", "torch"]
    for entry in copies[1:3]:
        assert entry["gradients_compared"] == entry["gradients_identical"] > 0
        assert entry["ops_replayed_per_step"] > 0
        assert entry["peak_bytes"] < copies[0]["peak_bytes"]
        assert entry["losses"] == copies[0]["losses"]


def test_demo_prints_no_colour_codes_where_nobody_watches():
    done = in_process("demo", *TINY, "--output", "out", NO_COLOR="1", CI="1")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert Path("out/report.md").read_text().startswith("# GPT of 2 layers")
    assert sorted(path.name for path in Path().iterdir()) == ["out"]


def trained_pair() -> list[demo.Copy]:
    size = Size(layers=1, width=16, context=16, batch=2)
    copies = demo.make_copies(["plain", "full"], size, seed=1)
    demo.train(copies, size, steps=1, seed=1, on_step=lambda *_: None)
    return copies


def test_demo_says_different_when_one_bit_of_one_gradient_differs():
    copies = trained_pair()
    assert demo.verdict(copies) is _text.Exit.OK
    weight = copies[1].model.head.weight
    weight.grad.view(torch.int32)[0, 0] ^= 1
    demo.compare_gradients(copies[0], copies[1], step=9)
    assert demo.verdict(copies) is _text.Exit.DIFFERENT
    assert copies[1].differences == ["step 9: gradient of head.weight"]


def test_demo_says_vacuous_when_nothing_was_replayed():
    copies = trained_pair()
    copies[1].ops_replayed = 0
    assert demo.verdict(copies) is _text.Exit.VACUOUS
    assert "nothing was proved" in demo.verdict_text(copies[1])


def test_bench_overhead_fills_every_row_and_finds_identical_gradients(monkeypatch, capsys):
    monkeypatch.setattr(overhead, "OPS", 20)
    monkeypatch.setattr(regions, "COUNT", 2)
    assert cli.main(["bench", "overhead", "--rounds", "2", "--warmup", "0"]) == 0
    left = json.loads(Path("build/bench/overhead.json").read_text())
    assert left["environment"]["timed_with"] == "1 thread"
    result = left["result"]
    assert len(result["rows"]) == len(overhead.variants()) * len(overhead.WORKLOADS)
    assert all(row["gradients_identical"] for row in result["rows"])
    replayed = {(row["variant"], row["workload"]): row["ops_replayed"] for row in result["rows"]}
    assert replayed["dropped", "sin"] > 0
    assert replayed["dropped", "x*w"] > 0
    assert replayed["none", "sin"] == replayed["kept", "sin"] == 0
    assert {row["variant"] for row in result["regions"]} == set(regions.runs())
    assert {row["target"] for row in result["regions"]} == {None, 0.25}
    assert "retape.enable rerun" in capsys.readouterr().out


@pytest.mark.parametrize("name", regions.runs())
def test_every_region_of_the_bench_has_the_gradient_of_eager(name):
    def gradient(run):
        x = torch.linspace(0.5, 1.5, 16, requires_grad=True)
        run(x).backward(torch.ones(16))
        return x.grad

    runs = regions.runs()
    assert torch.equal(gradient(runs[name]), gradient(runs["eager"]))


def test_bench_overhead_fails_when_a_row_differs_or_with_check_misses_its_target():
    def row(variant: str, **changes) -> dict:
        base = {"gradients_identical": True, "ops_replayed": 5, "saves_per_op": 1}
        return {"variant": variant, "target_met": True, **base, **changes}

    def verdict(*rows: dict, fixed: tuple = (), check: bool = False) -> _text.Exit:
        return overhead._verdict({"rows": list(rows), "regions": list(fixed)}, check)

    assert verdict(row("none"), row("dropped")) is _text.Exit.OK
    assert verdict(row("none", gradients_identical=False)) is _text.Exit.DIFFERENT
    assert verdict(row("reentrant", gradients_identical=False)) is _text.Exit.OK
    assert verdict(row("dropped", ops_replayed=0)) is _text.Exit.VACUOUS
    assert verdict(row("none", target_met=False)) is _text.Exit.OK
    assert verdict(row("none", target_met=False), check=True) is _text.Exit.REGRESSION
    slow = (row("retape.checkpoint", target_met=False),)
    assert verdict(row("none"), fixed=slow) is _text.Exit.OK
    assert verdict(row("none"), fixed=slow, check=True) is _text.Exit.REGRESSION


def test_interleaving_compares_runs_of_the_same_round():
    ticks = iter([10, 20, 300, 600, 50, 25])  # eager, slow | slow, eager | eager, slow
    seen = []

    def run(name: str):
        seen.append(name)
        return (next(ticks),)

    times = timing.interleave(
        {"eager": lambda: run("eager"), "slow": lambda: run("slow")}, "eager", 3, 0
    )
    assert seen == ["eager", "slow", "slow", "eager", "eager", "slow"]
    assert times["slow"].ratios == [2.0, 0.5, 0.5]
    assert times["slow"].ratio()[1] == 0.5
    assert timing.noise_warnings(list(times.values()))[0].startswith("noisy: in 1 of 2 rows")


def test_a_time_is_lost_to_warm_up_and_the_settings_come_back():
    threads = torch.get_num_threads()
    with timing.quiet_process():
        assert torch.tensor(1e-38) * 1e-3 == 0
        times = timing.interleave({"eager": lambda: (1, 2)}, "eager", rounds=2, warmup=3)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads
    assert times["eager"].rounds == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (19 << 20, "19.0 MiB"), (3 << 29, "1.5 GiB")],
)
def test_bytes_are_printed_with_their_unit(count, text):
    assert _text.format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.2e-5, "42.0 us")]
)
def test_times_are_printed_with_their_unit(seconds, text):
    assert _text.format_seconds(seconds) == text


def test_same_bits_tells_zeros_shapes_dtypes_and_nothing_apart():
    zero, minus = torch.tensor([0.0]), torch.tensor([-0.0])
    assert torch.equal(zero, minus)
    assert not _bits.same_bits(zero, minus)
    assert _bits.same_bits(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert not _bits.same_bits(zero, zero.double())
    assert not _bits.same_bits(zero, zero.reshape(1, 1))
    assert not _bits.same_bits(zero, None)
    assert _bits.same_bits(None, None)
    assert _bits.same_bits(torch.eye(3)[:, :2], torch.eye(3)[:, :2].contiguous())
