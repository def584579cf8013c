"""`retape bench --subject package.module:factory`: a user's model, beside what there is, as one of the bench's."""

from __future__ import annotations

import json
import random
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from tests.python.verify_cli import in_a_folder_with_models  # noqa: F401

from retape import cli
from retape.bench import timing

MODELS = Path(__file__).with_name("bench_own_models.py")
PAGE = (Path(__file__).parents[2] / "docs/bench.md").read_text(encoding="utf-8")
GROUPS = "torch checkpoint, sqrt(n) groups"


@pytest.fixture(autouse=True)
def _models_of_a_user(in_a_folder_with_models):  # noqa: F811
    Path("own.py").write_text(MODELS.read_text())


def bench(*words: str) -> tuple[int, dict]:
    code = cli.main(["bench", *words, "--json", "out.json"])
    return code, json.loads(Path("out.json").read_text())["result"]


def subject_of(*words: str) -> dict:
    """That ends with 0."""
    code, result = bench(*words)
    assert code == 0
    (subject,) = result["subjects"]
    return subject


def rows_of(subject: dict) -> dict[str, dict]:
    return {row["method"]: row for row in subject["rows"]}


def chosen(*methods: str) -> list[str]:
    return [word for method in methods for word in ("--method", method)]


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


# ---- every method, on layers with keywords and several results


@pytest.mark.parametrize("subject", ["own:transformer", "own:step"])
def test_every_method_is_a_row_with_every_column(capsys, subject):
    subject = subject_of("--subject", subject, "--rounds", "1")
    rows = rows_of(subject)
    assert list(rows) == [
        "plain", "retape lean", "retape cheap", "retape cheap, random too", "retape full",
        "retape cheap, one scope", "retape full, one scope", "torch checkpoint", "torch reentrant", GROUPS,
        "selective", "torch_remat",
    ]  # fmt: skip
    skipped = {name: row["skipped"] for name, row in rows.items() if row["skipped"]}
    assert (
        skipped.pop(GROUPS)
        == "the model's own code calls its layers, which cannot be cut into groups from outside"
    )
    assert set(skipped) <= {"torch_remat"}
    for name, row in rows.items():
        assert not row["error"], row
        if not row["skipped"]:
            filled = ("peak", "held", "forward", "backward", "total", "ratio", "gflop", "equal")
            assert all(row[column] is not None for column in filled), row
            # Which leaves generators to its user: dropout draws anew.
            assert row["equal"] == ("different" if name == "torch_remat" else "bitwise")
    out = " ".join(capsys.readouterr().out.split())
    assert f"Running the code of {subject['name']}." in out
    assert f"not run: {GROUPS} (the model's own code calls its layers" in out


def test_retape_needs_less_than_plain_and_full_less_than_cheap():
    rows = rows_of(subject_of("--subject", "own:transformer", "--no-time"))
    ours = [name for name, row in rows.items() if row["family"] == "retape"]
    assert [name for name in ours if rows[name]["peak"] >= rows["plain"]["peak"]] == []
    for column in ("peak", "held"):
        assert rows["retape full"][column] < rows["retape cheap"][column] < rows["plain"][column]
    assert (
        rows["retape full"]["replayed"]
        > rows["retape cheap"]["replayed"]
        > 0
        == rows["plain"]["replayed"]
    )
    assert rows["torch checkpoint"]["held"] < rows["plain"]["held"]


def test_it_is_in_the_artefact_with_its_layers_and_sizes_and_shown_again_from_there(capsys):
    methods = chosen("retape full", "torch checkpoint")
    subject = subject_of(
        "--subject", "own:transformer", "--memory-only", *methods, "--html", "a.html"
    )
    assert (subject["name"], subject["group"]) == ("own:transformer", "models")
    assert subject["layers"] == ["blocks.0", "blocks.1", "blocks.2"]
    assert subject["title"] == "Transformer, around 3 x Block: blocks.0, blocks.1, blocks.2"
    parameters = sum(p.numel() for p in sys.modules["own"].transformer()[0].parameters())
    assert subject["size"] == {"layers": 3, "dtype": "float32", "parameters": parameters}
    first = capsys.readouterr().out
    assert "own:transformer, 3 layers, float32" in first
    assert "own:transformer" in Path("a.html").read_text()
    assert cli.main(["report", "out.json"]) == 0
    assert "own:transformer, 3 layers, float32" in capsys.readouterr().out
    assert (
        bench("--subject", "own:transformer", "--memory-only", *methods, "--compare", "out.json")[0]
        == 0
    )


