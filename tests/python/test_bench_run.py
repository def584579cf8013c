"""`retape bench`: rows, columns, what is refused, and that a second run compares with the first."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from retape import cli
from retape.bench import cells, measure, run, timing
from retape.bench.blocks import Size
from retape.bench.methods import METHODS
from retape.bench.models import MODELS
from retape.bench.result import BITWISE

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


def test_what_was_measured_is_printed_and_saved_when_the_next_subject_is_killed(
    capsys, monkeypatch
):
    task = run.block_task

    def killed(name, *args, **options):
        def interrupted():
            raise KeyboardInterrupt

        return interrupted if name == "up_proj" else task(name, *args, **options)

    monkeypatch.setattr(run, "block_task", killed)
    words = [
        *ONE,
        "--subject",
        "up_proj",
        "--memory-only",
        "--method",
        "plain",
        "--json",
        "out.json",
    ]
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
    assert (
        len(parts) == total == (4 if words else 8)
    )  # memory and gradients; warm-up, one round; timelines
    assert parts[:2] == [
        "silu_up, 2 layers, float32: plain",
        "silu_up, 2 layers, float32: retape full",
    ]
    assert words or parts[2:4] == [part.replace(": ", ": time of ") for part in parts[:2]]
    assert parts[-2:] == [part.replace(": ", ": timeline of ") for part in parts[:2]]


def test_what_is_asked_for_twice_is_measured_once(capsys):
    words = ("--layers", "2", "--dtype", "float32", "--method", "plain", "--subject", "up_proj")
    _, result = bench(*TINY, *words, *words, "--memory-only")
    (subject,) = result["subjects"]
    assert [row["method"] for row in subject["rows"]] == ["plain"]
    words = ("--subject", "demo:gpt", "--quick", "--memory-only", "--method", "plain")
    _, result = bench(*words, "--dtype", "float32", "--dtype", "float32")
    assert len(result["subjects"]) == 1


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
    assert "blocks, at d_model 2048, d_ff 8192, batch 2, sequence 2048:" in out
    for model in MODELS.values():
        below = out.partition(f"  {model.name} ")[2].splitlines()[1].strip()
        assert below == cells.size_text(model.size)
    assert "12 layers, width 768, heads 12, vocabulary 50257, batch 4, tokens 1024" in out


def test_without_times_the_size_at_which_gradients_were_compared_is_told(capsys):
    words = ["--subject", "up_proj", "--dtype", "float32", "--method", "plain", "--no-time"]
    bench("--d-model", "1024", "--d-ff", "32", "--sequence", "8", "--layers", "1", *words)
    assert "gradients compared at d_model 512 " in " ".join(capsys.readouterr().out.split())


def test_bad_words_are_refused_with_the_right_spelling(capsys):
    assert "Did you mean 'swiglu'?" in refused(capsys, "--subject", "swigly")
    assert "Did you mean 'retape full'?" in refused(capsys, "--method", "retape ful")
    assert "Did you mean 'bfloat16'?" in refused(capsys, "--dtype", "bfloat")
    assert "There is: float32, bfloat16." in refused(capsys, "--dtype", "float64")
    assert "There is: float32, bfloat16." in refused(capsys, "--dtype", "fp16")
    assert "expected the name of a file" in refused(capsys, "--markdown", "-")
    assert "expected at least 1" in refused(capsys, "--layers", "0")
    assert "--layers 99999999999999999999: expected at most 10000" in refused(
        capsys, "--layers", "9" * 20
    )
    assert "--rounds 99999999999999999999: expected at most 100000" in refused(
        capsys, "--rounds", "9" * 20
    )
    assert "--time-batch 99999999999999999999: expected at most" in refused(
        capsys, "--time-batch", "9" * 20
    )
    assert "--compare" in refused(capsys, "--fail", "peak:1%")
    assert "Did you mean --quick?" in refused(capsys, "--quik")


def test_what_begins_as_the_word_does_is_offered_first(capsys):
    told = refused(capsys, "--method", "retape")
    assert "Did you mean 'retape lean', 'retape cheap', 'retape full' or 'retape rows'?" in told
    assert 'Did you mean "OLMo-core\'s output discard"?' in refused(capsys, "--method", "olmo")


@pytest.mark.parametrize(
    "words",
    [
        ("--d-model", "10000000000"),  # more bytes than an address can tell apart
        ("--batch", "2000000000", "--sequence", "2000000000"),  # than can be counted
    ],
)
def test_a_size_that_memory_does_not_hold_is_refused_by_name(capsys, words):
    told = refused(capsys, "--quick", *ONE, "--memory-only", *words)
    assert "silu_up, 2 layers, float32: the plain step does not fit into memory" in told
    assert f"{words[0].removeprefix('--').replace('-', '_')} {words[1]}" in told
    assert "Fix: a smaller size" in told and "Traceback" not in told


def drawn(*words: str) -> list[str]:
    methods = (
        "--method",
        "retape full",
        "--method",
        "retape full, one scope",
        "--method",
        "selective",
    )
    code, result = bench(*TINY, *ONE, "--memory-only", *methods, *words)
    assert code == 0
    return [timeline["method"] for timeline in result["subjects"][0]["timelines"]]


def test_whose_timelines_are_drawn_can_be_chosen(capsys):
    assert drawn() == ["plain", "retape full", "retape full, one scope"]
    assert drawn("--timeline", "selective") == ["selective"]
    assert drawn("--frontier", "--timeline", POINT, "--timeline", "plain") == ["plain", POINT]


def test_a_timeline_of_what_is_no_row_is_refused(capsys):
    one = ("--quick", "--memory-only")
    told = refused(capsys, *one, "--timeline", "torch reentrant")
    assert (
        "--timeline 'torch reentrant': no subject has that row. Fix: --method chooses it." in told
    )
    assert "Did you mean 'selective'?" in refused(capsys, *one, "--timeline", "selectiv")


def rounds_of(*words: str) -> int:
    _, result = bench("--quick", *ONE, "--method", "plain", "--method", "retape cheap", *words)
    return len(result["subjects"][0]["rows"][1]["ratios"])


def test_rounds_that_were_asked_for_are_taken_of_a_quick_run_too(capsys):
    tiny = ("--d-model", "16", "--d-ff", "16", "--sequence", "8")
    assert rounds_of(*tiny, "--rounds", "9") == 9
    assert rounds_of(*tiny, "--judge") == run.ROUNDS
    assert "fewer than six rounds" not in capsys.readouterr().out


def test_torch_compile_has_bytes_without_computing(capsys):
    code, result = bench(
        *TINY, "--subject", "up_proj", "--dtype", "float32", "--method", "plain", "--compiled",
        "--memory-only", "--timeline", "torch.compile, budget 0.0",
    )  # fmt: skip
    assert code == 0
    plain, *compiled = result["subjects"][0]["rows"]
    assert [row["method"] for row in compiled] == [n for n, m in METHODS.items() if not m.is_eager]
    assert all(row["peak"] and row["gflop"] and not row["error"] for row in compiled)
    assert compiled[-1]["held"] < plain["held"] == compiled[0]["held"]
    assert compiled[-1]["gflop"] > plain["gflop"] == compiled[0]["gflop"]
    (timeline,) = result["subjects"][0]["timelines"]
    assert timeline["rows"] and "layer 1" in timeline["words"]


@pytest.mark.parametrize(
    "words", [("--subject", "swigly"), ("--rounds", "0"), ("--fail", "peak:1%"), ("--html", "-")]
)
def test_what_is_refused_leaves_no_file_and_an_old_one_as_it_was(capsys, words):
    refused(capsys, *words, "--json", "new.json", "--csv", "new.csv")
    assert list(Path().iterdir()) == []
    Path("old.json").write_text("{}")
    refused(capsys, *words, "--json", "old.json")
    assert Path("old.json").read_text() == "{}"


@pytest.mark.parametrize("option", ["--memory-only", "--no-time"])
def test_to_judge_times_that_are_not_taken_is_refused(capsys, option):
    told = refused(capsys, *TINY, *ONE, "--judge", option)
    assert f"--judge is of times, and {option} takes none" in told


FAILING = (*TINY, "--subject", "up_proj", "--dtype", "float32", "--method", "selective")


def selective_that_fails(monkeypatch, error: Exception, after: int = 0) -> None:
    """From its call number `after` on."""
    works, calls = METHODS["selective"].apply, itertools.count()

    def apply(layers, x):
        if next(calls) >= after:
            raise error
        return works(layers, x)

    monkeypatch.setitem(METHODS, "selective", replace(METHODS["selective"], apply=apply))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("not today"), "RuntimeError: not today"),
        (RuntimeError("\nnot today\nnor tomorrow"), "RuntimeError: not today"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_a_peer_that_fails_is_a_row(capsys, monkeypatch, error, told):
    selective_that_fails(monkeypatch, error)
    code, result = bench(*FAILING)
    assert code == 0
    row = result["subjects"][0]["rows"][1]
    assert (row["method"], row["error"], row["total"]) == ("selective", told, None)


@pytest.mark.parametrize("calls", [2, 3], ids=["warm-up", "a round"])
def test_a_peer_that_fails_while_it_is_timed_is_a_row_and_others_go_on(capsys, monkeypatch, calls):
    selective_that_fails(monkeypatch, RuntimeError("not twice"), after=calls)
    code, result = bench(*FAILING, "--method", "retape full")
    assert code == 0
    plain, peer, full = result["subjects"][0]["rows"]
    assert (peer["error"], peer["total"], peer["equal"]) == (
        "RuntimeError: not twice",
        None,
        "bitwise",
    )
    assert all(row["total"] and row["ratio"] and not row["error"] for row in (plain, full))
    assert "selective: failed: RuntimeError: not twice" in capsys.readouterr().out


def test_a_peer_whose_timeline_fails_is_a_row_and_others_have_theirs(capsys, monkeypatch):
    monkeypatch.setattr(run, "TIMELINES", ("plain", "selective", "retape full"))
    selective_that_fails(monkeypatch, RuntimeError("not named"), after=2)
    code, result = bench(*FAILING, "--method", "retape full", "--no-time")
    assert code == 0
    (subject,) = result["subjects"]
    assert subject["rows"][1]["error"] == "RuntimeError: not named"
    assert [timeline["method"] for timeline in subject["timelines"]] == ["plain", "retape full"]


def test_retape_that_fails_while_it_is_timed_breaks_its_promise(capsys, monkeypatch):
    selective_that_fails(monkeypatch, RuntimeError("not twice"), after=2)
    monkeypatch.setitem(METHODS, "selective", replace(METHODS["selective"], family="retape"))
    assert bench(*FAILING)[0] == 1


def test_what_is_compiled_in_the_warm_up_is_compiled_for_the_threads_that_are_timed(
    capsys, monkeypatch
):
    works, seen = METHODS["selective"].apply, []

    def apply(layers, x):
        seen.append(torch.get_num_threads())
        return works(layers, x)

    monkeypatch.setitem(METHODS, "selective", replace(METHODS["selective"], apply=apply))
    with timing.threads(2):
        bench(*FAILING)
    assert seen == [2, 2, 1, 1]  # gradients, memory; warm-up, one round


@pytest.mark.parametrize(("words", "is_timed"), [((), True), (("--no-time",), False)])
def test_how_many_threads_were_timed_is_a_fact_of_the_run_and_not_of_the_process(
    capsys, words, is_timed
):
    with timing.threads(2):
        bench(*TINY, *ONE, "--method", "plain", *words, "--markdown", "a.md")
    facts = json.loads(Path("out.json").read_text())["environment"]
    assert facts["threads"] == 2
    assert facts.get("timed_with") == ("1 thread" if is_timed else None)
    assert ("| timed with | 1 thread |" in Path("a.md").read_text()) is is_timed


EIGHT = (
    *"--d-model 32 --d-ff 64 --sequence 16 --layers 8 --no-time".split(),
    "--subject",
    "swiglu",
)


def test_equal_gradients_that_are_all_zero_prove_nothing(capsys, monkeypatch):
    """With torch's own initialisation, those of eight swiglu layers are."""
    task = run.block_task
    monkeypatch.setattr(
        run, "block_task", lambda name, size, scaled: task(name, size, scaled=False)
    )
    code, result = bench(*EIGHT, "--dtype", "float32", "--method", "retape full")
    assert code == 6
    assert [row["equal"] for row in result["subjects"][0]["rows"]] == ["all zero", "all zero"]
    (told,) = result["warnings"]
    assert told.startswith("swiglu, 8 layers, float32: every gradient is zero, plain's too")
    out = " ".join(capsys.readouterr().out.split())
    assert "proves nothing" in told and "proves nothing" in out and "bitwise" not in out
    assert cli.main(["report", "out.json"]) == 6


