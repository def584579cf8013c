"""`retape verify`: what is given to it, and where nothing ran: exit code 2, in words, with the line of the
code that is to blame."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.python.verify_cli import in_a_folder_with_models, in_process, refused, verify  # noqa: F401

# ---- code that cannot be imported


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import torch\ndef f(:\n", "SyntaxError: invalid syntax (broken.py:2)"),
        ("import no_such_thing\n", "No module named 'no_such_thing' (broken.py:1)"),
        ("from torch import no_such_thing\n", "ImportError: cannot import name 'no_such_thing'"),
        ("\nraise KeyError('data')\n", "KeyError: 'data' (broken.py:2)"),
        ("import json\njson.loads('{')\n", "(broken.py:2)"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0 (broken.py:2)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_line_and_a_fix(capsys, text, told):
    Path("broken.py").write_text(text)
    said = refused(capsys, "broken:factory")
    assert told in said
    assert "broken:factory: expected a module that can be imported, got " in said
    assert 'Fix: make this run: python -c "import broken"' in said


def test_the_program_ends_with_2_where_a_module_cannot_be_imported():
    Path("broken.py").write_text("def f(:\n")
    done = in_process("broken:factory")
    assert done.returncode == 2
    assert "broken.py:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("subject", ["hf:Llama", "--all-hf"])
def test_the_program_ends_with_2_where_there_is_no_transformers(subject):
    Path("transformers.py").write_text("raise ImportError('no transformers here')\n")
    done = in_process(subject)
    assert done.returncode == 2
    assert "expected the package transformers, got no transformers here" in done.stderr
    assert "Fix: pip install transformers" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("call", ["sys.exit(0)", "sys.exit('no data')"])
def test_a_factory_that_ends_the_program_is_not_built(call):
    Path("leaves.py").write_text(f"import sys\ndef factory():\n    {call}\n")
    code, result = verify("leaves:factory")
    assert code == 2
    assert result["rows"][0]["kind"] == "not built"
    assert "SystemExit" in result["rows"][0]["cause"]


# ---- what could not run plain

SHAPES = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)

    def forward(self, x):
        return self.up(self.padded(x))

    def padded(self, x):
        if x.shape[-1] != 8:
            raise ValueError("a long story of what is wrong with the shape, " * 3 + "told\\nin two lines")
        return x


def story():
    return Model(), torch.rand(2, 7)


def inside_torch():
    return Model().to(torch.float64), torch.rand(2, 8)
"""


def test_what_is_named_and_not_built_is_told_in_full_with_a_line_that_shows_it_again(capsys):
    Path("shapes.py").write_text(SHAPES)
    code, result = verify("shapes:story", "--seed", "3")
    assert code == 2
    out = capsys.readouterr().out
    assert "– shapes:story, full: not built" in out
    story = "a long story of what is wrong with the shape, " * 3 + "told"
    assert f"  the plain step raises ValueError: {story} (shapes.py:16 in padded)\n" in out
    assert "  in two lines\n" in out
    assert "  Again: retape verify shapes:story --policy full --seed 3\n" in out
    assert f"{story} (shapes.py:16 in padded)" in result["rows"][0]["cause"]


def test_an_error_of_torch_is_told_with_the_users_line_and_the_way_from_there(capsys):
    Path("shapes.py").write_text(SHAPES)
    verify("shapes:inside_torch")
    out = capsys.readouterr().out
    assert "(shapes.py:12 in forward)" in out
    assert "  at shapes.py:12 in forward: return self.up(self.padded(x))\n" in out
    assert "  at linear.py:" in out
    assert str(Path.cwd()) not in out


def test_a_named_subject_that_was_not_built_is_an_error_for_ci():
    Path("shapes.py").write_text(SHAPES)
    code, _ = verify("shapes:story", "mymodels:equal", "--junit", "out.xml")
    assert code == 2
    suite = ElementTree.parse("out.xml").getroot().find("testsuite")
    assert (suite.get("errors"), suite.get("failures"), suite.get("skipped")) == ("1", "0", "0")
    error = suite[0].find("error")
    assert error.get("type") == "not built"
    assert "(shapes.py:16 in padded)" in error.get("message")
    assert "in two lines" in error.text
    assert error.text.endswith("Again: retape verify shapes:story --policy full")


def test_a_page_tells_what_is_wrong_with_a_named_subject():
    Path("shapes.py").write_text(SHAPES)
    verify("shapes:story", "--html", "out.html")
    page = Path("out.html").read_text()
    assert "in two lines" in page
    assert "retape verify shapes:story --policy full" in page


# ---- what a mistake leaves behind


@pytest.mark.parametrize("words", [["demo:gtp"], ["--steps", "0"], ["mymodels:no_model"]])
def test_a_mistake_leaves_no_empty_files(capsys, words):
    refused(capsys, *words, *"--json a/out.json --junit b/out.xml --html c/out.html".split())
    assert [path for path in Path().rglob("*") if path.is_file() and not path.stat().st_size] == []


def test_a_mistake_leaves_a_link_alone(capsys):
    Path("link.json").symlink_to("elsewhere.json")
    refused(capsys, "demo:gtp", "--json", "link.json")
    assert Path("link.json").is_symlink()
    assert not Path("elsewhere.json").exists()


