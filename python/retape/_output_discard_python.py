"""The Python backend of OutputDiscardCheckpoint, on torch alone.

Discard resizes the storage of an output to nothing. Before anything reads it, the function runs again
and its bytes are copied back. Three kinds of readers have to be seen:

- autograd: hooks on what a consumer has saved of the output fill the storage first;
- the caller: tensors in user code are of the class `_Discarded` while their memory is gone;
- anything else that holds the storage cannot be seen, so the output stays.

Everything that is computed again is compared with a digest of the first time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from retape._C import DryRun, ReplayMismatch, UsageError, is_eager, is_recording

DISCARD = "[OutputDiscardCheckpoint.discard_output_and_register_recompute] "
_WHO = "[OutputDiscardCheckpoint] "
TensorsOf = Callable[[Any], list[torch.Tensor]]


class Checkpoint:
    """What `_C.OutputDiscardCheckpoint` is to the C++ backend."""

    def __init__(self, name: str = "") -> None:
        self._region = f'region "{name}": ' if name else ""
        self._called = False
        self._pending: list[Callable[[], _Call | None]] = []  # weak where a graph owns the call
        self._last: list[weakref.ref[_Call]] = []  # discarded last

    def call(
        self, function: Callable[[], Any], given: list[torch.Tensor], tensors_of: TensorsOf
    ) -> tuple[Any, list[int]]:
        """The result, and which of its tensors are not the function's own."""
        self._called = True
        if not torch.is_grad_enabled() or is_eager():
            return function(), []
        call = _Call(function, given, tensors_of, f"{_WHO}{self._region}")
        result, unmade = call.run_first()
        self._forget_the_dead()
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
        self._forget_the_dead()
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

    def _forget_the_dead(self) -> None:
        self._pending = [
            ref
            for ref in self._pending
            if (call := ref()) and any(output.tensors() for output in call.outputs)
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
    """One call: what it takes to run it again, and digests of what it gave the first time.

    Owned by the handles in the graph, so it owns no tensor that was made in it.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        given: list[torch.Tensor],
        tensors_of: TensorsOf,
        who: str,
    ) -> None:
        self._function, self._tensors_of, self._who = function, tensors_of, who
        # All of them are held by the function anyway.
        self._reads = {f"argument {i}": t for i, t in enumerate(given) if _is_plain(t)}
        self._reads |= {name: t for name, t in captured_by(function) if _is_plain(t)}
        self._versions: dict[str, int] = {}
        self._settings = _Settings(given)
        self._again: dict[int, torch.Tensor] = {}  # what was saved, of the run in this backward
        self._lock = threading.RLock()
        self._runs = False
        self.outputs: list[_Output] = []
        self.saved: list[tuple[str, bytes] | None] = []  # its kind and digest; None: kept
        self.began = self.ended = 0

    def grad_fns(self) -> set[Any]:
        return {t.grad_fn for output in self.outputs for t in output.tensors()} - {None}

    def run_first(self) -> tuple[Any, list[int]]:
        there_before = {_address(tensor) for tensor in self._reads.values()}
        self._versions = self._versions_now()

        def pack(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
            keep = not _is_plain(tensor) or _address(tensor) in there_before
            keep = keep or (tensor.is_leaf and tensor.requires_grad)
            self.saved.append(None if keep else _fingerprint(tensor))
            kept, version = tensor if keep else None, _Version(tensor)
            return functools.partial(self._saved, len(self.saved) - 1, kept, version)

        self.began = torch._C._autograd._get_sequence_nr()
        with saved_tensors_hooks(pack, lambda unpack: unpack()):
            result = self._function()
        self.ended = torch._C._autograd._get_sequence_nr()
        self._settings.forget_generators_at_rest()
        if changed := self.changed_since():
            raise UsageError(
                f"{self._who}the function changes a tensor in place that it has not made "
                f"({changed}): expected one that the Python backend can run again. Fix: "
                'backend="cpp", which does not, or change a clone().'
            )
        return result, self._find_outputs(self._tensors_of(result), there_before)

    def _find_outputs(self, tensors: list[torch.Tensor], there_before: set[int]) -> list[int]:
        given = {_address(t) for name, t in self._reads.items() if name.startswith("argument ")}
        groups: dict[int, dict[int, torch.Tensor]] = {}
        unmade = []
        for i, tensor in enumerate(tensors):
            if not _is_plain(tensor) or _address(tensor) in given:
                continue
            if _address(tensor) in there_before or self._is_older(tensor):
                unmade.append(i)
            else:
                groups.setdefault(_address(tensor), {})[i] = tensor
        self.outputs = [_Output(group) for group in groups.values()]
        return unmade

    def _is_older(self, tensor: torch.Tensor) -> bool:
        """Than this call, as far as autograd knows."""
        base = tensor if tensor._base is None else tensor._base
        return base.requires_grad and (base.is_leaf or base.grad_fn._sequence_nr() < self.began)

    def _versions_now(self) -> dict[str, int]:
        return {name: tensor._version for name, tensor in self._reads.items()}

    def changed_since(self) -> str:
        """The name of something that the function reads and that was changed in place; empty if nothing was."""
        now = self._versions_now()
        return next((name for name in now if now[name] != self._versions[name]), "")

    def _saved(self, index: int, kept: torch.Tensor | None, version: _Version) -> torch.Tensor:
        """What autograd reads in place of a tensor that was saved inside the function."""
        version.check()
        if kept is not None:
            _bring_back(kept)  # it may be the output of another call
            return kept
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
        if torch._C._current_graph_task_id() < 0:  # no other unpack will ask for it
            self._again = {}

    def _run_again(self) -> None:
        """Fills what was discarded, and holds what was saved until it is asked for."""
        if name := self.changed_since():
            raise ReplayMismatch(
                f"{self._who}{name}, which the function reads, has been modified by an inplace operation: "
                f"it is at version {self._reads[name]._version}; expected version {self._versions[name]} "
                "instead. Fix: run backward before changing it."
            )
        if self._runs:
            raise self._differs("a tensor that it reads", "one that was there before", "its output")
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor.detach())
            return tensor if tensor.is_leaf else tensor.detach()

        self._runs = True
        try:
            with self._settings.restored(), saved_tensors_hooks(pack, lambda tensor: tensor):
                results = self._tensors_of(self._function())
        finally:
            self._runs = False
        if len(saved) != len(self.saved):
            raise self._differs("what it saved", f"{len(self.saved)} tensors", f"{len(saved)}")
        for i, (first, again) in enumerate(zip(self.saved, saved, strict=True)):
            if first is not None and first != (found := _fingerprint(again)):
                same = ("the same bytes", "others")
                difference = same if first[0] == found[0] else (first[0], found[0])
                raise self._differs(f"tensor {i} that it saved", *difference)
        for output in self.outputs:
            if output.discarded and (difference := output.refill(results)):
                raise self._differs(output.what, *difference)
        self._again = {i: t for i, t in enumerate(saved) if self.saved[i] is not None}
        if torch._C._current_graph_task_id() >= 0:
            torch.autograd.Variable._execution_engine.queue_callback(self._again.clear)

    def _differs(self, what: str, expected: str, got: str) -> ReplayMismatch:
        return ReplayMismatch(
            f"{self._who}the function did something else when it ran again: {what}: expected {expected}, "
            f'got {got}. Fix: backend="cpp", which does not run it again.'
        )


class _Output:
    """A storage that the function made, and the results that are on it."""

    def __init__(self, results: dict[int, torch.Tensor]) -> None:
        first = next(iter(results.values()))
        self._results = {i: weakref.ref(tensor) for i, tensor in results.items()}
        self._views = {i: _view(tensor) for i, tensor in results.items()}
        self._version = _Version(first)
        self._storage = StorageWeakRef(first.untyped_storage())
        # A scope around the call may hold it for a while: then `discard` decides.
        self._strangers = 0 if is_recording() else strangers(list(results.values()))
        self._digest = b""
        self._nbytes = first.untyped_storage().nbytes()
        self.discarded = False
        dtype = str(first.dtype).removeprefix("torch.")
        self.what = f"output {next(iter(results))} ({dtype} {list(first.shape)})"

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for ref in self._results.values() if (tensor := ref()) is not None]

    def _live_storage(self) -> torch.UntypedStorage | None:
        return torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)

    def check(self, who: str) -> None:
        if self._strangers:
            raise UsageError(
                f"{who}{self.what} does not have its storage to itself: {self._strangers} more tensor"
                f"{'s' if self._strangers > 1 else ''} on it outlived the function (a cache, a list, an "
                "attribute that it was stored in): expected the outputs alone. Nothing was freed. Fix: "
                "let the function store a clone() there."
            )
        storage = self._live_storage()
        if storage is not None and not storage.resizable():
            raise UsageError(
                f"{who}{self.what} has its memory in use outside torch (numpy(), shared memory): "
                "expected memory that only tensors read. Nothing was freed. Fix: take numpy() of a "
                "clone()."
            )

    def discard(self, call: _Call, nodes: list[Any]) -> int:
        tensors = self.tensors()
        plain = all(type(tensor) is torch.Tensor for tensor in tensors)
        changed = self._version.moved() or call.changed_since()
        if not tensors or not plain or changed or self.discarded:
            return 0
        storage = tensors[0].untyped_storage()

        def pack(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
            return functools.partial(self._saved, call, storage, _view(tensor), _Version(tensor))

        for saved in _saved_on(storage, nodes):
            saved.register_hooks(pack, lambda unpack: unpack())
        if strangers(tensors):
            return 0  # they would not notice that it is gone
        self._digest = _digest(_bytes_of(storage))
        self.discarded = True
        storage.resize_(0)
        for tensor in tensors:
            tensor.__dict__["_retape_fill"] = call.fill
            tensor.__class__ = _Discarded
        return self._nbytes

    def refill(self, results: list[torch.Tensor]) -> tuple[str, str] | None:
        """Copies the bytes back; what differs, if they are not what they were."""
        for i, view in self._views.items():
            got = _view(results[i]) if i < len(results) else None
            if got is None or view != got:
                return _view_text(view), _view_text(got) if got else "none"
        again = results[next(iter(self._views))].untyped_storage()
        if _digest(_bytes_of(again)) != self._digest:
            return "the same bytes", "others"
        storage = self._live_storage()
        if storage is not None:
            storage.resize_(self._nbytes)
            storage.copy_(again)
        self.discarded = False
        for tensor in self.tensors():
            tensor.__class__ = torch.Tensor
            tensor.__dict__.pop("_retape_fill", None)
        return None

    def _saved(
        self, call: _Call, storage: torch.UntypedStorage, view: tuple[Any, ...], version: _Version
    ) -> torch.Tensor:
        """What autograd reads in place of the output, or a view of it, that a consumer has saved."""
        version.check()
        if self.discarded:
            call.fill()
        dtype, device, _, *shape = view
        with torch.no_grad():
            return torch.empty(0, dtype=dtype, device=device).set_(storage, *shape)


class _Discarded(torch.Tensor):
    """A tensor whose memory is gone. Using it brings it back; looking at its shape does not."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _QUESTIONS:
            for leaf in tree_leaves((args, kwargs)):
                _bring_back(leaf)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


_PROPERTIES = "shape dtype device layout ndim requires_grad grad_fn is_leaf _version nbytes _base"
_METHODS = (
    "size dim stride numel storage_offset untyped_storage is_contiguous register_hook _use_count"
)
_QUESTIONS = {
    *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES.split()),
    *(getattr(torch.Tensor, name) for name in _METHODS.split()),
}


