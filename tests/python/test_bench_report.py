"""What `retape bench` measured, shown: on a terminal, as Markdown, as CSV, as one HTML page."""

from __future__ import annotations

import csv as csv_reader
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from tests.python import bench_runs
from tests.python.bench_runs import ENVIRONMENT, HOSTILE, MIB, spread

from retape import _artefact, cli
from retape._html import charts
from retape._progress import Part, Remaining, progress
from retape._text import make_console
from retape.bench import cells, report
from retape.bench.report import pareto, timeline
from retape.bench.result import (
    BITWISE,
    CLOSE,
    DIFFERENT,
    Event,
    Row,
    Run,
    Subject,
    Timeline,
    run_from,
)

RUNS = {
    "one": bench_runs.run(),
    "many": bench_runs.many(),
    "hostile": bench_runs.hostile(),
    "nothing": Run(),
    "no rows": bench_runs.run(bench_runs.subject(rows=[], timelines=[])),
    "only skipped": bench_runs.run(bench_runs.subject(rows=[Row("x", "torch", skipped="no x")])),
    "no plain": bench_runs.run(bench_runs.subject(rows=bench_runs.rows()[1:])),
    "memory only": bench_runs.memory_only(),
    "full size": bench_runs.run(bench_runs.full_size()),
    "no times": bench_runs.run(bench_runs.subject(rows=[Row("plain", "plain", peak=5, held=2)])),
    "no size": bench_runs.run(bench_runs.subject(size={})),
    "all alike": bench_runs.run(
        bench_runs.subject(rows=[bench_runs.row("plain", "plain", 1, 1)] * 3)
    ),
    "of nothing": bench_runs.run(bench_runs.subject(rows=[bench_runs.row("plain", "plain", 0, 0)])),
}


def printed(run: Run, width: int = 124, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, highlight=False)
    for subject in run.subjects:
        report.terminal.print_subject(subject, console)
    report.terminal.print_rest(run, console)
    return out.getvalue()


@pytest.mark.parametrize("name", RUNS)
def test_every_renderer_has_something_to_say_of_every_run(name):
    run = RUNS[name]
    assert printed(run)
    assert report.markdown.render(run, ENVIRONMENT, "retape bench").startswith("# retape bench")
    lines = list(csv_reader.reader(io.StringIO(report.csv.render(run))))
    assert len(lines) == 1 + sum(len(subject.rows) for subject in run.subjects)
    assert report.page.render(run, ENVIRONMENT, "retape bench").encode()


def table_of(run: Run) -> dict[str, list[str]]:
    """Cells of the Markdown table by method."""
    text = report.markdown.render(run, ENVIRONMENT)
    lines = [line for line in text.split("## Machine")[0].splitlines() if line.startswith("| ")]
    split = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].removesuffix(" ◆"): row[1:] for row in split}


def test_a_table_has_the_columns_and_every_number_in_one_unit_for_each():
    table = table_of(bench_runs.run())
    assert table["method"] == [
        "peak, MiB",
        "held after forward, MiB",
        "forward, ms",
        "backward, ms",
        "total, ms",
        "memory saved, %",
        "time delta, %",
        "GFLOP run",
        "bitwise equal",
        "ops replayed",
    ]
    assert table["retape full"] == [
        "131.5", "78.9", "46.3 ± 0.5", "92.7 ± 0.9", "139.0 ± 1.4", "68.1", "+15.8 ± 1.2", "15.9", "bitwise", "96",
    ]  # fmt: skip
    assert table["plain"][5:7] == ["–", "–"]
    assert table["compile, budget 0.5"][6] == "-1.7 ± 1.0"


def test_what_failed_is_a_dash_and_says_why():
    table = table_of(bench_runs.run())
    assert table["fairscale"][0] == "160.0"
    assert table["fairscale"][4] == "–"
    text = report.markdown.render(bench_runs.run(), ENVIRONMENT)
    assert "- fairscale: failed: RuntimeError: expected 2 outputs, got 3" in text
    page = report.page.render(bench_runs.run(), ENVIRONMENT)
    assert "failed: RuntimeError: expected 2 outputs, got 3" in page


def test_what_was_not_run_is_one_line_below_the_table_and_no_row():
    run = bench_runs.run(bench_runs.full_size())
    page = report.page.render(run, ENVIRONMENT)
    assert "OLMo-core's output discard" not in table_of(run)
    assert not re.search('<th scope="row">.*(OLMo|Megatron)', page)
    told = (
        "not run: OLMo-core's output discard (needs the package olmo_core), "
        "Megatron's output discard (needs the package megatron)"
    )
    assert told in " ".join(printed(run).split())
    assert told in report.markdown.render(run, ENVIRONMENT).replace("\\", "")
    assert told in "".join(Tags(page).text)
    assert "not run" not in printed(bench_runs.run(bench_runs.subject(rows=bench_runs.rows()[:2])))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([5], "5 B"),
        ([2048, 3], "2.00 KiB"),
        ([40 * MIB], "40.0 MiB"),
        ([5 << 30, 1], "5120.0 MiB"),
        ([200 << 30], "200.0 GiB"),
        ([], "0 B"),
    ],
)
def test_the_largest_value_chooses_the_unit(values, text):
    unit = cells.bytes_unit(values)
    assert f"{unit.number(max(values, default=0))} {unit.name}" == text


