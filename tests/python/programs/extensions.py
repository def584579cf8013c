"""What programs may call that is not torch's: custom ops, subclasses, modes, memory of others.

Printed in front of `prelude.py`, so it imports torch, numpy and retape alone. Ops are registered under
the name of the module, since a printed program may run in a process that has this module too.
"""

import weakref

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode  # noqa: F401 - programs call it

import retape

NAMESPACE = "programs_" + __name__.rpartition(".")[2].strip("_")
replayable = getattr(retape, "replayable", lambda name: None)

# ---- custom ops

STATE = {"calls": np.zeros(1, np.int32)}


def count_from_zero():
    """The number of calls of `counts` from here on, as a tensor: int32, which no step reads."""
    STATE["calls"] = np.zeros(1, np.int32)
    return torch.from_numpy(STATE["calls"])


def counted(op, x, calls):
    """`calls` says that a program depends on the counter that its leaves made."""
    return op(x)


def _twice_sin(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def _counts(x: torch.Tensor) -> torch.Tensor:
    STATE["calls"] += 1
    return torch.sin(x) * (1 + 0.01 * int(STATE["calls"][0]))


def _draws(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * torch.rand_like(x)


def _numpy(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty(x.shape)  # torch's memory: kernels round by alignment, and numpy's has any
    np.tanh(x.detach().numpy(), out=result.numpy())
    return result


def _total(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(xs).sum(0)


def _accumulate(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.mul_(0.5).add_(x.mean())
    return x * state.mean()


def _scale(x: torch.Tensor, factor: float) -> None:
    x.mul_(factor)


def _saves_both(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


def _backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * torch.cos(x) * y


def _register():
    functional = {
        "pure": _twice_sin,
        "opted_in": _twice_sin,
        "counts": _counts,
        "draws": _draws,
        "by_numpy": _numpy,
    }
    for name, kernel in functional.items():
        op = torch.library.custom_op(f"{NAMESPACE}::{name}", kernel, mutates_args=())
        op.register_autograd(_backward, setup_context=_saves_both)
    op = torch.library.custom_op(f"{NAMESPACE}::total", _total, mutates_args=())
    op.register_autograd(
        lambda ctx, grad: [grad] * ctx.count,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "count", len(inputs[0])),
    )
    torch.library.custom_op(f"{NAMESPACE}::accumulate", _accumulate, mutates_args=("state",))
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    # Kernels of a device have no autograd formula. A tape sees them as one op, not as their parts.
    for name, kernel in functional.items():
        tags = torch.Tag.pt2_compliant_tag
        library.define(f"{name}_kernel(Tensor x) -> Tensor", tags=tags)
        library.impl(f"{name}_kernel", kernel, "CPU")
    for name in ("opted_in", "opted_in_kernel"):
        replayable(f"{NAMESPACE}::{name}")
    library.define("scale_(Tensor(a!) x, float factor) -> ()")
    library.impl("scale_", _scale, "CompositeExplicitAutograd")
    library.define("draws_from(Tensor x, Generator? source) -> Tensor")
    library.impl("draws_from", lambda x, source: x * torch.rand(x.shape, generator=source), "CPU")
    replayable(f"{NAMESPACE}::draws_from")
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: torch.sin(x) * x, "CompositeImplicitAutograd")
    return library


library = _register()
ops = getattr(torch.ops, NAMESPACE)

# ---- subclasses


class Wrapped(torch.Tensor):
    """Holds a tensor and passes ops on to it from `__torch_dispatch__`, as DTensor does."""

    @staticmethod
    def __new__(cls, inner):
        options = {"dtype": inner.dtype, "strides": inner.stride(), "layout": inner.layout}
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options)
        self.wrapped = inner
        return self

    def __repr__(self):
        return f"Wrapped({self.wrapped})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inner = tree_map(lambda x: x.wrapped if isinstance(x, Wrapped) else x, (args, kwargs))
        out = func(*inner[0], **inner[1])
        out = tree_map(lambda x: Wrapped(x) if isinstance(x, torch.Tensor) else x, out)
        return return_and_correct_aliasing(func, args, kwargs, out)

    @staticmethod
    def of(inner):
        return _Wrap.apply(inner)

    def plain(self):
        return _Unwrap.apply(self)


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Wrapped(x.detach())

    @staticmethod
    def backward(ctx, grad):
        return grad.wrapped if isinstance(grad, Wrapped) else grad


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.wrapped.view_as(x.wrapped)

    @staticmethod
    def backward(ctx, grad):
        return Wrapped(grad)


class Tagged(torch.Tensor):
    """Known to `__torch_function__` alone. What autograd saves of it is a Tagged with its attributes."""


# ---- what autograd hands back


class SavesTagged(torch.autograd.Function):
    """Its gradient depends on the types and attributes of what was saved."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        known = sum(2.0 * (type(t) is Tagged) + getattr(t, "tag", 0.0) for t in (x, y))
        x, y = (t.detach().as_subclass(torch.Tensor) for t in (x, y))
        return grad * y * (1 + known), grad * x * (1 + known)


class SavesLeaf(torch.autograd.Function):
    """Its gradient depends on whether it gets back the very leaf that it saved."""

    @staticmethod
    def forward(ctx, x, leaf):
        ctx.save_for_backward(x, leaf)
        ctx.leaf = weakref.ref(leaf)
        return x * leaf.sum()

    @staticmethod
    def backward(ctx, grad):
        x, leaf = ctx.saved_tensors
        same = 1.0 if leaf is ctx.leaf() else 3.0
        return grad * leaf.sum() * same, (grad * x).sum().expand_as(leaf) * same


# ---- modes


class Redispatch(TorchDispatchMode):
    """Passes every op on, and computes nothing of its own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


# ---- memory


def placed(values, at):
    """A copy in memory that torch does not own, `4 * at` bytes behind a multiple of 64."""
    memory = np.empty(values.numel() + 32, np.float32)
    first = -(memory.ctypes.data // 4) % 16 + at
    array = memory[first : first + values.numel()].reshape(values.shape)
    return torch.from_numpy(array).copy_(values.detach())


def buffered(values, at):
    """The same by way of `torch.frombuffer`."""
    memory = bytearray(4 * (values.numel() + 32))
    first = 4 * (-(np.frombuffer(memory, np.uint8).ctypes.data // 4) % 16 + at)
    flat = torch.frombuffer(memory, dtype=torch.float32, count=values.numel(), offset=first)
    return flat.view(values.shape).copy_(values.detach())