def _bring_back(tensor: Any) -> None:
    if type(tensor) is _Discarded:
        tensor.__dict__["_retape_fill"]()


# ---------------------------------------------------------------- tensors and storages


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
    )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    """How it looks at its storage: dtype, device, bytes of the storage, and what `set_` takes."""
    nbytes = tensor.untyped_storage().nbytes()
    shape = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return (tensor.dtype, tensor.device, nbytes, *shape)


def _view_text(view: tuple[Any, ...]) -> str:
    dtype, _, nbytes, offset, shape, stride = view
    return f"{dtype} {list(shape)}, stride {list(stride)}, at {offset} of {nbytes} bytes"


class _Version:
    """The version of a tensor now, and its counter, but none of its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._number = tensor._version
        self._kind = f"[{tensor.type()} {list(tensor.shape)}]"
        with torch.no_grad():
            self._probe = tensor.detach()
            # Assigning data leaves the counter, which detach() shares, as it is.
            self._probe.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def moved(self) -> bool:
        return self._probe._version != self._number

    def check(self) -> None:
        if self.moved():
            raise ReplayMismatch(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: {self._kind} is at version {self._probe._version}; expected version "
                f"{self._number} instead."
            )


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _digest(tensor: torch.Tensor) -> bytes:
    if DryRun.is_on():
        return b""  # there are no bytes
    with torch.no_grad():
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    there = (ctypes.c_ubyte * flat.nbytes).from_address(flat.data_ptr())
    return hashlib.blake2b(there, digest_size=16).digest()


def _fingerprint(tensor: torch.Tensor) -> tuple[str, bytes]:
    return f"{tensor.dtype} {list(tensor.shape)}", _digest(tensor)


def strangers(tensors: list[torch.Tensor]) -> int:
    """References to the storage of `tensors`, and to them, that are not the caller's own."""
    storage = tensors[0].untyped_storage()
    tensors = list({id(tensor): tensor for tensor in tensors}.values())
    bases = [tensor._base for tensor in tensors if tensor._base is not None]
    known = {id(tensor): tensor for tensor in (*tensors, *bases)}
    more = torch._C._storage_Use_Count(storage._cdata) - len(known) - 1
    for tensor in known.values():
        of_views = sum(1 for base in bases if base is tensor)
        more += tensor._use_count() - 1 - of_views
    return more


