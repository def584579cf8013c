"""What `retape bench` measured, as it goes into the JSON artefact and into every renderer.

A run has subjects (a block or a model at one size and dtype), a subject has rows (one for each
method), a row has cells. What could not be measured is None, and `skipped` or `error` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

# Low quartile, median, high quartile.
Spread = tuple[float, float, float]

BITWISE, CLOSE, DIFFERENT = "bitwise", "close", "different"
ZERO = "all zero"  # equal, and no proof: every gradient is zero, plain's too
NAN = "all NaN"  # likewise: every gradient is NaN, or zero
UNSTABLE = "unstable"  # plain differs from itself: nothing can be compared with it
VACUOUS = (ZERO, NAN, UNSTABLE)
OURS = ("retape", "output discard")  # families that promise plain's gradients, bit for bit


@dataclass
class Row:
    """One method on one subject."""

    method: str  # "retape full": the name that is typed and shown
    family: str  # "plain", "retape", "torch", "output discard", "compile", "other"
    around: str = ""  # what it is wrapped around: "inner", "block", "model"
    peak: int | None = None  # bytes: parameters, input, gradients, activations, all of them
    held: int | None = None  # bytes of activations when backward began
    forward: Spread | None = None  # seconds
    backward: Spread | None = None
    total: Spread | None = None
    ratio: Spread | None = None  # of the total to plain's, round by round
    ratios: list[float] = field(default_factory=list)  # all of them
    gflop: float | None = None  # of matrix products, convolutions and fused attention
    equal: str | None = None  # gradients and buffers beside plain's: one of the five above
    differs: list[str] = field(default_factory=list)  # names of those that make it so
    replayed: int | None = None  # ops
    rounds: bool = False  # sums in another order: CLOSE is all that it promises
    skipped: str = ""  # why it was not run
    error: str = ""  # that it ended with

    @property
    def breaks_promise(self) -> bool:
        """Of Retape's own rows: it raised, or its gradients are not what they are said to be."""
        right = (None, *VACUOUS, BITWISE, *[CLOSE] * self.rounds)
        return self.family in OURS and (bool(self.error) or self.equal not in right)


@dataclass
class Event:
    """One allocation or free of a step, in order."""

    bytes: int  # negative: freed
    current: int  # live after it
    id: int  # the same for an allocation and its free
    kind: str  # when: "kept" (in forward), "replayed", "gradient" (in backward)
    op: str
    region: str = ""
    shape: str = ""  # "float32 [8, 512]": of the tensor that it is for, where that is known


@dataclass
class Timeline:
    method: str
    events: list[Event] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """A row of numbers for each event: there are thousands, with few words among them."""
        words: dict[str, int] = {}

        def number(word: str) -> int:
            return words.setdefault(word, len(words))

        rows = [
            [e.bytes, e.current, e.id, *(number(getattr(e, name)) for name in WORDS)]
            for e in self.events
        ]
        columns = ["bytes", "current", "id", *WORDS]
        return {"method": self.method, "columns": columns, "words": list(words), "rows": rows}


WORDS = ("kind", "op", "region", "shape")  # columns of an event that are numbers of words


def timeline_from(timeline: dict[str, Any]) -> Timeline:
    words, whose = timeline["words"], "a timeline"
    _check(timeline["method"], "method", "str", whose)
    _check(words, "words", "list[str]", whose)
    for row in timeline["rows"]:
        if not (_is_list_of(_is_int)(row) and len(row) == 3 + len(WORDS) and min(row[3:]) >= 0):
            raise WrongType(f"{_short(row)} as a row of the timeline of {timeline['method']!r}")
    events = [Event(*row[:3], *(words[number] for number in row[3:])) for row in timeline["rows"]]
    return Timeline(timeline["method"], events)


