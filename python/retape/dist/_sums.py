"""Partial and Replicated values, and what may be done with them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from retape import _dist


def _refuse(what: str) -> NoReturn:
    raise TypeError(
        f"[{what}] a Replicated value in a sum would be counted once per rank. "
        "Fix: retape.dist.contribute_once(name, replicated, group)."
    )


@dataclass(frozen=True)
class Partial:
    """The sum over the ranks of the group is the answer."""

    value: torch.Tensor

    def __add__(self, other: Any) -> Partial:
        if isinstance(other, Replicated):
            _refuse("Partial + Replicated")
        return Partial(self.value + other.value) if isinstance(other, Partial) else NotImplemented

    def __mul__(self, factor: float) -> Partial:
        return Partial(self.value * factor)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Replicated:
    """Every rank of the group has the answer."""

    value: torch.Tensor

    def __add__(self, other: Any) -> Replicated:
        if isinstance(other, Partial):
            _refuse("Replicated + Partial")
        return Replicated(self.value + other.value) if isinstance(other, Replicated) else NotImplemented

    def __mul__(self, factor: float) -> Replicated:
        return Replicated(self.value * factor)

    __rmul__ = __mul__


class SumReducer(_dist.SumReducer):
    """Gradients of many parameters, summed over a group in few calls.

    bucket_bytes: of one call. wire: dtype in which tensors of floating point travel and are added; by default
        their own.
    check_finite: look at every partial first; one that is not finite raises on every rank, with rank and
        name.
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
        self._add(name, partial.value)

    def add_gradients(self, parameters: nn.Module | Iterable[tuple[str, torch.Tensor]]) -> None:
        """The gradient of each parameter. Where it is None on this rank and not on another, it counts as
        zeros, and is the sum afterwards; where on all, it stays None."""
        named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
        self._add_gradients([(name, p) for name, p in named if p.requires_grad])


def contribute_once(name: str, value: Replicated, group: _dist.Group, owner: int = 0) -> Partial:
    """The value on the rank whose index in the group is `owner`, zeros with the value's graph on the others."""
    if not isinstance(value, Replicated):
        raise TypeError(
            f"[contribute_once] {name!r}: expected a Replicated, got {type(value).__name__}. A Partial is "
            "contributed by every rank already."
        )
    return Partial(_dist.contribute_once(name, value.value, group, owner))


def count_global(name: str, local: int, group: _dist.Group) -> _dist.GlobalCount:
    """How many there are on all ranks together: the only denominator that `normalize` takes."""
    try:
        here = operator.index(local)
    except TypeError as error:
        raise TypeError(
            f"[count_global] {name!r}: expected an integer, got {local!r}. Fix: int(), if it is a whole number."
        ) from error
    return _dist.count_global(name, here, group)


def normalize(sum: torch.Tensor, count: _dist.GlobalCount, group: _dist.Group | None = None) -> Partial:
    """sum / count: this rank's part of the mean over all. group: over which it will be summed; a count of
    other ranks is then a UsageError."""
    if not isinstance(count, _dist.GlobalCount):
        raise TypeError(
            f"[normalize] expected a GlobalCount, got {type(count).__name__}: a mean over a rank's own items, "
            "summed or averaged over ranks, is not the mean over all. Fix: count_global(name, local, group)."
        )
    return Partial(_dist.normalize(sum, count, group))


def global_residual(name: str, local: torch.Tensor, group: _dist.Group) -> torch.Tensor:
    """The sum over the group, with the gradient of the local part.

    torch.distributed.nn.functional.all_reduce has the same value, and multiplies the gradient of a loss
    that every rank computes by the number of ranks.
    """
    return _dist.global_residual(name, local, group)


def clip_grad_norm(
    held: Iterable[tuple[Iterable[torch.Tensor], _dist.Group]],
    max_norm: float,
    everyone: _dist.Group,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> float:
    """Scales gradients in place so that their norm over all ranks is at most `max_norm`; returns the norm.

    held: parameters, and the group whose ranks all hold them: each distinct parameter counts once.
    """
    given = [(list(parameters), replicas) for parameters, replicas in held]
    return _dist.clip_grad_norm(given, max_norm, everyone, norm_type, error_if_nonfinite)