def test_timelines_have_the_names_that_the_model_has_for_its_layers():
    methods = chosen("retape full", "torch checkpoint")
    subject = subject_of("--subject", "own:transformer", "--memory-only", *methods)
    timelines = {timeline["method"]: timeline for timeline in subject["timelines"]}
    assert list(timelines) == ["plain", "retape full", "torch checkpoint"]
    for timeline in timelines.values():
        assert set(subject["layers"]) <= set(timeline["words"])


def test_a_method_that_a_model_cannot_take_is_a_row_where_it_was_asked_for():
    methods = chosen("output discard", "torch checkpoint, inner", "retape rows")
    rows = rows_of(subject_of("--subject", "own:transformer", "--memory-only", *methods))
    assert [row["skipped"] for row in rows.values()] == [
        "",
        "a model's layers have no inner part",
        "a model's layers have no inner part",
        "a model's layers mix tokens",
    ]


def test_a_peer_that_raises_is_a_row_that_says_so():
    """torch_remat takes tensors and tuples of them, torch's reentrant checkpoint no dicts."""
    rows = rows_of(subject_of("--subject", "own:by_dict", "--no-time"))
    assert rows["torch reentrant"]["error"]
    assert rows["retape full"]["equal"] == rows["torch checkpoint"]["equal"] == "bitwise"


# ---- what a second call gets wrong


def test_batch_norm_counts_a_batch_twice_in_a_second_call_and_once_in_retape(capsys):
    rows = rows_of(subject_of("--subject", "own:normed", "--layer", "body.*", "--no-time"))
    for name, row in rows.items():
        if row["family"] in ("plain", "retape"):
            assert row["equal"] == "bitwise", name
        elif not row["skipped"]:
            assert row["equal"] == "different" and "running_mean" in row["differs"][0], name
    assert "torch checkpoint: different: body.0.1.running_mean and" in capsys.readouterr().out


def test_layers_of_a_sequential_are_cut_into_groups_too():
    rows = rows_of(subject_of("--subject", "own:normed", "--layer", "body.*", "--memory-only"))
    assert not rows[GROUPS]["skipped"]
    assert rows[GROUPS]["held"] < rows["torch checkpoint"]["held"]
    rows = rows_of(subject_of("--subject", "own:normed", "--layer", "body.0", "--memory-only"))
    assert "cannot be cut into groups" in rows[GROUPS]["skipped"]


def test_python_and_numpy_draw_the_same_in_every_row_and_go_on_afterwards_as_if_nothing_had_been():
    before = random.getstate(), torch.get_rng_state()
    rows = rows_of(subject_of("--subject", "own:noisy", "--no-time"))
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert rows["retape full"]["equal"] == rows["plain"]["equal"] == "bitwise"
    assert rows["torch checkpoint"]["equal"] == "different"


def test_a_model_that_retape_gets_wrong_ends_with_1():
    code, result = bench(
        "--subject", "mymodels:different", "--no-time", *chosen("retape full, one scope")
    )
    assert code == 1
    assert rows_of(result["subjects"][0])["retape full, one scope"]["equal"] == "different"


UNSTABLE = """
import torch
from tests.python.verify_models import NeverTheSame

def factory():
    return NeverTheSame(), torch.ones(4, 8)
"""


def test_nothing_is_compared_with_a_plain_step_that_is_not_the_same_twice(capsys):
    Path("unstable.py").write_text(UNSTABLE)
    code, result = bench(
        "--subject", "unstable:factory", "--no-time", *chosen("retape full, one scope")
    )
    assert code == 6
    assert [row["equal"] for row in result["subjects"][0]["rows"]] == ["unstable", "unstable"]
    assert any("two plain steps differ" in warning for warning in result["warnings"])
    assert "Fix: seed what it draws from" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["report", "out.json"]) == 6


