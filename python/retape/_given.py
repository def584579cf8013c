"""What a function that will run again was given: its arguments, with the tensors taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from retape._caches import Found, is_cache

_LEAVES = frozenset({bool, int, float, str, type(None)})

Specs = list[TreeSpec | None]  # None: the value is its own leaf


def flatten(values: Iterable[Any]) -> tuple[list[Any], Specs]:
    """Leaves of the values, and what puts them together again. Pytree only where there is a tree:
    for one tensor it takes longer than the rest of a region."""
    leaves: list[Any] = []
    specs: Specs = []
    for value in values:
        if isinstance(value, Tensor) or type(value) in _LEAVES:
            leaves.append(value)
            specs.append(None)
        else:
            own, spec = tree_flatten(value)
            leaves += own
            specs.append(spec)
    return leaves, specs


def unflatten(leaves: Iterable[Any], specs: Specs) -> list[Any]:
    rest = iter(leaves)
    return [
        next(rest) if spec is None else tree_unflatten(islice(rest, spec.num_leaves), spec)
        for spec in specs
    ]


def call_with(function: Callable[..., Any], values: Sequence[Any], names: Sequence[str]) -> Any:
    """The last of the values by these names: who gives all by position has no name that clashes with his
    own, and reentrant autograd sees no others."""
    split = len(values) - len(names)
    return function(*values[:split], **dict(zip(names, values[split:], strict=True)))


class Given:
    """Arguments with their tensors taken out, to be put in again."""

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        leaves, self._specs = flatten((*args, *kwargs.values()))
        self._names = tuple(kwargs)
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._tensors = [leaves[place] for place in self._places]
        for place in self._places:
            leaves[place] = None
        self.caches = [i for i, leaf in enumerate(leaves) if is_cache(leaf)]
        for place in self.caches:
            leaves[place] = Found(leaves[place])
        self._rest = leaves

    def give_up_tensors(self) -> list[Tensor]:
        tensors, self._tensors = self._tensors, []
        return tensors

    def call(self, function: Callable[..., Any], tensors: list[Tensor]) -> Any:
        leaves = self._rest.copy()
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        for place in self.caches:
            leaves[place] = leaves[place].again()
        return call_with(function, unflatten(leaves, self._specs), self._names)
