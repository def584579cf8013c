"""What README.md and examples/python show runs as shown, and does what the text says."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.conformance.support import OpsSeen

import retape
from retape._bits import same_bits

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_is_the_quickstart_example():
    assert blocks(README, "python")[0] == (ROOT / "examples/python/quickstart.py").read_text()


def test_the_cpp_of_the_readme_is_the_marked_part_of_the_quickstart_example():
    source = (ROOT / "examples/cpp/quickstart.cpp").read_text(encoding="utf-8")
    marked = source.split("// readme: begin\n")[1].split("// readme: end")[0]
    assert blocks(README, "cpp")[0] == marked


def test_the_python_of_the_readme_runs_and_its_gradients_are_plain_ones(capsys):
    names = runpy.run_path(str(ROOT / "examples/python/quickstart.py"))
    replayed, dropped = map(int, re.findall(r"\d+", capsys.readouterr().out))
    assert replayed > 0
    assert dropped > 0
    model, x = names["model"], names["x"]
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert all(same_bits(a, b) for a, b in zip(expected, found, strict=True))
    assert torch.equal(names["y"], model(x))


def test_the_python_of_the_checkpoint_page_runs_and_its_gradients_are_plain_ones():
    block, _, _ = blocks((ROOT / "docs/checkpoint.md").read_text(encoding="utf-8"), "python")
    names: dict = {}
    exec(compile(block, "checkpoint.md", "exec"), names)
    model, x = names["block"], names["x"]
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(model(x)).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert all(same_bits(a, b) for a, b in zip(expected, found, strict=True))


def test_the_python_of_the_checkpoint_page_on_selective_policies_keeps_products():
    _, block, _ = blocks((ROOT / "docs/checkpoint.md").read_text(encoding="utf-8"), "python")
    names: dict = {}
    exec(compile(block, "checkpoint.md", "exec"), names)
    model, contexts = names["block"], names["contexts"]
    x = torch.randn(8, 16)

    def replayed() -> list[str]:
        loss = retape.checkpoint(model, x, context_fn=contexts).square().sum()
        with OpsSeen() as seen:
            loss.backward()
        return [name for name in seen.names if name in ("addmm", "gelu")]

    assert replayed() == ["gelu"]  # which the second product reads
    model.requires_grad_(False)[0].bias.requires_grad_()
    assert replayed() == ["addmm"]  # of a frozen weight, for the gradient of gelu


def test_the_python_of_the_checkpoint_page_on_rows_runs_in_slices(capsys):
    _, _, block = blocks((ROOT / "docs/checkpoint.md").read_text(encoding="utf-8"), "python")
    names: dict = {}
    exec(compile(block, "checkpoint.md", "exec"), names)
    assert "sliced=1, whole=0" in capsys.readouterr().out
    model, found = names["block"], names["x"].grad
    x = names["x"].detach().requires_grad_()
    model(x).sum().backward()
    assert torch.allclose(found, x.grad, rtol=1e-4, atol=1e-6)


def test_the_python_of_the_bench_page_tells_the_memory_of_a_step_that_nobody_waits_for(capsys):
    _, block = blocks((ROOT / "docs/bench.md").read_text(encoding="utf-8"), "python")
    exec(compile(block, "bench.md", "exec"), {})
    gib, tflop = map(float, re.findall(r"[\d.]+", capsys.readouterr().out))
    assert gib > 4  # parameters and their gradients alone
    assert tflop == pytest.approx(5 * 2 * 4096 * 8192 * 32768 / 1e12, abs=0.1)


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir())  # an example leaves nothing behind


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)  # a lambda looks like a link
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", prose)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_names_that_pages_use_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in set(re.findall(r"\bretape((?:\.[A-Za-z_]\w*)+)\(", text)):
        found = retape
        for name in path[1:].split("."):
            assert hasattr(found, name), f"{page.name} uses retape{path}"
            found = getattr(found, name)


def test_headings_that_links_between_pages_name_are_there() -> None:
    for page in PAGES:
        for link, heading in re.findall(r"\]\(([\w./]*\.md)#([\w-]+)\)", page.read_text("utf-8")):
            titles = re.findall(r"^#+ (.*)$", (page.parent / link).read_text("utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in anchors, f"{page.name}: {link} has no heading {heading}"


def test_every_test_that_a_page_names_is_there() -> None:
    named = [
        (page.name, path, test)
        for page in (ROOT / "docs").glob("*.md")
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    ]
    assert named
    for page, path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), f"{page}: {path} has no {test}"
