"""`--compare old.json --fail peak:1% time:10%`: what is a regression, what is noise, what is neither."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.python import bench_runs
from tests.python.bench_runs import ENVIRONMENT, HOSTILE, row, spread

from retape import UsageError, _artefact, cli
from retape._text import Exit
from retape.bench import run as bench_run
from retape.bench.compare import (
    BETTER,
    NOISY,
    REGRESSION,
    SAME,
    Baseline,
    Comparison,
    Rule,
    compare,
    load,
    parse_rules,
    print_comparison,
)
from retape.bench.result import BITWISE, CLOSE, DIFFERENT, Row, Run

RULES = [Rule("peak", 0.01), Rule("time", 0.10)]


def plain(seconds: float = 0.12) -> Row:
    return row("plain", "plain", 400, seconds, equal=None, ratio=spread(1.0))


def run_of(*rows: Row, seconds: float = 0.12, **changes) -> Run:
    return bench_runs.run(bench_runs.subject(rows=[plain(seconds), *rows], timelines=[], **changes))


def compared(old: Run, new: Run, rules: list[Rule] = RULES, **environment) -> Comparison:
    return compare(Baseline(old, ENVIRONMENT), Baseline(new, {**ENVIRONMENT, **environment}), rules)


def verdicts(found: Comparison, metric: str, method: str = "retape full") -> list[str]:
    return [c.verdict for c in found.changes if (c.metric, c.method) == (metric, method)]


@pytest.mark.parametrize(
    ("peak", "verdict"),
    [
        (100, SAME),
        (100.9, SAME),
        (101.1, REGRESSION),
        (99.5, SAME),
        (98, BETTER),
        (200, REGRESSION),
    ],
)
def test_bytes_are_exact(peak, verdict):
    old, new = (run_of(row("retape full", "retape", mib, 0.13)) for mib in (100, peak))
    found = compared(old, new)
    assert verdicts(found, "peak") == [verdict]
    assert found.exit_code() is (Exit.REGRESSION if verdict == REGRESSION else Exit.OK)


@pytest.mark.parametrize(
    ("seconds", "half", "verdict"),
    [
        (0.130, 0.01, SAME),
        (0.140, 0.01, SAME),
        (0.150, 0.01, REGRESSION),
        (0.150, 0.30, NOISY),  # quartiles overlap
        (0.110, 0.01, BETTER),
        (0.110, 0.30, SAME),
    ],
)
def test_times_are_judged_by_their_quartiles_too(seconds, half, verdict):
    def made(seconds: float) -> Run:
        ratio = spread(seconds / 0.12, half)
        return run_of(
            row("retape full", "retape", 100, seconds, total=spread(seconds, half), ratio=ratio)
        )

    found = compared(made(0.130), made(seconds))
    assert verdicts(found, "time") == [verdict]
    assert any("too noisy to judge" in text for text in found.warnings) is (verdict == NOISY)
    assert found.exit_code() is {REGRESSION: Exit.REGRESSION, NOISY: Exit.VACUOUS}.get(
        verdict, Exit.OK
    )


def timed(*ratios: float) -> Run:
    """In rounds of these ratios to plain's time; totals say something else, as medians of their own do."""
    ordered = sorted(ratios)
    quarters = (ordered[1], ordered[len(ordered) // 2], ordered[-2])
    return run_of(row("retape full", "retape", 100, 0.9, ratio=quarters, ratios=list(ratios)))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        # The middle halves are apart, but of seven rounds the median may lie anywhere between the ends.
        ([1.0] * 6 + [1.3], [1.2] * 6 + [1.0], NOISY),
        ([1.0] * 6 + [1.1], [1.2] * 6 + [1.15], REGRESSION),
        ([1.2] * 6 + [1.15], [1.0] * 6 + [1.1], BETTER),
        ([1.0] * 7, [1.08] * 7, SAME),
        ([1.0] * 5, [1.5] * 5, NOISY),  # nothing is certain of five rounds
        # Of many rounds a few that are off do not hide it.
        ([1.0] * 28 + [1.3] * 3, [1.2] * 28 + [1.0] * 3, REGRESSION),
    ],
)
def test_times_are_ratios_of_rounds_and_judged_by_how_well_their_median_is_known(
    before, after, verdict
):
    found = compared(timed(*before), timed(*after))
    assert verdicts(found, "time") == [verdict]


