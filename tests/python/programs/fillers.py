"""What a step may be filled with: the values there are, and fillers that choose among them.

A filler returns the holes of a step as a dict: one letter for a tensor's name, longer names for
plain attributes. It raises NoFit where no value suits.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import torch

Test = Callable[[torch.Tensor], bool]
Filler = Callable[["Values"], dict[str, Any]]
LIMIT = 4096  # elements: larger results are not made


class NoFit(Exception):
    """No value at hand suits the step."""


class Values:
    """The tensors a step may choose from, newest first more often."""

    def __init__(self, rng: random.Random, env: dict[str, Any], fixed: set[str]) -> None:
        self.rng = rng
        self.env = env
        self.fixed = fixed  # leaves: never deleted
        # Names that are there before any leaf: functions and modules, which need not be looked at.
        self.builtin = frozenset(env) - fixed
        self.saved: set[int] = set()  # storages that autograd has saved so far
        self.recorded: dict[int, set[int]] = {}  # of each storage the outermost scopes that saw it
        self.scope = 0  # the outermost scope that is open, or 0
        self.aliased: set[int] = set()  # storages with a second version counter
        self.frozen_only = False  # nothing that requires grad is chosen
        self.keep_alive: list[torch.Tensor] = []  # so that no address is used twice

    def names(self, test: Test) -> list[str]:
        def allowed(v: torch.Tensor) -> bool:
            return not (self.frozen_only and v.requires_grad)

        own = ((n, v) for n, v in self.env.items() if n not in self.builtin)
        return [n for n, v in own if usable(v) and allowed(v) and test(v)]

    def any(self, test: Test) -> str:
        names = self.names(test)
        if not names:
            raise NoFit
        if self.rng.random() < 0.8:
            names = names[-4:]
        return self.rng.choice(names)

    def real(self, test: Test = lambda t: True) -> str:
        def fits(t: torch.Tensor) -> bool:
            return t.is_floating_point() and t.numel() > 0 and test(t)

        if self.rng.random() < 0.7:  # rather one that gradients flow through
            with contextlib.suppress(NoFit):
                return self.any(lambda t: t.requires_grad and fits(t))
        return self.any(fits)

    def target(self, test: Test = lambda t: True) -> str:
        """A tensor to write to: seldom one that was saved, for then eager raises."""
        rash = self.rng.random() < 0.03

        def free(t: torch.Tensor) -> bool:
            leaf = t.requires_grad and t.is_leaf and torch.is_grad_enabled()
            safe = not self.frozen(t) or (rash and storage(t) not in self.aliased)
            return not leaf and safe and test(t)

        return self.real(free)

    def frozen(self, t: torch.Tensor) -> bool:
        """Saved by autograd, or a scope that has closed may want it as it is now."""
        return storage(t) in self.saved or self.behind_a_scope(t)

    def behind_a_scope(self, t: torch.Tensor) -> bool:
        return bool(self.recorded.get(storage(t), set()) - {self.scope})

    def dim(self, name: str) -> int:
        return self.rng.randrange(-1, self.env[name].dim())

    def number(self) -> float:
        return self.rng.choice([-1.25, -0.5, 0.25, 0.75, 1.5])


def usable(value: Any) -> bool:
    """A tensor, and not one of several views of a base that was written to: autograd rejects those."""
    if not isinstance(value, torch.Tensor):
        return False
    try:
        _ = value.grad_fn
    except RuntimeError:
        return False
    return True


def storage(t: torch.Tensor) -> int:
    t = getattr(t, "wrapped", t)  # of a wrapper
    return t.untyped_storage().data_ptr() if t.layout == torch.strided else 0


# ---- fillers


def rank(*ranks: int) -> Test:
    return lambda t: t.dim() in ranks


def one(v: Values) -> dict[str, Any]:
    return {"a": v.real()}


def one_of_rank(*ranks: int) -> Filler:
    return lambda v: {"a": v.real(rank(*ranks))}


def one_number(v: Values) -> dict[str, Any]:
    return {"a": v.real(), "number": v.number()}


def along(v: Values) -> dict[str, Any]:
    a = v.real(lambda t: t.dim() > 0)
    return {"a": a, "dim": v.dim(a)}


def cut(v: Values) -> dict[str, Any]:
    """A dimension with at least two elements, and a place inside it."""
    a = v.real(lambda t: t.dim() > 0 and max(t.shape) > 1)
    shape = v.env[a].shape
    dim = v.rng.choice([i for i, n in enumerate(shape) if n > 1])
    at = v.rng.randrange(1, shape[dim])
    return {"a": a, "dim": dim, "at": at, "rest": shape[dim] - at, "size": shape[dim]}


def broadcast(x: torch.Size, y: torch.Size) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(x), reversed(y), strict=False))


def pair(v: Values) -> dict[str, Any]:
    a = v.real()
    shape = v.env[a].shape
    return {"a": a, "b": v.real(lambda t: broadcast(t.shape, shape)), "number": v.number()}


def same_pair(v: Values) -> dict[str, Any]:
    a = v.real()
    x = v.env[a]
    b = v.real(lambda t: t.shape == x.shape and t.dtype == x.dtype)
    return {"a": a, "b": b, "number": v.number(), "dim": v.rng.randrange(max(1, x.dim()))}


def same_pair_along(v: Values) -> dict[str, Any]:
    a = v.real(lambda t: t.dim() > 0)
    x = v.env[a]
    b = v.real(lambda t: t.shape == x.shape and t.dtype == x.dtype)
    return {"a": a, "b": b, "dim": v.dim(a)}


def product(left: int, right: int) -> Filler:
    def fill(v: Values) -> dict[str, Any]:
        a = v.real(rank(left))
        n = v.env[a].shape[-1]
        b = v.real(lambda t: t.dim() == right and t.shape[-2 if right > 1 else -1] == n)
        return {"a": a, "b": b}

    return fill


def linear(v: Values) -> dict[str, Any]:
    w = v.real(rank(2))
    outs, ins = v.env[w].shape
    a = v.real(lambda t: t.dim() > 1 and t.shape[-1] == ins)
    return {"a": a, "b": w, "c": v.real(lambda t: tuple(t.shape) == (outs,))}


def affine(v: Values) -> dict[str, Any]:
    a = v.real(lambda t: t.dim() > 1)
    n = v.env[a].shape[-1]
    b = v.real(lambda t: tuple(t.shape) == (n,))
    return {"a": a, "b": b, "c": v.real(lambda t: tuple(t.shape) == (n,)), "size": n}


def apart(t: torch.Tensor) -> bool:
    """No two of its elements lie on the same bytes."""
    sizes = zip(t.shape, t.stride(), strict=True)
    return t.numel() <= 1 + sum((size - 1) * stride for size, stride in sizes)


def attention(v: Values) -> dict[str, Any]:
    """torch 2.13's attention of unfolded tensors reads memory that was never written."""
    a = v.real(lambda t: t.dim() == 3 and apart(t))
    shape = v.env[a].shape
    b, c = (v.real(lambda t: t.shape == shape and apart(t)) for _ in "bc")
    return {"a": a, "b": b, "c": c, "causal": v.rng.random() < 0.5}


