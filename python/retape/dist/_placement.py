"""Where a topology puts this rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch.distributed as torch_dist

from retape import _C, _dist
from retape.dist._group import Group, made_by_members, timeout_of


def even_shards(rows: int, shards: int) -> list[tuple[int, int]]:
    """How rows are cut where nothing is said: begin and end of each shard, the larger ones first."""
    if rows < 0 or shards < 1:
        raise _C.UsageError(f"[even_shards] expected rows, and at least one shard, got {rows} and {shards}.")
    pool = _dist.Pool("shards", list(range(shards)))
    return _dist.Topology(rows, [pool]).pool("shards").shards


class Placement:
    """A topology on the ranks of torch.distributed: compared on all of its ranks, with a group for each pool
    and group of it, whose ranks have the order that the topology gives them.

        placement = retape.dist.Placement(topology)        # on every rank of the topology
        placement.group("ci").sum("usage", usage)          # a pool's ranks, or a group's
        begin, end = placement.rows("ci")                  # this rank's rows of the batch

    Other ranks may make it too, and are in no group. Groups of the same name, ranks and timeout are made
    once, and shared: a step may make its Placement each time.

    everyone: to compare it on; by default a group of the topology's ranks.
    timeout: to wait for others; by default that of torch.distributed's group of all ranks.
    """

    def __init__(
        self, topology: _dist.Topology, everyone: _dist.Group | None = None, *, timeout: timedelta | None = None
    ) -> None:
        if not torch_dist.is_initialized():
            raise _C.UsageError(
                "[Placement] torch.distributed is not initialized. Fix: torch.distributed.init_process_group first."
            )
        self.topology = topology
        self.rank = torch_dist.get_rank()
        self._groups: dict[str, _dist.Group] = {}
        timeout = timeout or timeout_of(torch_dist.group.WORLD)
        ranks = sorted({rank for name in _names(topology) for rank in topology.ranks_of(name)})
        if everyone is None and self.rank in ranks:
            everyone = _group("topology", ranks, timeout)
        if everyone is not None:
            everyone.agree(topology)
        for name in _names(topology):
            if self.has(name):
                self._groups[name] = _group(name, topology.ranks_of(name), timeout)

    def has(self, name: str) -> bool:
        """This rank is in that pool or group."""
        return self.rank in self.topology.ranks_of(name)

    def index(self, pool: str) -> int:
        found = self.topology.pool(pool).index_of(self.rank)
        if found < 0:
            raise _C.UsageError(f'[Placement] rank {self.rank} is not in pool "{pool}".')
        return found

    def rows(self, pool: str) -> tuple[int, int]:
        """This rank's rows of the batch, begin and end."""
        return self.topology.pool(pool).shards[self.index(pool)]

    def leads(self, pool: str) -> bool:
        return self.index(pool) == 0

    def group(self, name: str) -> _dist.Group:
        """Of a pool or group that this rank is in."""
        if not self.has(name):
            raise _C.UsageError(f'[Placement] rank {self.rank} is not in "{name}". Fix: only members ask for it.')
        return self._groups[name]


def _names(topology: _dist.Topology) -> list[str]:
    return [*(pool.name for pool in topology.pools), *topology.groups]


# By torch.distributed's group of all ranks, as long as that is there: name, ranks and timeout.
_made: WeakKeyDictionary[torch_dist.ProcessGroup, dict[tuple[str, tuple[int, ...], timedelta], _dist.Group]]
_made = WeakKeyDictionary()


def _group(name: str, ranks: Sequence[int], timeout: timedelta) -> _dist.Group:
    """By its members alone, in their order."""
    groups = _made.setdefault(torch_dist.group.WORLD, {})
    key = (name, tuple(ranks), timeout)
    if key not in groups:
        if len(ranks) == 1:
            groups[key] = _dist.Group.alone(name, ranks[0])
        else:
            own = f"retape placement {name} {list(ranks)} {timeout.total_seconds():g}"
            groups[key] = Group(made_by_members(own, name, ranks, timeout), name=name, timeout=timeout)
    return groups[key]
