"""The Python backend of OutputDiscardCheckpoint: nothing of Retape's C++, the function runs again.

It frees an output only if it can account for every reference to its storage: the tensors in the
caller's hands, and what autograd has saved of them between the output and the hook tensor. What was
saved is replaced by a handle that fills the storage first; the tensors in the caller's hands change
their class while their memory is gone, and fill it when they are used. Whatever else holds the
storage makes it stay. What is computed again is compared with a digest of the first time, so that
nothing is different without a word.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from retape import _output_discard_parts as parts
from retape._C import ReplayMismatch, UsageError, is_eager

DISCARD = "[OutputDiscardCheckpoint.discard_output_and_register_recompute] "
_WHO = "[OutputDiscardCheckpoint] "


class Checkpoint:
    """What `_C.OutputDiscardCheckpoint` is to the C++ backend."""

    def __init__(self, name: str = "") -> None:
        self._region = f'region "{name}": ' if name else ""
        self._called = False
        self._pending: list[Callable[[], _Call | None]] = []  # weak where a graph owns the call
        self._last: list[weakref.ref[_Call]] = []  # discarded last

    def call(
        self,
        function: Callable[[], Any],
        given: list[torch.Tensor],
        tensors_of: Callable[[Any], list[torch.Tensor]],
    ) -> tuple[Any, list[int]]:
        self._called = True
        if not torch.is_grad_enabled() or is_eager():
            return function(), []
        call = _Call(function, tensors_of, self._region)
        result, unmade = call.run_first(given)
        self._prune()
        if call.outputs:
            self._pending.append(weakref.ref(call) if call.saved else lambda: call)
        return result, unmade

    def discard(self, hook_tensor: torch.Tensor) -> int:
        if not self._called:
            raise UsageError(
                f"{DISCARD}{self._region}nothing to discard: expected a checkpoint() call of this "
                "object before it, got none. Fix: y = ckpt.checkpoint(function, x); z = consumer(y); "
                "then discard with z."
            )
        if is_eager():
            return 0
        self._prune()
        calls = self._made_into(hook_tensor)
        for output in (o for call in calls for o in call.outputs):
            output.check(f"{DISCARD}{self._region}")
        freed = 0
        for call in calls:
            nodes = list(_nodes_since(call.ended, hook_tensor))
            freed += sum(output.discard(call, nodes) for output in call.outputs)
            self._pending = [ref for ref in self._pending if ref() is not call]
        if calls:
            self._last = [weakref.ref(call) for call in calls]
        if hook_tensor.grad_fn is not None:
            hook_tensor.register_hook(_fill_all(self._last))
        return freed

    def clear(self) -> None:
        self._pending.clear()

    def _prune(self) -> None:
        self._pending = [
            ref
            for ref in self._pending
            if (call := ref()) and any(o.tensors() for o in call.outputs)
        ]

    def _made_into(self, hook_tensor: torch.Tensor) -> list[_Call]:
        """The calls that the hook tensor was made from; the oldest, where that cannot be seen."""
        calls = [call for ref in self._pending if (call := ref())]
        reached = [
            call for call in calls if call.grad_fns() & set(_nodes_since(call.began, hook_tensor))
        ]
        return reached or calls[:1]


def _fill_all(calls: list[weakref.ref[_Call]]) -> Callable[[torch.Tensor], None]:
    def fill(_: torch.Tensor) -> None:
        for ref in calls:
            if call := ref():
                call.fill()

    return fill


def _nodes_since(number: int, tensor: torch.Tensor) -> Iterator[Any]:
    """Nodes of the graph of `tensor` that were made when `number` had been reached, or later."""
    todo, seen = [tensor.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen or node._sequence_nr() < number:
            continue
        seen.add(node)
        yield node
        todo.extend(following for following, _ in node.next_functions)


class _Call:
    """One call: what it takes to run it again, and what it gave the first time.

    Owned by the handles in the graph, so it owns no tensor that was made in it.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        tensors_of: Callable[[Any], list[torch.Tensor]],
        region: str,
    ) -> None:
        self._function = function
        self._tensors_of = tensors_of
        self._who = f"{_WHO}{region}"
        self._reads: list[parts.Version] = []
        self._settings: parts.Settings | None = None
        self._again: dict[int, torch.Tensor] = {}  # what was saved, of the run in this backward
        self._lock = threading.RLock()
        self.outputs: list[_Output] = []
        self.saved: list[parts.Fingerprint | None] = []  # None: not made here, kept
        self.began = self.ended = 0

    def grad_fns(self) -> set[Any]:
        return {t.grad_fn for output in self.outputs for t in output.tensors()} - {None}

    def run_first(self, given: list[torch.Tensor]) -> tuple[Any, list[int]]:
        self._settings = parts.Settings(given)
        watch = parts.Watch()

        def pack(tensor: torch.Tensor) -> Any:
            with watch.asleep():
                keep = not parts.is_plain(tensor) or parts.address(tensor) not in watch.made
                self.saved.append(None if keep else parts.Fingerprint(tensor))
                index = len(self.saved) - 1
                return _Handle(self, index, tensor if keep else None, parts.Version(tensor))

        self.began = torch._C._autograd._get_sequence_nr()
        with watch, saved_tensors_hooks(pack, lambda handle: handle.unpack()):
            result = self._function()
        self.ended = torch._C._autograd._get_sequence_nr()
        self._settings.forget_generators_at_rest()
        self._reads = [parts.Version(tensor) for tensor in watch.read.values()]
        if watch.changed:
            raise UsageError(
                f"{self._who}the function changes a tensor in place that it has not made "
                f"({watch.changed[0]}): expected one that the Python backend can run again. Fix: "
                'backend="cpp", which does not, or change a clone().'
            )
        tensors = self._tensors_of(result)
        given_storages = {parts.address(tensor) for tensor in given if parts.is_plain(tensor)}
        return result, self._find_outputs(tensors, given_storages, watch.made)

    def _find_outputs(
        self, tensors: list[torch.Tensor], given: set[int], made: set[int]
    ) -> list[int]:
        groups: dict[int, dict[int, torch.Tensor]] = {}
        unmade = []
        for i, tensor in enumerate(tensors):
            if not parts.is_plain(tensor) or parts.address(tensor) in given:
                continue
            if parts.address(tensor) in made:
                groups.setdefault(parts.address(tensor), {})[i] = tensor
            else:
                unmade.append(i)
        self.outputs = [_Output(group) for group in groups.values()]
        return unmade

    def saved_again(self, index: int) -> torch.Tensor:
        with self._lock:
            if index not in self._again:
                self._run_again()
            tensor = self._again.pop(index)
            self._forget_outside_backward()
            return tensor

    def fill(self) -> None:
        with self._lock:
            if any(output.discarded for output in self.outputs):
                self._run_again()
                self._forget_outside_backward()

    def _forget_outside_backward(self) -> None:
        if torch._C._current_graph_task_id() < 0:  # nobody else will ask for it
            self._again = {}

    def _run_again(self) -> None:
        """Fills what was discarded, and holds what was saved until it is asked for."""
        if moved := self.input_moved():
            raise ReplayMismatch(
                f"{self._who}a tensor that the function reads has been modified by an inplace "
                f"operation: {moved.text()}. Fix: run backward before changing it."
            )
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor.detach())
            return tensor if tensor.is_leaf else tensor.detach()

        with self._settings.restored(), saved_tensors_hooks(pack, lambda tensor: tensor):
            results = self._tensors_of(self._function())
        if len(saved) != len(self.saved):
            raise self._differs("what it saved", f"{len(self.saved)} tensors", f"{len(saved)}")
        for i, (first, again) in enumerate(zip(self.saved, saved, strict=True)):
            if first is not None and (difference := first.difference(again)):
                raise self._differs(f"tensor {i} that it saved", *difference)
        for output in self.outputs:
            if output.discarded and (difference := output.refill(results)):
                raise self._differs(output.what, *difference)
        self._again = {i: t for i, t in enumerate(saved) if self.saved[i] is not None}
        if torch._C._current_graph_task_id() >= 0:
            torch.autograd.Variable._execution_engine.queue_callback(self._again.clear)

    def input_moved(self) -> parts.Version | None:
        return next((version for version in self._reads if version.moved()), None)

    def _differs(self, what: str, expected: str, got: str) -> ReplayMismatch:
        return ReplayMismatch(
            f"{self._who}the function did something else when it ran again: {what}: expected {expected}, "
            f'got {got}. Fix: backend="cpp", which does not run it again.'
        )


