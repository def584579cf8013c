"""What people see of `retape gradcheck`: help, bar, table, page."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from tests.python import browser

from retape import _artefact, cli
from retape.cli.gradcheck import page, table
from retape.cli.gradcheck.bar import bar
from retape.cli.gradcheck.command import _together
from retape.cli.gradcheck.messages import RankError

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


def report_of(kind: str = "different", terms: int = 2) -> dict:
    """As C++ gives it, with a name that would act."""
    rows = [
        {
            "topology": topology,
            "dtype": dtype,
            "terms": "all" if term == 0 else f"term{term}",
            "what": "gradient",
            "tensor": HOSTILE,
            "kind": kind if topology == "4" else "equal",
            "error": None if topology == "4" and kind == "different" else 1e-16,
            "tolerance": 1e-12,
            "alpha": None,
            "residual": 0.0,
            "guesses": ["n_ranks"],
            "reason": "4 times the reference: n_ranks" if topology == "4" else "",
            "follows": topology == "4" and kind == "different" and term == 0,
        }
        for topology in ("1", "4")
        for dtype in ("float64", "float32")
        for term in range(terms + 1)
    ]
    mutant = {
        "place": "sum",
        "name": HOSTILE,
        "group": "ranks",
        "size": 4,
        "mutation": "average",
        "pool": "",
        "predicted": 0.25,
        "fitted": None,
        "as_predicted": False,
        "tensor": "",
        "terms": "",
        "killed": False,
        "reason": "every comparison is as without it",
    }
    noticed = {**mutant, "killed": True, "fitted": 0.3, "reason": ""}
    test = {"topology": "4", "killed": 1, "mutants": 2, "predicted": 2, "as_predicted": 0}
    return {
        "kind": kind,
        "exit_code": 1,
        "worst_error": None,
        "vacuous": ["one of them lives"],
        "notes": ["all shards are even"],
        "rows": rows,
        "self_test": {**test, "rows": [mutant, noticed]},
    }


def printed(
    report: dict, width: int = 80, text: str = "different: 1 of 2\n  a line", **more
) -> str:
    console = Console(file=io.StringIO(), width=width, **more)
    table.print_report(report, text, console)
    return console.file.getvalue()


def test_the_table_has_a_line_for_each_topology_and_dtype():
    shown = printed(report_of())
    assert re.search(r"4 +float64 +✗ ∞ +✗ ∞ +✗ ∞", shown)
    assert re.search(r"1 +float32 +✓ 1.0e-16", shown)
    assert shown.index("a line") < shown.index("different: 1 of 2")
    assert "\x1b[31m" not in shown


def test_runs_that_do_not_fit_beside_each_other_are_lines():
    shown = printed(report_of(terms=6))
    assert max(map(len, shown.splitlines())) <= 80
    heads, *stretches = re.split(r"^  (?=[14] +$)", shown, flags=re.MULTILINE)
    assert re.search(r"run +float64 +float32", heads)
    assert [stretch[0] for stretch in stretches] == ["1", "4"]
    assert re.search(r"all +✓ 1.0e-16 +✓ 1.0e-16", stretches[0])
    assert re.search(r"term6 +✗ ∞ +✗ ∞", stretches[1])


def test_many_terms_are_shown_by_their_worst():
    shown = printed(report_of(terms=20))
    assert "✗ ∞ (all)" in shown
    assert "term20" not in shown


def test_long_lines_are_broken_at_words_on_a_terminal_and_nowhere_else():
    words = "  " + " ".join(["different"] * 12)
    text = f"different: 1 of 2\n{words}"
    assert words in printed(report_of(), text=text)
    shown = printed(report_of(), text=text, force_terminal=True, no_color=True)
    found = [line for line in shown.splitlines() if line.lstrip().startswith("different diff")]
    assert found == ["  " + " ".join(["different"] * 7), "    " + " ".join(["different"] * 5)]


def test_vacuous_runs_look_neither_right_nor_wrong():
    assert "○ 1.0e-16" in printed(report_of("vacuous"))


def test_the_bar_follows_a_total_that_grows_and_stays_on_one_line():
    console = Console(file=io.StringIO(), force_terminal=True, no_color=True, width=80)
    with bar(console) as advance:
        advance({"done": 1, "total": 2, "what": "1; float64; all"})
        advance({"done": 2, "total": 9, "what": "a topology " * 9})
    assert re.search(r"━ +2/9 [-:\d]+( a topology)+ a t\w*…\n", console.file.getvalue())


@pytest.mark.parametrize(("terminal", "shown"), [(False, True), (True, False)])
def test_where_nobody_watches_or_ranks_print_there_is_no_bar(terminal, shown):
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with bar(console, shown) as advance:
        advance({"done": 1, "total": 2, "what": "x"})
    assert console.file.getvalue() == ""


def test_the_page_shows_everything_and_names_stay_names(tmp_path):
    text = page.render(page.of_report(report_of(), 4, "retape gradcheck a:b --ranks 4"))
    for shown in (
        "ranks compute something else",
        "4 times the reference: n_ranks",
        "And 2 that these explain",
        "1 of 2",
        "0 of 2 by the ratio",
        "not noticed",
        "by another ratio",
        "one of them lives",
        "all shards are even",
        "retape gradcheck a:b --ranks 4",
    ):
        assert shown in text, shown
    assert "<img" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_quiet_and_fits(tmp_path, scheme):
    path = tmp_path / "gradcheck.html"
    found = report_of(terms=12)
    page.write(str(path), page.of_report(found, 4, "retape gradcheck a:b --ranks 4"))
    with browser.chromium() as opened:
        for width in (1280, 800, 400):
            with browser.look(opened, path, width, color_scheme=scheme) as seen:
                seen.page.locator("details").first.evaluate("each => { each.open = true }")
                assert seen.page.locator("h2").count() == 4
                widest = seen.page.evaluate("document.documentElement.scrollWidth")
                assert widest <= width
                seen.check_was_quiet(path)


# ---- `retape report` ---------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A report as C++ gives it, or as an artefact."""
    monkeypatch.chdir(tmp_path)

    def store(result: dict, bare: bool = False) -> None:
        facts = {"retape": "9.9", "torch": "8.8", "python": "7.7", "cpu": "an abacus"}
        made = _artefact.artefact(
            "gradcheck", {}, result, 1, "retape gradcheck a:b --ranks 4", facts
        )
        Path("run.json").write_text(json.dumps(result if bare else made))

    return store


