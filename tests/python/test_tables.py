"""Tables of the benches in a terminal of any width: what they show is whole, what they leave out is told."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from tests.python import bench_runs
from tests.python.bench_runs import ENVIRONMENT, row, spread

from retape._table import Column, fitted, leaving_out
from retape.bench import check, compare, overhead, regions
from retape.bench.timing import Times

WIDTHS = (60, 80, 124)


def printed(show: Callable[[Console], object], width: int) -> list[str]:
    out = io.StringIO()
    show(Console(file=out, width=width, highlight=False))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    assert max(map(len, lines)) <= width
    return lines


def words(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


def overhead_result() -> dict[str, Any]:
    """As wide as its figures get: torch's ways take ten times as long, and a target is missed."""
    rows = [
        {
            "variant": variant.name,
            "workload": workload.name,
            "forward_us_per_op": 13.58,
            "backward_us_per_op": 123.61,
            "ratio": 10.55,
            "ratio_quartiles": [10.45, 10.65],
            "target_met": None if variant.target is None else False,
            "ops_recorded": 1000,
            "ops_replayed": 999,
            "gradients_identical": variant.name != "selective-save",
        }
        for variant in overhead.variants()
        for workload in overhead.WORKLOADS
    ]
    fixed = [
        {
            "variant": name,
            "us_per_region": 190.44,
            "added_us": 164.71,
            "share_of_torch": 0.41,
            "target": 0.25,
            "target_met": False,
        }
        for name in regions.runs()
    ]
    return {"ops": 1000, "floats": 16, "rounds": 7, "rows": rows, "regions": fixed, "warnings": []}


@pytest.mark.parametrize("width", WIDTHS)
def test_overhead_is_shown_without_a_cut_cell(width):
    result = overhead_result()
    lines = printed(lambda console: overhead._print(result, console), width)
    found = words(lines)
    for variant in overhead.variants():
        assert set(variant.label.split()) <= set(found)
    assert found.count("10.55") == 3 * len(overhead.variants())
    assert found.count("DIFFERENT") == 1 and found.count("same") == len(overhead.variants()) - 1
    absent = " ".join(found).partition("Only in a wider terminal: ")[2]
    assert ("123.61" in found) is (width == 124)
    assert absent.startswith("tape, us/op") is (width < 124)
    targets = len(regions.runs()) + 4 * (not absent.startswith("tape, us/op, target"))
    assert found.count("<=") == targets
    assert found.count("+164.7") == len(regions.runs())


@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_check_costs_is_shown_without_a_cut_cell(width):
    times = Times([(1_234_500_000, 0)] * 3, [1.15, 1.25, 1.35])
    measured = {policy: {"off": times, "on": times} for policy in check.POLICIES}
    rows = [
        {"policy": policy, "mean_ratio": {str(n): 1 + 0.25 / n for n in check.INTERVALS}}
        for policy in check.POLICIES
    ]
    found = words(printed(lambda console: check._print(rows, measured, 4, console), width))
    headings = " ".join(found)
    assert all(f"1 in {n}" in headings for n in (10, 100, 1000))
    for figure in ("1.23", "1.25", "1.0250", "1.0025", "1.0003", *check.POLICIES):
        assert figure in found
    assert "RETAPE_CHECK=N." in found


def worse(factor: float, half: float = 0.01) -> Any:
    slow = {"total": spread(0.13 * factor, half), "ratio": spread(factor, half)}
    rows = [
        row("plain", "plain", 400, 0.12),
        row("torch checkpoint, sqrt(n) groups", "torch", 100, 0.13, **slow),
        row("retape full, one scope", "retape", 100 * factor, 0.13, **slow),
    ]
    return bench_runs.run(bench_runs.subject("fp32_softmax", rows=rows, timelines=[]))


@pytest.mark.parametrize("half", [0.01, 0.9], ids=["regression", "noisy"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_is_shown_without_a_cut_cell(width, half):
    old, new = (compare.Baseline(worse(factor, half), ENVIRONMENT) for factor in (1, 2.729))
    found = compare.compare(old, new)
    assert len(found.changes) > len(found.of(compare.SAME))
    told = words(printed(lambda console: compare.print_comparison(found, console), width))
    for change in found.changes:
        if change.verdict != compare.SAME:
            for text in (change.subject, change.method, change.metric, change.verdict):
                assert set(text.split()) <= set(told)
            assert f"{change.share:+.1%}" in told
            assert width < 80 or set(change.after.split()) <= set(told)
    assert ("Only in a wider terminal: old, new" in " ".join(told)) is (width < 80)


def test_a_table_gives_up_columns_in_the_order_that_it_is_told_and_says_which():
    columns = [
        Column("name", ["a name of many words"], justify="left", least=0),
        Column("one", ["1" * 20]),
        Column("two", ["2" * 20]),
    ]

    def at(width: int) -> str:
        layouts = leaving_out(columns, ("one", "two"))
        return "\n".join(printed(lambda console: console.print(fitted(layouts, console)), width))

    assert "a name of many words" in at(70) and "wider" not in at(70)
    assert "1" * 20 in at(50) and "a name\n" not in at(50)  # the name goes on below
    narrow = at(30)
    assert "1" not in narrow and "2" * 20 in narrow
    assert "Only in a wider terminal: one" in " ".join(narrow.split())
    assert "Only in a wider terminal: one, two" in " ".join(at(20).split())


def test_a_word_that_is_longer_than_its_column_goes_on_below_and_loses_nothing():
    name = "package.module.of.mine:" + "x" * 40
    columns = [Column("subject", [name], justify="left", least=0), Column("figure", ["1.5"])]
    lines = printed(lambda console: console.print(fitted([columns], console)), 40)
    assert name in "".join(
        line.removesuffix("1.5 ").replace("1.5", "").strip() for line in lines[2:]
    )
