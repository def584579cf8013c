"""torch.utils.checkpoint's calls, by replay or by running the function again."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._device import DeviceContext

from retape import _C
from retape._given import Given, Specs, flatten, unflatten
from retape._recompute import REGION, PolicyLike, as_policy
from retape._sabotage import sabotaged
from retape._selective import policy_of

Tensor = torch.Tensor
Contexts = tuple[AbstractContextManager, AbstractContextManager]

_METHODS = ("replay", "rerun")
_CHECKS = ("default", "none")
_NOTHING = nullcontext()


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    method: str = "replay",
    policy: PolicyLike | None = None,
    rows: int | _C.Rows | None = None,
    name: str = "",
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] | None = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Call `function` now, forget what it saved for backward, bring that back when it is needed.

    method="replay" runs the function once; backward replays the ops that it called, from what it
    was given. Caches, generators, running statistics and whatever else it touches are touched once.
    `policy` says what is kept inside (default: nothing); `context_fn` of selective checkpointing
    becomes such a policy. Of any other `context_fn` only the first context is entered, with a warning
    unless the second is a nullcontext or autocast. `use_reentrant`, `preserve_rng_state` and
    `early_stop` make no difference.

    method="rerun" calls the function again in backward, for kernels that the dispatcher does not
    see. It then finds the generators it drew from, autocast, SDPA and deterministic settings, the
    default dtype and device, the grad mode and Hugging Face caches as they were, and tensors from
    outside that it writes are put back afterwards. What it saves is compared, bit for bit, with what
    it saved in forward: a difference raises ReplayMismatch (determinism_check="none" does not compare).
    preserve_rng_state=False leaves generators alone: safe where nothing is random, a mismatch where
    something is. use_reentrant=True holds no graph, compares outputs only, and runs a backward of its
    own inside backward; tensors in containers and in keyword arguments get gradients too.

    rows=8 runs backward in 8 slices of rows (tokens: the leading dimensions, all but the last, of the
    first floating-point argument), so that the inside of the function is there one slice at a time.
    **Gradients are then equal to rounding, NOT bit for bit**: sums over rows (gradients of weights) are
    added up slice by slice, in float32. `retape.verify` needs a tolerance. Where an op does not treat
    rows apart (attention, batch norm, dropout), the call is replayed whole, bit for bit, and a warning
    says why; `retape.Rows(8, strict=True)` raises instead, and `Rows.stats` counts. create_graph=True
    raises.

    Under `torch.no_grad` and under `retape.eager` this is a plain call.
    """
    if method not in _METHODS:
        raise _C.UsageError(
            f'[checkpoint] no method is called "{method}": expected "replay" or "rerun". '
            "Fix: use one of these."
        )
    if determinism_check not in _CHECKS:
        raise ValueError(
            f"determinism_check should be one of {list(_CHECKS)}, but got {determinism_check}"
        )
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if _C.is_eager():
        return _plain(function, args, kwargs, context_fn)
    if rows is not None:
        if method != "replay" or context_fn is not None:
            raise _C.UsageError(
                '[checkpoint] rows are a way of replay: method="rerun" and context_fn have none. '
                'Fix: method="replay" without context_fn.'
            )
        return in_rows(function, args, kwargs, rows, policy, name)
    if method == "replay":
        return _replay(function, args, kwargs, policy, name, context_fn)
    if policy is not None:
        raise _C.UsageError(
            '[checkpoint] a policy chooses what replay keeps; method="rerun" has none. '
            'Fix: method="replay", or context_fn for selective checkpointing.'
        )
    if torch_checkpoint._enable_checkpoint_early_stop is not None:
        early_stop = torch_checkpoint._enable_checkpoint_early_stop
    if torch_checkpoint._checkpoint_debug_enabled is not None:
        debug = torch_checkpoint._checkpoint_debug_enabled
    options = _C.RerunOptions(
        name, preserve_rng_state, early_stop, determinism_check == "default", debug
    )
    if use_reentrant:
        if context_fn is not None or debug:
            raise ValueError(
                "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
            )
        return _reentrant(function, args, kwargs, options, name)
    return _rerun(function, args, kwargs, options, context_fn)