def test_time_delta_is_of_rounds_side_by_side_where_there_are_such():
    plain = bench_runs.row("plain", "plain", 1, 0.1)
    slow = bench_runs.row("x", "torch", 1, 0.2, ratio=(1.9, 1.95, 2.0))
    assert cells.time_delta(slow, plain) == pytest.approx(0.95)
    slow.ratio = None
    assert cells.time_delta(slow, plain) == pytest.approx(1.0)
    assert cells.time_delta(slow, None) is None


def test_methods_are_told_apart_by_what_they_are_around_only_where_that_is_needed():
    rows = [
        Row("torch", "torch", "inner"),
        Row("torch", "torch", "block"),
        Row("plain", "plain", "x"),
    ]
    assert cells.labels(Subject("s", "", "", {}, rows=rows)) == [
        "torch, inner",
        "torch, block",
        "plain",
    ]


def test_the_frontier_is_what_nothing_with_right_gradients_beats_in_both():
    subject = bench_runs.subject()
    best = [subject.rows[index].method for index in cells.frontier(subject)]
    assert best == ["compile, budget 0.5", "retape cheap", "retape plan 150 MiB", "retape full"]
    subject.rows.append(bench_runs.row("wrong", "other", 1, 0.001, equal=DIFFERENT))
    assert len(cells.frontier(subject)) == 4


def test_a_size_of_its_own_for_times_is_told():
    text = report.markdown.render(bench_runs.many(), ENVIRONMENT)
    counted = "memory, GFLOP and ops replayed at 8 layers, float32, width 512, tokens 4096"
    assert f"{counted}; times and gradients at 2 layers\n" in text


def test_warnings_are_in_every_report_for_people():
    run = bench_runs.run(warnings=("busy: load average 9",))
    assert "Warning: busy: load average 9" in printed(run)
    assert "Warning: busy: load average 9" in report.markdown.render(run, ENVIRONMENT)
    assert "busy: load average 9" in report.page.render(run, ENVIRONMENT)


@pytest.mark.parametrize("name", ["one", "many", "hostile"])
def test_a_terminal_of_the_usual_log_width_holds_the_table(name):
    for line in printed(RUNS[name]).splitlines():
        assert len(line) <= 124
        if line.lstrip("◆ ").startswith("retape full"):
            assert line.rstrip().endswith("96")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 124, 160, 250])
@pytest.mark.parametrize(
    "subject", [bench_runs.subject(), bench_runs.full_size()], ids=["small", "full size"]
)
def test_every_cell_that_a_terminal_shows_is_whole(subject, width):
    lines = printed(bench_runs.run(subject), width).splitlines()
    start = next(at for at, line in enumerate(lines) if "───" in line)
    headings = {word for line in lines[:start] for word in line.split()}
    there = [column for column in cells.columns(subject) if column.name in headings]
    absent = ", ".join(column.name for column in cells.columns(subject) if column not in there)
    told = f"Only in a wider terminal: {absent}"
    assert not absent or told in " ".join(" ".join(lines).split())
    for index in cells.shown(subject):
        name = cells.labels(subject)[index][:20]
        line = next(line for line in lines[start:] if line.lstrip("◆ ").startswith(name))
        assert len(line) <= width
        figures = re.sub(r"± +", "± ", line).split()
        for column in there:
            cell = column.cells[index]
            assert (cell.text or "–") in figures, column.name
            if column.name == "time" and cell.text and width >= 80:
                assert f"{cell.text} ± {cell.spread} " in re.sub(r"± +", "± ", line)
    assert "peak" in headings
    if width >= 80:
        assert {"saved", "time", "bits"} <= headings
    if width >= 124:
        assert not absent


def test_a_wide_terminal_has_every_spread():
    lines = printed(bench_runs.run(bench_runs.full_size()), 160).splitlines()
    line = next(line for line in lines if "retape full " in line)
    assert line.count("±") == 4


