"""Sums in place of averages for DistributedDataParallel and FSDP2."""

# Without `from __future__ import annotations`: DDP looks at those of a hook, and wants types, not texts.
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed import GradBucket
from torch.utils._pytree import tree_leaves

from retape import _C, _dist
from retape.dist._group import Group, made_by_members, name_of, timeout_of


# By the process group that DDP has: to make one is a call of all its ranks.
_beside: WeakKeyDictionary[torch_dist.ProcessGroup, _dist.Group] = WeakKeyDictionary()


def _group_beside(process_group: torch_dist.ProcessGroup) -> _dist.Group:
    if process_group not in _beside:
        name = name_of(process_group)
        own = made_by_members(
            f"retape beside {process_group.group_name}",
            name,
            torch_dist.get_process_group_ranks(process_group),
            timeout_of(process_group),
            torch_dist.get_backend_config(process_group),
        )
        _beside[process_group] = Group(own, name=name)
    return _beside[process_group]


class SumHook:
    """For DistributedDataParallel: gradients are summed over ranks, not averaged.

        hook = retape.dist.SumHook(model)                       # registers itself
        tokens = retape.dist.count_global("tokens", n, hook.group)
        retape.dist.normalize(losses.sum(), tokens).value.backward()

    With a loss that is divided by a global count the sum is the gradient of the mean over all ranks,
    however many items each has. Buckets are agreed on before they move, by the names of their parameters.
    With microbatches: `with model.no_sync():` around all but the last. DDP reduces what has accumulated, so
    that a second sum would count the first one once per rank; that raises UsageError, and so does
    `model.join()`: a rank without rows takes the step with none. What a sum raises comes out of backward():
    CollectiveError, with the ranks to blame. A parameter that a backward does not reach holds up the bucket that
    it is in: without `find_unused_parameters` backward() then raises UsageError, with its name. So does a second
    backward of a retained graph, which DDP does not reduce.

    group: for the sums; by default one of the same ranks over a process group of its own. DDP makes calls too
        (of buffers, of parameters that are not used), and a transport mixes up two that are under way.
    wire: dtype in which gradients travel and are added; by default their own.
    check_finite: look at every gradient first; one that is not finite raises on every rank, with rank and name.
    ordered: ranks are added one after the other, as one process would: see SumReducer.
    """

    def __init__(
        self,
        model: nn.parallel.DistributedDataParallel,
        group: _dist.Group | None = None,
        *,
        wire: torch.dtype | None = None,
        check_finite: bool = False,
        ordered: bool = False,
    ) -> None:
        if not isinstance(model, nn.parallel.DistributedDataParallel):
            raise _C.UsageError(
                f"[SumHook] expected a DistributedDataParallel, got {type(model).__name__}. Fix: "
                "SumHook(DistributedDataParallel(model)); fsdp_sums(model) under fully_shard, SumReducer without either."
            )
        if model._join_config.enable:
            _refuse_join()
        if model._comm_hooks:
            raise _C.UsageError(
                "[SumHook] the model has a communication hook already, and DDP takes one. Fix: one SumHook for each model."
            )
        self.group = group if group is not None else _group_beside(model.process_group)
        self._options = {"wire": wire, "check_finite": check_finite, "ordered": ordered}
        _dist.SumReducer(self.group, **self._options)  # which refuses what makes no sense
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        # DDP waits for futures; somebody has to wait for the sums, in order.
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="retape-sums")
        self._summed: set[int] = set()  # parameters whose gradient is a sum over ranks already
        self._errors: list[BaseException] = []
        self._watch = _BackwardWatch(model, self._names)
        # Where DDP's own hooks are: autograd.grad() runs those of a tensor, and accumulates nothing. The nodes are
        # DDP's, and held here since a tensor does not hold its own.
        self._accumulations = []
        for parameter in model.module.parameters():
            if parameter.requires_grad:
                node = torch.autograd.graph.get_gradient_edge(parameter).node
                hear = partial(_before_accumulation, ref(self), parameter)
                node.register_prehook(_dist._guarded(hear, partial(_leave_backward, self.group)))
                self._accumulations.append(node)
        model.register_comm_hook(self, _sum)
        # Before anybody waits: in join() a rank that has ended its loop answers for calls of DDP alone.
        model.join = _join  # type: ignore[method-assign]
        model.join_hook = _refuse_join  # type: ignore[method-assign]

    def _before_accumulation(self, parameter: torch.Tensor) -> None:
        self._watch.reached(parameter)
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

    def _start(self, bucket: GradBucket) -> _dist.Pending | _dist.SumReducer:
        names = [self._names.get(id(p), "?") for p in bucket.parameters()]
        buffer = bucket.buffer()
        if any(self._options.values()):
            reducer = _dist.SumReducer(self.group, bucket_bytes=buffer.nbytes + 1, **self._options)
            for each, gradient in zip(names, bucket.gradients(), strict=True):
                reducer._add(each, gradient)
            reducer.reduce_async()
            return reducer
        name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        return _dist.sum_async(name, buffer, self.group, ", ".join(names))


class _Forward:
    """One forward of a model."""

    reduced = False  # a backward of it has ended, after which DDP reduces no other


def _goes_through(watch: "ref[_BackwardWatch]", forward: _Forward, _: object) -> None:
    if there := watch():
        there.goes_through(forward)


