"""Groups of torch.distributed's ranks."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as torch_dist
from torch.distributed import PrefixStore, distributed_c10d

from retape import _C, _dist


_LONGEST_PAUSE = 0.2  # seconds between two looks
MOST_SECONDS = 365 * 24 * 3600.0  # of a timeout: there is no wait without end

# While what groups need is still there: whoever waits for this process is told that it ends.
atexit.register(_dist.leave)


class _MadeOfRanks(type(_dist.Group)):
    """Calls of Group give a group of _dist, which has no constructor that could be inherited."""

    def __call__(
        cls,
        process_group: torch_dist.ProcessGroup | None = None,
        *,
        name: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> _dist.Group:
        if not torch_dist.is_initialized():
            raise _C.UsageError(
                "[Group] torch.distributed is not initialized. Fix: torch.distributed.init_process_group first."
            )
        if process_group is None:
            process_group = torch_dist.group.WORLD
        if process_group is torch_dist.GroupMember.NON_GROUP_MEMBER:
            raise _C.UsageError("[Group] this rank is not in the process group. Fix: only members make it.")
        if timeout is None:
            timeout = timeout_of(process_group)
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not seconds < MOST_SECONDS:
            raise _C.UsageError(f"[Group] expected a timeout of less than a year, in seconds, got {seconds:g}.")
        # torchrun's agent serves the store; without it, rank 0 does.
        host = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
        return _dist.Group._of(
            name or name_of(process_group),
            process_group.group_name,
            torch_dist.get_process_group_ranks(process_group),
            seconds,
            host,
        )

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _dist.Group)


class Group(_dist.Group, metaclass=_MadeOfRanks):
    """The ranks of a process group, which agree before data moves.

        group = retape.dist.Group()
        group.sum("usage", usage)                          # in place, the same bits on every rank

    process_group: by default all ranks. Every member makes its own Group. Groups of one process group share
        its calls, which do not mix; torch.distributed's own calls beside one that is under way do.
    name: what errors call it, the same on all ranks; by default the process group's.
    timeout: seconds to wait for others; by default the process group's.

    `Group.alone(name, rank)` is this process by itself: of what only one rank holds, for clip_grad_norm.
    """


def name_of(process_group: torch_dist.ProcessGroup) -> str:
    """What it was made with; torch calls it "undefined" where that was nothing."""
    said = process_group.group_desc
    return said if said and said != "undefined" else process_group.group_name


def timeout_of(process_group: torch_dist.ProcessGroup) -> timedelta:
    for device in process_group._device_types:
        options = getattr(process_group._get_backend(torch.device(device)), "options", None)
        if options is not None:
            return options._timeout
    return timedelta(minutes=5)


def made_by_members(
    own: str, name: str, ranks: Sequence[int], timeout: timedelta, backend: str | None = None
) -> torch_dist.ProcessGroup:
    """A process group, by its ranks alone and in their order; `own` is a name that no other has.

    new_group(use_local_synchronization=True) is that too, but puts into the name how many process groups a rank
    has: where members have different numbers of them, they never meet."""
    known, store = distributed_c10d._world.pg_map[torch_dist.group.WORLD]
    _meet(PrefixStore(f"{own} meet", store), store, name, ranks, timeout)
    index = ranks.index(torch_dist.get_rank())
    of = torch_dist.Backend(backend or known)
    made, _ = distributed_c10d._new_process_group_helper(
        len(ranks), index, list(ranks), of, store, own, timeout=timeout, group_desc=name
    )
    distributed_c10d._world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(ranks)}
    return made


def _meet(
    store: PrefixStore, world: PrefixStore, name: str, ranks: Sequence[int], timeout: timedelta
) -> None:
    """Who does not come is named here: of a transport that does not connect one learns nothing else.

    It looks again and again: a store that is told to wait hears no Ctrl-C, and nothing of ranks that have ended."""
    store.set(str(torch_dist.get_rank()), "")
    gone: list[int] = []
    began = time.monotonic()
    while (waited := time.monotonic() - began) < timeout.total_seconds() and not gone:
        if store.check([str(rank) for rank in ranks]):
            return
        if world.check(["retape/left"]):  # in its Group of all ranks
            left = [rank for rank in ranks if world.check([f"retape/left/{rank}"])]
            gone = [rank for rank in left if not store.check([str(rank)])]
        time.sleep(min(_LONGEST_PAUSE, 0.01 + waited / 10))  # many may wait for one, and ask one store
    missing = gone or [rank for rank in ranks if not store.check([str(rank)])]
    if not missing:
        return
    late = _dist.CollectiveError(
        f"[{name}] of ranks {list(ranks)}: ranks {missing} "
        + ("have ended. " if gone else f"did not come within {timeout.total_seconds():g} s to make it. ")
        + "Fix: all of them make the same Placement or SumHook."
    )
    late.ranks = missing
    raise late
