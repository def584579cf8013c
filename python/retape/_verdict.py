"""The verdict of `retape.verify`, for people and for JSON."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from retape import _C

_DIFFERENCE = "order step what name differing elements ulps first plain recomputed".split()
_FINDING = "kind op region source what".split()
_KEPT = "op values bytes".split()
_LISTS = ("differences", "findings", "kept_ops")
_COUNTS = "tensors_compared values_checked ops_replayed reruns".split()
_TEXTS = "orders skipped vacuous".split()
_FIELDS = {*_LISTS, *_COUNTS, *_TEXTS, "kind", "error", "with_tolerance"}


class Verdict:
    """What came of it. True if equal, and it could have come out otherwise.

    kind: "equal", "different" or "vacuous".
    differences: tensors that are not the same: what, name, how many elements, how far, the first.
    findings: what replay did not do as forward did; the first one is where it came from.
    vacuous: why nothing was proved: nothing was replayed, a gradient is missing in both runs...
    error: that the recomputed run ended with.
    kept_ops: custom ops whose results are kept, and the bytes that `retape.replayable` would drop.
    orders: of backward that were compared.
    skipped: orders in which both runs raise, with the plain one's text.
    with_tolerance: it was not bit for bit.
    tensors_compared, values_checked, ops_replayed, reruns: counts.
    """

    def __init__(self, verdict: _C.Verdict) -> None:
        self._verdict = verdict

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(self._verdict, name)
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_FIELDS})

    def explain(self) -> str:
        """Lines for people."""
        return self._verdict.explain().rstrip()

    def raise_if_different(self) -> None:
        """ReplayMismatch if different, Error if vacuous: only a proof passes."""
        if self.kind == "different":
            raise _C.ReplayMismatch(f"[verify] {self.explain()}")
        if self.kind == "vacuous":
            raise _C.Error(f"[verify] {self.explain()}")

    def to_dict(self) -> dict[str, Any]:
        """What goes into JSON."""
        return {
            "kind": self.kind,
            **{name: getattr(self, name) for name in _COUNTS},
            "with_tolerance": self.with_tolerance,
            **{name: list(getattr(self, name)) for name in _TEXTS},
            "error": self.error,
            "differences": [{n: getattr(d, n) for n in _DIFFERENCE} for d in self.differences],
            "findings": [{n: getattr(f, n) for n in _FINDING} for f in self.findings],
            "kept_ops": [{n: getattr(k, n) for n in _KEPT} for k in self.kept_ops],
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, it is what it says."""
        return _told, (self.to_dict(), self.explain())

    def __bool__(self) -> bool:
        return self.kind == "equal"

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"<retape.Verdict {self.kind}: {self.tensors_compared} tensors>"


def _told(said: dict[str, Any], text: str) -> Verdict:
    lists = {name: [SimpleNamespace(**each) for each in said[name]] for name in _LISTS}
    return Verdict(SimpleNamespace(**{**said, **lists}, explain=lambda: text))
