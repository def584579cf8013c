"""The scope, and policies by whatever name they are given."""

from collections.abc import Callable
from typing import Any

from retape import _C

PolicyLike = str | _C.Policy | Callable[[_C.ValueInfo], bool | str]

# What a region is unless somebody says otherwise: all is dropped but what it was given.
REGION = _C.Policy.full().anchors(False)


def as_policy(policy: PolicyLike) -> _C.Policy:
    if isinstance(policy, _C.Policy):
        return policy
    if isinstance(policy, str):
        return _C.Policy.named(policy)
    if callable(policy):
        return _C.Policy.function(policy)
    raise _C.UsageError(
        f"[recompute] expected a policy name, a Policy or a function, got {type(policy).__name__}. "
        'Fix: "none", "full", "cheap", retape.Policy.full()..., or f(info) -> "keep" | "drop".'
    )


def eager() -> _C.Eager:
    """While it is entered, on this thread, every front end of Retape is a plain call.

    >>> with retape.eager():
    ...     loss = model(batch)  # its scopes, checkpoints and enabled layers recompute nothing
    """
    return _C.Eager()


def recompute(
    policy: PolicyLike = "full", name: str = "", lean: bool = True, timed: bool = False
) -> _C.Scope:
    """A scope: what runs in it is recorded, what autograd saves in it may be dropped and replayed.

    >>> with retape.recompute("full", name="encoder") as rec:
    ...     loss = model(batch)
    >>> loss.backward()
    >>> rec.stats.ops_replayed

    policy: "none", "full", "cheap", a `Policy`, or a function `f(info) -> "keep" | "drop"`.
    name: of the region, for errors and reports.
    lean: backward nodes that let go of what they have used; False: torch's own.
    timed: count `stats.replay_ns`, the time that backward spends in replay.
    """
    chosen = as_policy(policy)
    return _C.Scope(chosen if lean else chosen.lean(False), name, timed)


def replayable(op: Any) -> None:
    """Says that a custom op is a function of its arguments and of torch's generators.

    >>> retape.replayable("mylib::fused_norm")
    >>> retape.replayable(torch.ops.mylib.scan.chunked)

    Results of ops outside of torch are kept otherwise: nothing in a schema says whether an op counts its
    calls or writes to a cache. If the op moves the default generator of its device, it is replayed with
    the state that it found.

    op: "library::op" (every overload), "library::op.overload", an object of `torch.ops`, or what
        `torch.library.custom_op` returned.
    """
    _C.replayable(getattr(op, "_opoverload", op))
