"""Groups of torch.distributed's ranks."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as torch_dist

from retape import _C, _dist


def Group(  # noqa: N802: what it returns is one
    process_group: torch_dist.ProcessGroup | None = None,
    *,
    name: str | None = None,
    timeout: float | timedelta | None = None,
) -> _dist.Group:
    """The ranks of a process group, which agree before data moves.

    process_group: by default all ranks. Every member makes its own Group. Groups of one process group share
        its calls, which do not mix; torch.distributed's own calls beside one that is under way do.
    name: what errors call it, the same on all ranks; by default the process group's.
    timeout: seconds to wait for others; by default the process group's.
    """
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
    # torchrun's agent serves the store; without it, rank 0 does.
    host = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
    return _dist.Group._of(
        name or process_group.group_desc or process_group.group_name,
        process_group.group_name,
        torch_dist.get_process_group_ranks(process_group),
        seconds,
        host,
    )


def timeout_of(process_group: torch_dist.ProcessGroup) -> timedelta:
    for device in process_group._device_types:
        options = getattr(process_group._get_backend(torch.device(device)), "options", None)
        if options is not None:
            return options._timeout
    return timedelta(minutes=5)