@dataclass
class Subject:
    """A block or a model at one size: everything in it was run on the same work."""

    name: str  # "swiglu"
    title: str  # "w2([silu(w1 x) * w3 x])": for people
    group: str  # "blocks" or "models"
    size: dict[str, Any]  # layers, dtype, d_model ...: of the memory columns
    time_size: dict[str, Any] | None = None  # where times and gradients are of another size
    rows: list[Row] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    # Of a model of the user's: names of what methods are wrapped around.
    layers: list[str] = field(default_factory=list)

    @property
    def plain(self) -> Row | None:
        return next((row for row in self.rows if row.family == "plain"), None)

    @property
    def key(self) -> str:
        """Tells it from the same block at another size: "swiglu, 8 layers, float32"."""
        layers = self.size.get("layers")
        parts = [
            self.name,
            f"{layers} layer{'s' * (layers != 1)}" if layers else "",
            self.size.get("dtype"),
        ]
        return ", ".join(str(part) for part in parts if part)


@dataclass
class Run:
    subjects: list[Subject] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        subjects = [
            {
                **asdict(replace(subject, timelines=[])),
                "timelines": [timeline.to_dict() for timeline in subject.timelines],
            }
            for subject in self.subjects
        ]
        return {"subjects": subjects, "warnings": list(self.warnings)}


def vacuity_warnings(run: Run) -> list[str]:
    """Of subjects whose gradients are right, or wrong, whatever a method does."""
    why = {
        ZERO: "every gradient is zero, plain's too: that they are equal proves nothing",
        NAN: "every gradient is NaN or zero, plain's too: that they are equal proves nothing",
        UNSTABLE: "two plain steps differ, so that nothing can be compared with them. Fix: seed what it draws from",
    }
    return [
        f"{subject.key}: {text}"
        for subject in run.subjects
        for equal, text in why.items()
        if any(row.equal == equal for row in subject.rows)
    ]


def saved(row: Row, plain: Row | None) -> float | None:
    """The part of plain's peak that is not needed: 0.43."""
    if row.peak is None or plain is None or not plain.peak:
        return None
    return 1 - row.peak / plain.peak


class WrongType(TypeError):
    """A field of an artefact that no bench wrote so; its text is what was got, and where."""


def run_from(result: dict[str, Any]) -> Run:
    """Back from an artefact's "result". LookupError or TypeError if that is not one of ours."""
    subjects = [
        _checked(
            Subject(
                **{
                    **subject,
                    "rows": [_checked(Row(**_spreads(row))) for row in subject["rows"]],
                    "timelines": [timeline_from(timeline) for timeline in subject["timelines"]],
                }
            )
        )
        for subject in result["subjects"]
    ]
    _check(result["warnings"], "warnings", "list[str]", "the run")
    return Run(subjects, list(result["warnings"]))


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    return _is_int(value) or (type(value) is float and math.isfinite(value))


def _is_list_of(is_one: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    def is_list(value: Any) -> bool:
        fits = isinstance(value, (list, tuple)) and length in (None, len(value))
        return fits and all(map(is_one, value))

    return is_list


# By the annotations above: what it is in words, and whether a value is one.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", _is(str)),
    "bool": ("true or false", _is(bool)),
    "int": ("a whole number", _is_int),
    "float": ("a finite number", _is_number),
    "Spread": ("three numbers", _is_list_of(_is_number, 3)),
    "list[float]": ("numbers", _is_list_of(_is_number)),
    "list[str]": ("texts", _is_list_of(_is(str))),
    "dict[str, Any]": ("names and values", _is(dict)),
}


def _check(value: Any, name: str, annotation: str, whose: str) -> None:
    wanted = annotation.removesuffix(" | None")
    if wanted not in _TYPES or (value is None and wanted != annotation):
        return
    words, is_one = _TYPES[wanted]
    if not is_one(value):
        raise WrongType(f"{_short(value)} as {name!r} of {whose}, which is {words}")


def _checked(made: Any) -> Any:
    whose = f"the row {made.method!r}" if isinstance(made, Row) else f"the subject {made.name!r}"
    for each in fields(made):
        _check(getattr(made, each.name), each.name, each.type, whose)
    return made


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _spreads(row: dict[str, Any]) -> dict[str, Any]:
    measured = ("forward", "backward", "total", "ratio")
    return {name: tuple(cell) if name in measured and cell else cell for name, cell in row.items()}