class _Handle:
    """What autograd holds in place of a tensor that was saved inside the function."""

    def __init__(
        self, call: _Call, index: int, kept: torch.Tensor | None, version: parts.Version
    ) -> None:
        self._call, self._index, self._kept, self._version = call, index, kept, version

    def unpack(self) -> torch.Tensor:
        self._version.check()
        if self._kept is None:
            return self._call.saved_again(self._index)
        parts.bring(self._kept)  # it may be the output of another call
        return self._kept


class _Output:
    """A storage that the function made, and the results that are on it."""

    def __init__(self, results: dict[int, torch.Tensor]) -> None:
        first = next(iter(results.values()))
        self._results = {i: weakref.ref(tensor) for i, tensor in results.items()}
        self._views = {i: parts.View(tensor) for i, tensor in results.items()}
        self._version = parts.Version(first)
        self._storage = parts.WeakStorage(first)
        self._strangers = parts.strangers(list(results.values()))
        self._digest = 0
        self._nbytes = first.untyped_storage().nbytes()
        self.discarded = False
        dtype = str(first.dtype).removeprefix("torch.")
        self.what = f"output {next(iter(results))} ({dtype} {list(first.shape)})"

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for ref in self._results.values() if (tensor := ref()) is not None]

    def check(self, who: str) -> None:
        if self._strangers:
            raise UsageError(
                f"{who}{self.what} does not have its storage to itself: {self._strangers} more tensor"
                f"{'s' if self._strangers > 1 else ''} on it outlived the function (a cache, a list, an "
                "attribute that it was stored in): expected the outputs alone. Nothing was freed. Fix: "
                "let the function store a clone() there."
            )
        storage = self._storage.get()
        if storage is not None and not storage.resizable():
            raise UsageError(
                f"{who}{self.what} has its memory in use outside torch (numpy(), shared memory): "
                "expected memory that only tensors read. Nothing was freed. Fix: take numpy() of a "
                "clone()."
            )

    def discard(self, call: _Call, nodes: list[Any]) -> int:
        tensors = self.tensors()
        plain = all(type(tensor) is torch.Tensor for tensor in tensors)
        changed = self._version.moved() or call.input_moved() is not None
        if not tensors or not plain or changed or self.discarded:
            return 0
        storage = tensors[0].untyped_storage()
        for saved in parts.saved_on(storage, nodes):
            saved.register_hooks(
                lambda tensor: _SavedView(call, self, storage, tensor), lambda view: view.unpack()
            )
        if parts.strangers(tensors):
            return 0  # somebody holds it who would not know that it is gone
        self._digest = parts.digest(parts.bytes_of(storage))
        self.discarded = True
        storage.resize_(0)
        for tensor in tensors:
            parts.hide(tensor, call.fill)
        return self._nbytes

    def refill(self, results: list[torch.Tensor]) -> tuple[str, str] | None:
        """Puts the bytes back; what differs, if they are not what they were."""
        for i, view in self._views.items():
            got = parts.View(results[i]) if i < len(results) else None
            if view != got:
                return str(view), str(got)
        again = results[next(iter(self._views))].untyped_storage()
        if parts.digest(parts.bytes_of(again)) != self._digest:
            return "the same bytes", "others"
        storage = self._storage.get()
        if storage is not None:
            storage.resize_(self._nbytes)
            storage.copy_(again)
        self.discarded = False
        for tensor in self.tensors():
            parts.show(tensor)
        return None


class _SavedView:
    """What autograd holds in place of an output, or a view of it, that a consumer has saved."""

    def __init__(self, call: _Call, output: _Output, storage: Any, tensor: torch.Tensor) -> None:
        self._call, self._output, self._storage = call, output, storage
        self._view, self._version = parts.View(tensor), parts.Version(tensor)

    def unpack(self) -> torch.Tensor:
        self._version.check()
        if self._output.discarded:
            self._call.fill()
        return self._view.on(self._storage)