NAN = """
import torch
from torch import nn

class NotANumber(nn.Linear):
    def forward(self, x):
        print("a word of the user's")
        return super().forward(x).mul(float("nan")).sum()

def factory():
    return NotANumber(4, 4), torch.randn(2, 4)
"""


def test_equal_gradients_that_are_all_nan_prove_nothing(capsys):
    Path("nan.py").write_text(NAN)
    code, result = bench("--subject", "nan:factory", "--no-time", *chosen("retape full, one scope"))
    assert code == 6
    assert [row["equal"] for row in result["subjects"][0]["rows"]] == ["all NaN", "all NaN"]
    assert any("every gradient is NaN or zero" in warning for warning in result["warnings"])


def test_what_a_model_prints_is_not_in_the_artefact_on_standard_output(capsys):
    Path("nan.py").write_text(NAN)
    assert cli.main(["bench", "--subject", "nan:factory", "--no-time", "--json", "-"]) == 6
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 6
    assert "a word of the user's" in err


def test_what_was_measured_is_saved_before_it_is_printed(monkeypatch):
    """To a reader that may have gone."""

    def gone(*_):
        raise SystemExit(141)

    monkeypatch.setattr("retape.bench.report.terminal.print_subject", gone)
    with pytest.raises(SystemExit):
        cli.main(["bench", "--subject", "own:transformer", "--memory-only", "--json", "out.json"])
    assert len(json.loads(Path("out.json").read_text())["result"]["subjects"]) == 1


# ---- which layers


def test_layers_are_chosen_by_name_or_pattern():
    words = ("--subject", "own:transformer", "--memory-only", *chosen("retape full"))
    assert subject_of(*words, "--layer", "blocks.1")["layers"] == ["blocks.1"]
    assert subject_of(*words, "--layer", "blocks.0", "--layer", "*.2")["layers"] == [
        "blocks.0",
        "blocks.2",
    ]
    assert subject_of(*words, "--layer", "blocks.*.up")["layers"] == [
        f"blocks.{i}.up" for i in range(3)
    ]


def test_layers_of_several_modules_have_the_number_of_theirs():
    words = ("--subject", "own:step", "--memory-only", *chosen("retape full"))
    assert subject_of(*words)["layers"] == ["0.blocks.0", "0.blocks.1", "1.blocks.0", "1.blocks.1"]
    assert subject_of(*words, "--layer", "0.blocks.*")["layers"] == ["0.blocks.0", "0.blocks.1"]


def test_a_model_without_layers_is_measured_in_one_scope_and_told_how_to_choose(capsys):
    code, result = bench("--subject", "own:normed", "--no-time")
    assert code == 0
    rows = rows_of(result["subjects"][0])
    around = {name for name, row in rows.items() if row["skipped"] == "no layers were found"}
    assert around >= {"retape cheap", "retape full", "torch checkpoint", "selective", GROUPS}
    assert rows["retape full, one scope"]["held"] < rows["plain"]["held"]
    (warning,) = result["warnings"]
    assert warning.startswith(
        "own:normed: found no list of layers in Normed. Its lists: body (4 x Sequential)"
    )
    assert "Fix: choose layers by name: --layer" in warning


def test_layers_that_no_gradient_goes_through_are_told():
    _, result = bench("--subject", "own:step", "--memory-only", *chosen("retape full"))
    (warning,) = result["warnings"]
    told = "own:step: never called with gradients, so that nothing stood around them: 1.blocks.0, 1.blocks.1."
    assert warning.startswith(told)
    _, result = bench(
        "--subject", "own:step", "--memory-only", "--layer", "0.blocks.*", *chosen("retape full")
    )
    assert result["warnings"] == []