def noisy(method: str, seconds: float, half: float = 0.9) -> Row:
    total, ratio = spread(seconds, half), spread(seconds / 0.12, half)
    return row(
        method, "retape", 100, seconds, total=total, forward=total, backward=total, ratio=ratio
    )


@pytest.mark.parametrize("metric", ["time", "forward", "total"])
def test_a_rule_that_could_judge_no_method_clearly_proves_nothing(metric):
    names = ("retape cheap", "retape full", "selective")
    old, new = (run_of(*(noisy(name, seconds) for name in names)) for seconds in (0.13, 0.355))
    found = compared(old, new, [Rule("peak", 0.01), Rule(metric, 0.10)])
    assert len(found.of(NOISY)) == len(names)
    assert found.exit_code() is Exit.VACUOUS
    assert any(text.startswith(f"{metric}:10% judged no row clearly") for text in found.warnings)
    assert compared(old, new, [Rule("peak", 0.01)]).exit_code() is Exit.OK  # the other rule does


def test_a_rule_that_judged_some_methods_clearly_is_no_proof_of_nothing_and_a_regression_is_one():
    quiet = noisy("retape cheap", 0.13, 0.01)
    old, new = (run_of(quiet, noisy("retape full", seconds)) for seconds in (0.13, 0.355))
    assert compared(old, new).exit_code() is Exit.OK
    slower = run_of(noisy("retape cheap", 0.2, 0.01), noisy("retape full", 0.355))
    assert compared(old, slower).exit_code() is Exit.REGRESSION


def test_a_slower_machine_is_no_regression_of_time_but_of_seconds():
    old = run_of(row("retape full", "retape", 100, 0.13))
    new = run_of(row("retape full", "retape", 100, 0.26, ratio=spread(0.13 / 0.12)), seconds=0.24)
    found = compared(old, new)
    assert verdicts(found, "time") == [SAME]
    assert any("plain itself takes 2.00 times as long" in text for text in found.warnings)
    found = compared(old, new, [Rule("total", 0.10)])
    assert verdicts(found, "total") == [REGRESSION]


def test_without_a_plain_row_seconds_are_compared():
    old, new = (
        bench_runs.run(bench_runs.subject(rows=[row("retape full", "retape", 100, t)]))
        for t in (0.1, 0.2)
    )
    assert verdicts(compared(old, new), "time") == [REGRESSION]


def test_another_machine_is_told():
    run = run_of(row("retape full", "retape", 100, 0.13))
    found = compared(run, run, cpu="Another CPU")
    assert any(text.startswith("cpu was Some CPU, is Another CPU") for text in found.warnings)
    assert found.exit_code() is Exit.OK


def test_what_could_be_measured_and_now_fails_is_a_regression():
    found = compared(
        run_of(row("retape full", "retape", 100, 0.13)),
        run_of(Row("retape full", "retape", "block", error="RuntimeError: no")),
    )
    assert verdicts(found, "row") == [REGRESSION]
    assert found.exit_code() is Exit.REGRESSION


def test_what_failed_before_or_is_skipped_now_is_none():
    measured = run_of(row("retape full", "retape", 100, 0.13))
    failed = run_of(Row("retape full", "retape", "block", error="RuntimeError: no"))
    skipped = run_of(Row("retape full", "retape", "block", skipped="not asked for"))
    peak = [Rule("peak", 0.01)]  # plain's is there
    assert compared(failed, measured, peak).exit_code() is Exit.OK
    found = compared(measured, skipped, peak)
    assert found.exit_code() is Exit.OK
    assert any("skipped: not asked for" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(BITWISE, CLOSE, REGRESSION), (CLOSE, DIFFERENT, REGRESSION), (DIFFERENT, BITWISE, BETTER)],
)
def test_fewer_equal_bits_are_a_regression_whatever_the_rules_are(before, after, verdict):
    old, new = (run_of(row("retape full", "retape", 100, 0.13, equal=e)) for e in (before, after))
    assert verdicts(compared(old, new, [Rule("held", 0.5)]), "bits") == [verdict]