def checkpoint_sequential(
    functions: torch.nn.Sequential | Iterable[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **options: Any,
) -> Any:
    """Run `functions` one after another, in `segments` checkpointed pieces; the last is plain.

    options: those of `checkpoint`.
    """
    if isinstance(functions, torch.nn.Sequential):
        functions = functions.children()
    steps = list(functions)
    size = len(steps) // segments

    def piece(start: int, end: int) -> Callable[[Any], Any]:
        def forward(value: Any) -> Any:
            for step in steps[start:end]:
                value = step(value)
            return value

        return forward

    last = size * (segments - 1)
    for start in range(0, last, size):
        run = piece(start, start + size)
        input = checkpoint(run, input, use_reentrant=use_reentrant, **options)
    return piece(last, len(steps))(input)


def _plain(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    context_fn: Callable[[], Contexts] | None,
) -> Any:
    """As forward: in the caller's own context, but not in one that only chooses what is saved."""
    context = nullcontext() if context_fn is None else context_fn()[0]
    with nullcontext() if policy_of(context) else context:
        return function(*args, **kwargs)


def _is_idle_in_replay(second: Any) -> bool:
    """The recompute half does nothing that replay lacks: selective, or casts, which replay repeats."""
    selective = isinstance(second, torch_checkpoint._CachedTorchDispatchMode)
    return selective or type(second) in (nullcontext, torch.autocast)


def _replay(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    policy: PolicyLike | None,
    name: str,
    context_fn: Callable[[], Contexts] | None,
) -> Any:
    rule = REGION if policy is None else as_policy(policy)
    if context_fn is None:
        with _C.Scope(rule, name):
            return function(*args, **kwargs)
    context, second = context_fn()
    selective = policy_of(context)
    if selective is not None:
        rule, context = selective, _NOTHING
    if not _is_idle_in_replay(second):
        _warn_not_entered(type(second))
    with _C.Scope(rule, name), context:
        return function(*args, **kwargs)


@functools.cache  # once for each kind of context
def _warn_not_entered(kind: type) -> None:
    warnings.warn(
        "[checkpoint] replay does not enter the second context of context_fn, a "
        f"{kind.__module__}.{kind.__qualname__}: it does not run the function again. Gradients do not "
        'depend on that; what the context does besides is not done. Fix: method="rerun", if it must '
        "be entered; contextlib.nullcontext() as the second context, if not.",
        stacklevel=4,
    )


def as_rows(who: str, rows: int | _C.Rows) -> _C.Rows:
    if isinstance(rows, _C.Rows):
        return rows
    if not isinstance(rows, int) or isinstance(rows, bool):
        raise _C.UsageError(
            f"[{who}] rows: expected a number of slices or a retape.Rows, got {rows!r}. Fix: rows=8."
        )
    return _C.Rows(rows)


def in_rows(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    rows: int | _C.Rows,
    policy: PolicyLike | None,
    name: str,
) -> Any:
    """One call whose backward goes slice by slice, where its ops allow that."""
    rows = as_rows("checkpoint", rows)
    rule = REGION if policy is None else as_policy(policy)
    given = [leaf for leaf in flatten((*args, *kwargs.values()))[0] if isinstance(leaf, Tensor)]
    scope = _C.RowsScope(rows, rule, name, given)
    try:
        leaves, specs = flatten([function(*args, **kwargs)])
        outputs = iter(scope.finish([leaf for leaf in leaves if isinstance(leaf, Tensor)]))
    finally:
        scope.close()
    if scope.warning:
        warnings.warn(scope.warning, stacklevel=3)
    wired = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return unflatten(wired, specs)[0]


def _default_device() -> AbstractContextManager:
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode
    return _NOTHING


def _rerun(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    options: _C.RerunOptions,
    context_fn: Callable[[], Contexts] | None,
) -> Any:
    given = Given(args, kwargs)
    forward, backward = (_NOTHING, _NOTHING) if context_fn is None else context_fn()
    device = _default_device()

    def again(tensors: list[Tensor]) -> None:
        with backward, sabotaged(device):
            given.call(function, tensors)

    with _C.RerunScope(options, given.give_up_tensors(), again), forward:
        return function(*args, **kwargs)


def _reentrant(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    options: _C.RerunOptions,
    name: str,
) -> Any:
    given = Given(args, kwargs)
    if given.caches:  # the loss would be right, without a word
        region = f'region "{name}"' if name else "the function"
        raise _C.UsageError(
            f"[checkpoint] {region} was given a cache: with use_reentrant=True what it writes there "
            'gets no gradient. Fix: use_reentrant=False, use_cache=False, or method="replay".'
        )
    device = _default_device()
    first: list[tuple[list[Any], Specs]] = []  # emptied when forward has its results
    called: list[bool] = []

    def body(tensors: list[Tensor]) -> list[Tensor]:
        with sabotaged(device) if called else device:
            leaves, specs = flatten([given.call(function, tensors)])
        if not called:
            called.append(True)
            first.append((leaves, specs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    outputs = iter(_C.reentrant(options, given.give_up_tensors(), body))
    leaves, specs = first.pop()
    wired = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return unflatten(wired, specs)[0]
