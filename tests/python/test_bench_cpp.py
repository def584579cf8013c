"""retape_bench, the six blocks in C++: its options, what it ends with, and how well its times are known.
That its bytes and bits are those of Python: test_bench_blocks.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from retape._text import Exit

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("RETAPE_BENCH_CPP", ROOT / "build/tests/bench/retape_bench"))
SMALL = ("--d_model=64", "--d_ff=256", "--batch=2", "--sequence=64")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    assert BINARY.is_file(), "retape_bench is not built: make test-python does it"
    return subprocess.run([BINARY, *words], capture_output=True, check=False, text=True)


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict]:
    """By name, as they are in the JSON."""
    found = json.loads(done.stdout)["benchmarks"]
    return {each["name"].replace("/manual_time", ""): each for each in found}


def once(rows_of: str, *words: str) -> subprocess.CompletedProcess[str]:
    options = [f"--benchmark_filter={rows_of}", "--benchmark_min_time=0", "--benchmark_format=json"]
    return run(*options, *SMALL, *words)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_that_are_all_zero_are_no_proof(dtype: str) -> None:
    done = once(f"swiglu/8/{dtype}/", "--unscaled")
    assert done.returncode == Exit.VACUOUS
    found = rows(done)
    assert len(found) == 8
    assert {each["label"] for each in found.values()} == {"ALL ZERO"}
    assert {each["bitwise"] for each in found.values()} == {0}


def test_rows_that_differ_count_for_more_than_those_that_prove_nothing() -> None:
    done = once("(swiglu|up_proj)/8/float32/retape full", "--unscaled", "--inject=one-ulp")
    labels = {name: each["label"] for name, each in rows(done).items()}
    assert labels["swiglu/8/float32/retape full"] == "ALL ZERO"
    assert labels["up_proj/8/float32/retape full"] == "DIFFERENT"
    assert done.returncode == Exit.DIFFERENT


def test_some_gradients_that_are_not_zero_are_a_proof() -> None:
    done = once("swiglu/1/float32/", "--unscaled")
    assert done.returncode == Exit.OK
    labels = {each["label"] for each in rows(done).values()}
    assert labels <= {"bitwise equal", "equal to rounding"}


def test_times_have_a_spread_unless_somebody_says_how_to_measure() -> None:
    filtered = ("--benchmark_filter=rms_norm/1/float32/retape full/", "--benchmark_format=json")
    median, spread = rows(run(*filtered, *SMALL)).values()
    assert (median["aggregate_name"], spread["aggregate_name"]) == ("median", "cv")
    assert median["repetitions"] == 5
    assert median["label"] == "bitwise equal"
    assert median["real_time"] > 0 and spread["real_time"] > 0
    assert median["peak"] > 0
    shares = {"forward_ms", "backward_ms", "delta_%"}
    assert shares <= set(spread)
    assert not {"peak", "replayed", "saved_%"} & set(spread)  # not measured by a clock
    assert all(0 <= spread[name] < 10 for name in shares)

    for words in (["--benchmark_repetitions=1"], ["--benchmark_min_time=0"]):
        (row,) = rows(run(*filtered, *SMALL, *words)).values()
        assert row["run_type"] == "iteration"


def test_what_is_counted_is_counted_once() -> None:
    (row,) = rows(
        run("--dry", "--benchmark_filter=rms_norm/1/float32/plain", "--benchmark_format=json")
    ).values()
    assert row["iterations"] == 1


def test_layers_and_sizes_are_options_in_the_spelling_of_python_too() -> None:
    filtered = ("--dry", "--benchmark_filter=up_proj/.*/float32/plain", "--benchmark_format=json")
    by_python = rows(
        run(*filtered, "--layers", "3", "--layers", "3", "--d-model", "64", "--d-ff=256")
    )
    by_google = rows(run(*filtered, "--layers=3", "--d_model=64", "--d_ff=256"))
    assert list(by_python) == ["up_proj/3/float32/plain/iterations:1"]
    assert [row["peak"] for row in by_python.values()] == [
        row["peak"] for row in by_google.values()
    ]


def test_people_see_mib() -> None:
    done = run("--dry", "--benchmark_filter=swiglu/8/float32/plain")
    assert "peak 6240.0 MiB, held 4352.0 MiB" in done.stdout


def test_help_has_every_option_of_its_own_and_those_of_google_benchmark() -> None:
    done = run("--help")
    assert done.returncode == 0
    own, _, googles = done.stdout.partition("Google Benchmark's own:")
    sources = "".join(path.read_text() for path in (ROOT / "bench").glob("*.h"))
    options = re.findall(r'take(?:_number|_switch)?\(args, "(\w+)"', sources)
    assert {"dry", "layers", "d_model", "inject", "unscaled"} <= set(options)
    assert [name for name in options if not re.search(rf"^  --{name}\b", own, re.MULTILINE)] == []
    assert "--benchmark_filter" in googles
    (example,) = re.findall(r"example:\n  retape_bench (.*)", own)
    assert run(example, "--benchmark_list_tests").stdout.count("swiglu/8/float32/") == 8


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch=0"], '--batch: expected a number of at least 1, got "0"'),
        (["--d_ff"], '--d_ff: expected a number of at least 1, got ""'),
        (["--layers=99999999999999999999"], "--layers: expected at most 9223372036854775807, got"),
        (["--dri"], "unknown argument --dri. Did you mean --dry?"),
        (["--d-modle=64"], "unknown argument --d-modle=64. Did you mean --d_model?"),
        (["--dry=5"], '--dry: expected no value, got "5"'),
        (["--inject=xyzzy"], "--inject: "),
        (["--benchmark_filter=xyzzy"], "Failed to match any benchmarks"),
    ],
)
def test_wrong_arguments_end_with_2(words: list[str], told: str) -> None:
    done = run(*words)
    assert done.returncode == Exit.USAGE
    assert told in done.stderr
    assert "swiglu" not in done.stdout


@pytest.mark.parametrize(
    "words", [["--d-model=1000000000"], ["--batch=2000000000", "--sequence=2000000000"]]
)
def test_a_size_that_memory_does_not_hold_ends_with_2_and_a_sentence(words: list[str]) -> None:
    done = run("--dry", "--layers=1", "--benchmark_filter=^silu_up/1/float32/plain", *words)
    assert done.returncode == Exit.USAGE, done.stderr
    assert "[retape_bench] a step does not fit into memory: " in done.stderr
    assert done.stderr.rstrip().endswith("Fix: a smaller size.")