@pytest.mark.parametrize("dtype", run.DTYPES)
def test_gradients_of_eight_layers_of_the_bench_prove_something(capsys, dtype):
    code, result = bench(*EIGHT, "--dtype", dtype, "--method", "retape full")
    assert (code, result["warnings"]) == (0, [])
    assert [row["equal"] for row in result["subjects"][0]["rows"]] == ["bitwise", "bitwise"]


def time_sizes(*words: str, block: str = "fp32_softmax") -> dict[str, tuple[int, ...]]:
    _, result = bench("--subject", block, "--layers", "1", "--method", "plain", "--no-time", *words)
    names = ("d_model", "d_ff", "batch", "sequence")
    return {
        subject["time_size"]["dtype"]: tuple(subject["time_size"][name] for name in names)
        for subject in result["subjects"]
    }


def test_bfloat16_is_timed_at_a_size_that_a_cpu_multiplies_in_seconds(capsys):
    bfloat16 = (256, 512, 2, 64)
    assert time_sizes(block="up_proj") == {"float32": (512, 2048, 2, 512), "bfloat16": bfloat16}
    # Of one product: wide, with fewer tokens.
    float32 = (2048, 2048, 2, 128)
    assert time_sizes() == {"float32": float32, "bfloat16": (1024, 512, 2, 64)}
    assert time_sizes(block="fp32_cast") == {
        "float32": float32,
        "bfloat16": float32,
    }  # its products are
    quick = ("--quick", "--dtype", "float32", "--dtype", "bfloat16")
    assert time_sizes(*quick) == {"float32": (256, 1024, 2, 256), "bfloat16": bfloat16}


