"""Parts of the Python backend: versions, fingerprints, settings, and who holds a storage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from retape._C import DryRun, ReplayMismatch

_MASK = (1 << 64) - 1


def is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
    )


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class View:
    """How a tensor looks at its storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shape = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        self._kind = (tensor.dtype, tensor.device)
        self._nbytes = tensor.untyped_storage().nbytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self._shape, self._kind))

    def __str__(self) -> str:
        offset, shape, stride = self._shape
        return f"{self._kind[0]} {list(shape)}, stride {list(stride)}, at {offset} of {self._nbytes} bytes"

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        dtype, device = self._kind
        with torch.no_grad():
            return torch.empty(0, dtype=dtype, device=device).set_(storage, *self._shape)


class Version:
    """The version of a tensor now, and its counter, but none of its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._number = tensor._version
        self._text = f"[{tensor.type()} {list(tensor.shape)}]"
        with torch.no_grad():
            self._probe = tensor.detach()
            # Assigning data leaves the counter, which detach() shares, as it is.
            self._probe.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def moved(self) -> bool:
        return self._probe._version != self._number

    def text(self) -> str:
        return f"{self._text} is at version {self._probe._version}; expected version {self._number} instead"

    def check(self) -> None:
        if self.moved():
            raise ReplayMismatch(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: {self.text()}."
            )


class WeakStorage:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._ref = StorageWeakRef(tensor.untyped_storage())

    def get(self) -> torch.UntypedStorage | None:
        return torch.UntypedStorage._new_with_weak_ptr(self._ref.cdata)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def digest(tensor: torch.Tensor) -> int:
    """64 bits that depend on every byte and its place; in pieces, so that it takes no memory."""
    if DryRun.is_on():
        return 0  # there are no bytes
    piece = 1 << 16
    with torch.no_grad():
        flat = (
            tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        )
        whole = flat.numel() // 8 * 8
        words = (
            flat[:whole].view(torch.int64)
            if flat.storage_offset() % 8 == 0
            else flat[:whole].clone().view(torch.int64)
        )
        weights = torch.arange(1, 2 * min(piece, max(words.numel(), 1)), 2, device=tensor.device)
        total = flat.numel()
        for part in words.split(piece) if words.numel() else ():
            total = total * 1_000_003 + int((part * weights[: part.numel()]).sum())
        for byte in flat[whole:].tolist():
            total = total * 257 + byte
    return total & _MASK


class Fingerprint:
    """A tensor as it is now, without its bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._kind = f"{tensor.dtype} {list(tensor.shape)}"
        self._digest = digest(tensor)

    def difference(self, other: torch.Tensor) -> tuple[str, str] | None:
        again = Fingerprint(other)
        if again._kind != self._kind:
            return self._kind, again._kind
        return None if again._digest == self._digest else ("the same bytes", "others")


class Settings:
    """Generators and autocast, as they are when a function starts."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self._states = {device: _state_of(device) for device in (None, *self._devices)}
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted({"cpu", *(device.type for device in self._devices)})
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
            stack.enter_context(torch._C._EnableTorchFunction())  # hidden arguments come back by it
            try:
                for device, state in self._states.items():
                    _set_state(device, state)
                yield
            finally:
                for device, state in later.items():
                    _set_state(device, state)


def _state_of(device: torch.device | None) -> bytes:
    """As bytes of Python's: a tensor would count among the activations."""
    module = torch if device is None else torch.get_device_module(device)
    state = module.get_rng_state() if device is None else module.get_rng_state(device)
    return bytes(state.tolist())


def _set_state(device: torch.device | None, state: bytes) -> None:
    tensor = torch.tensor(list(state), dtype=torch.uint8)
    if device is None:
        torch.set_rng_state(tensor)
    else:
        torch.get_device_module(device).set_rng_state(tensor, device)


class Watch(TorchDispatchMode):
    """Sees what a function makes, and what it reads and changes of what it has not made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[int] = set()
        self.read: dict[int, torch.Tensor] = {}
        self.changed: list[str] = []
        self._asleep = False

    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        before, self._asleep = self._asleep, True
        try:
            yield
        finally:
            self._asleep = before

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._asleep:
            return func(*args, **kwargs)
        for tensor in _plain_in((args, kwargs)):
            if address(tensor) not in self.made:
                self.read.setdefault(address(tensor), tensor)
        for argument, value in _written(func, args, kwargs):
            if any(address(tensor) not in self.made for tensor in _plain_in(value)):
                self.changed.append(f'argument "{argument}" of {func}')
        result = func(*args, **kwargs)
        self.made |= {address(t) for t in _plain_in(result)} - self.read.keys()
        return result


def _plain_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and is_plain(leaf)]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield argument.name, args[i] if i < len(args) else kwargs.get(argument.name)


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


def saved_on(storage: torch.UntypedStorage, nodes: list[Any]) -> Iterator[Any]:
    """What the nodes have saved on `storage`, where a hook may still be put."""
    for node in nodes:
        for name in dir(node):
            if not name.startswith("_raw_saved_"):
                continue
            try:
                held = getattr(node, name)
                for saved in held if isinstance(held, (list, tuple)) else (held,):
                    if saved.unpack_hook is None and _shows(saved.unpack(), storage):
                        yield saved
            except RuntimeError:  # freed, or changed in place since: backward will say so
                continue


def _shows(tensor: torch.Tensor | None, storage: torch.UntypedStorage) -> bool:
    return tensor is not None and is_plain(tensor) and address(tensor) == storage._cdata


class _Hidden(torch.Tensor):
    """A tensor whose memory is gone. Using it brings it back; looking at its shape does not."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _QUESTIONS:
            for leaf in tree_leaves((args, kwargs)):
                bring(leaf)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


_QUESTIONS = {
    *(
        getattr(torch.Tensor, name).__get__
        for name in (
            "shape dtype device layout ndim requires_grad grad_fn grad is_leaf output_nr _version "
            "is_cpu is_cuda is_sparse is_meta is_quantized itemsize nbytes retains_grad"
        ).split()
    ),
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.stride,
    torch.Tensor.numel,
    torch.Tensor.storage_offset,
    torch.Tensor.untyped_storage,
    torch.Tensor.is_contiguous,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.register_hook,
    torch.Tensor._use_count,
    torch.Tensor.element_size,
}


def hide(tensor: torch.Tensor, fill: Callable[[], None]) -> None:
    tensor.__dict__["_retape_fill"] = fill
    tensor.__class__ = _Hidden


def bring(tensor: Any) -> None:
    if type(tensor) is _Hidden:
        tensor.__dict__["_retape_fill"]()


def show(tensor: torch.Tensor) -> None:
    tensor.__class__ = torch.Tensor
    tensor.__dict__.pop("_retape_fill", None)
