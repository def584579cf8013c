"""Pages as Chromium shows them: whole, quiet, legible in both themes, and hostile names inert."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.python import bench_runs, browser

from retape import cli
from retape.bench.report import page as bench_page
from retape.bench.result import Event, Run, Timeline
from retape.bench.run import TIMELINES
from retape.cli.verify import page as verify_page
from retape.cli.verify.case import Case, Result

MIB = bench_runs.MIB


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as opened:
        yield opened


@pytest.fixture
def page_of(tmp_path):
    def write(run: Run, command: str = "retape bench") -> Path:
        path = tmp_path / "bench.html"
        path.write_text(bench_page.render(run, bench_runs.ENVIRONMENT, command), encoding="utf-8")
        return path

    return write


def test_without_a_browser_it_fails_unless_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(browser, "NAMES", ())
    monkeypatch.delenv(browser.WITHOUT, raising=False)
    with pytest.raises(pytest.fail.Exception, match="no Chromium here"), browser.chromium():
        pass
    monkeypatch.setenv(browser.WITHOUT, "1")
    with pytest.raises(pytest.skip.Exception), browser.chromium():
        pass


def size_of(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 820), ("dark", 390)]
)
def test_it_is_shown_without_a_word_on_the_console(chromium, page_of, scheme, width, tmp_path):
    several = bench_runs.many().subjects
    path = page_of(bench_runs.run(several[0], several[4], warnings=("noisy: a test",)))
    with browser.look(chromium, path, width, color_scheme=scheme) as seen:
        picture = seen.page.screenshot(full_page=True, path=tmp_path / f"{scheme}-{width}.png")
        assert size_of(picture)[0] == width  # nothing sticks out to the right
        seen.check_was_quiet(path)


def brightness(seen: browser.Seen, selector: str, what: str) -> float:
    colour = seen.page.evaluate(
        "([s, w]) => getComputedStyle(document.querySelector(s))[w]", [selector, what]
    )
    return sum(float(part) for part in colour.strip("rgb()").split(",")[:3]) / 3


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_it_follows_the_readers_theme(chromium, page_of, scheme, dark):
    with browser.look(chromium, page_of(bench_runs.run()), color_scheme=scheme) as seen:
        assert (brightness(seen, "body", "backgroundColor") < 64) is dark
        assert (brightness(seen, "body", "color") > 190) is dark
        assert (brightness(seen, "svg .name", "fill") > 190) is dark


def boxes(seen: browser.Seen, selector: str) -> list[dict[str, float]]:
    return [found.bounding_box() for found in seen.page.locator(selector).all()]


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    across = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
    down = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
    return across > 4 and down > 4  # boxes have a halo, and those of text air above and below


def test_names_in_the_plot_lie_neither_on_each_other_nor_on_marks(chromium, page_of):
    crowd = [
        bench_runs.row(f"method number {n}", "retape", 100 + n % 5, 0.120 + 0.001 * (n // 5))
        for n in range(20)
    ]
    run = bench_runs.run(bench_runs.subject(), bench_runs.subject("crowd", rows=crowd))
    with browser.look(chromium, page_of(run)) as seen:
        for section, plot, least in (("#s1", 0, 10), ("#s1", 1, 5), ("#s2", 0, 10), ("#s2", 1, 3)):
            figure = f"{section} .pareto >> nth={plot} >> "
            names = boxes(seen, figure + ".name")
            assert len(names) >= least
            assert not [pair for pair in itertools.combinations(names, 2) if overlap(*pair)]
            marks = boxes(seen, figure + ".point > [class^=f-]")
            assert not [1 for name in names for mark in marks if overlap(name, mark)]


def touch(a: dict[str, float], b: dict[str, float]) -> bool:
    return min(a["x"] + a["width"], b["x"] + b["width"]) > max(a["x"], b["x"]) and min(
        a["y"] + a["height"], b["y"] + b["height"]
    ) > max(a["y"], b["y"])


@pytest.mark.parametrize("scale", [1, 99, 500], ids=["hundreds", "five digits", "GiB"])
def test_titles_of_axes_stand_beside_the_numbers(chromium, page_of, scale):
    rows = bench_runs.rows()[:4]
    for row in rows:
        row.peak, row.gflop = row.peak * scale, row.gflop * 1000 * scale
    events = bench_runs.step(scale=3.0 * scale)
    subject = bench_runs.subject(rows=rows, timelines=[Timeline("retape full", events)])
    with browser.look(chromium, page_of(bench_runs.run(subject))) as seen:
        figures = seen.page.locator("figure").count()
        assert figures == 3
        for number in range(figures):
            figure = f"figure >> nth={number} >> "
            texts = boxes(seen, figure + "svg .tick") + boxes(seen, figure + "svg .axis")
            assert len(texts) > 8
            assert not [pair for pair in itertools.combinations(texts, 2) if touch(*pair)]
            picture = boxes(seen, figure + ".scroll svg")[0]
            for text in texts + boxes(seen, figure + ".peak-name"):
                assert text["x"] >= picture["x"]
                assert text["x"] + text["width"] <= picture["x"] + picture["width"]


def tip(seen: browser.Seen) -> str:
    found = seen.page.locator("#tip")
    return found.inner_text() if found.is_visible() else ""


def test_pointing_at_a_mark_tells_its_row(chromium, page_of):
    with browser.look(chromium, page_of(bench_runs.run())) as seen:
        assert tip(seen) == ""
        seen.page.locator(".point").nth(1).locator("[class^=f-]").hover()
        told = tip(seen).splitlines()
        assert told[0] == "retape full"
        assert "peak 131.5 MiB" in told
        assert "gradients bitwise" in told
        seen.page.mouse.move(1, 1)
        assert tip(seen) == ""
        seen.page.locator(".point").nth(0).focus()
        assert tip(seen).startswith("plain")


def two_tensors() -> Run:
    events = [
        Event(3 * MIB, 3 * MIB, 1, "kept", "aten::mm", "block.0", "f32[768,1024]"),
        Event(1 * MIB, 4 * MIB, 2, "replayed", "aten::silu", "block.1", "f32[256,1024]"),
        Event(-3 * MIB, 1 * MIB, 1, "gradient", "aten::mm"),
        Event(-1 * MIB, 0, 2, "gradient", "aten::mm"),
    ]
    return bench_runs.run(bench_runs.subject(timelines=[Timeline("retape full", events)]))


def point_at(seen: browser.Seen, event: float, mib: float) -> None:
    """At the middle of that event, that high."""
    picture = seen.page.locator("[data-timeline] .scroll svg")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    scale = box["width"] / 600
    x = 58 + (event + 0.5) / 4 * (600 - 58 - 20)
    y = 200 - mib / (4 * 1.12) * (200 - 26)
    seen.page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)


def test_pointing_at_the_timeline_tells_op_shape_and_region(chromium, page_of):
    with browser.look(chromium, page_of(two_tensors())) as seen:
        point_at(seen, 1, 1.5)
        told = tip(seen).splitlines()
        assert told == [
            "aten::mm",
            "kept from forward: 3.0 MiB",
            "shape f32[768,1024]",
            "region block.0",
            "event 2 of 4, in aten::silu: 4.0 MiB live",
        ]
        outline = seen.page.locator(".here").get_attribute("d")
        point_at(seen, 1, 3.5)
        assert tip(seen).splitlines()[:4] == [
            "aten::silu",
            "replayed: 1.0 MiB",
            "shape f32[256,1024]",
            "region block.1",
        ]
        assert seen.page.locator(".here").get_attribute("d") != outline
        point_at(seen, 2, 0.5)  # what is left has come down
        assert tip(seen).startswith("aten::silu")
        point_at(seen, 3, 2)
        assert tip(seen) == "event 4 of 4, in aten::mm: 0 B live"
        seen.page.mouse.move(1, 1)
        assert tip(seen) == ""
        assert not seen.page.locator(".here").get_attribute("d")


@pytest.mark.parametrize("selector", [".point circle, .point path", "[data-timeline] .scroll svg"])
def test_scrolling_tells_what_lies_under_the_pointer_now(chromium, page_of, selector):
    with browser.look(chromium, page_of(two_tensors())) as seen:
        seen.page.locator(selector).first.hover()
        told = tip(seen)
        assert told
        seen.page.evaluate("dispatchEvent(new Event('scroll'))")  # of a scroll before the move
        assert tip(seen) == told
        seen.page.evaluate("document.body.style.marginTop = '3000px'")  # it slides away
        seen.page.evaluate("dispatchEvent(new Event('scroll'))")
        assert tip(seen) == ""


def test_arrow_keys_walk_through_the_timeline(chromium, page_of):
    with browser.look(chromium, page_of(two_tensors())) as seen:
        picture = seen.page.locator("[data-timeline] .scroll svg")
        picture.focus()
        picture.press("ArrowRight")
        assert "event 1 of 4" in tip(seen)
        picture.press("ArrowRight")
        assert "event 2 of 4" in tip(seen)
        assert tip(seen).startswith("aten::mm")
        for _ in range(20):
            picture.press("ArrowUp")
        assert tip(seen).startswith("aten::silu")
        picture.press("ArrowLeft")
        assert "event 1 of 4" in tip(seen)
        picture.press("Escape")
        assert tip(seen) == ""


def test_thousands_of_events_can_still_be_pointed_at(chromium, page_of):
    long = Timeline("retape full", bench_runs.step(300, 0.1))
    with browser.look(
        chromium, page_of(bench_runs.run(bench_runs.subject(timelines=[long])))
    ) as seen:
        picture = seen.page.locator("[data-timeline] .scroll svg")
        box = picture.bounding_box()
        picture.hover(
            position={"x": box["width"] * 0.55, "y": box["height"] * 0.7}
        )  # when it stands still
        seen.page.locator("#tip").wait_for(state="visible")
        assert "aten::native_layer_norm" in tip(seen)
        assert "region block." in tip(seen)


def check_is_inert(seen: browser.Seen, scripts: int) -> None:
    assert seen.page.evaluate("typeof hit") == "undefined"
    assert seen.page.locator("img").count() == 0
    assert seen.page.locator("script").count() == scripts
    assert "<script>hit(1)</script>" in seen.page.locator("body").inner_text()


def test_hostile_names_are_text_wherever_they_stand(chromium, page_of):
    path = page_of(bench_runs.hostile(), bench_runs.HOSTILE)
    with browser.look(chromium, path) as seen:
        for number in range(seen.page.locator(".point").count()):
            seen.page.locator(".point").nth(number).focus()
            assert "<script>hit(1)</script>" in tip(seen)
        for number in range(2):
            picture = seen.page.locator("[data-timeline] .scroll svg").nth(number)
            picture.focus()
            picture.press("ArrowRight")
            picture.press("ArrowRight")
            assert "<img src=x onerror=hit(2)>" in tip(seen)
        check_is_inert(seen, scripts=3)  # the page's own, and the data of two timelines
        seen.page.screenshot(full_page=True)
        seen.check_was_quiet(path)


def test_the_policy_stops_a_script_that_is_not_the_pages_own(chromium, page_of):
    with browser.look(chromium, page_of(bench_runs.run())) as seen:
        seen.page.evaluate(
            """() => {
                 const script = document.createElement("script");
                 script.textContent = "window.hit = 1";
                 document.body.append(script);
                 const picture = document.createElement("img");
                 picture.src = "https://example.invalid/x.png";
                 document.body.append(picture);
               }"""
        )
        assert seen.page.evaluate("typeof hit") == "undefined"
        assert any("Content Security Policy" in line for line in seen.console)


def test_without_scripts_the_page_is_still_whole(chromium, page_of):
    path = page_of(bench_runs.run())
    with browser.look(chromium, path, java_script_enabled=False) as seen:
        assert seen.page.locator(".pareto >> nth=0 >> .point title").count() == 10
        assert seen.page.locator(".timeline path.k-kept").first.is_visible()
        assert seen.page.locator("table.figures tbody tr").count() == 11
        assert seen.page.locator(".not-run").inner_text().startswith("not run: deepspeed")
        seen.check_was_quiet(path)


def small_bench(*options: str) -> list[str]:
    sizes = ["--d-model", "64", "--d-ff", "256", "--batch", "1", "--sequence", "512"]
    return [
        "bench",
        "run",
        "--subject",
        "up_proj",
        "--layers",
        "2",
        "--dtype",
        "float32",
        *sizes,
        *options,
    ]


TIMES = ["--time-d-model", "32", "--time-d-ff", "64", "--time-sequence", "16", "--rounds", "2"]


@pytest.mark.parametrize(
    ("options", "plots"),
    [
        (TIMES, ["Memory against time", "Memory against GFLOP"]),
        (["--memory-only"], ["Memory against GFLOP"]),
    ],
    ids=["all of it", "memory only"],
)
def test_the_page_of_a_bench_that_was_run_is_whole_and_quiet(
    chromium, tmp_path, monkeypatch, capsys, options, plots
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(small_bench(*options, "--html", "bench.html")) == 0
    path = tmp_path / "bench.html"
    with browser.look(chromium, path) as seen:
        assert seen.page.locator(".pareto figcaption b").all_inner_texts() == plots
        assert seen.page.locator("[data-timeline]").count() == len(TIMELINES)
        methods = seen.page.locator("table.figures tbody th .method").all_inner_texts()
        assert [name for name in methods if name.startswith("retape full, last 1 cheap")]
        assert " of plain's peak" in seen.page.locator("#s1 .sentence").inner_text()
        seen.page.locator(".point").first.focus()
        assert "plain" in tip(seen)
        picture = seen.page.locator("[data-timeline] .scroll svg").first
        picture.focus()
        picture.press("ArrowRight")
        assert "event 1 of " in tip(seen)
        assert size_of(seen.page.screenshot(full_page=True))[0] == 1280
        seen.check_was_quiet(path)


def test_the_page_of_verify_is_as_quiet_with_hostile_names(chromium, tmp_path):
    name = bench_runs.HOSTILE
    rows = [Result(Case(name, layers=(name,)), "not built", reason=name)]
    path = tmp_path / "verify.html"
    verify_page.write(str(path), verify_page.of_results(rows))
    for scheme, width in (("light", 390), ("dark", 1280)):
        with browser.look(chromium, path, width, color_scheme=scheme) as seen:
            assert size_of(seen.page.screenshot(full_page=True))[0] == width
            check_is_inert(seen, scripts=0)
            assert (brightness(seen, "body", "backgroundColor") < 64) is (scheme == "dark")
            seen.check_was_quiet(path)
