"""Where a topology puts this rank."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as torch_dist

from retape import _C, _dist
from retape.dist._group import Group, timeout_of


class Placement:
    """A topology on the ranks of torch.distributed: compared on all of them, with a group for each pool and
    group of it.

        placement = retape.dist.Placement(topology)        # on every rank, whether it has a use or not
        placement.group("ci").sum("usage", usage)          # a pool's ranks, or a group's
        begin, end = placement.rows("ci")                  # this rank's rows of the batch

    everyone: a group of all ranks, to compare it on; by default a new one.
    timeout: to wait for others; by default that of torch.distributed's group of all ranks.
    """

    def __init__(
        self, topology: _dist.Topology, everyone: _dist.Group | None = None, *, timeout: timedelta | None = None
    ) -> None:
        for name in _names(topology):
            ranks = topology.ranks_of(name)
            if ranks != sorted(ranks):
                raise _C.UsageError(
                    f'[Placement] "{name}" is of ranks {ranks}, and torch.distributed sorts those of a group: '
                    "another one would lead. Fix: ranks in ascending order."
                )
        if everyone is None:
            everyone = Group(timeout=timeout)
        everyone.agree(topology)
        self.topology = topology
        self.rank = everyone.rank
        self._groups: dict[str, _dist.Group] = {}
        for name in _names(topology):
            ranks = topology.ranks_of(name)
            process_group = torch_dist.new_group(ranks, timeout=timeout or timeout_of(torch_dist.group.WORLD))
            if self.rank in ranks:
                self._groups[name] = Group(process_group, name=name, timeout=timeout)

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
