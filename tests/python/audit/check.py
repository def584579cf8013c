"""One call of one overload, run on copies of its arguments, and what that shows of its effects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from .effects import Effects, effects_of
from .memory import Copier, covers, fill, has_bytes, poison, raw, tensors_in, visible
from .variants import is_out

PATTERNS = (0x00, 0xFF)  # what an overwritten argument holds before: zeros; NaN, -1, True
POISONS = (0x5A, 0xC3)
CALLS = 6  # of one overload, each with another signature
LARGEST = 1 << 20  # bytes of all arguments


@dataclass
class Report:
    """What a run found and counted. Adds up over child processes."""

    findings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)  # by overload
    signatures: dict[str, set[str]] = field(default_factory=dict)
    hidden: dict[str, dict[str, bool]] = field(
        default_factory=dict
    )  # argument: may it be replayed?
    written: dict[str, dict[str, set[str]]] = field(
        default_factory=dict
    )  # argument: what it counts as
    uninitialized: set[str] = field(default_factory=set)
    survives: set[str] = field(
        default_factory=set
    )  # writes, and something of the old content stays
    replaced: set[str] = field(default_factory=set)  # writes, and nothing of it stays
    composites: set[str] = field(default_factory=set)  # ran as the ops they call
    errors: dict[str, str] = field(default_factory=dict)  # the last one, of overloads that raised

    def add(self, other: Report) -> None:
        self.findings += other.findings
        self.notes += other.notes
        self.counts += other.counts
        self.calls += other.calls
        for name, keys in other.signatures.items():
            self.signatures.setdefault(name, set()).update(keys)
        for name, arguments in other.hidden.items():
            self.hidden.setdefault(name, {}).update(arguments)
        for name, arguments in other.written.items():
            for argument, kinds in arguments.items():
                self.written.setdefault(name, {}).setdefault(argument, set()).update(kinds)
        self.uninitialized |= other.uninitialized
        self.survives |= other.survives
        self.replaced |= other.replaced
        self.composites |= other.composites
        self.errors |= other.errors

    def special(self) -> set[str]:
        """Overloads that docs/proofs.md names: not all of their arguments and results are as usual."""
        return (
            set(self.hidden)
            | self.uninitialized
            | {
                name
                for name, arguments in self.written.items()
                for argument, kinds in arguments.items()
                if kinds != {"overwritten" if is_out(name, argument) else "updated"}
            }
        )


def _place(op: Any) -> dict[str, int]:
    return {a.name: i for i, a in enumerate(op._schema.arguments)}


def by_position(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any]:
    places = _place(op)
    return dict(enumerate(args)) | {
        places[name]: value for name, value in kwargs.items() if name in places
    }


def _kind(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        return f"{x.dtype}{'[]' if x.dim() else ''}".removeprefix("torch.")
    if x is None or isinstance(x, (bool, str)):
        return repr(x)
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(sorted({_kind(item) for item in x}))}]"
    return type(x).__name__


def signature(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    names = [a.name for a in op._schema.arguments]
    given = by_position(op, args, kwargs)
    return ", ".join(f"{names[i]}={_kind(given[i])}" for i in sorted(given))


def _tensor_types(op: Any) -> bool:
    return any("Tensor" in str(r.type) for r in op._schema.returns)


class ReachedOutside(Exception):
    """The op wrote outside of its arguments: they do not fit each other, and show nothing."""


def _refuses_to_resize(error: Exception) -> bool:
    return "not resizable" in str(error) or "cannot resize" in str(error).lower()


class Checker:
    def __init__(self, seen: dict[str, set[str]] | None = None, calls: int = CALLS) -> None:
        self.report = Report()
        self._seen = seen or {}  # signatures that were called before, elsewhere
        self._calls = calls

    def wants(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Another signature of this overload, as long as it has not been called often."""
        name = op.name()
        seen = self.report.signatures.get(name, set()) | self._seen.get(name, set())
        if len(seen) >= self._calls or signature(op, args, kwargs) in seen:
            return False
        return sum(x.untyped_storage().nbytes() for x in tensors_in((args, kwargs))) <= LARGEST

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the op on copies and checks it. Raises what the op raises."""
        rng = torch.get_rng_state()
        try:
            with torch.no_grad():
                self._resizable: Any = ()
                try:
                    return self._call(op, args, kwargs, rng)
                except RuntimeError as error:
                    if not _refuses_to_resize(error):
                        raise
                    self._resizable = [
                        value
                        for place, value in by_position(op, args, kwargs).items()
                        if op._schema.arguments[place].alias_info
                    ]
                    torch.set_rng_state(rng)
                    return self._call(op, args, kwargs, rng)
        finally:
            poison(0)
            torch.set_rng_state(rng)

    def _call(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rng: torch.Tensor
    ) -> Any:
        effects = effects_of(op, args, kwargs)
        copier = Copier(self._resizable)
        args_, kwargs_ = copier((args, kwargs))
        before = self._snapshot(op, args_, kwargs_)
        result = op(*args_, **kwargs_)
        if copier.reached_outside():
            self.report.counts["calls that wrote outside of their arguments"] += 1
            raise ReachedOutside(op.name())
        name, key = op.name(), signature(op, args, kwargs)
        self.report.calls[name] += 1
        self.report.signatures.setdefault(name, set()).add(key)
        self._compare_writes(op, key, effects, before)
        if torch.Tag.inplace_view not in op.tags:
            self._compare_runs(op, key, effects, args, kwargs, rng)
        return result

    def _snapshot(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        given = by_position(op, args, kwargs)
        return [
            (place, x.untyped_storage(), raw(x.untyped_storage()))
            for place, value in sorted(given.items())
            for x in tensors_in(value)
        ]

    def _compare_writes(self, op: Any, key: str, effects: Effects, before: list[Any]) -> None:
        report = self.report
        known = {storage._cdata for place, storage, _ in before if place in effects.writes}
        declared = {
            i for i, a in enumerate(op._schema.arguments) if a.alias_info and a.alias_info.is_write
        }
        theirs = {storage._cdata for place, storage, _ in before if place in declared}
        report.counts["arguments compared"] += len(before)
        for place in {place for place, _, _ in before} & (declared | effects.writes):
            kinds = report.written.setdefault(op.name(), {}).setdefault(
                op._schema.arguments[place].name, set()
            )
            kinds.add(effects.kind(place))
        for place, storage, content in before:
            if raw(storage) == content:
                continue
            if storage._cdata not in theirs:
                argument = op._schema.arguments[place].name
                report.hidden.setdefault(op.name(), {})[argument] = effects.recipe
            if storage._cdata not in known:
                self._finding("written, not known", op, key, place)

    def _run(
        self,
        op: Any,
        args: Any,
        kwargs: Any,
        rng: torch.Tensor,
        filled: frozenset[int],
        pattern: int,
        byte: int,
    ) -> list[bytes]:
        """Bytes that can be seen afterwards: of results, of filled arguments' storages, of the written."""
        args, kwargs = Copier(self._resizable)((args, kwargs))
        given = by_position(op, args, kwargs)
        for place in filled:
            for x in tensors_in(given[place]):
                fill(x, pattern)
        torch.set_rng_state(rng)
        poison(byte)
        try:
            result = op(*args, **kwargs)
        finally:
            poison(0)
        results = [visible(x) for x in tree_flatten(result)[0] if has_bytes(x)]
        written = [
            [visible(x) for x in tensors_in(given[i])]
            for i, a in enumerate(op._schema.arguments)
            if a.alias_info and a.alias_info.is_write and i in given
        ]
        return results + sum(written, [])

    def _compare_runs(
        self, op: Any, key: str, effects: Effects, args: Any, kwargs: Any, rng: torch.Tensor
    ) -> None:
        report, name = self.report, op.name()
        given = by_position(op, args, kwargs)
        owners = Counter(x.untyped_storage()._cdata for x in tensors_in((args, kwargs)))

        def fillable(place: int) -> bool:
            tensors = list(tensors_in(given.get(place)))
            return bool(tensors) and all(
                covers(x) and owners[x.untyped_storage()._cdata] == 1 and x.numel() for x in tensors
            )

        filled = frozenset(i for i in effects.overwrites if fillable(i))
        others = frozenset(i for i in effects.writes - effects.overwrites if fillable(i))

        def run(places: frozenset[int], pattern: int, byte: int) -> list[bytes]:
            return self._run(op, args, kwargs, rng, places, PATTERNS[pattern], POISONS[byte])

        if filled:
            report.counts["overwrites checked"] += 1
        if _tensor_types(op):
            report.counts["results checked for unwritten memory"] += 1
        if not filled and not _tensor_types(op) and not others:
            return
        first, second = run(filled, 0, 0), run(filled, 1, 1)
        if first != second:
            if first != run(filled, 0, 0):
                report.notes.append({"what": "differs from itself", "op": name, "call": key})
                return
            if first != run(filled, 0, 1):
                report.uninitialized.add(name)
                if effects.recipe and not effects.uninitialized:
                    self._finding("unwritten memory in a result", op, key, -1)
            for place in filled if effects.recipe else ():  # only replay makes use of it
                if run(frozenset({place}), 0, 0) != run(frozenset({place}), 1, 0):
                    self._finding("old content survives", op, key, place)
        if others:
            try:
                same = run(others, 0, 0) == run(others, 1, 0)
            except Exception:
                same = False  # its content is needed
            (report.replaced if same else report.survives).add(name)

    def _finding(self, what: str, op: Any, key: str, place: int) -> None:
        argument = op._schema.arguments[place].name if place >= 0 else ""
        self.report.findings.append(
            {"what": what, "op": op.name(), "argument": place, "name": argument, "call": key}
        )
