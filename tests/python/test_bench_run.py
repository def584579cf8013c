"""`retape bench`: rows, columns, what is refused, and that a second run compares with the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retape import cli
from retape.bench import measure, run
from retape.bench.methods import METHODS

TINY = "--d-model 32 --d-ff 64 --sequence 16 --layers 2 --rounds 1".split()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def bench(*words: str) -> tuple[int, dict]:
    code = cli.main(["bench", *words, "--json", "out.json"])
    return code, json.loads(Path("out.json").read_text())["result"]


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_every_eager_method_fills_every_column(capsys):
    eager = [name for name, method in METHODS.items() if method.is_eager]
    chosen = [word for name in eager for word in ("--method", name)]
    code, result = bench(*TINY, "--subject", "swiglu", "--dtype", "float32", *chosen)
    assert code == 0
    (subject,) = result["subjects"]
    assert [row["method"] for row in subject["rows"]] == eager
    for row in subject["rows"]:
        assert not row["error"], row
        if row["skipped"]:
            assert row["skipped"].startswith("needs the package ")
            continue
        filled = ("peak", "held", "forward", "backward", "total", "ratio", "gflop", "equal")
        assert all(row[name] is not None for name in filled), row
    replayed = {row["method"]: row["replayed"] for row in subject["rows"]}
    assert replayed["plain"] == 0 and replayed["torch checkpoint"] is None
    assert min(replayed[name] for name in ("retape full", "retape rows", "output discard")) > 0
    assert {t["method"] for t in subject["timelines"]} >= {"plain", "retape full"}
    assert "w2([silu(w1 x) * w3 x])" in capsys.readouterr().out


def test_a_model_fills_every_column_too(capsys):
    code, result = bench("--subject", "tree_lstm", "--quick", "--rounds", "1")
    assert code == 0
    (subject,) = result["subjects"]
    assert (subject["name"], subject["group"]) == ("tree_lstm", "models")
    assert [row["method"] for row in subject["rows"]] == list(run.QUICK_METHODS)
    for row in subject["rows"]:
        assert not row["error"] and not row["skipped"], row
        assert row["peak"] and row["total"] and row["ratio"] and row["gflop"]
        assert row["equal"] == "bitwise"
    assert subject["timelines"]
    assert "tree_lstm, float32" in capsys.readouterr().out


def test_files_are_written_and_a_second_run_is_compared_with_the_first(capsys):
    words = [*TINY, "--subject", "up_proj", "--dtype", "float32", "--method", "retape full"]
    assert bench(*words, "--html", "a.html", "--markdown", "a.md", "--csv", "a.csv")[0] == 0
    assert "up_proj" in Path("a.html").read_text()
    assert "retape full" in Path("a.md").read_text()
    assert "retape full" in Path("a.csv").read_text()
    Path("out.json").rename("old.json")
    assert bench(*words, "--compare", "old.json", "--fail", "peak:1%")[0] == 0
    old = json.loads(Path("old.json").read_text())
    for row in old["result"]["subjects"][0]["rows"]:
        row["peak"] = int(row["peak"] * 0.9)
    Path("old.json").write_text(json.dumps(old))
    assert bench(*words, "--compare", "old.json", "--fail", "peak:1%")[0] == 3


ONE = ("--subject", "silu_up", "--dtype", "float32")
POINT = "retape full, last 1 cheap"


@pytest.mark.parametrize(
    ("words", "is_there"),
    [((), True), (("--no-frontier",), False), (("--method", "plain"), False), (("--quick",), False),
     (("--method", "plain", "--frontier"), True)],
)  # fmt: skip
def test_the_frontier_has_a_row_for_every_k_unless_rows_were_chosen(capsys, words, is_there):
    code, result = bench(*TINY, *ONE, "--memory-only", *words)
    assert code == 0
    names = [row["method"] for row in result["subjects"][0]["rows"]]
    assert [name for name in names if ", last" in name] == ([POINT] if is_there else [])


def test_memory_alone_compares_and_times_nothing(capsys, monkeypatch):
    monkeypatch.delattr(measure, "after_step")
    code, result = bench(*TINY, *ONE, "--memory-only", "--method", "retape full")
    assert code == 0
    (subject,) = result["subjects"]
    assert subject["time_size"] is None
    for row in subject["rows"]:
        assert row["peak"] and row["held"] is not None and not row["error"]
        assert row["equal"] is row["total"] is None


def test_what_was_measured_is_printed_and_saved_when_the_next_subject_is_killed(capsys, monkeypatch):
    task = run.block_task

    def killed(name, *args, **options):
        def interrupted():
            raise KeyboardInterrupt

        return interrupted if name == "up_proj" else task(name, *args, **options)

    monkeypatch.setattr(run, "block_task", killed)
    words = [*ONE, "--subject", "up_proj", "--memory-only", "--method", "plain", "--json", "out.json"]
    assert cli.main(["bench", *TINY, *words]) == 130
    out = capsys.readouterr().out
    assert "silu_up, 2 layers" in out and "out.json has what was done until then" in out
    result = json.loads(Path("out.json").read_text())["result"]
    assert [subject["name"] for subject in result["subjects"]] == ["silu_up"]
    assert result["warnings"] == ["not finished: 1 of 2 subjects were measured"]
    assert cli.main(["report", "out.json"]) == 0


@pytest.mark.parametrize("words", [(), ("--no-time",), ("--memory-only",)])
def test_every_step_that_takes_time_is_announced_before_it_runs(capsys, monkeypatch, words):
    told = []

    def watch(work, total, console, remaining):
        work(told.append)
        told.append(total)

    monkeypatch.setattr(run, "progress", watch)
    bench(*TINY, *ONE, "--method", "retape full", *words)
    *parts, total = told
    assert len(parts) == total == (2 if words else 6)  # memory and gradients; warm-up, one round
    assert parts[:2] == ["silu_up, 2 layers, float32: plain", "silu_up, 2 layers, float32: retape full"]
    assert words or parts[2:4] == [part.replace(": ", ": time of ") for part in parts[:2]]


def test_options_that_would_do_nothing_are_refused(capsys):
    for words in (["--layers", "3"], ["--d-model", "64"], ["--frontier"], ["--compiled"]):
        told = refused(capsys, "--subject", "tree_lstm", *words)
        assert f"{words[0]} is of blocks, and --subject names none of them" in told


def test_a_method_that_a_model_cannot_take_is_a_row_that_says_so(capsys):
    words = ("--subject", "tree_lstm", "--quick", "--memory-only", "--method", "output discard")
    code, result = bench(*words)
    assert code == 0
    row = result["subjects"][0]["rows"][1]
    assert row["skipped"] == "a model's layers have no inner part"


def test_what_there_is_can_be_listed_and_no_artefact_is_touched(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--list"])
    assert ended.value.code == 0
    assert list(Path().iterdir()) == []
    out = capsys.readouterr().out
    assert "swiglu" in out and "torch checkpoint" in out


def test_without_times_the_size_at_which_gradients_were_compared_is_told(capsys):
    words = ["--subject", "up_proj", "--dtype", "float32", "--method", "plain", "--no-time"]
    bench("--d-model", "1024", "--d-ff", "32", "--sequence", "8", "--layers", "1", *words)
    assert "gradients compared at d_model 512 " in " ".join(capsys.readouterr().out.split())


def test_bad_words_are_refused_with_the_right_spelling(capsys):
    assert "Did you mean 'swiglu'?" in refused(capsys, "--subject", "swigly")
    assert "Did you mean 'retape full'?" in refused(capsys, "--method", "retape ful")
    assert "Did you mean 'bfloat16'?" in refused(capsys, "--dtype", "bfloat")
    assert "There is: float32, bfloat16." in refused(capsys, "--dtype", "float64")
    assert "expected the name of a file" in refused(capsys, "--markdown", "-")
    assert "expected at least 1" in refused(capsys, "--layers", "0")
    assert "--compare" in refused(capsys, "--fail", "peak:1%")
    assert "Did you mean --quick?" in refused(capsys, "--quik")


def test_a_peer_that_fails_is_a_row(capsys, monkeypatch):
    def broken(layers, x):
        raise RuntimeError("not today")

    failing = METHODS["selective"].__class__("selective", "torch", "block", broken)
    monkeypatch.setitem(METHODS, "selective", failing)
    code, result = bench(*TINY, "--subject", "up_proj", "--dtype", "float32", "--method", "selective")
    assert code == 0
    row = result["subjects"][0]["rows"][1]
    assert (row["method"], row["error"], row["total"]) == ("selective", "RuntimeError: not today", None)
