"""A TreeLSTM (Tai, Socher, Manning 2015, child-sum) over random trees: no two steps have the same shapes.

Nodes of all trees are computed height by height, leaves first. What goes from one to the next is one
tensor: the states of the nodes whose parents are still to come, and of the roots.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from retape.bench.models.model import Model
from retape.bench.task import Apply, ModuleTask


@dataclass(frozen=True)
class Height:
    """Nodes whose subtrees are equally high."""

    words: torch.Tensor  # [nodes]
    children: torch.Tensor  # [edges]: rows of the states that come in
    parents: torch.Tensor  # [edges]: 0 is the first node of this height
    still_open: torch.Tensor  # rows of the states that come in and go out again


@dataclass(eq=False)
class _Node:
    children: list[_Node]
    height: int


def _grow(rng: random.Random, budget: int) -> _Node:
    """A tree of that many nodes: one to three children, uneven ones."""
    if budget == 1:
        return _Node([], 0)
    left = budget - 1
    parts = []
    for more in range(rng.randint(1, 3), 0, -1):
        part = left if more == 1 else rng.randint(0, left)
        left -= part
        if part:
            parts.append(part)
    children = [_grow(rng, part) for part in parts]
    return _Node(children, 1 + max(child.height for child in children))


def _nodes(tree: _Node) -> list[_Node]:
    return [tree, *(node for child in tree.children for node in _nodes(child))]


def make_heights(
    trees: int, nodes: int, vocabulary: int, seed: int
) -> tuple[list[Height], torch.Tensor]:
    """By height, and the rows of the roots in what comes out of the last."""
    rng = random.Random(seed)
    forest = [_grow(rng, rng.randint(nodes // 2, nodes)) for _ in range(trees)]
    levels: dict[int, list[_Node]] = {}
    for tree in forest:
        for node in _nodes(tree):
            levels.setdefault(node.height, []).append(node)
    heights: list[Height] = []
    states: list[_Node] = []
    for _, level in sorted(levels.items()):
        row = {node: i for i, node in enumerate(states)}
        edges = [(row[child], i) for i, node in enumerate(level) for child in node.children]
        used = {child for child, _ in edges}
        still_open = [i for i in range(len(states)) if i not in used]
        heights.append(
            Height(
                _integers([rng.randrange(vocabulary) for _ in level]),
                _integers([child for child, _ in edges]),
                _integers([parent for _, parent in edges]),
                _integers(still_open),
            )
        )
        states = [*(states[i] for i in still_open), *level]
    return heights, _integers([states.index(tree) for tree in forest])


def _integers(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


class ChildSum(nn.Module):
    def __init__(self, vocabulary: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, dtype=dtype)
        self.gates = nn.Linear(2 * width, 3 * width, dtype=dtype)  # in, out, new
        self.forget = nn.Linear(2 * width, width, dtype=dtype)
        self.classes = nn.Linear(width, 5, dtype=dtype)

    def grow(self, height: Height, states: torch.Tensor) -> torch.Tensor:
        """From the states (h and c, side by side) below to those above."""
        x = self.words(height.words)
        h, c = states[height.children].chunk(2, -1)
        sum_h = torch.zeros_like(x).index_add(0, height.parents, h)
        gate_in, gate_out, new = self.gates(torch.cat([x, sum_h], -1)).chunk(3, -1)
        forget = torch.sigmoid(self.forget(torch.cat([x[height.parents], h], -1)))
        kept = torch.zeros_like(x).index_add(0, height.parents, forget * c)
        c = torch.sigmoid(gate_in) * torch.tanh(new) + kept
        h = torch.sigmoid(gate_out) * torch.tanh(c)
        return torch.cat([states[height.still_open], torch.cat([h, c], -1)])


class TreeLstmTask(ModuleTask):
    def __init__(
        self, dtype: torch.dtype, width: int, vocabulary: int, trees: int, nodes: int
    ) -> None:
        super().__init__(ChildSum(vocabulary, width, dtype))
        self.none = torch.zeros(0, 2 * width, dtype=dtype)
        self.heights, self.roots = make_heights(trees, nodes, vocabulary, seed=0)
        self.labels = torch.randint(5, (trees,))

    def loss(self, apply: Apply) -> torch.Tensor:
        layers = [partial(self.model.grow, height) for height in self.heights]
        h, _ = apply(layers, self.none)[self.roots].chunk(2, -1)
        return F.cross_entropy(self.model.classes(h).float(), self.labels)


MODELS = (
    Model(
        "tree_lstm", "TreeLSTM, every tree another shape", TreeLstmTask,
        dict(width=512, vocabulary=5000, trees=64, nodes=80),
        dict(width=64, vocabulary=500, trees=8, nodes=30),
        dry=False,
    ),
)  # fmt: skip
