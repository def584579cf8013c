"""The models of the bench: gradients that can be compared, the same bits, and less memory."""

from __future__ import annotations

import functools
import re
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
PAGE = (Path(__file__).parents[2] / "docs/bench.md").read_text()
DOCS = " ".join(PAGE.split())
DRY = [name for name, model in MODELS.items() if model.dry]


@functools.cache
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
    assert [
        name for name, leaf in task.leaves.items() if leaf.grad is None or not leaf.grad.any()
    ] == []


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
    plain, cheap, full = (
        row_of(name, method) for method in ("plain", "retape cheap", "retape full")
    )
    assert full.held < cheap.held < plain.held
    assert full.peak < cheap.peak < plain.peak
    assert full.replayed > cheap.replayed > plain.replayed == 0


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_of_a_model_counts_what_arithmetic_needs(name: str) -> None:
    for method in ("plain", "retape full", "torch checkpoint"):
        dry, real = row_of(name, method, dry=True), row_of(name, method)
        assert dry.held == real.held, method
        assert dry.replayed == real.replayed, method


def at_its_size(name: str, method: str) -> Row:
    """That it is used at, as `retape bench --memory-only` measures it."""
    return row_of(name, method, "size", MODELS[name].dry)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tree_lstm"])
def test_the_peak_of_a_real_model_is_not_above_checkpoints_of_torch(name: str) -> None:
    assert at_its_size(name, "retape full").peak <= at_its_size(name, "torch checkpoint").peak


@pytest.mark.parametrize("name", MODELS)
def test_no_row_of_retapes_is_above_plain(name: str) -> None:
    plain = at_its_size(name, "plain").peak
    assert [method for method in OURS if at_its_size(name, method).peak > plain] == []


# Names of the page, in the order of its tables.
ON_PAGE = {
    "cpp_transformer": "C++ transformer", "cpp_moe": "C++ mixture of experts", "cpp_pi05": "C++ pi05",
    "gpt2": "GPT-2", "llama": "LLaMA", "bert": "BERT", "vit": "ViT", "resnet50": "ResNet-50",
    "mamba2": "Mamba2", "vocabulary": "32,000-word head", "unet": "U-Net", "tree_lstm": "TreeLSTM",
}  # fmt: skip
COLUMNS = {
    "plain": "plain", "torch checkpoint": "torch checkpoint", "selective": "selective",
    "sqrt(n) groups": "torch checkpoint, sqrt(n) groups", "torch_remat": "torch_remat",
    "`cheap`": "retape cheap", "`cheap`, random too": "retape cheap, random too",
    "`full`": "retape full", "`full`, one scope": "retape full, one scope",
}  # fmt: skip


def cells_on_page(corner: str) -> dict[str, dict[str, str]]:
    """By the names of models and methods."""
    lines = PAGE.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {corner} |"))
    methods = [COLUMNS[cell.strip()] for cell in lines[start].strip("|").split("|")[1:]]
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        name = next(name for name, each in ON_PAGE.items() if each == title)
        found[name] = dict(zip(methods, cells, strict=True))
    return found


def table_on_page(corner: str) -> dict[str, dict[str, str]]:
    """Numbers, without what stands in brackets behind them."""
    return {
        name: {method: cell.split()[0] for method, cell in row.items()}
        for name, row in cells_on_page(corner).items()
    }


PEAKS, HELD = table_on_page("float32"), table_on_page("held, float32")


def measured(name: str, method: str, column: str) -> str:
    try:
        return str(round(getattr(at_its_size(name, method), column) / 2**20))
    except RuntimeError:
        return "raises"


def test_the_page_has_all_models() -> None:
    assert list(PEAKS) == list(ON_PAGE) and set(PEAKS) == set(MODELS)


@pytest.mark.parametrize("name", PEAKS)
def test_the_page_says_what_a_model_needs(name: str) -> None:
    assert PEAKS[name] == {method: measured(name, method, "peak") for method in PEAKS[name]}


@functools.lru_cache(maxsize=1)
def plain_of(name: str) -> measure.After:
    return measure.after_step(MODELS[name].at(MODELS[name].small, "float32"), METHODS["plain"])


def gradients(name: str, method: str) -> str:
    make = MODELS[name].at(MODELS[name].small, "float32")
    try:
        return measure.equality(measure.after_step(make, METHODS[method]), plain_of(name))[0]
    except RuntimeError:
        return "raises"


@pytest.mark.parametrize("name", PEAKS)
def test_the_page_marks_every_method_whose_gradients_or_buffers_differ_and_no_other(
    name: str,
) -> None:
    told = {"✗": DIFFERENT, "raises": "raises"}
    page = {
        method: told.get(cell.split()[-1], BITWISE)
        for method, cell in cells_on_page("float32")[name].items()
    }
    assert page == {method: gradients(name, method) for method in page}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_the_page_says_what_reentrant_checkpoints_get_wrong() -> None:
    found = {name: gradients(name, "torch reentrant") for name in MODELS}
    wrong = {name: equal for name, equal in found.items() if equal != BITWISE}
    # ResNet-50's batch norm is told of all that run a layer again.
    expected = {
        "cpp_moe": DIFFERENT,
        "cpp_pi05": "raises",
        "resnet50": DIFFERENT,
        "tree_lstm": DIFFERENT,
    }
    assert wrong == expected
    _, text = DOCS.split("`torch.utils.checkpoint(use_reentrant=True)`, not in the table,")
    text = text.split("What is held when backward begins")[0]
    assert all(words in text for words in ("mixture of experts", "raises on pi05", "Of TreeLSTM"))


@pytest.mark.parametrize("name", HELD)
def test_the_page_says_what_a_model_holds(name: str) -> None:
    assert HELD[name] == {method: measured(name, method, "held") for method in HELD[name]}


@pytest.mark.parametrize("method", ["retape full", "retape full, one scope"])
def test_the_page_says_of_which_models_the_peak_is_above_checkpoints_of_torch(method: str) -> None:
    """By its own table, which the tests above measure."""
    pairs = {name: (int(row[method]), int(row["torch checkpoint"])) for name, row in PEAKS.items()}
    _, *told = re.split(
        r"Where `full` around each layer is not the lowest:|Where one scope is not:", DOCS
    )
    of_each, of_one = told
    text = of_each if method == "retape full" else of_one.split(". ")[0]
    for name, (ours, torchs) in pairs.items():
        says_so = f"{ON_PAGE[name]} ({ours} against {torchs} MiB)" in text
        assert says_so == (ours > torchs), name


@pytest.mark.parametrize("name", ["gpt2", "mamba2"])
def test_transformers_tells_nothing_that_nobody_asked_for(name: str, tmp_path: Path) -> None:
    """In a process of its own: it says most things once."""
    command = [
        sys.executable,
        "-m",
        "retape",
        "bench",
        "--subject",
        name,
        "--quick",
        "--memory-only",
    ]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stderr == ""
    assert name in said.stdout and "transformers" not in said.stdout


def test_every_node_of_a_tree_is_computed_once_and_after_its_children() -> None:
    heights, roots = make_heights(trees=5, nodes=20, vocabulary=10, seed=3)
    states = 0
    for height in heights:
        taken = torch.cat([height.children, height.still_open])
        assert sorted(taken.tolist()) == list(
            range(states)
        )  # each state is used by one parent, or stays
        assert set(height.parents.tolist()) <= set(range(len(height.words)))
        states = len(height.still_open) + len(height.words)
    assert sorted(roots.tolist()) == list(range(states)) == list(range(5))
