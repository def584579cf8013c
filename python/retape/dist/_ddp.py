"""Sums in place of averages for DistributedDataParallel and FSDP2."""

# Without `from __future__ import annotations`: DDP looks at those of a hook, and wants types, not texts.
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakKeyDictionary

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed import GradBucket

from retape import _C, _dist
from retape.dist._group import Group, timeout_of


# By the process group that DDP has: to make one is a call of all its ranks.
_beside: WeakKeyDictionary[torch_dist.ProcessGroup, _dist.Group] = WeakKeyDictionary()


def _group_beside(process_group: torch_dist.ProcessGroup) -> _dist.Group:
    if process_group not in _beside:
        own = torch_dist.new_group(
            torch_dist.get_process_group_ranks(process_group),
            timeout=timeout_of(process_group),
            backend=torch_dist.get_backend_config(process_group),
            use_local_synchronization=process_group is not torch_dist.group.WORLD,
        )
        _beside[process_group] = Group(own, name=process_group.group_desc or process_group.group_name)
    return _beside[process_group]


class SumHook:
    """For DistributedDataParallel: gradients are summed over ranks, not averaged.

        hook = retape.dist.SumHook(model)                       # registers itself
        tokens = retape.dist.count_global("tokens", n, hook.group)
        retape.dist.normalize(losses.sum(), tokens).value.backward()

    With a loss that is divided by a global count the sum is the gradient of the mean over all ranks,
    however many items each has. Buckets are agreed on before they move, by the names of their parameters.
    With microbatches: `with model.no_sync():` around all but the last. DDP reduces what has accumulated, so
    that a second sum would count the first one once per rank; that raises UsageError.

    group: for the sums; by default one of the same ranks over a process group of its own. DDP makes calls too
        (of buffers, of parameters that are not used), and a transport mixes up two that are under way.
    """

    def __init__(self, model: nn.parallel.DistributedDataParallel, group: _dist.Group | None = None) -> None:
        self.group = group if group is not None else _group_beside(model.process_group)
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        # DDP waits for futures; somebody has to wait for the sums, in order.
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="retape-sums")
        self._summed: set[int] = set()  # parameters whose gradient is a sum over ranks already
        for parameter in model.module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(self._before_accumulation, parameter))
        model.register_comm_hook(self, _sum)

    def _before_accumulation(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if id(parameter) not in self._summed:
            return
        if parameter.grad is None or not parameter.grad.any():
            self._summed.discard(id(parameter))
            return
        raise _C.UsageError(
            f"[SumHook] {self._names.get(id(parameter), '?')!r} has a gradient that was summed over ranks, and "
            "this backward would add to it: a second sum would count it once per rank. Fix: zero_grad() "
            "between steps, `with model.no_sync():` around all microbatches but the last."
        )


def _sum(hook: SumHook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    hook._summed.update(id(p) for p in bucket.parameters())
    names = [hook._names.get(id(p), "?") for p in bucket.parameters()]
    name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    buffer = bucket.buffer()
    pending = _dist.sum_async(name, buffer, hook.group, ", ".join(names))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def wait() -> None:
        try:
            pending.wait()
        except Exception as error:  # whatever it is: DDP waits for the future
            future.set_exception(error)
        else:
            future.set_result(buffer)

    hook._waiter.submit(wait)
    return future


def fsdp_sums(model: nn.Module) -> nn.Module:
    """For a model under FSDP2's fully_shard: gradients are summed over ranks, with no factor of the world
    size; divide the loss by a `GlobalCount`."""
    from torch.distributed.fsdp import FSDPModule

    found = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not found:
        raise _C.UsageError("[fsdp_sums] no module is under fully_shard. Fix: call it after fully_shard(model).")
    for module in found:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return model
