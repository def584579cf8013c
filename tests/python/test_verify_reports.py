"""JUnit XML and HTML of `retape verify`: whole, and safe whatever models are called."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.python import verify_models as models

import retape
from retape import cli, hazards
from retape.cli.verify import junit, page
from retape.cli.verify.case import Case, Result

HOSTILE = "</script><script>alert(1)</script> ]]> & \"' \x00\x1b[31m \ud800 ﷐ 名"


@pytest.fixture(scope="module")
def results() -> list[Result]:
    wrong = retape.verify(models.WritesBehindTheBack(), models.x())
    idle = retape.verify(models.Stack(), models.x(), policy="none")
    good = retape.verify(models.Stack(), models.x())
    return [
        Result(Case("m:good"), "equal", good, seconds=0.5),
        Result(Case("m:wrong", seed=4), "different", wrong),
        Result(Case("m:idle", policy="none"), "vacuous", idle),
        Result(Case("m:absent"), "not built", reason="needs a package: foo"),
    ]


@pytest.fixture
def suite(results, tmp_path):
    from retape.cli.verify.command import _test_case

    path = tmp_path / "folder/out.xml"
    junit.write(str(path), [_test_case(result, named=["m:good", "m:wrong"]) for result in results])
    return ElementTree.parse(path).getroot().find("testsuite")


def test_junit_has_a_test_case_for_each_row(suite):
    assert [case.get("classname") for case in suite] == ["m:good", "m:wrong", "m:idle", "m:absent"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    assert suite[0].get("time") == "0.500"
    assert list(suite[0]) == []


def test_junit_failures_have_a_type_an_explanation_and_a_command(suite):
    wrong, idle = suite[1].find("failure"), suite[2].find("failure")
    assert (wrong.get("type"), idle.get("type")) == ("different", "vacuous")
    assert "up.weight" in wrong.text
    assert wrong.text.endswith("Again: retape verify m:wrong --policy full --seed 4")
    assert "replayed" in idle.text


def test_junit_says_why_something_was_skipped(suite):
    assert suite[3].find("skipped").get("message") == "needs a package: foo"


def test_junit_is_xml_whatever_the_names_are():
    cases = [
        junit.TestCase(HOSTILE, HOSTILE, failure="different", text=HOSTILE),
        junit.TestCase(HOSTILE, HOSTILE, skipped=HOSTILE),
    ]
    root = ElementTree.fromstring(junit.to_xml(cases))
    name = root.find("testsuite")[0].get("name")
    assert name.startswith("</script><script>alert(1)")
    assert "\x1b" not in name
    assert "名" in name


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def check_is_self_contained(text: str) -> None:
    found = Page(text)
    assert "script" not in found.tags
    assert not {"img", "iframe", "object", "embed", "link", "base", "form"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "src"]
    assert "url(" not in text
    assert "@import" not in text
    assert "Content-Security-Policy" in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_html_of_results_is_one_file_with_everything_in_it(results):
    text = page.render(page.of_results(results))
    check_is_self_contained(text)
    assert "retape verify m:wrong --policy full --seed 4" in text
    assert "needs a package: foo" in text


def test_html_of_hazards_has_every_row_and_every_source():
    rows = [hazards.run(hazard) for hazard in hazards.HAZARDS[:4]]
    text = page.render(page.of_hazards(rows))
    check_is_self_contained(text)
    for row in rows:
        assert row.hazard.title.replace("'", "&#39;") in text
        for _, address in hazards.addresses(row.hazard.sources):
            assert f'href="{address}"' in text


def test_html_escapes_names(results):
    hostile = HOSTILE.replace("\ud800", "")
    rows = [Result(Case(hostile, layers=(hostile,)), "not built", reason=hostile)]
    text = page.render(page.of_results(rows))
    check_is_self_contained(text)
    assert "&lt;/script&gt;" in text
    assert "<script" not in text


def test_html_has_no_path_of_this_machine(results):
    text = page.render(page.of_results(results))
    assert str(Path.home()) not in re.sub(r"</[a-z]+>", "", text) or str(Path.home()) == "/"


def test_the_command_line_writes_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["verify", "demo:gpt", "--junit", "a/out.xml", "--html", "b/out.html"]
    assert cli.main(words) == 0
    assert ElementTree.parse("a/out.xml").getroot().find("testsuite").get("tests") == "1"
    assert "demo:gpt" in Path("b/out.html").read_text()