class _BackwardWatch:
    """Whether each backward reduces what it has computed.

    DDP starts buckets in order, each when all of its parameters have a gradient, and hands sums out when the last has
    started. Where a parameter has no gradient that does not happen, and DDP raises in the next forward: after a step
    with local gradients."""

    def __init__(self, model: nn.parallel.DistributedDataParallel, names: dict[int, str]) -> None:
        self._names = names
        self._handled = {id(p) for p in model._module_parameters if p.requires_grad}  # others are not DDP's
        self._expected = False  # the last forward was one that DDP reduces after
        self._reached: set[int] = set()
        self._reduced: set[int] = set()
        self._queued = False
        self._forward = _Forward()  # the last one
        self._again = False  # this backward goes through a forward whose gradients were reduced
        model.register_forward_hook(self._after_forward)

    def _after_forward(self, model: nn.Module, _: object, output: object) -> None:
        if not torch.is_grad_enabled():
            return
        self._expected = model.require_backward_grad_sync
        self._reached, self._reduced, self._queued = set(), set(), False
        self._forward = _Forward()
        for each in tree_leaves(output):
            if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                each.grad_fn.register_prehook(partial(_goes_through, ref(self), self._forward))

    def goes_through(self, forward: "_Forward") -> None:
        if forward.reduced:
            self._again = True
            torch.autograd.Variable._execution_engine.queue_callback(self._ends_again)

    def _ends_again(self) -> None:
        self._again = False

    def reached(self, parameter: torch.Tensor) -> None:
        if id(parameter) not in self._handled:
            return
        if self._again:
            self._again = False
            raise _C.UsageError(
                "[SumHook] a second backward of a retained graph: DistributedDataParallel reduces the first one after "
                "each forward, so that gradients would be this rank's alone. Fix: one backward of the sum of all "
                "losses, or a forward for each."
            )
        if not self._expected:
            return
        self._reached.add(id(parameter))
        if not self._queued:
            self._queued = True
            _after_ddp(self._end)

    def reduced(self, bucket: GradBucket) -> None:
        self._reduced.update(id(p) for p in bucket.parameters())

    def _end(self) -> None:
        self._queued = False
        # Of a reentrant checkpoint's own backward, which others follow.
        if torch._C._current_autograd_node() is not None:
            return
        self._expected = False
        self._forward.reduced = True
        if self._handled - self._reduced:
            raise _C.UsageError(
                f"[SumHook] this backward does not reach {self._text(self._handled - self._reached)}. So "
                f"DistributedDataParallel waits for more, and {self._text(self._reached)} have this rank's gradient "
                "alone. Fix: DistributedDataParallel(model, find_unused_parameters=True), or requires_grad_(False) for "
                "what is not used."
            )

    def _text(self, parameters: set[int]) -> str:
        most = 3
        names = [repr(name) for key, name in self._names.items() if key in parameters]
        more = f" and {len(names) - most} more" if len(names) > most else ""
        return (", ".join(names[:most]) or "some parameters") + more


def _before_accumulation(hook: "ref[SumHook]", parameter: torch.Tensor, _: tuple[torch.Tensor, ...]) -> None:
    if there := hook():
        there._before_accumulation(parameter)


def _leave_backward(group: _dist.Group, error: BaseException) -> NoReturn:
    """Ctrl-C while kernels ran: this rank starts no more sums, which others wait for."""
    group._abandon()
    raise error


def _sum(hook: SumHook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    hook._summed.update(id(p) for p in bucket.parameters())
    hook._watch.reduced(bucket)
    if bucket.index() == 0:
        hook._errors = []  # of this backward; what an earlier one still waits for has its own
    errors, buffer = hook._errors, bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    pending: _dist.Pending | _dist.SumReducer | None = None
    with _noted(errors):
        pending = hook._start(bucket)

    def wait() -> None:
        if pending is not None:
            with _noted(errors):
                pending.wait()
        future.set_result(buffer)

    waiting = hook._waiter.submit(wait)
    if bucket.is_last():
        # Before DDP's end of this backward, which waits for the same and hears no Ctrl-C.
        stop_waiting = partial(_stop_waiting, hook.group, errors)
        torch.autograd.Variable._execution_engine.queue_callback(_dist._guarded(waiting.result, stop_waiting))
        _after_ddp(partial(_raise_first, errors))
    return future


def _stop_waiting(group: _dist.Group, errors: list[BaseException], error: BaseException) -> None:
    """DDP comes to its end, soon: sums that not all ranks have come to fail, and others are as they were agreed on."""
    errors.insert(0, error)
    group._withdraw()


def _refuse_join(**_: object) -> NoReturn:
    raise _C.UsageError(
        "[SumHook] join() of DistributedDataParallel: a rank that has no more batches would answer for DDP's "
        "averages, and sums are agreed on by all ranks. Fix: leave join() out, and let every rank take as many "
        "steps as the one with the most; ranks that run out continue with 0 rows, which add nothing to the "
        "count nor to the sum."
    )


def _join(
    divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
) -> contextlib.AbstractContextManager[None]:
    return _refuse_join() if enable else contextlib.nullcontext()


@contextlib.contextmanager
def _noted(errors: list[BaseException]) -> Iterator[None]:
    """Whatever is raised: DDP waits for the future, and of an error in one it keeps nothing but the text."""
    try:
        yield
    except Exception as error:
        errors.append(error)


def _raise_first(errors: list[BaseException]) -> None:
    if errors:
        error = errors[0]
        errors.clear()  # a traceback holds what holds them
        raise error


def _after_ddp(call: Callable[[], None]) -> None:
    """At the end of this backward. DDP queues its own end after its last bucket, and what is queued by what
    is queued comes after that."""
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))


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
