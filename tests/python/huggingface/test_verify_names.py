"""`retape verify hf:NAME` with real architectures, and the table of them in docs/proofs.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.python.huggingface import dead
from tools import hugging_face_section as hugging_face

import retape_hf as hf
from retape import cli
from retape.cli.verify.case import Case, run
from retape_hf import not_built, rules

PAGE = Path(__file__).resolve().parents[3] / "docs" / "proofs.md"
TABLE = PAGE.read_text(encoding="utf-8").split("<!-- hugging face: begin -->\n")[1]
TABLE = TABLE.split("<!-- hugging face: end -->")[0]
KINDS = ("equal", "different", "vacuous", "not built")


def verify(folder: Path, *words: str) -> tuple[int, list[tuple[str, str]]]:
    path = folder / "out.json"
    code = cli.main(["verify", *words, "--json", str(path)])
    rows = json.loads(path.read_text())["result"]["rows"]
    return code, [(row["subject"], row["kind"]) for row in rows]


# ---- names on the command line


def test_a_decoder_an_encoder_decoder_and_a_vision_model_are_equal(tmp_path, capsys) -> None:
    names = ["hf:GPTBigCode", "hf:T5", "hf:ViT"]
    code, rows = verify(tmp_path, *names)
    assert code == 0
    assert rows == [(name, "equal") for name in names]
    assert "3 cases: 3 equal" in capsys.readouterr().out


def test_each_dtype_and_policy_of_a_name_is_a_row(tmp_path) -> None:
    words = "hf:GPTBigCode --dtype bfloat16 --dtype float32 --policy cheap --policy full".split()
    assert verify(tmp_path, *words) == (0, [("hf:GPTBigCode", "equal")] * 4)


def test_dead_parameters_that_are_declared_do_not_make_it_vacuous(tmp_path) -> None:
    names = ["hf:SwiftFormer", "hf:Detr"]
    assert verify(tmp_path, *names) == (0, [(name, "equal") for name in names])


def test_a_name_that_is_not_built_is_a_usage_error(tmp_path) -> None:
    assert verify(tmp_path, "hf:GPTBigCode", "hf:Qwen2_5Omni") == (
        2,
        [("hf:GPTBigCode", "equal"), ("hf:Qwen2_5Omni", "not built")],
    )


def test_one_vacuous_row_of_all_decides_the_exit_code_and_what_is_not_built_does_not(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(hf, "architectures", lambda: ["GPTBigCode", "Qwen2_5Omni"])
    rows = [("hf:GPTBigCode", "equal"), ("hf:Qwen2_5Omni", "not built")]
    assert verify(tmp_path, "--all-hf", "--jobs", "0") == (0, rows)
    monkeypatch.setattr(hf, "architectures", lambda: ["GPTBigCode", "Qwen2_5Omni", "Reformer"])
    rows.append(("hf:Reformer", "vacuous"))
    assert verify(tmp_path, "--all-hf", "--jobs", "0") == (6, rows)


@pytest.mark.parametrize("names", [dead.BY_NAME, rules.RULES, not_built.NOT_BUILT])
def test_exceptions_are_of_architectures_that_there_are(names) -> None:
    assert set(names) <= set(hf.architectures())


# ---- the table


def counts_on_the_page() -> dict[str, int]:
    return {kind: int(re.search(rf"^\| . {kind} \| (\d+) \|$", TABLE, re.M)[1]) for kind in KINDS}


def names_on_the_page(kind: str) -> list[str]:
    lines = re.findall(rf"^\| . {kind} \| .* \| (`.*`) \|$", TABLE, re.M)
    return [name for line in lines for name in re.findall(r"`(\w+)`", line)]


def test_the_table_is_of_the_installed_transformers() -> None:
    """To write it anew: make proofs-hf."""
    assert f"transformers {hf.version()}, " in TABLE
    names = hf.architectures()
    assert f": {len(names)} architectures, " in TABLE
    assert sum(counts_on_the_page().values()) == len(names)


def test_everything_that_is_not_equal_has_its_name_in_the_table() -> None:
    known = set(hf.architectures())
    for kind, count in counts_on_the_page().items():
        names = names_on_the_page(kind)
        assert len(names) == len(set(names)) == (0 if kind == "equal" else count), kind
        assert set(names) <= known
    assert set(not_built.NOT_BUILT) <= set(names_on_the_page("not built"))


@pytest.mark.parametrize(
    "name", ["GPTBigCode", "Align", "UVDoc", "VitMatte", "Vits", "Reformer", "Molmo2", "Sam3Video"]
)
def test_what_the_table_says_of_an_architecture_is_so(name: str) -> None:
    said = next((kind for kind in KINDS[1:] if name in names_on_the_page(kind)), "equal")
    found = run(Case(f"hf:{name}"))
    assert found.kind == said, found.explanation


def test_reasons_are_grouped_the_most_frequent_first() -> None:
    rows = [
        {"subject": "hf:A", "kind": "not built", "cause": "no rule makes its batch yet: a grid"},
        {"subject": "hf:B", "kind": "not built", "cause": "needs the package timm"},
        {"subject": "hf:C", "kind": "equal", "cause": ""},
        {"subject": "hf:D", "kind": "not built", "cause": "no rule makes its batch yet: a | b"},
        {"subject": "hf:E", "kind": "vacuous", "cause": 'leaf "x" has no gradient in either run'},
        {
            "subject": "hf:F",
            "kind": "different",
            "cause": "values: aten::mm, m.py:3: 1 of 2 differ",
        },
    ]
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS}
    page = hugging_face.markdown(
        {
            "command": "retape verify --all-hf",
            "environment": {"torch": "2.13.0", "cores": 2},
            "result": {"rows": rows, "counts": counts, "transformers": "5", "seconds": 180.0},
        }
    )
    assert (
        page
        == """transformers 5, torch 2.13.0. `retape verify --all-hf`: 6 architectures, 3 minutes on 2 cores.

| verdict | architectures |
|---|---|
| ✓ equal | 1 |
| ✗ different | 1 |
| ○ vacuous | 1 |
| – not built | 3 |

| not equal | why | which |
|---|---|---|
| ✗ different | values: aten::mm | `F` |
| ○ vacuous | parameters have no gradient, or zeros | `E` |
| – not built | no rule makes its batch yet | `A`, `D` |
| – not built | needs the package timm | `B` |
"""
    )
