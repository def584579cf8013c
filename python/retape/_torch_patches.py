"""What torch does past its dispatcher, shown to the tape. Installed when the first scope opens.

- `Tensor.apply_`, `map_` and `map2_` write to a tensor without a dispatcher call, and some methods
  of storages write to them or free them.
- `grad_fn._raw_saved_self.register_hooks` finds the hooks of a scope on what the scope may drop.
- Compiled functions write to their inputs in kernels of their own.
- Higher-order operators (`torch.cond`, `flex_attention`) have a dispatcher in Python, which must let
  Retape's keys fall through.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import _ops

from retape import _C


def install() -> None:
    """Once per process."""
    for name in ("apply_", "map_", "map2_"):
        _announce_write(torch.Tensor, name)
    for name in ("resize_", "byteswap", "_set_from_file"):
        _announce_write(torch.UntypedStorage, name)
    _let_higher_order_ops_through()
    _make_room_for_hooks()
    _WhenImported("torch._functorch._aot_autograd.runtime_wrappers", _announce_compiled_writes)


def _announce_write(cls: type, name: str) -> None:
    method = getattr(cls, name)

    @functools.wraps(method)
    def announced(self: Any, *args: Any, **kwargs: Any) -> Any:
        _C.will_write(self)
        return method(self, *args, **kwargs)

    setattr(cls, name, announced)


def _make_room_for_hooks() -> None:
    saved_tensor = torch._C._autograd.SavedTensor
    register = saved_tensor.register_hooks

    def register_hooks(self: Any, pack_hook: Callable, unpack_hook: Callable) -> None:
        if callable(pack_hook) and callable(unpack_hook):
            _C.take_off_hooks(self)
        register(self, pack_hook, unpack_hook)

    saved_tensor.register_hooks = register_hooks


def _let_higher_order_ops_through() -> None:
    keys = [torch._C.DispatchKey(key) for key in _C.intercepted_keys()]
    _ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.extend(keys)
    for op in _ops._higher_order_ops.values():
        for key in keys:
            op.fallthrough(key)


def _announce_compiled_writes(runtime_wrappers: ModuleType) -> None:
    """Functions that are compiled from now on say which of their inputs they are about to write."""
    make = runtime_wrappers._create_runtime_wrapper

    @functools.wraps(make)
    def announced(compiled_fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        wrapper = make(compiled_fn, **options)
        infos = options["runtime_metadata"].input_info
        written = [i for i, info in enumerate(infos) if info.mutates_data]
        if not written:
            return wrapper

        @functools.wraps(wrapper)
        def call(args: Any, *rest: Any, **kwargs: Any) -> Any:
            if _C.is_recording():
                _C.will_write(*(args[i] for i in written if isinstance(args[i], torch.Tensor)))
            return wrapper(args, *rest, **kwargs)

        return call

    runtime_wrappers._create_runtime_wrapper = announced


class _WhenImported(importlib.abc.MetaPathFinder):
    """Patches a module as soon as something imports it: torch's compiler takes seconds to load."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self.name, self.patch = name, patch
        if name in sys.modules:
            patch(sys.modules[name])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_patch(module: ModuleType) -> None:
                run(module)
                self.patch(module)

            spec.loader.exec_module = run_and_patch
        return spec