def test_another_size_is_not_compared():
    old = run_of(row("retape full", "retape", 100, 0.13))
    new = run_of(
        row("retape full", "retape", 900, 0.13), size={"layers": 8, "dtype": "float32", "width": 9}
    )
    found = compared(old, new)
    assert found.changes == []
    assert any("its size differs" in text for text in found.warnings)
    assert found.exit_code() is Exit.VACUOUS


def test_nothing_in_common_proves_nothing():
    old = bench_runs.run(bench_runs.subject("swiglu"))
    new = bench_runs.run(bench_runs.subject("attention"))
    found = compared(old, new)
    assert found.exit_code() is Exit.VACUOUS
    text = "\n".join(found.warnings)
    assert "swiglu, 8 layers, float32: not in the new run" in text
    assert "attention, 8 layers, float32: not in the old run" in text
    assert "nothing was compared" in text


def test_a_row_that_is_gone_is_told():
    full, peer = row("retape full", "retape", 100, 0.13), row("selective", "torch", 120, 0.14)
    inner = row("selective", "torch", 130, 0.14, around="inner")
    failed = Row("reentrant", "torch", "block", error="RuntimeError: no")
    found = compared(run_of(full, peer, inner, failed), run_of(full))
    told = [text for text in found.warnings if "not in the new run" in text]
    assert told == [
        "swiglu, 8 layers, float32: not in the new run: selective, block; selective, inner"
    ]
    assert found.exit_code() is Exit.OK
    assert compared(run_of(full), run_of(full)).warnings == []


def without_times(name: str, family: str) -> Row:
    return row(name, family, 100, 0.13, forward=None, backward=None, total=None, ratio=None)


@pytest.mark.parametrize(
    ("rules", "unjudged"),
    [
        (["peak:1%"], []),
        (["peak:1%", "time:10%"], ["time"]),
        (["time:10%", "total:5%"], ["time", "total"]),
    ],
)
def test_a_rule_that_judged_no_row_proves_nothing_and_says_so(rules, unjudged):
    run = bench_runs.run(
        bench_runs.subject(
            rows=[without_times("plain", "plain"), without_times("retape full", "retape")]
        )
    )
    found = compared(run, run, parse_rules(rules))
    assert found.exit_code() is (Exit.VACUOUS if unjudged else Exit.OK)
    told = [text for text in found.warnings if "judged no row" in text]
    assert [text.split(":")[0] for text in told] == unjudged


def test_time_of_plain_alone_is_beside_nothing():
    found = compared(run_of(), run_of())
    assert found.exit_code() is Exit.VACUOUS
    assert any(text.startswith("time:10% judged no row") for text in found.warnings)


def test_a_regression_is_worse_than_a_rule_that_judged_nothing():
    old, new = run_of(), run_of()
    new.subjects[0].rows[0].peak *= 2
    assert compared(old, new).exit_code() is Exit.REGRESSION


def test_a_method_is_matched_with_what_it_is_around():
    old = run_of(row("torch", "torch", 100, 0.13, around="inner"), row("torch", "torch", 50, 0.13))
    found = compared(old, run_of(row("torch", "torch", 100, 0.13, around="inner")))
    assert [c.verdict for c in found.changes if c.metric == "peak"] == [SAME, SAME]


def test_from_nothing_to_something_is_a_regression():
    old, new = (run_of(row("retape full", "retape", 100, 0.13, replayed=n)) for n in (0, 5))
    assert verdicts(compared(old, new, [Rule("replayed", 0.5)]), "replayed") == [REGRESSION]


