"""Partial and Replicated values, and what may be done with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Number
from typing import Any, NoReturn, Self

import torch
from torch import nn

from retape import _C, _dist
from retape.dist._dtensor import is_dtensor, part_of


def _refuse(what: str) -> NoReturn:
    raise TypeError(
        f"[{what}] a Replicated value in a sum would be counted once per rank. "
        "Fix: retape.dist.contribute_once(name, replicated, group)."
    )


@dataclass(frozen=True)
class _Value:
    """Likes are added and subtracted; a factor is a number, or a tensor that is the same on all ranks."""

    value: torch.Tensor

    def __post_init__(self) -> None:
        if isinstance(self.value, _Value):
            own, inner = type(self).__name__, type(self.value).__name__
            fixes = {
                "Partial Replicated": "contribute_once(name, replicated, group)",
                "Replicated Partial": "Group.sum(name, partial), after which every rank has the answer",
            }
            raise TypeError(f"[{own}] expected a tensor, got a {inner}. Fix: {fixes.get(f'{own} {inner}', 'its .value')}.")

    def __add__(self, other: Any) -> Self:
        return self._with(other, "+", operator.add)

    def __radd__(self, other: Any) -> Self:
        if isinstance(other, int) and other == 0:
            return self  # where sum() begins
        return self._with(other, "+", operator.add, is_left=True)

    def __rsub__(self, other: Any) -> Self:
        return self._with(other, "-", operator.sub, is_left=True)

    def __sub__(self, other: Any) -> Self:
        return self._with(other, "-", operator.sub)

    def __neg__(self) -> Self:
        return type(self)(-self.value)

    def __mul__(self, factor: float | torch.Tensor) -> Self:
        return self._scaled(factor, "*", operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | torch.Tensor) -> Self:
        return self._scaled(divisor, "/", operator.truediv)

    def _with(
        self, other: Any, sign: str, of: Callable[[Any, Any], torch.Tensor], is_left: bool = False
    ) -> Self:
        """is_left: the other one."""
        if type(other) is type(self):
            return type(self)(of(self.value, other.value))
        kinds = [type(self).__name__, type(other).__name__]
        what = f" {sign} ".join(reversed(kinds) if is_left else kinds)
        if isinstance(other, _Value):
            _refuse(what)
        if isinstance(other, (Number, torch.Tensor)):
            raise TypeError(
                f"[{what}] a {kinds[1]} does not say what it is. Fix: Partial(tensor), if the sum over ranks is the "
                "answer; Replicated(tensor), if every rank has it, and contribute_once(name, replicated, group) in a sum."
            )
        return NotImplemented

    def _scaled(self, factor: Any, sign: str, of: Callable[[Any, Any], torch.Tensor]) -> Self:
        if isinstance(factor, (Number, torch.Tensor)):
            return type(self)(of(self.value, factor))
        what = f"{type(self).__name__} {sign} {type(factor).__name__}"
        raise TypeError(f"[{what}] expected a number or a tensor, got {type(factor).__name__}. {_fix(factor)}")


def _fix(factor: Any) -> str:
    if isinstance(factor, Partial):
        return "A sum of products is not the product of sums. Fix: global_residual of one of them."
    if isinstance(factor, Replicated):
        return "Fix: its .value, which every rank has in full."
    return "Fix: what is the same on all ranks."


class Partial(_Value):
    """The sum over the ranks of the group is the answer."""


class Replicated(_Value):
    """Every rank of the group has the answer."""


class SumReducer(_dist.SumReducer):
    """Gradients of many parameters, summed over a group in few calls.

    bucket_bytes: of one call. wire: dtype in which tensors of floating point travel and are added; by default
        their own.
    check_finite: look at every partial first, as it will travel; one that is not finite raises on every rank,
        with rank and name.
    ordered: ranks are added one after the other, as one process would; else in the order that the transport
        likes, with the same bits on all ranks too. It takes as many times a bucket's memory as there are ranks.
    """

    def add(self, name: str, partial: Partial) -> None:
        """Its tensor is written by reduce."""
        if isinstance(partial, Replicated):
            _refuse("SumReducer.add")
        if not isinstance(partial, Partial):
            raise TypeError(
                f"[SumReducer.add] {name!r}: expected a Partial, got {type(partial).__name__}. "
                "Fix: Partial(tensor), if the sum over ranks is the answer."
            )
        _refuse_dtensor(name, partial.value)
        self._add(name, partial.value)

    def add_gradients(self, parameters: nn.Module | Iterable[tuple[str, torch.Tensor]]) -> None:
        """The gradient of each parameter. Where it is None on this rank and not on another, it counts as
        zeros, and is the sum afterwards; where on all, it stays None."""
        named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
        given = [(name, p) for name, p in named if p.requires_grad]
        for name, parameter in given:
            _refuse_dtensor(name, parameter)
        self._add_gradients(given)


def _refuse_dtensor(name: str, tensor: torch.Tensor) -> None:
    if is_dtensor(tensor):
        raise _C.UsageError(
            f'[SumReducer] "{name}" is a DTensor: this rank has a part of it, which FSDP2 reduces by itself. '
            "Fix: fsdp_sums(model), and no SumReducer."
        )


def contribute_once(
    name: str,
    value: Replicated | Callable[[], Replicated],
    group: _dist.Group,
    owner: int = 0,
    *,
    like: torch.Tensor | None = None,
) -> Partial:
    """The value on the rank whose index in the group is `owner`, zeros with the value's graph on the others.

    value: or a function that computes it, which the owner alone calls. Others have zeros as large as `like`, a leaf
        that requires a gradient if `like` does, so that all of them can call backward.
    """
    if callable(value):
        if not isinstance(like, torch.Tensor):
            raise TypeError(
                f"[contribute_once] {name!r}: expected a tensor for like=, got {type(like).__name__}. Ranks that do "
                "not compute the value need its size. Fix: like=torch.zeros(()), if it is a loss."
            )
        return Partial(_dist.contribute_once(name, like, lambda: _replicated(name, value()), group, owner))
    return Partial(_dist.contribute_once(name, _replicated(name, value), group, owner))


def _replicated(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, Replicated):
        return value.value
    raise TypeError(
        f"[contribute_once] {name!r}: expected a Replicated, got {type(value).__name__}. A Partial is "
        "contributed by every rank already."
    )


def contribute_from(name: str, value: torch.Tensor, group: _dist.Group, owner: int = 0) -> Partial:
    """What one rank alone has, as a sum that ended there: its value on the rank whose index in the group is
    `owner`, zeros on the others, of whose tensors only the size counts."""
    _expect_tensor("contribute_from", value)
    return Partial(_dist.contribute_from(name, value, group, owner))


def _expect_tensor(function: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        fix = " Fix: its .value." if isinstance(value, _Value) else ""
        raise TypeError(f"[{function}] expected a tensor, got {type(value).__name__}.{fix}")


def _whole(function: str, name: str, local: int) -> int:
    try:
        return operator.index(local)
    except TypeError as error:
        raise TypeError(
            f"[{function}] {name!r}: expected an integer, got {local!r}. Fix: int(), if it is a whole number."
        ) from error


def count_global(name: str, local: int, group: _dist.Group) -> _dist.GlobalCount:
    """How many there are on all ranks together: the only denominator that `normalize` takes."""
    return _dist.count_global(name, _whole("count_global", name, local), group)


class StepCounts(_dist.StepCounts):
    """All that a step divides by, counted in one sum: `StepCounts(group, tokens=n, images=m)["tokens"]`.

    What was not counted, or is nowhere, is a UsageError when it is asked for; a count below zero at once, on
    every rank.
    """

    def __init__(self, group: _dist.Group, /, **local: int) -> None:
        super().__init__([(name, _whole("StepCounts", name, n)) for name, n in local.items()], group)


def normalize(sum: torch.Tensor, count: _dist.GlobalCount, group: _dist.Group | None = None) -> Partial:
    """sum / count: this rank's part of the mean over all. group: over which it will be summed; a count of
    other ranks is then a UsageError."""
    _expect_tensor("normalize", sum)
    if not isinstance(count, _dist.GlobalCount):
        raise TypeError(
            f"[normalize] expected a GlobalCount, got {type(count).__name__}: a mean over a rank's own items, "
            "summed or averaged over ranks, is not the mean over all. Fix: count_global(name, local, group)."
        )
    return Partial(_dist.normalize(sum, count, group))


def global_mean(name: str, sum: float | torch.Tensor, count: int, group: _dist.Group) -> float:
    """For logs: the sum over all ranks, divided by how many there are on all; the same number on each. No graph."""
    number = float(sum.detach() if isinstance(sum, torch.Tensor) else sum)
    return _dist.global_mean(name, number, _whole("global_mean", name, count), group)


def global_residual(name: str, local: torch.Tensor, group: _dist.Group) -> torch.Tensor:
    """The sum over the group, with the gradient of the local part.

    torch.distributed.nn.functional.all_reduce has the same value, and multiplies the gradient of a loss
    that every rank computes by the number of ranks. That one is right where each rank's loss is of its own
    rows and depends on the sum, as in a batch norm: global_residual leaves out what other ranks' rows
    contribute to the gradient.
    """
    _expect_tensor("global_residual", local)
    return _dist.global_residual(name, local, group)


def clip_grad_norm(
    held: Iterable[tuple[Iterable[torch.Tensor] | torch.Tensor, _dist.Group]],
    max_norm: float,
    everyone: _dist.Group,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scales gradients in place so that their norm over all ranks is at most `max_norm`; returns the norm.

    held: parameters (or one), and the group whose ranks all hold them: each distinct parameter counts once. What only
        this rank holds has `Group.alone(name)`. A DTensor (FSDP2, HSDP) says itself who holds what, and its
        group is not looked at: `clip_grad_norm([(model.parameters(), group)], 1.0, group)`.
    """
    given: list[tuple[list[torch.Tensor], _dist.Group, bool]] = []
    shard = _dist.Group.alone("shard")
    seen: set[int] = set()  # what is tied counts once
    for parameters, replicas in held:
        plain: list[torch.Tensor] = []
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            if not is_dtensor(parameter.grad):
                plain.append(parameter)
            elif id(parameter) not in seen:
                seen.add(id(parameter))
                part, is_counted_elsewhere = part_of(parameter)
                given.append(([part], shard, is_counted_elsewhere))
        given.append((plain, replicas, False))
    return _dist.clip_grad_norm(given, max_norm, everyone, norm_type, error_if_nonfinite)
