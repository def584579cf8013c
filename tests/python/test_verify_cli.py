"""`retape verify`: rows, exit codes, the line that shows a failure again, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.python import verify_models as models
from tests.python.verify_cli import in_a_folder_with_models, in_process, refused, verify  # noqa: F401

import retape
from retape import _C, cli
from retape.cli.verify import case, faults
from retape.cli.verify.case import Case


def test_the_demos_run_with_nothing_to_write(capsys):
    code, result = verify()
    assert code == 0
    subjects = [row["subject"] for row in result["rows"]]
    models = ["transformer", "moe", "pi05", "pi05-open"]
    models += ["pi05-sdpa", "pi05-sdpa-open", "pi05-sdpa-no-dropout"]
    assert subjects == ["demo:gpt", "demo:mixed", *(f"cpp:{name}" for name in models)]
    assert all(row["kind"] == "equal" for row in result["rows"])
    assert all(row["verdict"]["ops_replayed"] > 0 for row in result["rows"])
    assert "9 cases: 9 equal" in capsys.readouterr().out


def test_policies_and_dtypes_are_a_row_each(capsys):
    code, result = verify(
        *"demo:gpt --policy full --policy cheap --dtype float32 --dtype bfloat16".split()
    )
    assert code == 0
    assert [(row["policy"], row["dtype"]) for row in result["rows"]] == [
        ("full", "float32"),
        ("cheap", "float32"),
        ("full", "bfloat16"),
        ("cheap", "bfloat16"),
    ]
    assert result["counts"] == {"different": 0, "vacuous": 0, "not built": 0, "equal": 4}


def test_orders_steps_layers_and_method_reach_verify():
    code, result = verify(*"demo:gpt --orders --steps 2 --layers auto --method rerun".split())
    assert code == 0
    verdict = result["rows"][0]["verdict"]
    assert "two forwards" in verdict["orders"]
    assert verdict["reruns"] > 0
    assert verdict["ops_replayed"] == 0


def test_a_factory_and_a_step_of_the_folder_are_found_and_it_says_that_code_runs(capsys):
    code, result = verify("mymodels:equal", "mymodels:step")
    assert code == 0
    assert len(result["rows"]) == 2
    assert "Running the code of mymodels:equal, mymodels:step." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("subjects", "code"),
    [
        (["mymodels:different"], 1),
        (["mymodels:vacuous"], 6),
        (["mymodels:vacuous", "mymodels:different", "mymodels:equal"], 1),
        (["mymodels:equal", "mymodels:vacuous"], 6),
        (["mymodels:raises"], 2),
    ],
)
def test_exit_codes_different_beats_vacuous(subjects, code):
    assert verify(*subjects)[0] == code


def test_exit_codes_of_the_program_itself():
    assert in_process("demo:gpt").returncode == 0
    failed = in_process("mymodels:different", "--seed", "3")
    assert failed.returncode == 1
    assert "up.weight" in failed.stdout
    assert "Again: retape verify mymodels:different --policy full --seed 3" in failed.stdout
    assert failed.stderr == ""  # no progress bar where nobody looks
    assert in_process("mymodels:vacuous").returncode == 6
    assert in_process("demo:gtp").returncode == 2


def test_the_line_that_shows_a_failure_again_does(capsys):
    _, result = verify("mymodels:different", "--policy", "cheap", "--policy", "full", "--orders")
    failed = next(row for row in result["rows"] if row["kind"] == "different")
    words = shlex.split(failed["command"])
    assert words[:2] == ["retape", "verify"]
    code, again = verify(*words[2:])
    assert code == 1
    assert [row["policy"] for row in again["rows"]] == [failed["policy"]]
    assert again["rows"][0]["verdict"]["differences"] == failed["verdict"]["differences"]


def test_a_command_quotes_what_a_shell_would_read():
    made = Case("a b:c", layers=("blocks.*",), method="rerun", dtype="bfloat16", orders=True)
    assert made.command == (
        "retape verify 'a b:c' --dtype bfloat16 --layers 'blocks.*' --method rerun --orders"
    )


def test_what_cannot_run_is_a_row_with_its_reason(capsys):
    _, result = verify("mymodels:raises")
    assert result["rows"][0]["kind"] == "not built"
    assert "RuntimeError: no data <here> & now" in result["rows"][0]["cause"]
    assert "not built" in capsys.readouterr().out


def test_a_not_built_row_of_many_is_no_failure():
    rows = [case.Result(Case("hf:A"), "equal"), case.Result(Case("hf:B"), "not built", reason="x")]
    from retape.cli.verify.command import exit_code

    assert exit_code(rows, named=()) == 0
    assert exit_code(rows, named=["hf:A"]) == 0
    assert exit_code(rows, named=["hf:B"]) == 2
    assert exit_code(rows[1:], named=()) == 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["demo:gptt"], "Did you mean demo:gpt?"),
        (["gpt"], "Did you mean demo:gpt?"),
        (["transformer"], "Did you mean cpp:transformer?"),
        (["moe"], "Did you mean cpp:moe?"),
        (["mymodel:equal"], "Did you mean mymodels?"),
        (["mymodels:equl"], "Did you mean equal?"),
        (["mymodels:not_callable"], "expected a function"),
        (["mymodels:no_model"], "it gave int"),
        (["--policy", "chaep"], "Did you mean cheap?"),
        (["--dtype", "bfloat61"], "Did you mean bfloat16?"),
        (["--steps", "0"], "expected at least 1"),
        (["--method", "rerunn"], "Did you mean rerun?"),
        (["--policy", "full", "--method", "rerun"], "leave one out"),
        (["--hazards", "demo:gpt"], "its own models"),
        (["--hazards", "--policy", "full", "--orders"], "leave out --policy, --orders"),
        (["--inject", "one-ulp", "--dtype", "float64"], "leave out --dtype"),
        (["mymodels:step", "--dtype", "bfloat16"], "tensors of its own"),
        (["demo:mixed", "--layers", "nothing.*"], "nothing.*"),
        (["--junit", "/dev/null/x.xml"], "cannot write /dev/null/x.xml"),
    ],
)
def test_a_mistake_is_refused_with_the_closest_thing_there_is(capsys, words, told):
    assert told in refused(capsys, *words)


def test_json_alone_on_standard_output(capsys):
    assert cli.main(["verify", "demo:gpt", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["result"]["counts"]["equal"] == 1
    assert "1 case: 1 equal" in err


def test_hazards_end_well_and_show_both_sides(capsys):
    code, result = verify("--hazards")
    assert code == 0
    out = capsys.readouterr().out
    assert "silently wrong" in out
    assert "OpenTau#202" in out
    rows = {row["name"]: row for row in result["rows"]}
    assert rows["cache_changed"]["cells"]["torch"]["outcome"] == "different"
    assert rows["cache_changed"]["cells"]["replay"]["outcome"] == "equal"


@pytest.fixture
def small_hf(monkeypatch):
    """Two architectures in place of hundreds: one with a dead parameter, one that cannot be built."""
    import retape_hf as hf

    def build(name, dtype, seed):
        if name == "Absent":
            raise hf.NotBuilt(name, "needs a package: timm")
        torch.manual_seed(seed)
        return models.WithDeadParameter().to(dtype), {"x": models.x().to(dtype)}

    monkeypatch.setattr(hf, "architectures", lambda: ["Partly", "Absent"])
    monkeypatch.setattr(hf, "build", build)


def test_every_architecture_is_a_row_equal_or_not_built_with_the_reason(small_hf, capsys):
    code, result = verify("--all-hf", "--dtype", "bfloat16", "--jobs", "0")
    assert code == 0
    assert [(row["subject"], row["kind"], row["cause"]) for row in result["rows"]] == [
        ("hf:Partly", "equal", ""),
        ("hf:Absent", "not built", "needs a package: timm"),
    ]
    assert "2 cases: 1 equal, 1 not built" in capsys.readouterr().out


def test_of_all_architectures_only_a_named_one_must_be_built(small_hf):
    assert verify(*"--all-hf hf:Partly --jobs 0".split())[0] == 0
    assert verify(*"--all-hf hf:Absent --jobs 0 --junit out.xml".split())[0] == 2
    assert 'errors="1"' in Path("out.xml").read_text()


def test_a_row_that_crashes_or_hangs_in_its_own_process_is_a_row(capsys):
    Path("wild.py").write_text(WILD)
    code, result = verify(
        *"wild:good wild:killed wild:leaves wild:hangs wild:wrong --jobs 1 --time-limit 10".split()
    )
    assert code == 1
    plain = "before the plain step had ended"
    assert [(row["subject"], row["kind"], row["cause"]) for row in result["rows"]][:4] == [
        ("wild:good", "equal", ""),
        ("wild:killed", "different", f"the process that ran it was ended by SIGKILL {plain}"),
        (
            "wild:leaves",
            "different",
            f"the process that ran it ended itself with exit code 7 {plain}",
        ),
        ("wild:hangs", "not built", "the plain step did not end in 10 s. Fix: --time-limit 20"),
    ]
    wrong = result["rows"][4]
    assert wrong == {**verify("wild:wrong")[1]["rows"][0], "seconds": wrong["seconds"]}
    assert wrong["verdict"]["differences"] and wrong["kind"] == "different"
    assert "Again: retape verify wild:killed" in capsys.readouterr().out


def test_what_ends_plain_and_crashes_or_hangs_recomputed_is_different():
    Path("wild.py").write_text(WILD)
    code, result = verify(
        *"wild:hangs_recomputed wild:killed_recomputed --jobs 1 --time-limit 10".split()
    )
    assert code == 1
    assert [(row["subject"], row["kind"], row["cause"]) for row in result["rows"]] == [
        (
            "wild:hangs_recomputed",
            "different",
            "the plain step ended, the recomputed one did not in 10 s. Fix: --time-limit 20, if it is slow",
        ),
        (
            "wild:killed_recomputed",
            "different",
            "the process that ran it was ended by SIGKILL while it recomputed",
        ),
    ]


WILD = """
import os
import signal
import threading