@pytest.mark.parametrize(
    ("columns", "width"), [("80", 80), ("200", 200), ("0", 124), ("wide", 124), (None, 124)]
)
def test_a_log_is_as_wide_as_columns_says(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert make_console().width == width


def test_a_long_method_goes_on_below_in_a_narrow_terminal():
    rows = [
        *bench_runs.rows(),
        bench_runs.row("torch checkpoint, sqrt(n) groups", "torch", 99.9, 0.1),
    ]
    lines = printed(bench_runs.run(bench_runs.subject(rows=rows)), 80).splitlines()
    first = next(i for i, line in enumerate(lines) if "torch checkpoint," in line)
    assert "99.9" in lines[first]
    assert "groups" in lines[first] + lines[first + 1]


def test_nothing_saved_and_no_time_lost_have_no_sign():
    rows = bench_runs.rows()[:2]
    rows[1].peak, rows[1].ratio = rows[0].peak + 1, spread(0.9999)
    cell = {c.name: c.cells[1].text for c in cells.columns(bench_runs.subject(rows=rows))}
    assert (cell["saved"], cell["time"]) == ("0.0", "+0.0")
    assert report.page._sentence(bench_runs.subject(rows=rows)) == (
        "Nothing is saved here: retape full needs plain's peak, in 1.00 ± 0.01 times its time."
    )


@pytest.mark.parametrize(
    ("peak", "text"), [(131.5, "32%"), (411.0, "99.8%"), (414.0, "100.5%"), (420.0, "102%")]
)
def test_a_sentence_says_what_retape_needs(peak, text):
    rows = [bench_runs.rows()[0], bench_runs.row("retape full", "retape", peak, 0.132)]
    expected = f"retape full needs {text} of plain's peak, in 1.10 ± 0.01 times its time."
    assert report.page._sentence(bench_runs.subject(rows=rows)) == expected


def test_a_single_round_has_no_spread():
    rows = [bench_runs.rows()[0], bench_runs.row("retape full", "retape", 131.5, 0.139)]
    for row in rows:
        for name in ("forward", "backward", "total", "ratio"):
            setattr(row, name, (getattr(row, name)[1],) * 3)
    run = bench_runs.run(bench_runs.subject(rows=rows))
    shown = printed(run, 160) + report.markdown.render(run, ENVIRONMENT)
    assert "+15.8" in shown
    assert "±" not in shown.replace("median ± half", "").replace("± as for times", "")
    assert "± " not in "".join(
        line for p in pareto.plot(run.subjects[0], "time").points for line in p.lines
    )


def test_the_mark_is_explained_wherever_it_stands():
    for run, cost in (
        (bench_runs.run(), "time, less time"),
        (bench_runs.memory_only(), "GFLOP, fewer GFLOP"),
    ):
        meaning = f"on the frontier: less memory takes more {cost} more memory."
        for text in (printed(run), report.markdown.render(run, ENVIRONMENT)):
            assert f"◆ {meaning}" in " ".join(text.split())
        assert f"Frontier: {meaning.split(': ')[1]}" in report.page.render(run, ENVIRONMENT)
    alone = bench_runs.run(bench_runs.subject(rows=[Row("plain", "plain", peak=5)]))
    assert "◆" not in printed(alone) + report.markdown.render(alone, ENVIRONMENT)


def test_a_terminal_gets_no_codes_from_names():
    text = printed(bench_runs.hostile(), terminal=True)
    assert "\x1b[31m" not in text.replace("\x1b[31mfailed", "").replace("\x1b[31m  =1+1", "")
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "[31m" in text  # of the name, shown


def test_the_bar_says_what_runs_and_how_long_still():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    seen = []

    def work(advance):
        for name in ("swiglu, plain", "up_proj, plain", "swiglu, [red]retape"):
            advance(name)
            seen.append(name)

    progress(work, 3, console)
    assert seen == ["swiglu, plain", "up_proj, plain", "swiglu, [red]retape"]
    assert "[red]retape" in out.getvalue()
    assert re.search("2.*/.*3", out.getvalue())  # the third is running
    assert re.search(r"\d:\d\d:\d\d", out.getvalue())
    quiet = io.StringIO()
    progress(work, 3, Console(file=quiet, width=100))
    assert quiet.getvalue().strip() == ""


def test_how_long_still_is_told_from_what_parts_like_those_to_come_took():
    now = [0.0]
    parts = [
        Part(block, stage, method)
        for block in "ab"
        for stage in ("memory", "time")
        for method in "xy"
    ]
    left = Remaining(parts, clock=lambda: now[0])

    def after(seconds, part):
        now[0] += seconds
        left.begin(part)
        return left.seconds()

    a_memory, a_time = (Part("a", stage, "x") for stage in ("memory", "time"))
    assert after(0, a_memory) is None  # nothing has ended
    assert after(2, Part("a", "memory", "y")) is None  # nor of what most of it is
    assert after(4, a_time) is None
    assert after(10, Part("a", "time", "y")) == 10 + (2 + 4) + (10 + 10)
    now[0] += 4
    assert left.seconds() == 6 + (2 + 4) + (10 + 10)  # it goes on falling while a part runs
    now[0] += 60
    assert left.seconds() == 0 + (2 + 4) + (10 + 10)  # and not below nothing


def test_how_long_still_is_not_guessed_from_parts_of_another_stage():
    """As of a quick run: the first parts are slow and few, and most of them are steps that are timed."""
    now = [0.0]
    parts = [
        *(Part("a", "memory", method) for method in "xy"),
        *[Part("a", "time", "x")] * 8,
        Part("a", "line", "x"),
    ]
    left = Remaining(parts, clock=lambda: now[0])
    told = []
    for part in parts[:4]:
        left.begin(part)
        told.append(left.seconds())
        now[0] += 5 if part.stage == "memory" else 0.1
    assert told[:3] == [None, None, None]
    assert told[3] == pytest.approx(
        7 * 0.1 + (5 + 5 + 0.1) / 3
    )  # of a stage that nothing is known of: the mean


def test_parts_that_were_left_out_are_not_waited_for():
    now = [0.0]
    parts = [Part("a", "memory", "x"), *[Part("a", "time", "x")] * 8, Part("b", "memory", "x")]
    left = Remaining(parts, clock=lambda: now[0])
    left.begin(parts[0])
    now[0] = 5
    left.begin(parts[-1])  # x failed on a, and was not timed
    assert left.seconds() == 5


def test_the_bar_shows_the_time_that_is_left_of_parts_of_unlike_length():
    out = io.StringIO()
    now = [0.0]
    parts = [Part("a", "memory", "x"), Part("a", "memory", "y")]
    left = Remaining(parts, clock=lambda: now[0])

    def work(advance):
        for part in parts:
            left.begin(part)
            advance(part.method)
            now[0] += 75

    progress(work, 2, Console(file=out, force_terminal=True, width=100), left)
    assert "0:00:00" in out.getvalue()  # y, too, has taken 75 s


def test_csv_has_bytes_and_seconds_and_empty_cells():
    lines = list(csv_reader.DictReader(io.StringIO(report.csv.render(bench_runs.run()))))
    full = next(line for line in lines if line["method"] == "retape full")
    assert full["subject"] == "swiglu, 8 layers, float32"
    assert int(full["peak_bytes"]) == int(131.5 * MIB)
    assert float(full["total_seconds"]) == 0.139
    assert float(full["total_low_seconds"]) < 0.139 < float(full["total_high_seconds"])
    assert float(full["memory_saved"]) == pytest.approx(0.681, abs=1e-3)
    skipped = next(line for line in lines if line["skipped"])
    assert skipped["peak_bytes"] == skipped["total_seconds"] == skipped["bits"] == ""


def test_csv_cells_are_no_formulas():
    lines = list(csv_reader.DictReader(io.StringIO(report.csv.render(bench_runs.hostile()))))
    assert lines[3]["method"] == "'=1+1"
    assert lines[3]["around"] == "'@SUM(A1)"
    for line in lines:
        for cell in line.values():
            assert not cell.startswith(("=", "+", "@"))
            assert "\n" not in cell
            assert "\x1b" not in cell


def test_markdown_of_hostile_names_is_text():
    text = report.markdown.render(bench_runs.hostile(), {HOSTILE: HOSTILE}, f"retape {HOSTILE}")
    for line in text.splitlines():
        if not line.startswith("Made by"):
            assert not re.search(r"(?<!\\)[<`*_]", line), line
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "hit" in line]
    for line in rows[:4]:
        assert len(re.findall(r"(?<!\\)\|", line)) == 12  # no name opens a cell