def test_a_layer_that_is_not_there_is_refused_with_the_names_that_are(capsys):
    told = refused(capsys, "--subject", "own:transformer", "--layer", "block.1")
    assert (
        '[retape bench] own:transformer: --layer: found no module called "block.1" in Transformer.'
        in told
    )
    assert 'Did you mean "blocks.1"?' in told and "Its lists: blocks (3 x Block)" in told
    told = refused(capsys, "--subject", "own:transformer", "--layers", "blocks.*")
    assert "names of layers, of a model of yours, are --layer 'blocks.*'" in told


# ---- sizes


def test_memory_and_times_can_have_a_size_each(capsys):
    subject = subject_of(
        *("--subject", "own:transformer", "--no-time", "--dry", *chosen("retape full")),
        *("--size", "width=256", "--size", "layers=5", "--time-size", "width=32"),
    )
    assert subject["size"]["width"] == 256 and subject["time_size"]["width"] == 32
    assert (
        subject["size"]["layers"] == subject["time_size"]["layers"] == len(subject["layers"]) == 5
    )
    assert (
        subject["rows"][0]["peak"]
        > 4 * subject["size"]["parameters"]
        > 10 * subject["time_size"]["parameters"]
    )
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "memory, GFLOP and ops replayed at 5 layers, float32," in told
        and "gradients compared at" in told
    )


def test_a_quick_run_has_the_size_for_times():
    words = (
        "--subject",
        "own:transformer",
        "--quick",
        "--no-time",
        "--size",
        "width=256",
        "--time-size",
        "width=32",
    )
    assert subject_of(*words)["size"]["width"] == 32


@pytest.mark.parametrize("method", ["plain", "retape full", "torch checkpoint"])
def test_a_dry_run_counts_what_arithmetic_needs(method):
    words = ("--subject", "own:transformer", "--memory-only", *chosen(method))
    wet, dry = (rows_of(subject_of(*words, *more))[method] for more in ((), ("--dry",)))
    assert (dry["peak"], dry["held"], dry["replayed"]) == (
        wet["peak"],
        wet["held"],
        wet["replayed"],
    )


def test_a_dtype_is_that_of_model_and_inputs():
    subject = subject_of(
        "--subject",
        "own:normed",
        "--no-time",
        "--dtype",
        "bfloat16",
        *chosen("retape full, one scope"),
    )
    assert subject["size"]["dtype"] == "bfloat16"
    assert {row["equal"] for row in subject["rows"]} == {"bitwise"}


def test_what_is_held_does_not_depend_on_the_threads_of_a_kernel():
    words = ("--subject", "own:attention", "--memory-only", *chosen("retape lean"))
    held = []
    for threads in (1, 2):
        with timing.threads(threads):
            held.append([row["held"] for row in subject_of(*words)["rows"]])
    assert held[0] == held[1]


# ---- Hugging Face, and what `retape verify` has built in


def test_a_model_of_transformers_is_measured_by_its_own_loss():
    pytest.importorskip("transformers")
    subject = subject_of("--subject", "own:bert", "--no-time")
    rows = rows_of(subject)
    assert subject["layers"] == ["bert.encoder.layer.0", "bert.encoder.layer.1"]
    for name in (
        "retape cheap",
        "retape full",
        "retape full, one scope",
        "torch checkpoint",
        "selective",
    ):
        assert rows[name]["equal"] == "bitwise", name
        assert rows[name]["held"] < rows["plain"]["held"], name
    assert rows["retape full"]["peak"] < rows["plain"]["peak"]


@pytest.mark.parametrize(
    ("name", "layers"),
    [("demo:gpt", 3), ("demo:mixed", 2), ("cpp:transformer", 0), ("hf:Bert", 2)],
)
def test_subjects_of_verify_are_subjects_of_the_bench(name, layers):
    if name.startswith("hf:"):
        pytest.importorskip("transformers")
    subject = subject_of(
        "--subject", name, "--no-time", *chosen("retape full", "retape full, one scope")
    )
    assert len(subject["layers"]) == layers
    for row in subject["rows"]:
        assert row["equal"] == "bitwise" or row["skipped"] == "no layers were found" and not layers


