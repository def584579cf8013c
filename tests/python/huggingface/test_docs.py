"""What docs/huggingface.md shows runs as shown, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.python.huggingface.models import CASES

import retape

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    try:
        for block in blocks:
            exec(compile(block, "huggingface.md", "exec"), names)
    finally:
        retape.huggingface.uninstall()
    reports = re.findall(
        r"^4 layers, 4 calls: (\d+) .*, (\d+) ops replayed", capsys.readouterr().out, re.M
    )
    assert len(reports) == 2
    assert all(int(count) > 0 for report in reports for count in report)


def test_lines_in_the_table_run() -> None:
    calls = re.findall(r"\| `(retape\.enable\(.*?\))`", PAGE)
    assert len(calls) == 5
    for call in calls:
        model = CASES["PaliGemma"].build()
        report = eval(call, {"retape": retape, "model": model})
        assert len(report) == (2 if "language_model" in call else 4)


def test_tests_that_the_page_names_exist() -> None:
    sources = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 9
    assert not [name for name in named if f"def {name}(" not in sources]