def test_rules_are_read():
    assert parse_rules(["peak:1%", "time:10%"]) == RULES
    assert parse_rules(["held:0%", "total:2.5%"]) == [Rule("held", 0.0), Rule("total", 0.025)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["peek:1%"], "Did you mean peak?"),
        (["tme:1%"], "Did you mean time?"),
        (["xyzzy:1%"], "There is: peak, held, time"),
        (["peak"], "expected a limit like peak:1%"),
        (["peak:5"], "expected a limit like peak:5%"),
        (["peak:-1%"], "expected a limit like peak:1%"),
        (["peak:1%", "peak:2%"], "given twice"),
    ],
)
def test_a_rule_that_is_none_is_refused_with_the_right_spelling(words, told):
    with pytest.raises(UsageError, match=told.replace("?", r"\?")):
        parse_rules(words)


def test_hostile_names_are_printed_as_text():
    out = io.StringIO()
    run = bench_runs.hostile()
    found = compared(run, run, cpu=HOSTILE)
    print_comparison(found, Console(file=out, width=124))
    assert "\x1b" not in out.getvalue()
    assert "Some CPU" in out.getvalue()


# The command line


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def save(name: str, run: Run) -> str:
        content = _artefact.artefact("bench blocks", {}, run.to_dict(), 0, "retape bench blocks")
        Path(name).write_text(json.dumps(content))
        return name

    return save


@pytest.mark.parametrize(
    ("peak", "words", "code"),
    [
        (100, ["--fail", "peak:1%", "time:10%"], Exit.OK),
        (102, ["--fail", "peak:1%", "time:10%"], Exit.REGRESSION),
        (102, ["--fail", "peak:1%", "--fail", "time:10%"], Exit.REGRESSION),
        (102, ["--fail", "time:10%"], Exit.OK),
        (102, ["--fail", "peak:5%"], Exit.OK),
        (102, [], Exit.OK),
    ],
)
def test_the_command_ends_with_3_on_a_regression_beyond_its_limit(saved, capsys, peak, words, code):
    old = saved("old.json", run_of(row("retape full", "retape", 100, 0.13)))
    new = saved("new.json", run_of(row("retape full", "retape", peak, 0.13)))
    assert cli.main(["report", new, "--compare", old, *words]) == code
    out = capsys.readouterr().out
    left = json.loads(Path("build/report.json").read_text())
    assert left["exit_code"] == code
    found = left["result"]["compare"]
    assert f"{found['compared']} row" in out
    judged = [
        c["verdict"]
        for c in found["changes"]
        if (c["metric"], c["method"]) == ("peak", "retape full")
    ]
    assert (REGRESSION in judged) is ("regression" in out)
    assert REGRESSION in judged or code is Exit.OK


def test_wrong_gradients_are_worse_than_a_regression(saved):
    old = saved("old.json", run_of(row("retape full", "retape", 100, 0.13)))
    new = saved("new.json", run_of(row("retape full", "retape", 900, 0.13, equal=DIFFERENT)))
    assert cli.main(["report", new, "--compare", old, "--fail", "peak:1%"]) == Exit.DIFFERENT


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compare", "absent.json"], "cannot read absent.json"),
        (["--compare", "text.txt"], "text.txt is not JSON"),
        (["--compare", "list.json"], "expected the format 'retape/1'"),
        (["--compare", "doctor.json"], "is of `retape doctor`"),
        (["--fail", "peak:1%"], "--fail without --compare"),
        (["--compare", "new.json", "--fail", "peek:1%"], "Did you mean peak?"),
        (["--compare", "new.json", "--fail"], "--fail"),
        (["--compair", "new.json"], "Did you mean --compare?"),
        (["--html", "/dev/null/x.html"], "cannot write /dev/null/x.html"),
    ],
)
def test_what_cannot_be_understood_is_refused_before_any_work(saved, capsys, words, told):
    saved("new.json", bench_runs.run())
    Path("text.txt").write_text("hello")
    Path("list.json").write_text("[]")
    doctor = _artefact.artefact("doctor", {}, {"checks": []}, 0)
    Path("doctor.json").write_text(json.dumps(doctor))
    with pytest.raises(SystemExit) as refused:
        cli.main(["report", "new.json", *words])
    assert refused.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err