import retape
from mymodels import *


class Recorded(Block):
    def __init__(self, then):
        super().__init__()
        self.then = then

    def forward(self, x):
        if retape.is_recording():
            self.then()
        return super().forward(x)


def good():
    return Block(), x()


def wrong():
    return WritesBehindTheBack(), x()


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leaves():
    os._exit(7)


def hangs():
    threading.Event().wait()


def killed_recomputed():
    return Recorded(killed), x()


def hangs_recomputed():
    return Recorded(hangs), x()
"""


def test_processes_do_not_go_with_faults(capsys):
    assert "leave one out" in refused(capsys, *"demo:gpt --inject one-ulp --jobs 2".split())
    assert "expected 0 or more" in refused(capsys, *"demo:gpt --jobs -1".split())
    assert "expected more than 0" in refused(capsys, *"demo:gpt --time-limit 0".split())


def test_an_architecture_by_name(small_hf, capsys):
    assert verify("hf:Partly")[0] == 0
    assert verify("hf:Absent")[0] == 2
    assert "Did you mean hf:Partly?" in refused(capsys, "hf:Party")


# ---- faults


class Faults:
    """In place of the faults of a build that has them: one that is caught, one that is told by another
    name, one that nobody notices, one that never strikes."""

    known = tuple(
        SimpleNamespace(id=name, breaks=f"breaks {name}", kind="values")
        for name in ("loud", "odd", "silent", "lazy")
    )

    def __init__(self) -> None:
        self.active, self.hits = "", 0

    def inject(self, fault: str) -> None:
        self.active, self.hits = fault, 0

    def around(self, real):
        def run(*args, **options):
            self.hits += self.active in ("loud", "odd", "silent")
            if self.active not in ("loud", "odd"):
                return real(*args, **options)
            return Found(real(models.WritesBehindTheBack(), models.x())._verdict, self.active)

        return run


class Found(retape.Verdict):
    def __init__(self, verdict, fault: str) -> None:
        super().__init__(verdict)
        self.fault = fault

    @property
    def findings(self):
        kinds = ["values", "layout"] if self.fault == "loud" else ["layout", "values"]
        return [
            SimpleNamespace(kind=kind, op="aten::tanh", region="r", source="m.py:3", what="1, 2")
            for kind in kinds
        ]


@pytest.fixture
def some_faults(monkeypatch):
    made = Faults()
    monkeypatch.setattr(_C, "faults", lambda: Faults.known, raising=False)
    monkeypatch.setattr(_C, "inject", made.inject, raising=False)
    monkeypatch.setattr(_C, "fault_hits", lambda: made.hits, raising=False)
    monkeypatch.setattr(retape, "verify", made.around(retape.verify))
    return made


def test_faults_are_listed(some_faults, capsys):
    code, result = verify("--inject", "list")
    assert code == 0
    assert result["faults"]["lazy"] == {"breaks": "breaks lazy", "kind": "values"}
    assert "breaks lazy" in capsys.readouterr().out


def test_one_fault_is_a_verdict_like_any_other(some_faults):
    code, result = verify("demo:gpt", "--inject", "loud")
    assert code == 1
    row = result["rows"][0]
    assert (row["fault"], row["fault_hits"]) == ("loud", 1)
    assert row["cause"] == 'values: aten::tanh, region "r", m.py:3: 1, 2'
    assert row["command"].endswith("--inject loud")
    assert some_faults.active == ""


def test_a_fault_that_did_not_strike_proves_nothing(some_faults, capsys):
    code, result = verify("demo:gpt", "--inject", "lazy")
    assert code == 6
    assert (result["rows"][0]["kind"], result["rows"][0]["fault_hits"]) == ("vacuous", 0)
    assert "the fault lazy did not strike" in result["rows"][0]["cause"]
    assert "retape verify --inject lazy" in capsys.readouterr().out


def test_all_faults_say_which_was_missed_misnamed_or_never_struck(some_faults, capsys):
    code, result = verify("demo:gpt", "--inject", "all", "--junit", "faults.xml")
    assert code == 1
    assert {each["name"]: each["kind"] for each in result["faults"]} == {
        "loud": faults.CAUGHT,
        "odd": faults.MISNAMED,
        "silent": faults.MISSED,
        "lazy": faults.NOT_STRUCK,
    }
    assert {(row["method"], tuple(row["layers"])) for row in result["rows"]} == {
        ("replay", ()),
        ("rerun", ()),
        ("rerun", ("auto",)),
    }
    assert all(row["steps"] == 2 and row["orders"] for row in result["rows"])
    assert "1 of 4 faults caught" in capsys.readouterr().out
    assert 'failures="3"' in Path("faults.xml").read_text()


def test_a_fault_in_what_cannot_run_did_not_strike_and_it_says_why():
    code, result = verify("mymodels:raises", "--inject", "all")
    assert code == 6
    assert {each["kind"] for each in result["faults"]} == {faults.NOT_STRUCK}
    assert all("no data <here> & now" in each["cause"] for each in result["faults"])


def test_the_page_of_all_faults_says_what_became_of_each(some_faults):
    verify("demo:gpt", "--inject", "all", "--html", "faults.html")
    page = Path("faults.html").read_text()
    for tone, word in (
        ("good", "✓ caught"),
        ("bad", "✗ misnamed"),
        ("bad", "✗ missed"),
        ("loud", "○ did not strike"),
    ):
        assert re.search(rf'<td class="{tone}"[^>]*><span class="chip">{word}</span>', page), word
    assert "different" not in page
    assert "1 of 4" in page
    assert page.count("breaks l") == 2  # loud, lazy: what each of them breaks
    assert "--inject silent</code>" in page
    assert "--inject loud</code>" not in page  # caught: nothing to look into


def test_an_unknown_fault_is_refused_with_the_closest(some_faults, capsys):
    assert "Did you mean silent?" in refused(capsys, "--inject", "silnt")


def test_a_build_without_faults_says_so(monkeypatch, capsys):
    monkeypatch.setattr(_C, "faults", list, raising=False)
    assert "no faults to inject" in refused(capsys, "--inject", "list")
