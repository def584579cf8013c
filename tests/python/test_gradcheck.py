"""retape.dist.GradCheck and `retape gradcheck`: ranks against one process."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tests.python import browser, gradcheck_steps

import retape
import retape.dist
from retape import _dist, cli
from retape.gradchecking import factory, launch, messages, page, table
from retape.gradchecking.bar import bar
from retape.gradchecking.messages import RankError, Settings

STEPS = Path(gradcheck_steps.__file__)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mysteps.py").write_text(STEPS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mysteps", None)


def gradcheck(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "retape", "gradcheck", *words, "--json", "out.json"],
        capture_output=True,
        text=True,
        check=False,
    )


def result() -> dict:
    left = json.loads(Path("out.json").read_text())
    assert left["verb"] == "gradcheck"
    return left["result"]


# ---- the command, with ranks ---------------------------------------------------------------------


def test_a_right_step_is_equal_every_mutant_is_noticed_and_nothing_listens_beyond_loopback(folder):
    ended = gradcheck("mysteps:right_and_quiet", "--ranks", "3", "--html", "out.html")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = result()
    assert found["kind"] == "equal"
    assert {row["topology"] for row in found["rows"]} == {"1", "3", "3, ragged"}
    assert {row["dtype"] for row in found["rows"]} == {"float64", "float32"}
    assert {row["terms"] for row in found["rows"]} == {"all", "fit", "penalty"}
    assert max(row["error"] for row in found["rows"] if row["dtype"] == "float64") < 1e-14
    test = found["self_test"]
    assert test["topology"] == "3"
    assert test["killed"] == test["mutants"] == 13
    # Tokens are not the same number on every rank: there the ratio of a local count is no number.
    other = {row["mutation"] for row in test["rows"] if not row["as_predicted"]}
    assert other == {"local count"}
    assert "self-test at 3: 13 of 13 mutants noticed" in ended.stdout
    assert "Running the code of mysteps:right_and_quiet on 3 ranks." in ended.stdout
    assert re.search(r"3, ragged +float64 +✓", ended.stdout)
    assert "equal: 30 comparisons in 3 topologies" in ended.stdout
    assert ended.stderr == ""
    text = Path("out.html").read_text()
    assert "ranks compute what one process does" in text
    assert str(folder) not in text + Path("out.json").read_text()


def test_an_average_is_different_and_named(folder):
    ended = gradcheck("mysteps:average", "--ranks", "2", "--no-self-test")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    wrong = [row for row in result()["rows"] if row["kind"] == "different"]
    assert {row["topology"] for row in wrong} == {"2", "2, ragged"}
    assert all(row["alpha"] == pytest.approx(0.5) for row in wrong)
    assert all("1 / n_ranks" in row["guesses"] for row in wrong)
    assert "0.5 times the reference: 1 / n_ranks" in ended.stdout


def test_a_rank_that_raises_is_told_while_others_still_wait(folder):
    ended = gradcheck("mysteps:raises", "--ranks", "2", "--timeout", "250")
    assert ended.returncode == 5, ended.stdout + ended.stderr
    assert "✗ rank 1: ValueError: no <data> & here" in ended.stdout
    assert "rank 0" not in ended.stdout
    assert result()["errors"][0] == {"rank": 1, "kind": "ValueError", "text": "no <data> & here"}


def test_a_mistake_in_the_factory_is_a_mistake_of_the_call(folder):
    ended = gradcheck("mysteps:not_a_check", "--ranks", "2")
    assert ended.returncode == 2
    assert "expected a function that returns a retape.dist.GradCheck, got function" in ended.stderr


# ---- the command, without -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mysteps", "--ranks", "2"], "expected package.module:factory, got 'mysteps'"),
        (["../x:y", "--ranks", "2"], "expected package.module:factory"),
        (["mysteps:right"], "--ranks"),
        (["mysteps:right", "--ranks", "0"], "--ranks 0: expected at least 1"),
        (["mysteps:right", "--ranks", "2", "--timeout", "0"], "--timeout 0: expected more than 0"),
        (["mysteps:right", "--ranks", "2", "--html", "/proc/no/x.html"], "cannot write"),
    ],
)
def test_what_makes_no_sense_is_refused_before_ranks_start(
    folder, capsys, monkeypatch, words, said
):
    monkeypatch.setattr(launch, "run", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["gradcheck", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_factories_are_found_and_misspelt_ones_offered(folder):
    with pytest.raises(retape.UsageError, match="no module 'mystep', here.*Did you mean mysteps"):
        factory.make("mystep:right")
    with pytest.raises(retape.UsageError, match="has no 'rihgt'. Did you mean right"):
        factory.make("mysteps:rihgt")
    with pytest.raises(
        retape.UsageError, match="expected a function that returns a retape.dist.Gr"
    ):
        factory.make("mysteps:not_a_check")
    (folder / "needs.py").write_text("import a_module_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        factory.make("needs:x")


def test_messages_are_whole_json_and_the_first_error_comes_first(tmp_path):
    settings = Settings("a:b", 3.0, 7, False)
    messages.write_settings(tmp_path, settings)
    assert messages.read_settings(tmp_path) == settings
    assert messages.read(tmp_path / "report.json") is None
    messages.write_error(tmp_path, RankError(2, "ValueError", "first"))
    messages.write_error(tmp_path, RankError(0, "CollectiveError", "rank 2 is gone", follows=True))
    messages.write_error(tmp_path, RankError(1, "KeyError", "second"))
    for age, rank in enumerate((2, 0, 1)):
        os.utime(tmp_path / f"error.{rank}.json", ns=(age, age))
    assert [error.rank for error in messages.read_errors(tmp_path)] == [2, 1]
    assert not list(tmp_path.glob("*.partial"))


def test_a_rank_that_ends_without_a_word_is_named(tmp_path):
    (tmp_path / "torchrun.log").write_text(
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : -9 (pid: 4)\n"
    )
    messages.write_error(tmp_path, RankError(0, "RuntimeError", "Connection reset by peer"))
    first, second = launch._errors(tmp_path)
    assert (first.rank, first.text) == (1, "ended by SIGKILL, without an exception")
    assert second.rank == 0


# ---- in this process ------------------------------------------------------------------------------


def gradient(case, scale: float = 1.0) -> dict:
    return {"w": torch.ones(2, dtype=case.dtype) * scale * case.terms["fit"], "frozen": None}


def check_alone(reference=gradient, distributed=gradient, **options) -> retape.dist.GradCheck:
    return retape.dist.GradCheck(
        reference,
        distributed,
        terms={"fit": 2.0},
        rows=4,
        everyone=_dist.Group.alone("world"),
        **options,
    )


def test_one_rank_proves_nothing():
    seen = []
    report = check_alone().run(lambda *told: seen.append(told))
    assert (report.kind, report.exit_code, bool(report)) == ("vacuous", 6, False)
    assert [row["dtype"] for row in report.rows] == ["float64", "float32"]
    assert "every pool of every topology has one rank" in report.vacuous[0]
    assert seen[0] == (0, 2, "1; float64; fit")
    assert seen[-1] == (2, 2, "done")
    with pytest.raises(retape.Error, match=r"\[GradCheck\] vacuous"):
        report.raise_if_different()


def test_a_factor_is_fitted():
    report = check_alone(distributed=lambda case: gradient(case, 3.0)).run()
    assert report.kind == "different"
    assert report.rows[0]["alpha"] == 3
    assert "3 times the reference" in str(report)
    assert repr(report) == "<retape.dist.GradReport different: 2 comparisons>"


def test_outcomes_have_parameters_and_norms():
    def step(case):
        moved = {"w": torch.ones(2, dtype=case.dtype) - 0.1 * case.steps}
        return retape.dist.Outcome(gradient(case), moved if case.steps else {}, {"all": 1.5})

    report = check_alone(step, step, steps=2, wire=torch.bfloat16).run()
    assert {row["what"] for row in report.rows} == {"gradient", "parameter", "norm"}
    assert {row["terms"] for row in report.rows} == {"fit", "fit, 2 steps"}
    assert "float32, bfloat16 wire" in {row["dtype"] for row in report.rows}


def test_exceptions_of_a_step_are_its_own():
    class Own(Exception):
        pass

    def fails(case):
        raise Own("here")

    told = []
    with pytest.raises(Own, match="here") as caught:
        check_alone(distributed=fails).run(raised=told.append)
    assert told == ["Own: here"]
    assert any(entry.name == "fails" for entry in caught.traceback)
    with pytest.raises(Own):
        check_alone(reference=fails).run()


def test_an_interrupt_is_not_told_to_others():
    def interrupted(case):
        raise KeyboardInterrupt

    told = []
    with pytest.raises(KeyboardInterrupt):
        check_alone(distributed=interrupted).run(raised=told.append)
    assert told == []


def test_what_makes_no_sense_is_refused():
    with pytest.raises(retape.UsageError, match="distributed: expected an Outcome .* got NoneType"):
        check_alone(distributed=lambda case: None).run()
    with pytest.raises(retape.UsageError, match="got neither"):
        retape.dist.GradCheck(gradient, gradient, terms={"fit": 1.0})
    with pytest.raises(retape.UsageError, match="torch.distributed is not initialized"):
        retape.dist.GradCheck(gradient, gradient, terms={"fit": 1.0}, rows=4).run()
    with pytest.raises(retape.UsageError, match='the coefficient of "fit" is 0'):
        check = check_alone()
        check.terms = {"fit": 0.0}
        check.run()


def test_a_model_gives_the_gradients_of_its_parameters():
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    model.bias.grad = None
    found = retape.dist.gradients_of(model)
    assert found["weight"] is model.weight.grad
    assert found["bias"] is None


def test_numbers_by_row_are_the_same_for_whoever_has_the_row():
    whole = retape.dist.row_uniform(3, "noise", (0, 8), [5], torch.float64)
    part = retape.dist.row_uniform(3, "noise", (2, 6), [5], torch.float64)
    assert torch.equal(whole[2:6], part)
    drawn = [torch.randn(3, generator=retape.dist.row_generator(3, "noise", 4)) for _ in range(2)]
    assert torch.equal(*drawn)


# ---- what people see ------------------------------------------------------------------------------

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
    test = {"topology": "4", "killed": 0, "mutants": 1, "equivalent": 0, "kill_rate": 0.0}
    return {
        "kind": kind,
        "exit_code": 1,
        "worst_error": None,
        "vacuous": ["one of them lives"],
        "notes": ["all shards are even"],
        "rows": rows,
        "self_test": {**test, "rows": [mutant]},
    }


def printed(report: dict, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    table.print_report(report, "different: 1 of 2\n  a line", console)
    return console.file.getvalue()


def test_the_table_has_a_line_for_each_topology_and_dtype():
    shown = printed(report_of())
    assert re.search(r"4 +float64 +✗ ∞ +✗ ∞ +✗ ∞", shown)
    assert re.search(r"1 +float32 +✓ 1.0e-16", shown)
    assert shown.index("a line") < shown.index("different: 1 of 2")
    assert "\x1b[31m" not in shown


def test_many_terms_are_shown_by_their_worst():
    shown = printed(report_of(terms=20))
    assert "✗ ∞ (all)" in shown
    assert "term20" not in shown


def test_vacuous_runs_look_neither_right_nor_wrong():
    assert "○ 1.0e-16" in printed(report_of("vacuous"))


def test_the_bar_follows_a_total_that_grows():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with bar(console) as advance:
        advance({"done": 1, "total": 2, "what": "1; float64; all"})
        advance({"done": 2, "total": 9, "what": "self-test"})
    assert "2/9" in console.file.getvalue()
    quiet = Console(file=io.StringIO())
    with bar(quiet) as advance:
        advance({"done": 1, "total": 2, "what": "x"})
    assert quiet.file.getvalue() == ""


def test_the_page_shows_everything_and_names_stay_names(tmp_path):
    text = page.render(page.of_report(report_of(), 4, "retape gradcheck a:b --ranks 4"))
    for shown in (
        "ranks compute something else",
        "4 times the reference: n_ranks",
        "And 2 that these explain",
        "0 of 1",
        "not noticed",
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
    page.write(str(path), page.of_report(report_of(), 4, "retape gradcheck a:b --ranks 4"))
    with browser.chromium() as opened:
        for width in (1280, 400):
            with browser.look(opened, path, width, color_scheme=scheme) as seen:
                seen.page.locator("details").first.evaluate("each => { each.open = true }")
                assert seen.page.locator("h2").count() == 3
                widest = seen.page.evaluate("document.documentElement.scrollWidth")
                assert widest <= width
                seen.check_was_quiet(path)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        cli.main(["gradcheck", "--help"])
    assert "retape gradcheck mymodule:factory --ranks 4" in capsys.readouterr().out


def test_ranks_that_raised_the_same_are_told_together():
    from retape.gradchecking.cli import _together

    errors = [RankError(2, "E", "x"), RankError(1, "", "ended"), RankError(0, "E", "x")]
    assert _together(errors) == [("ranks 0, 2", "E: x"), ("rank 1", "ended")]


def test_the_store_and_the_folder_are_the_users_alone(monkeypatch):
    seen = SimpleNamespace()

    def start(folder, ranks, port, show):
        seen.mode = folder.stat().st_mode & 0o777
        seen.listening = gradcheck_steps.listening(os.getpid())
        seen.port = port
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(launch, "_start", start)
    ended = launch.run(Settings("a:b", 1.0), 2, lambda told: None)
    assert ended.told is None
    assert seen.mode == 0o700
    assert f"127.0.0.1:{seen.port}" in seen.listening
    assert all(address.startswith("127.0.0.1:") for address in seen.listening)
