"""Dependencies of src/ point downwards: one folder, one rank. docs/design.md has the map."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the top: a folder may include those that come after it.
FOLDERS = (
    *("dist", "verify", "frontends", "policy", "backward", "check", "measure"),
    *("record", "replay", "tape", "residency", "torch"),
)
# Public headers belong to the folder that implements them; those that are not here are anybody's.
OWNERS = {
    "check.h": "check",
    "checkpoint.h": "frontends",
    "compare.h": "check",
    "decision.h": "record",
    "dry_run.h": "measure",
    "eager.h": "frontends",
    "flops.h": "measure",
    "layers.h": "frontends",
    "lean.h": "backward",
    "memory.h": "measure",
    "memory_region.h": "measure",
    "output_discard.h": "frontends",
    "policy.h": "policy",
    "recompute.h": "frontends",
    "replayable.h": "tape",
    "replayed.h": "replay",
    "rerun.h": "frontends",
    "rows.h": "frontends",
    "stats.h": "tape",
    "tensors.h": "frontends",
    "verify.h": "verify",
    "verify_module.h": "verify",
}


class Include(NamedTuple):
    source: str  # below src/
    line: int
    target: str  # below src/, or "retape/x.h"

    def __str__(self) -> str:
        return f"src/{self.source}:{self.line}: {self.target}"


def includes(root: Path) -> Iterator[Include]:
    for path in sorted((root / "src").rglob("*.[hc]*")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'#include (?:"([^"]+)"|<(retape/[^>]+)>)', line)
            if found:
                yield Include(
                    path.relative_to(root / "src").as_posix(), number, found[1] or found[2]
                )


def folder(path: str) -> str | None:
    """Of a source or a header; None for a public header that is nobody's."""
    first, _, rest = path.partition("/")
    if first != "retape":
        return first
    return "dist" if rest.startswith("dist/") else OWNERS.get(rest)


def upward(all_of_them: list[Include]) -> list[Include]:
    rank = {name: number for number, name in enumerate(FOLDERS)}
    return [
        i for i in all_of_them if (to := folder(i.target)) and rank[to] < rank[folder(i.source)]
    ]


def header_cycle(all_of_them: list[Include]) -> list[str]:
    """Headers that include each other, in order; empty where there are none."""
    graph: dict[str, list[str]] = {}
    for include in all_of_them:
        if include.source.endswith(".h"):
            graph.setdefault(include.source, []).append(include.target)
    done: set[str] = set()

    def visit(header: str, path: list[str]) -> list[str]:
        if header in path:
            return [*path[path.index(header) :], header]
        if header in done:
            return []
        for target in graph.get(header, []):
            if found := visit(target, [*path, header]):
                return found
        done.add(header)
        return []

    return next((found for header in graph if (found := visit(header, []))), [])


def test_no_include_points_upwards() -> None:
    found = [str(include) for include in upward(list(includes(ROOT)))]
    assert not found, "a folder includes one above it:\n" + "\n".join(found)


def test_headers_do_not_include_each_other_in_a_circle() -> None:
    assert header_cycle(list(includes(ROOT))) == []


def test_every_folder_of_src_has_a_rank() -> None:
    folders = {path.relative_to(ROOT / "src").parts[0] for path in (ROOT / "src").rglob("*.cpp")}
    assert folders == set(FOLDERS)
    public = {path.name for path in (ROOT / "include/retape").glob("*.h")}
    assert public - set(OWNERS) == {"api.h", "binding.h", "error.h", "retape.h", "testing.h"}
    assert set(OWNERS) <= public


def test_only_one_header_may_look_at_the_version_of_torch() -> None:
    """Nothing needs to, so far: src/torch/torch_compat.h is where it would."""
    looking = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "src").rglob("*.[hc]*"))
        if re.search(r"\bTORCH_VERSION", path.read_text(encoding="utf-8"))
    ]
    assert set(looking) <= {"src/torch/torch_compat.h"}


# ---- the test itself


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("tape/value.h", "record/recorder.cpp", "record/a.h", "record/b.h", "record/c.h"):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text("#pragma once\n")
    return tmp_path


def test_it_finds_an_upward_include_with_its_line(tree: Path) -> None:
    (tree / "src/record/recorder.cpp").write_text('#include "tape/value.h"\n')
    assert upward(list(includes(tree))) == []
    (tree / "src/tape/value.h").write_text('#pragma once\n\n#include "record/recorder.h"\n')
    assert [str(i) for i in upward(list(includes(tree)))] == [
        "src/tape/value.h:3: record/recorder.h"
    ]


def test_it_finds_a_public_header_of_a_folder_above(tree: Path) -> None:
    (tree / "src/tape/value.h").write_text(
        "#include <retape/verify.h>\n#include <retape/error.h>\n"
    )
    assert [str(i) for i in upward(list(includes(tree)))] == ["src/tape/value.h:1: retape/verify.h"]


def test_it_finds_headers_that_include_each_other(tree: Path) -> None:
    for name, other in ("ab", "bc"):
        (tree / f"src/record/{name}.h").write_text(f'#include "record/{other}.h"\n')
    assert header_cycle(list(includes(tree))) == []
    (tree / "src/record/c.h").write_text('#include "record/a.h"\n')
    assert header_cycle(list(includes(tree))) == [f"record/{n}.h" for n in "abca"]