def test_sizes_for_times_can_be_chosen_apart_from_those_for_memory(capsys):
    small = ("--dtype", "float32", "--d-model", "64", "--batch", "3")
    assert time_sizes(*small) == {"float32": (64, 2048, 3, 128)}
    own = ("--time-d-model", "96", "--time-batch", "1", "--time-sequence", "8")
    assert time_sizes(*small, *own) == {"float32": (96, 2048, 1, 8)}


def test_a_size_for_times_that_are_not_taken_is_refused(capsys):
    assert "--time-batch 0: expected at least 1" in refused(capsys, "--time-batch", "0")
    told = refused(capsys, "--memory-only", "--time-d-ff", "64")
    assert "--time-d-ff is of times and gradients, and --memory-only takes none" in told
    told = refused(capsys, "--subject", "tree_lstm", "--time-d-ff", "64")
    assert "--time-d-ff is of blocks, and --subject names none of them" in told


STUB = """
calls = []

class {name}:
    def checkpoint(self, function, x):
        calls.append(("checkpoint", function.__qualname__))
        return function(x)

    def discard_output_and_register_recompute(self, hook):
        calls.append(("discard", tuple(hook.shape)))
"""
DISCARDING = {
    "OLMo-core's output discard": (
        "olmo_core.nn.output_discard_checkpoint",
        "OutputDiscardCheckpoint",
    ),
    "Megatron's output discard": (
        "megatron.core.tensor_parallel.random",
        "CheckpointWithoutOutput",
    ),
}


@pytest.fixture
def _no_stub_stays():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("olmo_core", "megatron"):
            del sys.modules[name]


@pytest.mark.usefixtures("_no_stub_stays")
@pytest.mark.parametrize("method", DISCARDING)
def test_output_discard_of_others_is_what_is_called_around_the_inner_part(
    method, tmp_path, monkeypatch
):
    """A package that has their names and no more: one that is installed is not asked."""
    module, name = DISCARDING[method]
    package = module.partition(".")[0]
    for known in [known for known in sys.modules if known.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, known)
    path = tmp_path / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    path.write_text(STUB.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    assert METHODS[method].missing in ("", "needs a CUDA device")
    work = run.block_task("swiglu", Size(2, d_model=8, d_ff=16, batch=1, sequence=4), scaled=True)
    after = measure.after_step(work, METHODS[method])
    assert measure.equality(after, measure.after_step(work, METHODS["plain"])) == (BITWISE, [])
    calls = sys.modules[module].calls
    assert calls == [("checkpoint", "SwiGlu.inner"), ("discard", (1, 4, 8))] * 2