def test_a_mistake_leaves_the_files_of_the_last_run_alone(capsys):
    verify("demo:gpt", "--junit", "out.xml")
    before = Path("out.json").read_bytes(), Path("out.xml").read_bytes()
    refused(capsys, *"demo:gtp --json out.json --junit out.xml".split())
    assert (Path("out.json").read_bytes(), Path("out.xml").read_bytes()) == before


# ---- dead parameters, regions, tolerance


def again(result: dict) -> tuple[int, dict]:
    words = shlex.split(result["rows"][0]["command"])
    assert words[:2] == ["retape", "verify"]
    return verify(*words[2:])


def test_dead_parameters_are_declared():
    code, result = verify("mymodels:vacuous", "--may-be-dead", "unused.*")
    assert code == 0
    assert result["rows"][0]["may_be_dead"] == ["unused.*"]
    names = ["--may-be-dead", "unused.weight", "--may-be-dead", "unused.bias"]
    assert verify("mymodels:vacuous", *names)[0] == 0
    code, result = verify("mymodels:vacuous", *names[:2])
    assert code == 6
    assert "--may-be-dead unused.weight" in result["rows"][0]["command"]
    assert again(result)[0] == 6


def test_dead_parameters_are_declared_besides_those_that_a_subject_declares(monkeypatch):
    from retape.subjects import find

    def make(dtype, seed):
        from tests.python import verify_models

        return (
            verify_models.WithDeadParameter(),
            verify_models.x(),
            {"may_be_dead": ("unused.bias",)},
        )

    monkeypatch.setitem(find.KINDS, "own", lambda name, rest: find.Subject(name, make))
    assert verify("own:model")[0] == 6
    assert verify("own:model", "--may-be-dead", "unused.weight")[0] == 0


def test_regions_must_have_run():
    layers = ["mymodels:equal", "--layers", "blocks.*"]
    assert verify(*layers, "--region", "blocks.0", "--region", "blocks.2")[0] == 0
    code, result = verify(*layers, "--region", "blocks.7")
    assert code == 6
    assert "blocks.7" in result["rows"][0]["cause"]
    assert "--region blocks.7" in result["rows"][0]["command"]
    assert again(result)[0] == 6


def test_a_tolerance_is_used_told_and_part_of_the_line_that_shows_it_again():
    code, result = verify("mymodels:different", "--tolerance", "float32=1e3,1e3")
    assert code == 0
    assert result["rows"][0]["verdict"]["with_tolerance"]
    small = ["--tolerance", "float32=1e-7,0", "--tolerance", "bfloat16=1,1"]
    code, result = verify("mymodels:different", *small)
    assert code == 1
    assert shlex.join(small) in result["rows"][0]["command"]
    assert again(result)[0] == 1


@pytest.mark.parametrize("jobs", ["0", "1"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1e-5", "expected DTYPE=RTOL,ATOL, got '1e-5'"),
        ("float32=1e-5", "expected (rtol, atol) of float32"),
        ("flaot32=0,0", "Did you mean float32?"),
        ("float32=0,-1", "0 or more"),
    ],
)
def test_what_is_no_tolerance_is_refused(capsys, text, told, jobs):
    assert told in refused(capsys, "demo:gpt", "--tolerance", text, "--jobs", jobs)


def test_what_has_its_own_models_takes_none_of_them(capsys):
    words = "--may-be-dead a --region b --tolerance float32=0,0".split()
    told = "leave out --may-be-dead, --region, --tolerance"
    assert told in refused(capsys, "--hazards", *words)
    assert told in refused(capsys, "--inject", "one-ulp", *words)


# ---- time limits


def test_a_time_limit_alone_gives_rows_a_process_of_their_own():
    Path("slow.py").write_text("import threading\ndef hangs():\n    threading.Event().wait()\n")
    code, result = verify("slow:hangs", "--time-limit", "5")
    assert code == 2
    assert "the plain step did not end in 5 s" in result["rows"][0]["cause"]


def test_the_line_that_shows_a_crash_or_a_hang_again_does_so_as_a_row(capsys):
    Path("wild.py").write_text(
        "import os, threading\n"
        "def hangs():\n    threading.Event().wait()\n"
        "def leaves():\n    os._exit(7)\n"
    )
    _, result = verify(*"wild:leaves wild:hangs --jobs 2 --time-limit 6".split())
    commands = [row["command"] for row in result["rows"]]
    assert [shlex.split(each)[-4:] for each in commands] == [
        ["--jobs", "2", "--time-limit", "6"]
    ] * 2
    assert f"Again: {commands[0]}" in capsys.readouterr().out
    code, repeated = verify(*shlex.split(commands[0])[2:])
    assert code == 1
    assert repeated["rows"][0]["cause"] == result["rows"][0]["cause"]


@pytest.mark.parametrize("words", ["--jobs 0", "--inject one-ulp", "--inject all", "--hazards"])
def test_a_time_limit_that_could_not_be_kept_is_refused(capsys, words):
    subjects = [] if words == "--hazards" else ["demo:gpt"]
    said = refused(capsys, *subjects, *words.split(), "--time-limit", "5")
    assert "--time-limit" in said.splitlines()[-1]
    assert "Fix: leave" in said