def test_markdown_keeps_the_command_in_one_code_span():
    text = report.markdown.render(Run(), {}, "retape bench ``x``")
    assert "``` retape bench ``x`` ```" in text


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", RUNS)
def test_the_page_loads_nothing_and_runs_only_its_own_script(name):
    text = report.page.render(RUNS[name], {**ENVIRONMENT, HOSTILE: HOSTILE}, HOSTILE)
    found = Tags(text)
    timelines = sum(len(s.timelines) for s in RUNS[name].subjects)
    assert found.tags.count("script") == 1 + timelines
    assert not {"img", "iframe", "object", "embed", "link", "base", "form", "use", "image"} & set(
        found.tags
    )
    names = {name for name, _ in found.attributes}
    assert not [name for name in names if name.startswith("on")]
    assert not {"src", "style", "srcset", "xlink:href", "action"} & names
    assert {
        value for name, value in found.attributes if name == "href" and not value.startswith("#")
    } == set()
    assert "url(" not in text
    assert "@import" not in text
    stated = next(v for n, v in found.attributes if n == "content" and v.startswith("default-src"))
    policy = dict(rule.split(" ", 1) for rule in stated.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert policy["style-src"].startswith("'sha256-")
    assert "prefers-color-scheme: dark" in text
    assert "\x1b" not in text


def test_the_page_has_the_machine_and_the_command():
    facts = _artefact.environment()
    text = "".join(
        Tags(report.page.render(bench_runs.run(), facts, "retape bench --html x.html")).text
    )
    for name in ("cpu", "threads", "torch", "blas"):
        assert name in text
        assert str(facts[name]) in text
    assert "retape bench --html x.html" in text


def test_the_page_of_many_subjects_opens_with_all_of_them():
    text = report.page.render(bench_runs.many(), ENVIRONMENT)
    for number, subject in enumerate(bench_runs.many().subjects, 1):
        assert f'<a href="#s{number}">{subject.key}</a>' in text
        assert f'id="s{number}"' in text
    assert text.count("<b>Memory against time</b>") == 5
    assert text.count("<b>Memory against GFLOP</b>") == 5
    assert text.count("data-timeline>") == 6
    assert "All subjects" not in report.page.render(bench_runs.run(), ENVIRONMENT)


def test_retapes_own_wrong_gradients_are_loud_and_end_with_1():
    run = bench_runs.run(
        bench_runs.subject(rows=[bench_runs.row("retape full", "retape", 1, 1, equal=DIFFERENT)])
    )
    assert report.exit_code(run) == 1
    assert report.exit_code(bench_runs.run()) == 0  # somebody else's are in there
    card = next(c for c in report.page.of_run(run, {}).cards if c.label == "bitwise equal")
    assert (card.figure, card.tone) == ("0 of 1", "bad")


def test_a_row_of_retapes_that_raises_or_is_only_close_ends_with_1():
    def ending_of(family: str = "retape", **changes) -> int:
        rows = [bench_runs.row("x", family, 1, 1, **changes)]
        return report.exit_code(bench_runs.run(bench_runs.subject(rows=rows)))

    assert ending_of() == 0
    assert ending_of(error="RuntimeError: x", equal=None) == 1
    assert ending_of(family="output discard", error="RuntimeError: x") == 1
    assert ending_of(family="torch", error="RuntimeError: x") == 0
    assert ending_of(equal=CLOSE) == 1
    assert ending_of(equal=CLOSE, rounds=True) == 0
    assert ending_of(equal=DIFFERENT, rounds=True) == 1


def test_what_sums_in_another_order_is_no_alarm_and_not_retapes_best():
    rounding = bench_runs.row("retape rows", "retape", 100, 0.13, equal=CLOSE, rounds=True)
    run = bench_runs.run(bench_runs.subject(rows=[*bench_runs.rows(), rounding]))
    card = next(c for c in report.page.of_run(run, {}).cards if c.label == "bitwise equal")
    assert (card.figure, card.tone) == ("4 of 4", "good")  # output discard is ours too
    assert card.text == "of Retape's rows have plain's gradients; 1 more sum in another order"
    assert report.page.least(run.subjects[0], ours=True).method == "retape full"


def test_a_best_peer_that_is_not_bitwise_is_told_to_be_so():
    rows = [*bench_runs.rows()[:2], bench_runs.row("other's", "other", 1, 0.1, equal=CLOSE)]
    several = bench_runs.run(bench_runs.subject(rows=rows), bench_runs.subject())
    assert report.page.of_run(several, {}).overview[0].others.label == "other's, equal to rounding"


def test_only_a_failure_of_retapes_is_red():
    def tone_of(family: str) -> str:
        rows = [Row("x", family, error="RuntimeError: x")]
        run = bench_runs.run(bench_runs.subject(rows=rows))
        return next(c.tone for c in report.page.of_run(run, {}).cards if c.label == "not measured")

    assert (tone_of("retape"), tone_of("other")) == ("bad", "loud")


def test_of_equal_peaks_the_quickest_is_the_best():
    rows = [
        bench_runs.row("plain", "plain", 400, 0.12),
        bench_runs.row("retape a", "retape", 100, 0.16),
        bench_runs.row("retape b", "retape", 100, 0.13),
    ]
    assert report.page.least(bench_runs.subject(rows=rows), ours=True).method == "retape b"


def test_the_plot_and_the_frontier_agree_with_the_time_delta():
    """The machine slowed down meanwhile: by its seconds "a" was slower, beside plain it was quicker."""
    subject = bench_runs.subject(
        rows=[
            bench_runs.row("plain", "plain", 400, 0.1, ratio=spread(1.0)),
            bench_runs.row("a", "retape", 300, 0.3, ratio=spread(1.1)),
            bench_runs.row("b", "torch", 350, 0.2, ratio=spread(1.2)),
        ]
    )
    assert [subject.rows[index].method for index in cells.frontier(subject)] == ["plain", "a"]
    plain, a, b = (float(point.x) for point in pareto.plot(subject, "time").points)
    assert plain < a < b
    assert "time 110.0 ± 1.1 ms" in pareto.plot(subject, "time").points[1].lines
    assert "time delta +10.0 ± 1.1 %" in pareto.plot(subject, "time").points[1].lines


def test_whiskers_are_drawn_to_their_ends():
    rows = bench_runs.rows()[:3]
    rows[1].ratio = (0.5, 1.1, 4.0)  # quartiles far from each other, and from all others
    drawn = pareto.plot(bench_runs.subject(rows=rows), "time")
    left, right = drawn.box.x, drawn.box.x + drawn.box.width
    (start, end) = map(
        float, re.fullmatch(r"M([\d.]+),[\d.]+H([\d.]+)", drawn.points[1].whisker).groups()
    )
    assert left < start < end < right
    middle = float(drawn.points[1].x)
    assert (end - middle) / (middle - start) == pytest.approx((4.0 - 1.1) / (1.1 - 0.5), rel=0.02)


def test_a_family_that_nobody_knows_is_drawn_as_other():
    assert pareto.family_class("output discard") == "output-discard"
    assert pareto.family_class('x" onload="') == "other"


def test_points_without_a_peak_or_a_time_are_counted_not_drawn():
    plot = pareto.plot(bench_runs.subject(), "time")
    assert len(plot.points) == 10
    assert plot.left_out == "1 row without a peak or a time: not drawn."  # that was run
    for cost in ("time", "GFLOP"):
        assert pareto.plot(bench_runs.subject(rows=[Row("x", "torch", peak=5)]), cost) is None


def test_memory_against_gflop_is_drawn_without_times_and_says_that_it_is_exact():
    plot = pareto.plot(bench_runs.memory_only().subjects[0], "GFLOP")
    assert [point.whisker for point in plot.points] == [""] * len(plot.points)
    best = [point.lines[0] for point in plot.points if point.best]
    assert best == [
        "retape cheap",
        "retape rows",
        *(f"retape full, last {k} cheap" for k in range(1, 7)),
    ]
    plain = next(point for point in plot.points if point.lines[0] == "plain")
    assert plain.lines == ["plain", "peak 6240.0 MiB", "GFLOP 9895.6"]
    assert "no noise" in plot.caption and plot.left_out == ""
    page = report.page.of_run(bench_runs.memory_only(), {})
    assert [each.title for each in page.groups[0][1][0].plots] == ["Memory against GFLOP"]


def test_rows_at_the_same_place_share_a_mark_that_tells_all_of_them():
    rows = [
        bench_runs.row("torch checkpoint", "torch", 100, 1, gflop=2000.0),
        bench_runs.row("retape cheap", "retape", 100, 1, gflop=2000.0),
        bench_runs.row("a hair more", "torch", 100.2, 1, gflop=2000.0),
        bench_runs.row("wrong", "other", 100, 1, gflop=2000.0, equal=DIFFERENT),
        bench_runs.row("elsewhere", "torch", 900, 1, gflop=2500.0),
    ]
    together, wrong, elsewhere = pareto.plot(bench_runs.subject(rows=rows), "GFLOP").points
    assert wrong.lines[0] == "wrong" and elsewhere.lines[0] == "elsewhere"
    assert (together.family, together.best, together.label.text) == (
        "retape",
        True,
        "retape cheap + 2",
    )
    assert together.lines == [
        "retape cheap: peak 100.0 MiB",
        "torch checkpoint: peak 100.0 MiB",
        "a hair more: peak 100.2 MiB",
        "GFLOP 2000.0",
        "time delta +733.3 ± 8.3 %",
        "gradients bitwise",
    ]


@pytest.mark.parametrize(
    ("low", "high"), [(256.0, 256.01), (256.0, 256.0), (0.1, 0.1001), (1e9, 1e9 + 8)]
)
def test_values_that_are_nearly_the_same_look_so(low, high):
    bottom, top = charts.spanning(low, high)
    assert bottom <= low <= high <= top
    assert top - bottom == pytest.approx(0.05 * high, rel=0.01)


def test_values_that_differ_fill_the_axis():
    assert charts.spanning(100, 200) == (90, 210)
    assert charts.spanning(0, 0) == (0, 1)
    assert charts.spanning(0, 10)[0] == 0


def test_without_times_or_gradients_the_page_says_so_and_still_tells_what_was_saved():
    page = report.page.of_run(bench_runs.memory_only(), {})
    assert "interleaved" not in page.lead and "bit for bit" not in page.lead
    assert page.lead.endswith("No times were taken and gradients were not compared.")
    card = next(card for card in page.cards if card.label == "most memory saved")
    assert (card.figure, card.text) == ("43%", "retape full, swiglu, 8 layers, float32")
    assert page.overview[0].ours.label == "retape full"  # "rows" promises less than plain's bits
    assert page.overview[0].others.label == "torch checkpoint"
    assert "right gradients" not in page.chosen and not page.timed
    whole = report.page.of_run(bench_runs.many(), {})
    assert whole.lead.endswith(
        "byte by byte, time is taken in interleaved rounds, and gradients are "
        "compared with plain autograd's, bit for bit."
    )
    assert "right gradients" in whole.chosen and whole.timed
    assert whole.overview[0].ours.time == cells.Cell("+15.8", "1.2")


def test_of_equal_peaks_without_times_the_one_with_the_fewest_gflop_is_the_best():
    rows = [
        bench_runs.row(f"retape {gflop}", "retape", 100, 1, gflop=gflop)
        for gflop in (12.0, 11.0, 13.0)
    ]
    for row in rows:
        row.total = row.ratio = None
    assert report.page.least(bench_runs.subject(rows=rows), ours=True).method == "retape 11.0"


def test_output_discard_of_our_own_is_none_of_the_others():
    rows = [*bench_runs.rows()[:2], bench_runs.row("output discard", "output discard", 1, 0.1)]
    run = bench_runs.run(bench_runs.subject(rows=rows), bench_runs.subject())
    summary = report.page.of_run(run, {}).overview[0]
    assert (summary.ours.label, summary.others.label) == ("output discard", "")


@pytest.mark.parametrize(
    ("failed", "skipped", "figure", "text"),
    [
        (0, 2, "2", "rows: 2 not run"),
        (1, 0, "1", "row: 1 failed"),
        (1, 2, "3", "rows: 1 failed, 2 not run"),
    ],
)
def test_a_card_counts_all_that_was_not_measured(failed, skipped, figure, text):
    rows = [Row("x", "torch", error="E")] * failed + [Row("y", "torch", skipped="no y")] * skipped
    cards = report.page.of_run(bench_runs.run(bench_runs.subject(rows=rows)), {}).cards
    card = next(card for card in cards if card.label == "not measured")
    assert (card.figure, card.text) == (figure, text)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.11, 0.17, [0.12, 0.14, 0.16]),
        (3, 3.4, [3, 3.1, 3.2, 3.3, 3.4]),
    ],
)
def test_ticks_are_round_and_inside(low, high, ticks):
    assert charts.Axis(low, high, 0, 100).ticks(5) == pytest.approx(ticks)


