"""Writes the tables of docs/proofs.md anew. `make proofs` runs it with the installed package.

With `--hf build/hf.json` it writes that of Hugging Face instead, from what `retape verify --all-hf` left:
`make proofs-hf`, which takes long.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import effects_section
import hugging_face_section
import programs_section
import torch

from retape import hazards
from retape.cli.verify import faults
from retape.hazards import table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "proofs.md"


def put(page: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = page.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def tables(hf: Path | None) -> dict[str, str]:
    if hf is not None:
        return {
            "hugging face": hugging_face_section.markdown(
                json.loads(hf.read_text(encoding="utf-8"))
            )
        }
    torch.set_num_threads(1)
    made = {
        "hazards": table.markdown(hazards.run_all()),
        "faults": faults.markdown(faults.run_all()),
    }
    if tallies := list(
        ROOT.glob("build/fuzz/seeds_*.json")
    ):  # else it stays as it is: make fuzz takes long
        made["programs"] = programs_section.markdown(*programs_section.added_up(tallies))
    if (
        audit := ROOT / "build/audit.json"
    ).exists():  # else it stays as it is: `make proofs` runs it
        made["effects"] = effects_section.markdown(json.loads(audit.read_text(encoding="utf-8")))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hf", type=Path, metavar="JSON", help="of `retape verify --all-hf`")
    page = PAGE.read_text(encoding="utf-8")
    for name, content in tables(parser.parse_args().hf).items():
        page = put(page, name, content)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
