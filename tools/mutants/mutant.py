"""A mutant: one small change to one source, which a test should notice."""

import dataclasses
import enum
import hashlib


class Form(enum.Enum):
    """How the switch is written around the original."""

    FLIP = "flip"  # a condition: (mutant != condition)
    CHOOSE = "choose"  # an expression: (mutant ? mutated : original)
    DROP = "drop"  # a statement: if (!mutant) { statement }


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str  # as in src/tape/tape.cpp
    function: str
    kind: str
    form: Form
    start: int  # bytes; a statement's end is after its semicolon
    end: int
    line: int
    original: str
    mutated: str
    nth: int = 0  # among mutants of this function that read the same

    @property
    def key(self) -> str:
        """Its name over time: no line numbers."""
        nth = f" #{self.nth + 1}" if self.nth else ""
        return f"{self.file} {self.function}: {self.original} => {self.mutated or 'nothing'}{nth}"

    def digest(self, source: str) -> str:
        """Of the source with this change alone."""
        text = f"{source}\0{self.start}\0{self.end}\0{self.mutated}"
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def one_line(text: str) -> str:
    """Without line comments and line breaks, so that a copy of an expression adds no lines."""
    lines = [line.split("//")[0] if "\n" in text else line for line in text.split("\n")]
    return " ".join(" ".join(lines).split())