def test_a_long_timeline_keeps_its_peak_its_end_and_its_order():
    events = bench_runs.step(700)
    events.insert(4321, Event(9 << 40, events[4320].current + (9 << 40), 10**9, "kept", "spike"))
    events.insert(4322, Event(-(9 << 40), events[4320].current, 10**9, "kept", "spike"))
    chosen = timeline.moments(events)
    assert len(chosen) <= timeline.STEPS <= 2000
    assert chosen == sorted(set(chosen))
    assert 4321 in chosen
    assert chosen[-1] == len(events) - 1
    short = bench_runs.step(3)
    assert timeline.moments(short) == list(range(len(short)))


@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 1999, 5000])
def test_no_timeline_has_more_moments_than_fit(count):
    events = [Event(1, n + 1, n, "kept", "") for n in range(count)]
    assert len(timeline.moments(events)) <= timeline.STEPS
    assert timeline.moments(events)[-1] == count - 1


@pytest.mark.parametrize("replays", [True, False])
def test_kinds_add_up_to_what_is_live(replays):
    events = bench_runs.step(40, replays=replays)
    known = timeline.allocations(events)
    levels = timeline.live(events, known, range(len(events)))
    assert [sum(level) for level in levels] == [event.current for event in events]
    assert all(level[0] == 0 for level in levels)
    assert any(level[-1] for level in levels) is replays


