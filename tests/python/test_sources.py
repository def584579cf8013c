"""What no compiler tells of the C++ sources: two types of one name in one namespace, which a linker makes one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPENS = re.compile(r"namespace(?: ([\w:]+))? \{$")
CLOSES = re.compile(r"\}  // namespace(?: ([\w:]+))?$")
DECLARES = re.compile(r"^namespace [\w:]+ \{\n[^{}]*\}\n", re.MULTILINE)  # and defines nothing
DEFINES = re.compile(
    r"(?:struct|class|enum class) (?:RETAPE_API )?(\w+)(?: final)?(?: :[^:].*)? \{"
)


def types_of(text: str) -> set[str]:
    """Qualified names of types that other files could define again: not in a namespace without a name."""
    within: list[str] = []
    found = set()
    for line in DECLARES.sub("", text).splitlines():
        if opened := OPENS.match(line):
            within.append(opened[1] or "")
        elif CLOSES.match(line):
            within.pop()
        elif (defined := DEFINES.match(line)) and "" not in within:
            found.add("::".join([*within, defined[1]]))
    assert within == []
    return found


def test_types_are_told_from_those_without_a_name_outside_of_their_file():
    text = "namespace c {\nclass Declared;\n}\nnamespace a::b {\nstruct One {\n};\nnamespace {\nclass Two final : One {\n};\n}  // namespace\n"
    text += "class RETAPE_API Three : public One {\n};\nstruct Three::Inside {\n};\nstruct Four;\n"
    text += "}  // namespace a::b\n"
    assert types_of(text) == {"a::b::One", "a::b::Three"}


def test_no_two_files_of_the_library_define_types_of_one_name():
    files = [
        file for folder in ("include", "src", "bindings") for file in (ROOT / folder).rglob("*.*")
    ]
    sources = [file for file in files if file.suffix in (".h", ".cpp")]
    assert len(sources) > 200
    by_name: dict[str, list[str]] = {}
    for file in sources:
        for name in types_of(file.read_text(encoding="utf-8")):
            by_name.setdefault(name, []).append(str(file.relative_to(ROOT)))
    assert len(by_name) > 200
    assert {name: where for name, where in by_name.items() if len(where) > 1} == {}