def test_report_shows_an_artefact_as_the_command_did(stored, capsys):
    found = report_of()
    text = "different: 1 of 2\n  a line"
    stored({"ranks": 4, **found, "text": text, "errors": []})
    files = ["--html", "out.html", "--markdown", "out.md", "--csv", "out.csv"]
    assert cli.main(["report", "run.json", *files]) == 1
    shown = capsys.readouterr().out
    assert printed(found, text=text).rstrip() in shown
    page_text = Path("out.html").read_text()
    for word in (
        "4 times the reference: n_ranks",
        "up to 4 ranks",
        "--ranks 4",
        "torch 8.8",
        "an abacus",
    ):
        assert word in page_text, word
    lines = list(csv.DictReader(Path("out.csv").open()))
    assert len(lines) == len(found["rows"])
    assert (lines[0]["topology"], lines[0]["error"], lines[-1]["error"]) == ("1", "1e-16", "")
    assert lines[-1]["guesses"] == "n_ranks"
    assert "| 4 | float64 | ✗ ∞ | ✗ ∞ | ✗ ∞ |" in Path("out.md").read_text()
    for each in (page_text, Path("out.md").read_text(), shown):
        assert "\x1b[31m" not in each
    assert "<img" not in page_text
    # What the report leaves behind can be shown again.
    assert cli.main(["report", "build/report.json"]) == 1
    assert printed(found, text=text).rstrip() in capsys.readouterr().out


def test_report_shows_what_cpp_gives(stored, capsys):
    stored(report_of(), bare=True)
    assert cli.main(["report", "run.json", "--html", "out.html"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"4 +float64 +✗ ∞", shown)
    assert "different: 6 of 12 comparisons (1; 4)" in shown
    assert '[4; float64; term1] gradient "<img src=x onerror=alert(1)>' in shown
    for word in (
        "4 times the reference",
        "self-test at 4: 1 of 2 mutants",
        "note: all shards",
        "vacuous: one",
    ):
        assert word in shown, word
    assert "run by ranks and by one process" in Path("out.html").read_text()


def test_report_shows_how_ranks_failed(stored, capsys):
    errors = [{"rank": 1, "kind": "ValueError", "text": "no data"}]
    stored({"ranks": 2, "kind": None, "errors": errors})
    assert cli.main(["report", "run.json"]) == 5
    assert "✗ rank 1: ValueError: no data" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["report", "run.json", "--csv", "out.csv"])
    assert "--csv: ranks failed, and nothing was compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({}, ["--judge"], "--judge is for what a bench measured, and run.json is of a gradcheck"),
        (
            {"kind": "odd"},
            [],
            "expected comparisons as this version of Retape writes them, got KeyError",
        ),
        ({"rows": [{}]}, [], "expected comparisons as this version"),
        ({"exit_code": 77}, [], "expected comparisons as this version"),
    ],
)
def test_report_refuses_what_makes_no_sense(stored, capsys, change, words, said):
    stored({**report_of(), **change})
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "run.json", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_has_exit_codes_and_ends_with_an_example(capsys):
    with pytest.raises(SystemExit):
        cli.main(["gradcheck", "--help"])
    shown = capsys.readouterr().out
    assert "exit codes: 0 equal, 1 different, 2 a mistake in the call, 5 a rank failed, 6" in shown
    assert shown.endswith("retape gradcheck mymodule:factory --ranks 4 --html gradcheck.html\n")


def test_ranks_that_raised_the_same_are_told_together():
    errors = [RankError(2, "E", "x"), RankError(1, "", "ended"), RankError(0, "E", "x")]
    assert _together(errors) == [("ranks 0, 2", "E: x"), ("rank 1", "ended")]
    assert _together([RankError(None, "", "ended")]) == [("torchrun", "ended")]
