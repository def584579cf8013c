"""docs/ranks.md and its example: code, output and numbers are those that four ranks give."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as torch_dist
from rich.console import Console
from tests.python import dist_zoo, ranks

from retape.cli.gradcheck import factory, table

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/python/check_my_ddp.py"
PAGE = (ROOT / "docs/ranks.md").read_text(encoding="utf-8")
NAMES = ("as_it_was", "half_way", "factory", "sharded")
NUMBER = re.compile(r"\d+(\.\d+)?e-\d+")  # what rounding makes


def main() -> None:
    """By every rank: each factory of the example."""
    sys.path.insert(0, str(EXAMPLE.parent))
    for name in NAMES:
        report = factory.make(f"{EXAMPLE.stem}:{name}").run()
        if torch_dist.get_rank() == 0:
            ranks.tell(name=name, report=report.to_dict(), text=report.explain())


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, dict]:
    base = tmp_path_factory.getbasetemp()
    told = ranks.run_once("tests.python.test_ranks_page", 4, base)
    return {line["name"]: line for line in told}


def fenced(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [block for of, block in blocks if of == language]


def printed(told: dict) -> list[str]:
    """As the command prints it, without lines that are empty."""
    console = Console(file=io.StringIO(), width=80)
    table.print_report(told["report"], told["text"], console)
    lines = console.file.getvalue().splitlines()
    return [line.rstrip() for line in lines if line.strip()]


def test_the_code_of_the_page_is_that_of_the_example():
    blocks = fenced("python")
    assert len(blocks) == 5
    source = EXAMPLE.read_text(encoding="utf-8")
    for block in blocks:
        assert block in source
    assert "import retape.dist as rd\n" in source


def test_the_script_as_it_was_is_different_and_no_factor_explains_it(reports):
    report = reports["as_it_was"]["report"]
    assert report["kind"] == "different"
    assert {row["kind"] for row in report["rows"]} == {"different"}
    assert all("a mean of each rank's mean" in row["reason"] for row in report["rows"])
    assert min(row["residual"] for row in report["rows"]) > 0.05


def test_half_of_the_fix_is_named(reports):
    report = reports["half_way"]["report"]
    assert report["kind"] == "different"
    assert all(row["guesses"] == ["1 / n_ranks"] for row in report["rows"])


def test_the_fix_is_equal_and_the_check_bites(reports):
    report = reports["factory"]["report"]
    assert report["kind"] == "equal"
    assert {row["topology"] for row in report["rows"]} == {"4", "4, ragged", "4, empty"}
    assert max(row["error"] for row in report["rows"] if row["dtype"] == "float64") < 1e-14
    assert report["self_test"]["killed"] == report["self_test"]["mutants"] == 8
    assert report["self_test"]["as_predicted"] == report["self_test"]["predicted"] == 6


def test_under_fsdp_it_is_equal_too(reports):
    report = reports["sharded"]["report"]
    assert report["kind"] == "equal"
    assert {row["tensor"] for row in report["rows"]} == {"0.weight", "2.weight", "2.bias"}


def test_the_output_of_the_page_is_what_is_printed(reports):
    was, line, right, half = (block.splitlines() for block in fenced(""))
    shown = printed(reports["as_it_was"])
    assert [each for each in shown if not each.startswith(("  [", "  note:"))] == was
    assert line[0] in shown
    assert printed(reports["half_way"]) == half
    # Here all numbers are rounding errors, which are those of the machine.
    masked = [
        [NUMBER.sub("#", each) for each in lines] for lines in (printed(reports["factory"]), right)
    ]
    assert masked[0] == masked[1]
    assert sum("#" in each for each in masked[0]) == 7


def test_the_checks_of_the_page_are_those_of_the_example():
    checks = [shlex.split(block) for block in fenced("sh") if block.startswith("retape ")]
    for command in checks:
        assert command[:2] == ["retape", "gradcheck"]
        assert command[3:] == ["--ranks", "4"]
    assert [command[2] for command in checks] == ["check_my_ddp:as_it_was", "check_my_ddp:factory"]


def test_the_script_trains_by_the_torchrun_of_the_page_which_does_not_import_retape():
    """The backend is an entry point of the installed package."""
    (command,) = (shlex.split(block) for block in fenced("sh") if block.startswith("torchrun "))
    assert command[1:4] == ["--rdzv-backend=retape", "--nproc-per-node", "4"]
    fewer = [*command[1:3], "2", *command[4:]]  # each imports torch
    program = "from torch.distributed.run import main; main(); import sys; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program, *fewer],
        cwd=EXAMPLE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *losses, modules = ended.stdout.splitlines()
    assert len(losses) == 5
    assert "torchrun_retape" in modules.split()
    assert "retape" not in modules.split()


def test_the_table_of_the_page_has_every_animal():
    rows = PAGE.split("| animal |")[1].split("\n\n")[0].splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [each.name for each in dist_zoo.ANIMALS]