def spoilt(saved, spoil) -> None:
    path = Path(saved("old.json", bench_runs.run()))
    content = json.loads(path.read_text())
    spoil(content["result"])
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("spoil", ["rows", "timelines", "name"])
def test_a_spoilt_artefact_is_refused_and_what_it_lacks_is_told(saved, spoil):
    spoilt(saved, lambda result: result["subjects"][0].pop(spoil))
    with pytest.raises(UsageError, match=f"as this version of Retape writes them, got .*'{spoil}'"):
        load("old.json")


def test_rows_that_are_no_list_are_refused(saved):
    spoilt(saved, lambda result: result["subjects"][0].update(rows=5))
    with pytest.raises(UsageError, match="as this version of Retape writes them"):
        load("old.json")


def test_an_artefact_is_json_whatever_is_in_it(tmp_path):
    path = tmp_path / "a.json"
    _artefact.write(
        str(path), {"share": float("inf"), "deep": [{"nan": float("nan"), "name": "b\udcff"}]}
    )
    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail) == {
        "share": None,
        "deep": [{"nan": None, "name": "b\udcff"}],
    }


def test_what_a_newer_version_put_into_an_artefact_is_told(saved):
    spoilt(saved, lambda result: result["subjects"][0]["rows"][0].update(watts=5))
    with pytest.raises(
        UsageError, match="got an unknown field: 'watts' of a row. Fix: use the version"
    ):
        load("old.json")


WRONG = {
    "peak": ("12", "'12' as 'peak' of the row 'plain', which is a whole number"),
    "held": (1.5, "1.5 as 'held'"),
    "replayed": (True, "True as 'replayed'"),
    "total": ([1, 2], "(1, 2) as 'total' of the row 'plain', which is three numbers"),
    "ratio": ([1, 2, None], "as 'ratio'"),
    "gflop": (float("inf"), "inf as 'gflop' of the row 'plain', which is a finite number"),
    "ratios": ([1.0, "2"], "as 'ratios' of the row 'plain', which is numbers"),
    "equal": (5, "5 as 'equal'"),
    "differs": ("weight", "as 'differs'"),
    "method": (None, "None as 'method'"),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_row_with_a_field_of_a_wrong_type_is_refused_by_name(saved, field):
    value, told = WRONG[field]
    spoilt(saved, lambda result: result["subjects"][0]["rows"][0].update({field: value}))
    with pytest.raises(UsageError) as refused:
        load("old.json")
    assert str(refused.value).startswith("old.json: expected subjects and rows as this version")
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda result: result.update(warnings=[5]), "[5] as 'warnings' of the run, which is texts"),
        (lambda result: result["subjects"][0].update(size=3), "3 as 'size' of the subject 'swiglu'"),
        (lambda result: result["subjects"][0].update(title=None), "None as 'title'"),
        (lambda result: result["subjects"][0]["timelines"][0].update(words=[1]), "[1] as 'words'"),
        (lambda result: result["subjects"][0]["timelines"][0]["rows"].append([1]), "[1] as a row of the timeline"),
        (lambda result: result["subjects"][0]["timelines"][0].update(rows=[[1, 1, 1, -9, 0, 0, 0]]), "-9"),
    ],
)  # fmt: skip
def test_a_run_with_a_field_of_a_wrong_type_is_refused_by_name(saved, spoil, told):
    spoilt(saved, spoil)
    with pytest.raises(UsageError) as refused:
        load("old.json")
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "words", [["report", "old.json"], ["bench", "--quick", "--compare", "old.json"]]
)
def test_a_wrong_artefact_is_refused_by_its_name_before_any_work(saved, capsys, monkeypatch, words):
    monkeypatch.delattr(bench_run, "_plan")
    spoilt(saved, lambda result: result["subjects"][0]["rows"][0].update(peak="12"))
    with pytest.raises(SystemExit) as refused:
        cli.main(words)
    assert refused.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and "old.json: " in err and "'12' as 'peak'" in err


@pytest.mark.parametrize("subjects", [None, 5, {}])
def test_an_artefact_without_subjects_is_refused(saved, subjects):
    spoilt(saved, lambda result: result.update(subjects=subjects))
    with pytest.raises(UsageError, match="which has no subjects and rows"):
        load("old.json")