def written(v: Values) -> dict[str, Any]:
    return {"a": v.target(), "number": v.number()}


def written_along(v: Values) -> dict[str, Any]:
    a = v.target(lambda t: t.dim() > 0 and t.numel() > 1)
    dim = v.rng.randrange(v.env[a].dim())
    return {"a": a, "dim": dim, "at": v.rng.randrange(v.env[a].shape[dim]), "number": v.number()}


def written_from(v: Values) -> dict[str, Any]:
    b = v.real()
    source = v.env[b]
    a = v.target(lambda t: t.shape == source.shape and t is not source)
    return {"a": a, "b": b, "number": v.number()}


def written_row(v: Values) -> dict[str, Any]:
    """A tensor, and another that fits into one of its rows."""
    a = v.target(lambda t: t.dim() > 1)
    row = v.env[a].shape[1:]
    b = v.real(lambda t: broadcast(t.shape, row) and t.dim() <= len(row))
    return {"a": a, "b": b, "at": v.rng.randrange(v.env[a].shape[0]), "number": v.number()}


def indexed(v: Values) -> dict[str, Any]:
    a = v.real(lambda t: t.dim() > 1)
    dim = v.rng.randrange(v.env[a].dim())
    b = v.any(lambda t: t.dtype == torch.int64 and 0 < t.numel() <= 64)
    return {"a": a, "b": b, "dim": dim, "size": v.env[a].shape[dim], "rows": v.env[a].shape[0]}


def statistics(*ranks: int, free: bool = True) -> Filler:
    """An input whose last dimension has running statistics."""

    def fill(v: Values) -> dict[str, Any]:
        a = v.real(rank(*ranks))
        n = v.env[a].shape[-1]
        if free and (v.frozen(v.env["mean"]) or v.frozen(v.env["var"])):
            raise NoFit
        if v.env["mean"].shape != (n,) or v.env[a].dtype != torch.float32:
            raise NoFit
        return {"a": a, "c": "mean", "d": "var", "number": v.rng.choice([0.1, 0.25])}

    return fill
