"""The scope and the checkpoint call, with the signatures people know."""

from collections.abc import Callable
from typing import Any

import torch

from retape import _C

PolicyLike = str | _C.Policy | Callable[[_C.ValueInfo], bool | str]

_REGION = _C.Policy.full().anchors(False)


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


def recompute(policy: PolicyLike = "full", name: str = "") -> _C.Scope:
    """A scope: what runs in it is recorded, what autograd saves in it may be dropped and replayed.

    >>> with retape.recompute("full", name="encoder") as rec:
    ...     loss = model(batch)
    >>> loss.backward()
    >>> rec.stats.ops_replayed

    policy: "none", "full", "cheap", a `Policy`, or a function `f(info) -> "keep" | "drop"`.
    name: of the region, for errors and reports.
    """
    return _C.Scope(as_policy(policy), name)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function` now, forget what it saved for backward, replay its ops when they are needed.

    The function runs once. Everything it touches besides its arguments (caches, generators, running
    statistics) is touched once. Under `torch.no_grad` this is a plain call.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    with _C.Scope(_REGION, ""):
        return function(*args, **kwargs)