def test_a_free_takes_from_the_kind_that_was_allocated():
    events = [Event(8, 8, 1, "kept", "a"), Event(-8, 0, 1, "gradient", "b")]
    assert timeline.live(events, timeline.allocations(events), [0, 1]) == [[0, 8, 0, 0, 0], [0] * 5]


def test_what_forward_makes_and_drops_is_not_told_to_be_kept():
    events = [
        Event(8, 8, 1, "kept", "a"),
        Event(4, 12, 2, "kept", "b"),
        Event(-8, 4, 1, "kept", "b"),
        Event(2, 6, 3, "gradient", "c"),
        Event(-4, 2, 2, "gradient", "c"),
        Event(-2, 0, 3, "kept", "after the step"),
    ]
    known = timeline.allocations(events)
    assert [timeline.KINDS[each.kind] for each in known] == ["passing", "kept", "gradient"]
    drawn = timeline.picture(Timeline("x", events), 12)
    assert [kind for kind, _ in drawn.areas] == ["gradient", "passing", "kept"]
    assert dict(drawn.kinds)["passing"] == "made and dropped in forward"
    assert drawn.data["words"][known[0].kind] == "made and dropped in forward"


def test_what_lives_until_after_backward_was_kept():
    events = [
        Event(8, 8, 1, "kept", "a"),
        Event(2, 10, 2, "gradient", "b"),
        Event(-8, 2, 1, "kept", ""),
    ]
    assert [timeline.KINDS[each.kind] for each in timeline.allocations(events)] == [
        "kept",
        "gradient",
    ]