# ---- what cannot be measured


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("demo:gtp", "no such subject: 'demo:gtp'. Did you mean demo:gpt?"),
        (
            "onw:transformer",
            "no module 'onw' for the subject 'onw:transformer', here or installed. Did you mean own?",
        ),
        ("own:transfomer", "own:transfomer: own has no 'transfomer'. Did you mean transformer?"),
        ("own:ONCE", "own:ONCE: expected a function without arguments, got Normed."),
        (
            "own:needs_more",
            "own:needs_more: expected options of needs_more(width): missing a required argument",
        ),
        (
            "mymodels:no_model",
            "mymodels:no_model: expected a function that makes (model, inputs) or a retape.Step",
        ),
        (
            "mymodels:raises",
            "mymodels:raises: its factory raises RuntimeError: no data <here> & now (mymodels.py:",
        ),
        ("own:wrong_shape", "own:wrong_shape: the plain step raises RuntimeError: mat1 and mat2"),
        (
            "own:shared",
            "own:shared: expected a new model at every call of the factory, got the one of the call before",
        ),
        ("own:enabled", "own:enabled: layers are enabled already: blocks.0, blocks.1, blocks.2."),
        (
            "own:no_tensor",
            "own:no_tensor: expected a loss, or tensors of floats, from forward, got none.",
        ),
    ],
)
def test_what_cannot_be_measured_is_told_by_name_and_leaves_no_artefact(capsys, subject, told):
    said = refused(capsys, "--subject", subject, "--json", "new.json")
    assert f"[retape bench] {told}" in said
    assert "Traceback" not in said
    assert not Path("new.json").exists()


def test_a_word_that_is_spelt_like_a_block_is_still_offered_one(capsys):
    assert "Did you mean 'swiglu'?" in refused(
        capsys, "--subject", "swigly", "--subject", "own:transformer"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--size", "widht=3"],
            "got widht: got an unexpected keyword argument 'widht'. Did you mean width?",
        ),
        (["--size", "width"], "expected NAME=VALUE, got 'width'"),
        (["--time-size", "width=8", "--memory-only"], "--time-size is of times and gradients"),
        (["--dry", "--compute"], "--dry with --compute: expected one of them"),
        (["--d-model", "64"], "--d-model is of blocks, and --subject names none of them"),
    ],
)
def test_options_that_mean_nothing_are_refused(capsys, words, told):
    assert told in refused(capsys, "--subject", "own:transformer", *words)


@pytest.mark.parametrize(
    "words", [["--layer", "a"], ["--size", "a=1"], ["--time-size", "a=1"], ["--dry"]]
)
def test_options_of_a_users_model_need_one(capsys, words):
    told = f"{words[0]} is of a model of yours, and --subject names none (package.module:factory)"
    assert told in refused(capsys, "--subject", "swiglu", *words)


def test_a_dry_step_that_raises_says_that_it_was_dry(capsys):
    words = ("--subject", "own:looks", "--memory-only", *chosen("retape lean"))
    assert bench(*words)[0] == 0
    told = refused(capsys, *words, "--dry")
    assert "the plain step raises ValueError: that was not computed (own.py:" in told
    assert "Fix: leave out --dry, where code looks at values." in told


# ---- where it is written down


def test_help_and_list_show_the_form(capsys):
    for words in (["--help"], ["--list"]):
        with pytest.raises(SystemExit):
            cli.main(["bench", *words])
        assert "package.module:factory" in " ".join(capsys.readouterr().out.split())


def test_what_the_page_shows_runs_as_written(capsys):
    section = PAGE.split("## Your own model")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    Path("mymodel.py").write_text(code)
    lines = [shlex.split(line, comments=True) for line in commands.splitlines()]
    assert len(lines) >= 3
    for words in lines:
        assert words[:2] == ["retape", "bench"]
        code, result = bench(*words[2:])
        assert code == 0
        (subject,) = result["subjects"]
        assert not [
            row
            for row in subject["rows"]
            if row["error"] or row["family"] == "retape" and row["skipped"]
        ]
