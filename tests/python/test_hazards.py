"""The hazard table: torch's rows are what they are, Retape's are equal or a clear error."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from retape import hazards
from retape._text import make_console
from retape.hazards import Cell, table
from retape.hazards.ways import Replay

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- hazards: begin -->\n", "<!-- hazards: end -->\n"


@pytest.fixture(scope="module")
def rows() -> list[hazards.Row]:
    return hazards.run_all()


def names(rows: list[hazards.Row], key: str, tone: str) -> set[str]:
    return {row.hazard.name for row in rows if table.shown(row, key).tone == tone}


def test_every_class_of_hazard_is_there() -> None:
    assert {hazard.name for hazard in hazards.HAZARDS} >= {
        "cache_changed",
        "shared_cache",
        "private_generator",
        "python_random",
        "numpy_random",
        "buffer_in_place",
        "batch_norm",
        "weight_stepped",
        "keyword_mutated",
        "counter",
        "attention_backend",
        "default_dtype",
        "rrelu",
        "dropout_without_state",
        "containers",
    }


@pytest.mark.parametrize("hazard", hazards.HAZARDS, ids=lambda hazard: hazard.name)
def test_replay_has_the_bits_of_plain_autograd_or_its_error(hazard) -> None:
    row = hazards.run(hazard)
    for key in hazards.OURS:
        assert hazards.is_right(row, key), row.cells[key]
        assert not hazards.is_vacuous(row, key)
    if not row.plain_raises:
        assert row.cells["replay"].outcome == hazards.EQUAL
        assert row.cells["plain"].outcome == hazards.EQUAL


EQUAL = Cell(hazards.EQUAL, again=1)
WRONG = Cell(hazards.DIFFERENT, "off by 42 %", "gradients off by 42 %", again=1)
MISMATCH = Cell(
    hazards.ERROR, error="ReplayMismatch: [checkpoint] tensor 2 differs", is_mismatch=True
)
CRASH = Cell(hazards.ERROR, error="TypeError: no such argument")
IN_PLACE = "RuntimeError: one of the variables has been modified by an inplace operation: "
PLAIN_RAISES = Cell(hazards.ERROR, error=IN_PLACE + "[torch.FloatTensor [8]]")
RAISES_TOO = Cell(hazards.ERROR, error=IN_PLACE + "[Float [8]]")


def row_of(name: str, **ours: Cell) -> hazards.Row:
    hazard = next(each for each in hazards.HAZARDS if each.name == name)
    cells = {way.key: EQUAL for way in hazards.WAYS}
    return hazards.Row(hazard, cells | ours)


@pytest.mark.parametrize(
    ("name", "cells", "code"),
    [
        ("batch_norm", {}, 0),
        ("batch_norm", {"replay": WRONG}, 1),
        ("batch_norm", {"replay": CRASH}, 1),
        ("batch_norm", {"replay": MISMATCH}, 1),  # replay is to be equal there
        ("batch_norm", {"rerun": WRONG}, 1),
        ("batch_norm", {"rerun": MISMATCH}, 1),
        ("counter", {"rerun": MISMATCH}, 0),  # as the page says
        ("counter", {"rerun": CRASH}, 1),
        ("counter", {"rerun": WRONG}, 1),
        ("weight_stepped", {"plain": PLAIN_RAISES, "replay": RAISES_TOO, "rerun": MISMATCH}, 0),
        ("weight_stepped", {"plain": PLAIN_RAISES, "replay": CRASH, "rerun": MISMATCH}, 1),
        ("weight_stepped", {"plain": PLAIN_RAISES, "replay": MISMATCH, "rerun": EQUAL}, 1),
        ("batch_norm", {"torch": WRONG, "torch_reentrant": CRASH}, 0),
        ("batch_norm", {"rerun": Cell(hazards.EQUAL)}, 6),
        ("batch_norm", {"replay": Cell(hazards.EQUAL), "rerun": WRONG}, 1),
    ],
)
def test_only_what_the_page_says_of_either_way_of_ours_is_right(name, cells, code, capsys) -> None:
    row = row_of(name, **cells)
    assert table.exit_code([row]) == code
    assert table.test_case(row).failure == {0: "", 1: "different", 6: "vacuous"}[code]
    table.print_table([row], make_console())
    assert ("not as it should be" in capsys.readouterr().out) == (code == 1)


def test_a_way_of_ours_that_crashes_ends_with_1(monkeypatch) -> None:
    def crash(self, function, *args, **kwargs):
        raise TypeError("no such argument")

    monkeypatch.setattr(Replay, "run", crash)
    assert table.exit_code([hazards.run(hazards.HAZARDS[0])]) == 1


def test_torch_is_wrong_without_a_word_in_most_rows(rows) -> None:
    assert len(names(rows, "torch", "bad")) >= 13
    assert len(names(rows, "torch_reentrant", "bad")) >= 15
    assert {"cache_changed", "shared_cache", "rrelu", "batch_norm"} <= names(rows, "torch", "bad")
    assert names(rows, "torch", "good") == {"containers", "frozen_input"}


def test_torch_really_called_the_function_again(rows) -> None:
    assert all(row.cells["torch"].again > 0 for row in rows)


def test_rerun_is_never_wrong_without_a_word(rows) -> None:
    assert names(rows, "rerun", "bad") == set()
    row = next(row for row in rows if row.hazard.name == "dropout_without_state")
    assert "Fix: preserve_rng_state=True" in row.cells["rerun"].error


def test_where_plain_raises_retape_raises_and_torch_does_not(rows) -> None:
    raising = [row for row in rows if row.plain_raises]
    assert {row.hazard.name for row in raising} == {"weight_stepped", "list_overwritten"}
    for row in raising:
        assert row.cells["torch"].outcome == hazards.DIFFERENT
        assert row.cells["torch"].relative_error > 0.1
        assert "modified by an inplace operation" in row.cells["replay"].error


def test_missing_gradients_are_named(rows) -> None:
    row = next(row for row in rows if row.hazard.name == "containers")
    missing = [d["name"] for d in row.cells["torch_reentrant"].differences if d["missing"]]
    assert missing == ["x", "w_in"]


def test_running_the_table_leaves_random_numbers_and_settings_alone() -> None:
    before = random.getstate(), torch.get_rng_state(), torch.get_default_dtype()
    hazards.run(next(hazard for hazard in hazards.HAZARDS if hazard.name == "python_random"))
    hazards.run(next(hazard for hazard in hazards.HAZARDS if hazard.name == "default_dtype"))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_default_dtype() == before[2]
    assert not torch.are_deterministic_algorithms_enabled()


def test_every_source_has_an_address() -> None:
    for hazard in hazards.HAZARDS:
        for name, address in hazards.addresses(hazard.sources):
            assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/issues/\d+", address), name


@pytest.mark.parametrize(
    ("error", "text"), [(3.2e-7, "3e-07"), (0.0042, "0.4 %"), (0.42, "42 %"), (53.4, "53 x")]
)
def test_relative_errors_are_readable(error, text) -> None:
    from retape.hazards.compare import format_relative

    assert format_relative(error) == text


def test_the_page_has_the_table_that_the_code_makes(rows) -> None:
    """Numbers may be another machine's. To write it anew: make proofs."""
    page = (ROOT / "docs/proofs.md").read_text(encoding="utf-8")
    shown = page.split(BEGIN)[1].split(END)[0]
    assert without_numbers(shown) == without_numbers(table.markdown(rows))


def without_numbers(text: str) -> str:
    return re.sub(r"off by [\d.e-]+( %| x)?", "off by #", text)
