"""`retape bench`: rows, columns, what is refused, and that a second run compares with the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retape import cli
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
    assert {t["method"] for t in subject["timelines"]} >= {"plain", "retape full"}
    assert "w2([silu(w1 x) * w3 x])" in capsys.readouterr().out


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


def test_the_frontier_has_a_row_for_every_k(capsys):
    code, result = bench(
        *TINY, "--subject", "silu_up", "--dtype", "float32", "--method", "plain", "--frontier", "--no-time"
    )
    assert code == 0
    names = [row["method"] for row in result["subjects"][0]["rows"]]
    assert names == ["plain", "retape full, last 1 cheap"]


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
