"""verify: the same step plain and recomputed, compared bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import retape
from retape import _C, _choice, _tolerance
from retape._recompute import PolicyLike, as_policy
from retape._step import (
    LossLike,
    Maker,
    OptimizerLike,
    Step,
    made,
    same_python_numbers,
    same_state,
)
from retape._verdict import Verdict

Subject = nn.Module | Step | Callable[[], Any]


def verify(
    subject: Subject,
    inputs: Any = None,
    *,
    policy: PolicyLike | None | Sequence[PolicyLike | None] = "full",
    layers: _choice.LayersLike = None,
    method: str = "replay",
    loss: LossLike | None = None,
    steps: int = 1,
    optimizer: OptimizerLike | None = None,
    orders: bool = False,
    dtype: torch.dtype | str | None = None,
    tolerance: Mapping[torch.dtype | str, tuple[float, float]] | None = None,
    may_be_dead: str | Sequence[str] = (),
    regions: str | Sequence[str] = (),
    plain_twice: bool = True,
    warm_up: int | None = None,
    before_recompute: Callable[[], None] | None = None,
) -> Verdict | list[Verdict]:
    """Run a training step plain and recomputed, from the same state, and compare every bit.

    >>> retape.verify(model, batch, policy="cheap").raise_if_different()

    subject: a model, which is copied for every run; or a function without arguments that makes
        `(model, inputs)` or a `retape.Step`, called for every run with the same random numbers; or a
        `retape.Step` over objects that exist.
    inputs: of a model: a tuple or list, a dict of keyword arguments, or one tensor. Float tensors
        that require grad have their gradients compared too.
    policy: of a scope around forward, or of each layer. None: no scope is opened, for a step that calls
        `retape.checkpoint`, or has layers that are enabled. A list gives a list of verdicts.
    layers: as in `retape.enable`, on the copy; "auto" for the layers that `enable` finds itself. None:
        one scope around the whole forward. Vacuous if one of them is not recomputed; with "auto", if one
        is called and not recomputed.
    method: "replay"; or "rerun", which calls layers (or all of forward) again.
    loss: what to run backward from: `loss(output)`, one scalar or several by name. Without it: the
        output's `.loss`; or the output, if it is one number; or a weighed mean of every float tensor
        in it, each a loss of its own (element i weighs sin(0.7 i): a plain mean, or the mean square,
        is a constant behind a LayerNorm).
    steps: forward, backward and optimizer, so many times, compared after each.
    optimizer: makes one from a list of parameters; `torch.optim.SGD` with lr=0.1 where steps > 1.
    orders: also losses one by one in each order (of more than four: each first and last once), backward
        twice, two forwards then one backward.
    dtype: of a model's parameters and float inputs: torch.bfloat16, or "bfloat16".
    tolerance: `{torch.float32: (rtol, atol)}`, or `{"float32": ...}`; without it, bit for bit.
    may_be_dead: names of parameters that get no gradient, or zeros; "head.*" for all that begin so.
    regions: names that must have run and been recomputed.
    plain_twice: is the plain step equal to itself?
    warm_up: plain steps before the first that counts. Without it: 2 for a model with TorchScript in it,
        which is optimised in its first runs and may round otherwise afterwards; else none.
    before_recompute: called before each recomputed run. By then the plain step has ended.

    Equal means that outputs, losses, gradients, parameters, buffers and generators have the same bits, and that
    they might not have had: see `Verdict.vacuous`. An exception of the plain run passes through.
    """
    if isinstance(policy, (list, tuple)):
        if not policy:
            raise _C.UsageError(
                "[verify] expected a policy or several, got none of them: it would prove nothing."
            )
        options = {k: v for k, v in locals().items() if k not in ("subject", "inputs", "policy")}
        return [verify(subject, inputs, policy=each, **options) for each in policy]
    _check(steps, method, policy, layers)
    allowed = _tolerance.checked(tolerance)
    if steps > 1 and optimizer is None:
        optimizer = partial(torch.optim.SGD, lr=0.1)
    whole = layers is None
    reports: list[retape.Enabled] = []
    maker = Maker(
        loss,
        optimizer,
        _dtype(dtype),
        _nothing if whole else _enabler(reports, layers, policy, method),
        _rerun if whole and method == "rerun" else _call,
    )
    with contextlib.ExitStack() as stack:
        put_numbers_back = stack.enter_context(same_python_numbers())
        make = _starts(subject, inputs, maker, stack)

        def make_start() -> Any:
            if before_recompute is not None and not _C.is_eager():
                before_recompute()
            put_numbers_back()
            _take_out(reports)
            return make()

        stack.callback(_take_out, reports)
        if warm_up is None:
            warm_up = _usual_warm_up(subject)
        _warm_up(make_start, warm_up)
        verdict = _C.verify(
            make_start,
            policy=as_policy("full" if policy is None else policy),
            scope=whole and method == "replay" and policy is not None,
            steps=steps,
            orders=orders,
            plain_twice=plain_twice,
            tolerance=allowed,
            regions=_names(regions),
            may_be_dead=_names(may_be_dead),
        )
        for reason in _idle(reports, found_by_itself=layers == "auto"):
            verdict.add_vacuous(reason)
        return Verdict(verdict)


def _starts(
    subject: Subject, inputs: Any, maker: Maker, stack: contextlib.ExitStack
) -> Callable[[], Any]:
    if isinstance(subject, nn.Module):
        if inputs is None:
            raise _C.UsageError(
                "[verify] a model needs inputs. Fix: retape.verify(model, inputs); () for none."
            )
        return partial(maker.of_model, subject, inputs, copy=True)
    if inputs is not None:
        raise _C.UsageError(
            "[verify] inputs are for a model; a step or a function has its own. Fix: leave them out."
        )
    if isinstance(subject, Step):
        put_state_back = stack.enter_context(same_state(subject))

        def start() -> Any:
            put_state_back()
            return maker.of_step(subject)

        return start
    if not callable(subject):
        raise _C.UsageError(
            "[verify] expected a model, a retape.Step or a function that makes one, got "
            f"{type(subject).__name__}."
        )

    return lambda: maker.of_made(made(subject))


def _usual_warm_up(subject: Subject) -> int:
    scripted = (
        isinstance(m, torch.jit.ScriptModule) for each in _modules(subject) for m in each.modules()
    )
    return 2 if any(scripted) else 0


def _modules(subject: Subject) -> Sequence[nn.Module]:
    """Of a factory: those of what it makes. It is called once more for it, and leaves torch's generators."""
    if isinstance(subject, nn.Module):
        return [subject]
    if not isinstance(subject, Step):
        with torch.random.fork_rng():
            product = made(subject)
        if not isinstance(product, Step):
            return [product[0]]
        subject = product
    return subject.modules


