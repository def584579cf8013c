"""JUnit XML: a test case for each row. Names are whatever models are called, so nothing is trusted."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# XML 1.0 has no way to write these, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class TestCase:
    suite: str
    name: str
    seconds: float = 0.0
    failure: str = ""  # its type: "different", "vacuous"
    error: str = ""  # its type: "not built"
    skipped: str = ""  # why
    text: str = ""  # of a failure or an error


def write(path: str, cases: Sequence[TestCase]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(to_xml(cases))


def to_xml(cases: Sequence[TestCase]) -> bytes:
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name="retape verify",
        tests=str(len(cases)),
        failures=str(sum(bool(case.failure) for case in cases)),
        skipped=str(sum(bool(case.skipped) for case in cases)),
        errors=str(sum(bool(case.error) for case in cases)),
        time=f"{sum(case.seconds for case in cases):.3f}",
    )
    for case in cases:
        entry = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_clean(case.suite),
            name=_clean(case.name),
            time=f"{case.seconds:.3f}",
        )
        if kind := case.failure or case.error:
            first = case.text.splitlines()[0] if case.text else kind
            tag = "failure" if case.failure else "error"
            told = ElementTree.SubElement(entry, tag, type=kind, message=_clean(first))
            told.text = _clean(case.text)
        elif case.skipped:
            ElementTree.SubElement(entry, "skipped", message=_clean(case.skipped))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)
