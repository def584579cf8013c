"""What is known about mutants from runs before, and why some of them may live."""

import dataclasses
import hashlib
import json
import pathlib
import tomllib
from collections.abc import Iterable

from .mutant import Mutant
from .run import Result


class Cache:
    """Results by the text of the mutated source. Who survived is asked again when anything changes."""

    def __init__(self, path: pathlib.Path, tests: str):
        self.path = path
        self.tests = tests
        self.known: dict[str, dict] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, digest: str) -> Result | None:
        entry = self.known.get(digest)
        if entry is None or (entry["status"] != "killed" and entry["with"] != self.tests):
            return None
        return Result(**{f.name: entry[f.name] for f in dataclasses.fields(Result)})

    def put(self, digest: str, result: Result) -> None:
        self.known[digest] = {**dataclasses.asdict(result), "with": self.tests}

    def save(self) -> None:
        self.path.write_text(json.dumps(self.known, indent=0))


def digest_of(*folders: pathlib.Path) -> str:
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.suffix in {".cpp", ".h"}):
            total.update(path.read_bytes())
    return total.hexdigest()[:20]


class Reasons:
    """survivors.toml: by file, function, original and mutation, so that lines may move."""

    def __init__(self, path: pathlib.Path):
        listed = tomllib.loads(path.read_text())["survivor"] if path.exists() else []
        self.reasons = {
            (entry["file"], entry["function"], change): entry["reason"].strip()
            for entry in listed
            for change in entry["changes"]
        }

    def of(self, mutant: Mutant) -> str:
        return self.reasons.get(key(mutant), "")

    def outdated(self, mutants: Iterable[Mutant], file: str) -> list[str]:
        """Reasons, in files whose name contains `file`, that no mutant has any more."""
        there = {key(mutant) for mutant in mutants}
        return [
            f"{f} {where}: {what}"
            for f, where, what in self.reasons
            if file in f and (f, where, what) not in there
        ]


def key(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.file, mutant.function, f"{mutant.original} => {mutant.mutated or 'nothing'}"