def _warm_up(make_start: Callable[[], Any], steps: int) -> None:
    """Leaves torch's generators, which `_C.verify` looks after in its own runs, as they were."""
    for _ in range(steps):
        with torch.random.fork_rng(), retape.eager():
            losses, _ = make_start().forward()
            torch.autograd.backward([loss for _, loss in losses])


def _nothing(model: nn.Module) -> None:
    pass


def _call(forward: Callable[[], Any]) -> Any:
    return forward()


def _rerun(forward: Callable[[], Any]) -> Any:
    return retape.checkpoint(forward, method="rerun", name="forward")


def _enabler(
    reports: list[retape.Enabled],
    layers: _choice.LayersLike,
    policy: PolicyLike,
    method: str,
) -> Callable[[nn.Module], None]:
    chosen = None if isinstance(layers, str) and layers == "auto" else layers

    def switch_on(model: nn.Module) -> None:
        reports.append(retape.enable(model, chosen, policy, method))

    return switch_on


def _take_out(reports: list[retape.Enabled]) -> None:
    """Layers of a live step are those of the next start too. Their counts can still be read."""
    for report in reports:
        report.disable(warn=False)


def _idle(reports: list[retape.Enabled], found_by_itself: bool) -> list[str]:
    """Layers that recomputed nothing in any run, and why. Of those that nobody named, the ones that were
    called at all."""
    runs: dict[str, list[Any]] = {}
    for report in reports:
        for layer in report.layers:
            runs.setdefault(layer.name, []).append(layer)
    reasons: dict[str, list[str]] = {}
    for name, layers in runs.items():
        why = [layer.idle for layer in layers if not layer.was_eager]  # in plain runs all are
        was_called = any(layer.calls or layer.plain for layer in layers)
        if all(why) and (was_called or not found_by_itself):
            reasons.setdefault(why[0] if why else layers[0].idle, []).append(name)
    return [f"layers {_choice.some(names)}: {reason}" for reason, names in reasons.items()]


def _check(
    steps: int,
    method: str,
    policy: PolicyLike | None,
    layers: _choice.LayersLike,
) -> None:
    if steps < 1:
        raise _C.UsageError(f"[verify] expected steps of at least 1, got {steps}.")
    if method not in ("replay", "rerun"):
        raise _C.UsageError(f'[verify] expected method="replay" or "rerun", got {method!r}.')
    if policy is None and (layers is not None or method == "rerun"):
        raise _C.UsageError(
            "[verify] policy=None is for a step that recomputes by itself. Fix: leave layers and "
            "method out, or give a policy."
        )


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise _C.UsageError(
            f'[verify] expected a floating dtype, got {dtype!r}. Fix: "bfloat16", torch.float64...'
        )
    return found
