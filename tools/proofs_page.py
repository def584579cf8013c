"""Writes the tables of docs/proofs.md anew. `make proofs` runs it with the installed package."""

from __future__ import annotations

from pathlib import Path

import torch

from retape import hazards
from retape.hazards import table
from retape.verifying import faults

PAGE = Path(__file__).resolve().parents[1] / "docs" / "proofs.md"


def put(page: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = page.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def main() -> None:
    torch.set_num_threads(1)
    page = PAGE.read_text(encoding="utf-8")
    page = put(page, "hazards", table.markdown(hazards.run_all()))
    page = put(page, "faults", faults.markdown(faults.run_all()))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
