"""One enabled layer: how it is run, and what was counted. `retape.layers` puts it into models."""

from __future__ import annotations

import types
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import torch

import retape
from retape import _C
from retape._checkpoint import as_rows, in_rows
from retape._given import call_with
from retape._recompute import REGION, PolicyLike, as_policy

COUNTS = (
    "ops_recorded values_saved values_kept values_dropped bytes_kept bytes_given bytes_dropped "
    "anchors bytes_anchored ops_replayed"
).split()
_counts = attrgetter(*COUNTS)
_GRAPHS = 64  # of one layer that may wait for backward and still have their replays counted

_WHY = {
    "no_grad": "called without gradients only",
    "eager": "called under retape.eager() only",
    "eval": "called in eval mode only (model.train(), or in_eval=True)",
    "huggingface": "called inside Hugging Face's own checkpointing (gradient_checkpointing_disable)",
}


class Slices(NamedTuple):
    """What `retape.Rows` is told; unlike it, a copy counts nothing and can be pickled."""

    slices: int
    strict: bool = False

    @staticmethod
    def of(rows: int | _C.Rows | None) -> Slices | None:
        if rows is None:
            return None
        made = as_rows("enable", rows)
        return Slices(made.slices, made.strict)


@dataclass(frozen=True)
class How:
    """How layers are run. Immutable: copies of a model share it."""

    policy: PolicyLike = "full"
    method: str = "replay"
    in_eval: bool = False
    rerun: dict[str, Any] = field(default_factory=dict)
    rows: Slices | None = None

    def __post_init__(self) -> None:
        if self.method not in ("replay", "rerun"):
            raise _C.UsageError(
                f'[enable] expected method="replay" or "rerun", got {self.method!r}.'
            )
        if self.method == "rerun" and self.policy != "full":
            raise _C.UsageError(
                f'[enable] policy={self.policy!r} with method="rerun", which forgets all of a layer. '
                'Fix: leave the policy out, or method="replay".'
            )
        if self.method == "rerun" and self.rows is not None:
            raise _C.UsageError(
                '[enable] rows are a way of replay: method="rerun" has none. Fix: one of the two.'
            )
        if self.method == "replay" and self.rerun:
            raise _C.UsageError(
                f"[enable] options of a second call, {', '.join(self.rerun)}, with "
                'method="replay", which calls nothing twice. Fix: leave them out, or method="rerun".'
            )
        self.region_policy()

    def region_policy(self) -> _C.Policy:
        return REGION if self.policy == "full" else as_policy(self.policy)

    def __deepcopy__(self, memo: dict[int, Any]) -> How:
        return self


class Layer:
    def __init__(self, name: str, how: How) -> None:
        self.name = name
        self.how = how
        self.calls = 0  # with a region
        self.forwards = 0  # of those; in backward too, with method="rerun"
        self.plain: Counter[str] = Counter()  # calls without a region, by the reason
        self.rows = None if how.rows is None else _C.Rows(*how.rows)
        self._policy = how.region_policy()
        self._scopes: deque[_C.Scope] = deque()  # their graphs may still replay
        self._earlier = (0,) * len(COUNTS)  # counts of scopes before those
        self._earlier_kept: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return Layer, (self.name, self.how)  # a copy counts from 0

    def run(
        self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any], why: str
    ) -> Any:
        """Call `function` in a region; plain if there is a reason `why`, one of `_WHY`."""
        if torch.compiler.is_compiling():  # compiled code decides for itself what it saves
            return function(*args, **kwargs)
        why = why if torch.is_grad_enabled() else "no_grad"
        why = "eager" if _C.is_eager() else why
        if why:
            self.plain[why] += 1
            return function(*args, **kwargs)
        self.calls += 1
        if self.how.method == "rerun":
            return self._rerun(function, args, kwargs)
        self.forwards += 1
        if self.rows is not None:
            return in_rows(function, args, kwargs, self.rows, self._policy, self.name)
        with self._scope():
            return function(*args, **kwargs)

    def _scope(self) -> _C.Scope:
        scope = _C.Scope(self._policy, self.name)
        self._scopes.append(scope)
        if len(self._scopes) > _GRAPHS:
            oldest = self._scopes.popleft()
            self._earlier = _sum((self._earlier, _counts(oldest.stats)))
            self._earlier_kept += _kept(oldest)
        return scope

    def _rerun(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        names = tuple(kwargs)

        def forward(*values: Any) -> Any:
            self.forwards += 1
            return call_with(function, values, names)

        return retape.checkpoint(
            forward, *args, *kwargs.values(), method="rerun", name=self.name, **self.how.rerun
        )

    @property
    def stats(self) -> types.SimpleNamespace:
        """The counts of `retape.Stats`, summed over calls."""
        total = _sum((self._earlier, *(_counts(scope.stats) for scope in tuple(self._scopes))))
        counts = dict(zip(COUNTS, total, strict=True))
        if self.rows is not None:
            counts["ops_replayed"] += self.rows.stats.ops_replayed
        return types.SimpleNamespace(**counts)

    @property
    def kept_ops(self) -> Counter[str]:
        """Custom ops whose results were kept: the bytes that `retape.replayable` would let go of."""
        return sum(map(_kept, tuple(self._scopes)), self._earlier_kept)

    @property
    def was_eager(self) -> bool:
        """Whether all its calls were plain because of `retape.eager()`."""
        return not self.calls and set(self.plain) == {"eager"}

    @property
    def idle(self) -> str:
        """Why nothing of this layer was forgotten so far; empty if something was."""
        if self.calls:
            forgot = (
                self.rows is not None or self.how.method == "rerun" or self.stats.values_dropped > 0
            )
            return "" if forgot else "nothing that autograd saved in it was dropped"
        return _WHY[self.plain.most_common(1)[0][0]] if self.plain else "never called"

    def __repr__(self) -> str:
        return f"<retape layer {self.name}: {self.calls} calls>"


def _kept(scope: _C.Scope) -> Counter[str]:
    return Counter({kept.op: kept.bytes for kept in scope.kept_ops})


def _sum(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))