def test_every_kind_has_words_and_a_colour_in_either_theme():
    css = (Path(timeline.__file__).parent / "page.css").read_text()
    for kind in timeline.KINDS:
        assert timeline.WORDS[kind]
        assert f".k-{kind} {{ fill: var(--{kind}) }}" in css
        assert css.count(f"--{kind}: #") == 2


def test_bytes_that_nobody_allocated_were_there_before():
    events = [Event(8, 108, 1, "kept", "a"), Event(-100, 8, 99, "kept", "b")]
    assert timeline.live(events, timeline.allocations(events), [0, 1]) == [
        [100, 8, 0, 0, 0],
        [0, 8, 0, 0, 0],
    ]


def test_pictures_of_a_subject_share_their_scale_and_stay_small():
    long = Timeline("retape full", bench_runs.step(2000, 0.1))
    subject = bench_runs.subject(
        timelines=[Timeline("plain", bench_runs.step(replays=False)), long]
    )
    pictures = report.page.of_run(bench_runs.run(subject), {}).groups[0][1][0].pictures
    assert pictures[0].y_ticks == pictures[1].y_ticks
    assert pictures[1].peak == max(event.current for event in long.events)
    assert pictures[1].merged and not pictures[0].merged
    assert len(report.page.render(bench_runs.run(subject), {})) < 400_000


