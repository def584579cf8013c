"""What Retape assumes that aten ops write, overwrite and return, against what they do when they run.

`make proofs` runs every overload that can be called (`python -m tests.python.audit`) and writes the tables
of docs/proofs.md. Here run a fixed part of them, and all overloads that those tables or src/tape/op_lists.h name.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.python.audit.check import Checker
from tests.python.audit.effects import effects_of, listed_overloads
from tests.python.audit.variants import overloads
from tools import effects_section

ROOT = Path(__file__).resolve().parents[2]
PART = "1/10"
LEAST_RUN = 500  # overloads, in that part
# What calls those of the named overloads that refuse arguments made from their schemas.
CALLERS = (
    "aten::lstm.input",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "nn_functional_ctc_loss",
)
TABLES = (ROOT / "docs/proofs.md").read_text(encoding="utf-8").split("<!-- effects: begin -->\n")[1]
TABLES = TABLES.split("<!-- effects: end -->")[0]
STALE = "docs/proofs.md is out of date. Fix: make proofs"

HANDLED = tuple(f" | {how} |" for how in effects_section.HANDLED.values())

aten = torch.ops.aten


def _audit(folder: Path, *options: str) -> dict[str, Any]:
    """In a process of its own: it forks, and raw overloads may end it."""
    path = folder / "found.json"
    command = [sys.executable, "-m", "tests.python.audit", "--json", str(path), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert path.exists(), done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _audit(tmp_path_factory.mktemp("part"), "--part", PART)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names = listed_overloads() | set(re.findall(r"`(aten::[\w.]+)`", TABLES))
    return _audit(tmp_path_factory.mktemp("named"), "--only", *sorted(names), *CALLERS)


def _lines(found: dict[str, Any], what: str) -> list[str]:
    return [
        f"{f['op']} argument {f['argument']} {f['name']}: {f['call']}"
        for f in found["findings"]
        if f["what"] == what
    ]


def test_ops_write_to_no_argument_that_retape_takes_for_read(part: dict[str, Any]) -> None:
    assert _lines(part, "written, not known") == []


def test_nothing_survives_in_arguments_that_count_as_overwritten(part: dict[str, Any]) -> None:
    assert _lines(part, "old content survives") == []
    assert part["counts"]["overwrites checked"] > 300


def test_results_with_unwritten_memory_are_not_replayed(part: dict[str, Any]) -> None:
    assert _lines(part, "unwritten memory in a result") == []


def test_the_audit_reaches_as_many_overloads_as_it_did(part: dict[str, Any]) -> None:
    print(f"not called: {json.dumps(part['not called'], indent=1)}")
    assert len(part["ran"]) >= LEAST_RUN
    assert part["died"] == []


# ---- the tables in the docs


def _row(what: str) -> list[str]:
    """The cells after the first."""
    (line,) = [line for line in TABLES.splitlines() if line.startswith(f"| {what} | ")]
    return line.strip("| ").split(" | ")[1:]


def _count(what: str) -> int:
    return int(_row(what)[0].replace(",", ""))


def _kinds_in_the_docs() -> dict[tuple[str, str], set[str]]:
    """Of the arguments that the table names; others are as usual."""
    return {
        (name, argument): set(kinds)
        for (_, kinds), what in effects_section.CLASSES.items()
        for name, arguments in re.findall(r"`(aten::[\w.]+)`(?: \(([\w, ]+)\))?", _row(what)[1])
        for argument in (arguments or "self").split(", ")
    }


def test_the_tables_are_of_this_torch_and_without_findings() -> None:
    assert f"torch {torch.__version__}." in TABLES, STALE
    assert _count("aten overloads") == len(overloads()), STALE
    assert _count("... that were run") + _count(
        "... not run: other devices and layouts, or no rule makes their arguments"
    ) == len(overloads())
    assert _count("writes that Retape does not know of") == 0
    assert _count("old content that survives where Retape assumes that none does") == 0
    assert _count("unwritten memory in results that would be replayed") == 0


def test_overloads_that_the_tables_name_do_what_these_say(named: dict[str, Any]) -> None:
    assert named["findings"] == []
    assert TABLES.splitlines()[-1] == effects_section.unwritten_line(named), STALE
    hidden = [line for line in TABLES.splitlines() if line.endswith(HANDLED)]
    assert hidden == effects_section.hidden_rows(named), STALE
    for key, row in zip(
        effects_section.CLASSES, effects_section.overwrite_rows(named), strict=True
    ):
        if key not in effects_section.USUAL:
            assert row in TABLES.splitlines(), STALE


def test_counts_are_of_what_the_tables_name(named: dict[str, Any]) -> None:
    assert _count("overloads that write to an argument that their schema calls read-only") == len(
        named["hidden"]
    )
    unwritten = len(named["uninitialized"])
    assert _count("overloads that return unwritten memory, none of them replayed") == unwritten


def test_the_tables_name_what_a_part_of_the_audit_finds(part: dict[str, Any]) -> None:
    rows = TABLES.splitlines()
    assert part["hidden"], "finds nothing to compare"
    assert part["uninitialized"], "finds nothing to compare"
    assert [row for row in effects_section.hidden_rows(part) if row not in rows] == [], STALE
    assert [name for name in part["uninitialized"] if f"`{name}`" not in rows[-1]] == [], STALE


def test_arguments_count_as_overwritten_or_updated_as_the_tables_say(part: dict[str, Any]) -> None:
    special = _kinds_in_the_docs()
    wrong = {}
    for name, arguments in part["written"].items():
        for argument, seen in arguments.items():
            usual = {"overwritten" if seen["out"] else "updated"}
            if not set(seen["kinds"]) <= special.get((name, argument), usual):
                wrong[name, argument] = seen["kinds"]
    assert wrong == {}, STALE


X, W, MEAN, VAR = (torch.rand(shape) for shape in ((2, 3, 4), (3,), (3,), (3,)))
HIDDEN = [
    (aten.native_batch_norm.default, (X, W, W, MEAN, VAR, True, 0.1, 1e-5), {3, 4}),
    (aten.native_batch_norm.default, (X, W, W, MEAN, VAR, False, 0.1, 1e-5), set()),
    (aten._native_batch_norm_legit.default, (X, W, W, MEAN, VAR, True, 0.1, 1e-5), {3, 4}),
    (aten._native_batch_norm_legit.no_stats, (X, W, W, True, 0.1, 1e-5), set()),
    (aten._batch_norm_with_update.default, (X, W, W, MEAN, VAR, 0.1, 1e-5), {3, 4}),
    (aten.batch_norm_update_stats.default, (X, MEAN, VAR, 0.1), {1, 2}),
    (aten.batch_norm_update_stats.default, (X, None, VAR, 0.1), {2}),
]


def _id(case: Any) -> str:
    return case.name() if hasattr(case, "name") else ""


@pytest.mark.parametrize(("op", "args", "written"), HIDDEN, ids=_id)
def test_running_statistics(op: Any, args: tuple[Any, ...], written: set[int]) -> None:
    checker = Checker()
    checker.call(op, args, {})
    assert checker.report.findings == []
    given = {i for i in effects_of(op, args, {}).writes if isinstance(args[i], torch.Tensor)}
    assert written <= given


def test_out_variants_of_batch_norm_write_their_outputs_too() -> None:
    outs = {"out": torch.zeros(2, 3, 4), "save_mean": torch.zeros(3), "save_invstd": torch.zeros(3)}
    for op in (aten.native_batch_norm.out, aten._native_batch_norm_legit.out):
        for training in (True, False):
            checker = Checker()
            checker.call(op, (X, W, W, MEAN, VAR, training, 0.1, 1e-5), outs)
            assert checker.report.findings == [], op.name()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["rrelu_with_noise", "rrelu_with_noise.out", "rrelu_with_noise_"])
def test_noise_of_rrelu_is_overwritten_in_training_alone(name: str, training: bool) -> None:
    op = overloads()[f"aten::{name}"]
    x, noise = torch.randn(4, 5), torch.rand(4, 5)
    kwargs = {"out": torch.zeros(4, 5)} if name.endswith(".out") else {}
    args = (x, noise, 0.1, 0.3, training)
    checker = Checker()
    checker.call(op, args, kwargs)
    assert checker.report.findings == []
    assert training or 1 not in effects_of(op, args, kwargs).overwrites


def test_ops_that_lie_are_found() -> None:
    """The audit itself: one op writes what it calls read-only and returns memory that it did not
    write; another leaves a part of its out= argument as it was."""
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        library.define("retape_audit_lies(Tensor read) -> Tensor")
        library.define(
            "retape_audit_lies.out(Tensor read, *, Tensor(a!) out) -> Tensor(a!)",
            tags=[torch.Tag.out],
        )

        def lies(read: torch.Tensor) -> torch.Tensor:
            read.add_(1)
            return torch.empty(3)

        def lies_out(read: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
            out[:-1] = 2
            return out

        library.impl("retape_audit_lies", lies, "CPU")
        library.impl("retape_audit_lies.out", lies_out, "CPU")
        checker = Checker()
        checker.call(aten.retape_audit_lies.default, (torch.zeros(4),), {})
        checker.call(aten.retape_audit_lies.out, (torch.zeros(4),), {"out": torch.zeros(4)})
        assert {(f["what"], f["op"], f["argument"]) for f in checker.report.findings} == {
            ("written, not known", "aten::retape_audit_lies", 0),
            ("unwritten memory in a result", "aten::retape_audit_lies", -1),
            ("old content survives", "aten::retape_audit_lies.out", 1),
        }