def _saved_on(storage: torch.UntypedStorage, nodes: list[Any]) -> Iterator[Any]:
    """What the nodes have saved on `storage`, where a hook may still be put."""

    def is_on_it(tensor: torch.Tensor | None) -> bool:
        return tensor is not None and _is_plain(tensor) and _address(tensor) == storage._cdata

    for node in nodes:
        for name in dir(node):
            if not name.startswith("_raw_saved_"):
                continue
            try:
                held = getattr(node, name)
                for saved in held if isinstance(held, (list, tuple)) else (held,):
                    if saved.unpack_hook is None and is_on_it(saved.unpack()):
                        yield saved
            except RuntimeError:  # freed, or changed in place since: backward will say so
                continue


# ---------------------------------------------------------------- functions


def captured_by(fn: Callable[..., Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that a function can reach: in its variables, their modules, and attributes of other objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    held: dict[str, Any] = {}
    if inspect.isfunction(fn) or inspect.ismethod(fn):
        variables = inspect.getclosurevars(fn)
        held = {**variables.globals, **variables.nonlocals}
    owner = getattr(fn, "__self__", fn)
    for name, value in {**held, type(owner).__name__: owner}.items():
        yield from _tensors_of(name, value)
        attributes = {} if isinstance(value, _NO_HOLDERS) else getattr(value, "__dict__", {})
        for attribute, inner in attributes.items():
            yield from _tensors_of(f"{name}.{attribute}", inner)


_NO_HOLDERS = (torch.nn.Module, type, types.ModuleType, types.FunctionType)


def _tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.nn.Module):
        yield from ((f'parameter "{key}" of {name}', t) for key, t in value.named_parameters())
        yield from ((f'buffer "{key}" of {name}', t) for key, t in value.named_buffers())
    else:
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for i, tensor in enumerate(tensors):
            yield (f'"{name}"' if len(tensors) == 1 else f'"{name}", tensor {i}'), tensor


class _Settings:
    """Generators and autocast, as they are when a function starts."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self._states = {device: _state_of(device) for device in (None, *devices)}
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted({"cpu", *(device.type for device in devices)})
        ]
        self._cache = torch.is_autocast_cache_enabled()

    def forget_generators_at_rest(self) -> None:
        self._states = {d: state for d, state in self._states.items() if state != _state_of(d)}

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        later = {device: _state_of(device) for device in self._states}
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self._autocast:
                stack.enter_context(
                    torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=self._cache)
                )
            stack.enter_context(torch.enable_grad())
            stack.enter_context(
                torch._C._EnableTorchFunction()
            )  # discarded arguments come back by it
            stack.callback(_set_states, later)
            _set_states(self._states)
            yield


def _state_of(device: torch.device | None) -> bytes:
    """As bytes of Python's: a tensor would count among the activations."""
    module = torch if device is None else torch.get_device_module(device)
    state = module.get_rng_state() if device is None else module.get_rng_state(device)
    return bytes(state.tolist())


def _set_states(states: dict[torch.device | None, bytes]) -> None:
    for device, state in states.items():
        tensor = torch.tensor(list(state), dtype=torch.uint8)
        if device is None:
            torch.set_rng_state(tensor)
        else:
            torch.get_device_module(device).set_rng_state(tensor, device)
