"""The models of the bench: gradients that can be compared, the same bits, and less memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retape.bench import measure
from retape.bench.methods import METHODS
from retape.bench.models import MODELS
from retape.bench.models.tree_lstm import make_heights
from retape.bench.result import BITWISE, DIFFERENT, Row

OURS = [
    name for name, method in METHODS.items() if method.family == "retape" and not method.in_rows
]
DOCS = " ".join((Path(__file__).parents[2] / "docs/bench.md").read_text().split())
DRY = [name for name, model in MODELS.items() if model.dry]


def row_of(name: str, method: str, size: str = "small", dry: bool = False) -> Row:
    model = MODELS[name]
    row = Row(method, METHODS[method].family)
    measure.memory(model.at(getattr(model, size), "float32"), METHODS[method], row, dry)
    return row


@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_of_the_plain_step_is_there_and_not_zero(name: str) -> None:
    model = MODELS[name]
    assert not model.missing
    task = model.at(model.small, "float32")()
    METHODS["plain"].loss(task).backward()
    assert task.leaves
    assert [name for name, leaf in task.leaves.items() if leaf.grad is None or not leaf.grad.any()] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_retape_leaves_every_bit_of_gradients_and_buffers_as_it_was(name: str, dtype: str) -> None:
    make = MODELS[name].at(MODELS[name].small, dtype)
    plain = measure.after_step(make, METHODS["plain"])
    for method in OURS:
        after = measure.after_step(make, METHODS[method])
        assert measure.equality(after, plain) == (BITWISE, []), method


def test_running_the_layers_again_counts_a_batch_twice_and_the_bench_says_so() -> None:
    make = MODELS["resnet50"].at(MODELS["resnet50"].small, "float32")
    plain = measure.after_step(make, METHODS["plain"])
    equal, names = measure.equality(measure.after_step(make, METHODS["torch checkpoint"]), plain)
    assert equal == DIFFERENT
    assert all("normalization" in name for name in names)


@pytest.mark.parametrize("name", MODELS)
def test_full_holds_less_than_cheap_and_cheap_less_than_plain(name: str) -> None:
    plain, cheap, full = (row_of(name, method) for method in ("plain", "retape cheap", "retape full"))
    assert full.held < cheap.held < plain.held
    assert full.peak < cheap.peak < plain.peak
    assert full.replayed > cheap.replayed > plain.replayed == 0


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_of_a_model_counts_what_arithmetic_needs(name: str) -> None:
    for method in ("plain", "retape full", "torch checkpoint"):
        dry, real = row_of(name, method, dry=True), row_of(name, method)
        assert dry.held == real.held, method
        assert dry.replayed == real.replayed, method


def peaks(name: str) -> tuple[int, int]:
    """At the size that it is used at: of full, and of torch's checkpoints around the same layers."""
    dry = MODELS[name].dry
    full, torchs = (row_of(name, method, "size", dry) for method in ("retape full", "torch checkpoint"))
    return full.peak, torchs.peak


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tree_lstm"])
def test_the_peak_of_a_real_model_is_not_above_checkpoints_of_torch(name: str) -> None:
    full, torchs = peaks(name)
    assert full <= torchs


def test_the_docs_say_of_which_model_the_peak_is_above() -> None:
    full, torchs = (round(peak / 2**20) for peak in peaks("tree_lstm"))
    assert f"Where Retape is not the lowest: the TreeLSTM ({full} against {torchs} MiB)" in DOCS


@pytest.mark.parametrize("name", ["gpt2", "mamba2"])
def test_transformers_tells_nothing_that_nobody_asked_for(name: str, tmp_path: Path) -> None:
    """In a process of its own: it says most things once."""
    command = [sys.executable, "-m", "retape", "bench", "--subject", name, "--quick", "--memory-only"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stderr == ""
    assert name in said.stdout and "transformers" not in said.stdout


def test_every_node_of_a_tree_is_computed_once_and_after_its_children() -> None:
    heights, roots = make_heights(trees=5, nodes=20, vocabulary=10, seed=3)
    states = 0
    for height in heights:
        taken = torch.cat([height.children, height.still_open])
        assert sorted(taken.tolist()) == list(range(states))  # each state is used by one parent, or stays
        assert set(height.parents.tolist()) <= set(range(len(height.words)))
        states = len(height.still_open) + len(height.words)
    assert sorted(roots.tolist()) == list(range(states)) == list(range(5))
