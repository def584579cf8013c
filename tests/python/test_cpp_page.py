"""Every line of C++ in docs/cpp.md is in tests/cpp/docs_test.cpp, which compiles and runs it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_code_of_the_page_is_compiled_as_shown() -> None:
    page = (ROOT / "docs/cpp.md").read_text(encoding="utf-8")
    compiled = lines((ROOT / "tests/cpp/docs_test.cpp").read_text(encoding="utf-8"))
    blocks = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    assert not [line for block in blocks for line in lines(block) if line not in compiled]


def test_the_cmake_of_the_page_is_the_example() -> None:
    page = (ROOT / "docs/cpp.md").read_text(encoding="utf-8")
    example = lines((ROOT / "examples/cmake_project/CMakeLists.txt").read_text(encoding="utf-8"))
    (cmake,) = re.findall(r"^```cmake\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shell,) = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert not [line for line in lines(cmake) if line.split("   #")[0] not in example]
    assert f"#   {shell.strip()}" in [line for line in example if line.startswith("#")]