def test_data_for_the_script_is_json_that_ends_no_script():
    text = report.page.render(bench_runs.hostile(), ENVIRONMENT)
    blocks = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert "<" not in block
        assert any("<script>hit(1)</script>" in name for name in json.loads(block)["names"])


def saved_run(path: Path, run: Run, **changes) -> str:
    content = _artefact.artefact("bench blocks", {}, run.to_dict(), 0, "retape bench blocks")
    path.write_text(json.dumps({**content, **changes}))
    return str(path)


def test_a_run_comes_back_from_its_artefact_as_it_was(tmp_path):
    path = saved_run(tmp_path / "run.json", bench_runs.many())
    assert run_from(json.loads(Path(path).read_text())["result"]) == bench_runs.many()


def test_report_shows_an_artefact_again_in_every_format(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = saved_run(tmp_path / "run.json", bench_runs.run(), environment=ENVIRONMENT)
    files = ["--html", "a/x.html", "--markdown", "a/x.md", "--csv", "a/x.csv"]
    assert cli.main(["report", path, *files]) == 0
    out = capsys.readouterr().out
    assert "retape plan 150 MiB" in out
    for name in files[1::2]:
        assert "retape plan 150 MiB" in Path(name).read_text()
        assert f"Written: {name}" in out
    page = Path("a/x.html").read_text()
    assert "Some CPU" in page  # of the run, not of this machine
    assert "<pre>retape bench blocks</pre>" in page
    assert (
        json.loads(Path("build/report.json").read_text())["result"]["subjects"][0]["name"]
        == "swiglu"
    )


def test_the_artefact_of_a_report_has_the_machine_and_the_command_of_the_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    path = saved_run(tmp_path / "run.json", bench_runs.run(), environment=ENVIRONMENT)
    assert cli.main(["report", path]) == 0
    left = json.loads(Path("build/report.json").read_text())
    assert left["environment"] == ENVIRONMENT
    assert (left["verb"], left["command"]) == ("report", "retape bench blocks")
    assert cli.main(["report", "build/report.json", "--markdown", "again.md"]) == 0
    again = Path("again.md").read_text()
    assert "Some CPU" in again and "`retape bench blocks`" in again


def test_nobodys_bits_are_called_better_than_they_are():
    assert cells.TONES[BITWISE] == "good"
    assert cells.TONES[DIFFERENT] == "bad"
    odd = bench_runs.subject(rows=[bench_runs.row("x", "torch", 1, 1, equal="splendid")])
    bits = next(column for column in cells.columns(odd) if column.name == "bits")
    assert bits.cells[0].tone == "loud"


def test_a_column_that_nothing_was_measured_for_is_left_out():
    rows = bench_runs.rows()
    assert "time" in {column.name for column in cells.columns(bench_runs.subject(rows=rows))}
    for row in rows:
        row.forward = row.backward = row.total = row.ratio = None
    left = {column.name for column in cells.columns(bench_runs.subject(rows=rows))}
    assert left & {"forward", "backward", "total", "time"} == set()
    assert {"peak", "held", "saved", "bits"} <= left


def test_the_legend_explains_no_column_that_is_not_there():
    assert "Times:" in cells.legend(bench_runs.run())
    without = cells.legend(RUNS["no times"])
    assert without.startswith("Peak:") and "Times:" not in without and "delta" not in without


def test_a_row_of_numbers_is_one_line_of_the_artefact(tmp_path):
    path = tmp_path / "run.json"
    content = {"rows": [[1, -2, 3.5], [4]], "words": ["[\n 1\n]", "b"], "none": []}
    _artefact.write(str(path), content)
    assert json.loads(path.read_text()) == content
    assert "[1, -2, 3.5]" in path.read_text()
