"""Saved-tensor hooks of test/test_autograd.py: a region is made of them, and stands among the user's."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

import retape

from .support import Counted, assert_same, checkpoint, every_way, leaf, same_leaf, with_a_graph

Tensor = torch.Tensor


def same(x: Any) -> Any:
    return x


def plain(function: Callable, *args: Any) -> Any:
    return function(*args)


def inside(how: str) -> Callable:
    return lambda function, *args: checkpoint(how, function, *args)


@with_a_graph
@pytest.mark.parametrize("is_leaf", [True, False])
def test_saved_variable_packing_unpacking_saved_original_with_hooks(
    how: str, is_leaf: bool
) -> None:
    """An input that an op saved in a region unpacks to its bits and its place in the graph, twice;
    first and second gradients are eager's. Replay leaves what the region was given to autograd, so it
    takes hooks as eager does; a second run has its hooks on it. No hook of the wrong type anywhere."""
    x = leaf(5)
    a = x if is_leaf else x + 1
    y = checkpoint(how, lambda v: v * v, a)
    for _ in range(2):
        saved = y.grad_fn._saved_self
        assert_same(saved, a)
        assert saved.requires_grad
        assert saved.grad_fn is a.grad_fn
    if how == "replay":
        y.grad_fn._raw_saved_self.register_hooks(same, same)
    with pytest.raises(RuntimeError, match="whose hooks have already been set"):
        y.grad_fn._raw_saved_self.register_hooks(lambda v: 2 * v, same)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        y.grad_fn._raw_saved_self.register_hooks(3, same)
    y.sum().backward()
    b = same_leaf(x)
    c = b if is_leaf else b + 1
    (c * c).sum().backward()
    assert_same(x.grad, b.grad, "first")

    def second(run: Callable) -> Tensor:
        v = leaf(5)
        w = v if is_leaf else v + 1
        (g,) = torch.autograd.grad(run(lambda u: u**3, w).sum(), w, create_graph=True)
        return torch.autograd.grad(g.sum(), v)[0]

    assert_same(second(inside(how)), second(plain), "second")


@with_a_graph
def test_saved_variable_packing_unpacking_did_not_save_original_with_hooks(how: str) -> None:
    """A result that its own op saved unpacks with that op as its grad_fn. Replay makes room for hooks, as
    plain autograd has it; a second run does not, and nothing takes a second pair."""
    a = leaf(5)
    y = checkpoint(how, torch.exp, a)
    assert_same(y.grad_fn._saved_result, y)
    assert y.grad_fn._saved_result.grad_fn is y.grad_fn
    if how == "replay":
        y.grad_fn._raw_saved_result.register_hooks(same, same)
    with pytest.raises(RuntimeError, match="whose hooks have already been set"):
        y.grad_fn._raw_saved_result.register_hooks(same, same)
    y.sum().backward()
    assert_same(a.grad, y)


@every_way
@pytest.mark.parametrize(
    ("pack", "unpack", "factor"),
    [(same, same, 1), (lambda x: 2 * x, lambda x: x / 2, 1), (lambda x: 2 * x, same, 2)],
)
def test_saved_variable_packing_unpacking_saved_original_with_default_hooks(
    how: str, pack: Callable, unpack: Callable, factor: int
) -> None:
    """The user's hooks inside a region get every tensor that is saved under them, decide what comes
    back, and are off again afterwards, when the region's are on again."""
    packed = Counted(pack)
    a, b = leaf(5, seed=1), leaf(5, seed=2)

    def f(v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with saved_tensors_hooks(packed, unpack):
            first = v * v
        return first, w * w

    y, z = checkpoint(how, f, a, b)
    if how != "reentrant":  # whose forward makes no graph, so saves nothing
        assert packed.calls == 2
        assert_same(y.grad_fn._saved_self, factor * a)
        assert_same(z.grad_fn._saved_self, b)
    (y + z).sum().backward()
    assert_same([a.grad, b.grad], [2 * factor * a, 2 * b])
    assert packed.calls in (2, 4)
    c = leaf(5)
    (c * c).sum().backward()
    assert_same(c.grad, 2 * c)


@every_way
def test_saved_variable_packing_unpacking_did_not_save_original_with_default_hooks(
    how: str,
) -> None:
    """The same for a result that its own op saved: around a region the region's hooks win, inside
    it the user's."""

    def f(v: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda x: 2 * x, lambda x: x / 2):
            return v.exp()

    a, b = leaf(5), leaf(5)
    y = checkpoint(how, f, a)
    if how != "reentrant":
        assert_same(y.grad_fn._saved_result, y)
    y.sum().backward()
    assert_same(a.grad, y)
    with saved_tensors_hooks(lambda x: 2 * x, lambda x: x / 2):
        z = checkpoint(how, lambda v: v.exp().sin(), b * 1)
    z.sum().backward()
    c = leaf(5)
    c.exp().sin().sum().backward()
    assert_same(b.grad, c.grad)


def test_saved_variable_packing_unpacking_hooks_around_that_falsify() -> None:
    """Hooks around a region that do not give back what they got: replay does not use them. Rerun
    holds its inputs under them.

    Better: it notices.
    """
    a, b = leaf(5), leaf(5)
    with saved_tensors_hooks(lambda x: 3 * x, same):
        replayed = checkpoint("replay", lambda v: v.exp().sin(), a * 1)
        rerun = checkpoint("rerun", lambda v: v.exp().sin(), leaf(5) * 1)
    replayed.sum().backward()
    b.exp().sin().sum().backward()
    assert_same(a.grad, b.grad)
    with pytest.raises(retape.ReplayMismatch, match="aten::exp saved.*came out different"):
        rerun.sum().backward()


@with_a_graph
def test_saved_variable_saved_original_inplace_detach(how: str) -> None:
    """A region holds its inputs as plain autograd does, which cannot use one that was detached in
    place: eager's error."""
    hidden = leaf(5).clone()
    out = checkpoint(how, torch.sin, hidden)
    hidden.detach_()
    with pytest.raises(RuntimeError, match="saved tensor that has been detached"):
        out.sum().backward()


@with_a_graph
def test_saved_variable_saved_original_inplace_detach_of_a_result(how: str) -> None:
    """Detaching a region's result in place is no trouble for what was built on it."""
    a, b = leaf(5), leaf(5)
    hidden = checkpoint(how, torch.exp, a)
    out = hidden * 2
    hidden.detach_()
    out.sum().backward()
    (b.exp() * 2).sum().backward()
    assert_same(a.grad, b.grad)


@every_way
def test_setting_default_saved_variable_hooks_twice_should_not_fail(how: str) -> None:
    """Region in hooks in region in hooks: they nest, and each closes what it opened."""
    x = leaf(5)

    def f(v: Tensor) -> Tensor:
        with saved_tensors_hooks(same, same), saved_tensors_hooks(same, same):
            return checkpoint(how, lambda w: w.sin().exp(), v)

    with saved_tensors_hooks(same, same):
        out = checkpoint(how, f, x)
    out.sum().backward()
    y = same_leaf(x)
    y.sin().exp().sum().backward()
    assert_same(x.grad, y.grad)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@with_a_graph
def test_setting_default_saved_variable_hooks_twice_should_use_inner(how: str) -> None:
    """Of hooks, region, hooks the innermost gets the tensor."""
    a, b, c = leaf(5, seed=1), leaf(5, seed=2), leaf(5, seed=3)

    def f(v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with saved_tensors_hooks(lambda x: 5 * x, lambda x: 5 * x):
            first = v * v
        return first, w * w

    with saved_tensors_hooks(lambda x: 3 * x, lambda x: 3 * x):
        y, z = checkpoint(how, f, a, b)
        out = c * c
    (y + z + out).sum().backward()
    torch.testing.assert_close(a.grad, 2 * 5 * 5 * a.detach())
    assert_same(b.grad, 2 * b)
    torch.testing.assert_close(c.grad, 2 * 3 * 3 * c.detach())


@with_a_graph
def test_disabling_saved_tensor_hooks(how: str) -> None:
    """Where hooks are disabled a region is a plain call: nothing is dropped, nothing is run again,
    and hooks are enabled again afterwards. The user's own are refused there as ever."""
    f = Counted(lambda v: v.sin().exp())
    x = leaf(5)
    with disable_saved_tensors_hooks("not here"):
        out = checkpoint(how, f, x)
        with pytest.raises(RuntimeError, match="not here"), saved_tensors_hooks(same, same):
            pass
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    out.sum().backward()
    assert f.calls == 1
    y = same_leaf(x)
    y.sin().exp().sum().backward()
    assert_same(x.grad, y.grad)


@with_a_graph
def test_disabling_saved_tensor_hooks_nested(how: str) -> None:
    """Disabled inside a region, twice: the inner message, then the outer, then the region goes on."""
    x = leaf(5)

    def f(v: Tensor) -> Tensor:
        with disable_saved_tensors_hooks("outer"):
            with disable_saved_tensors_hooks("inner"):
                with pytest.raises(RuntimeError, match="inner"), saved_tensors_hooks(same, same):
                    pass
                v = v.sin()
            assert not torch._C._autograd._saved_tensors_hooks_is_enabled()
            v = v.exp()
        return v.tanh()

    out = checkpoint(how, f, x)
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    out.sum().backward()
    y = same_leaf(x)
    y.sin().exp().tanh().sum().backward()
    assert_same(x.grad, y.grad)


class Mine(Exception):
    pass


def _raise(text: str) -> Callable:
    def hook(x: Any) -> Any:
        raise Mine(text)

    return hook


@with_a_graph
def test_saved_tensor_hooks_custom_error_propagation(how: str) -> None:
    """The user's exception comes out of a pack hook in a region, and out of an unpack hook in
    backward, as what it is; neither leaves a region open."""
    x = leaf(5)

    def packing(v: Tensor) -> Tensor:
        with saved_tensors_hooks(_raise("pack"), same):
            return v.sin()

    def unpacking(v: Tensor) -> Tensor:
        with saved_tensors_hooks(same, _raise("unpack")):
            return v.sin()

    with pytest.raises(Mine, match="pack"):
        checkpoint(how, packing, x)
    assert not retape.is_recording()
    out = checkpoint(how, unpacking, x)
    with pytest.raises(Mine, match="unpack"):
        out.sum().backward()


@every_way
def test_saved_tensor_hooks_custom_function_intermediates(how: str) -> None:
    """A custom Function saves something that is neither its input nor its output."""

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp().clone().detach_().requires_grad_(True))
            return x.exp()

        @staticmethod
        def backward(ctx, grad):
            (intermediate,) = ctx.saved_tensors
            assert intermediate.requires_grad
            return grad * intermediate

    a = leaf(5)
    out = checkpoint(how, lambda v: Exp.apply(v).sin(), a)
    out.sum().backward()
    b = same_leaf(a)
    Exp.apply(b).sin().sum().backward()
    assert_same(a.grad, b.grad)


@with_a_graph
def test_unpack_hooks_exec_count(how: str) -> None:
    """The user's pack and unpack hooks in a region are called once for a tensor."""
    pack, unpack = Counted(same), Counted(same)
    x, y = leaf(4), torch.ones(4)

    def f(a: Tensor, b: Tensor) -> Tensor:
        with saved_tensors_hooks(pack, unpack):
            return a * b

    out = checkpoint(how, f, x, y)
    assert (pack.calls, unpack.calls) == (1, 0)
    out.sum().backward()
    assert (pack.calls, unpack.calls) == (1, 1)


class Writes(torch.autograd.Function):
    """Saves its input, and in backward writes into it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x.add_(100)
        return grad * 3


@with_a_graph
def test_saved_tensors_hook_version_counter_not_shared(how: str) -> None:
    """A backward that writes into what came back does not touch the tensor that was given.

    A second pass finds the saved tensor changed: eager's error under replay. A second run makes it
    anew.
    """
    a, b = leaf(5), leaf(5)

    def f(v: Tensor) -> Tensor:
        return Writes.apply(v * 2).sin()

    out = checkpoint(how, f, a)
    before = a.detach().clone()
    for first in (True, False):
        if how == "replay" and not first:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                out.sum().backward(retain_graph=True)
            continue
        out.sum().backward(retain_graph=True)
        (b * 2 * 3).sin().sum().backward()
    assert_same(a, before)
    assert a._version == 0
    assert_same(a.grad, b.grad)

    replacement = a.detach().clone()

    def replaced(v: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda x: replacement, same):
            return Writes.apply(v)

    checkpoint(how, replaced, a).sum().backward()
    assert a._version == 0
    assert_same(replacement, before + 100)


@with_a_graph
def test_saved_tensors_hook_version_counter_not_shared_with_another_op(how: str) -> None:
    """If another op saved the same tensor, eager raises; going on with a wrong gradient is not an
    answer: either eager's error or the gradient of what forward saved."""
    a, b = leaf(5), leaf(5)

    def f(v: Tensor) -> Tensor:
        hidden = v * 2
        sine = hidden.sin()
        return sine + Writes.apply(hidden)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        f(b).sum().backward()
    with contextlib.suppress(RuntimeError):
        checkpoint(how, f, a).sum().backward()
        c = leaf(5)
        ((c * 2).sin() + (c * 2) * 3).sum().backward()
        assert_same(a.grad, c.grad)


@every_way
def test_pack_hook_with_inplace_modification_should_fail(how: str) -> None:
    """A pack hook that writes into what it is given is refused inside a region too."""
    a = leaf(5)

    def f(v: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda x: x.add_(1), same):
            return v.exp()

    with pytest.raises(RuntimeError, match="pack hook is modifying its input in place"):
        out = checkpoint(how, f, a)
        if how == "reentrant":  # saves nothing before
            out.sum().backward()


@with_a_graph
def test_saving_variable_to_disk(how: str, tmp_path: Path) -> None:
    """Hooks that write to a file and read it back, inside a region."""

    def pack(x: Tensor) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
        torch.save(x.detach(), path)
        return path

    def f(v: Tensor) -> Tensor:
        v = v.sin()
        with saved_tensors_hooks(pack, torch.load):
            v = v * v
        return v.exp()

    a = leaf(5)
    out = checkpoint(how, f, a)
    assert len(list(tmp_path.iterdir())) == 2
    out.sum().backward()
    c = same_leaf(a)
    hidden = c.sin()
    (hidden * hidden).exp().sum().backward()
    assert_same(a.grad, c.grad)


def _cube(x: Tensor) -> Tensor:
    return (x**3).sum()


@with_a_graph
def test_default_saved_tensors_hooks_double_backward(how: str) -> None:
    """Hooks that double what is saved: in forward, in backward or in both the second gradient is
    2, 4 or 8 times as large, with a region around them as without."""

    def second(run: Callable, in_forward: bool, in_backward: bool) -> Tensor:
        def hooks(on: bool) -> contextlib.AbstractContextManager:
            return saved_tensors_hooks(lambda x: 2 * x, same) if on else contextlib.nullcontext()

        def f(a: Tensor) -> Tensor:
            with hooks(in_forward):
                loss = _cube(a)
            with hooks(in_backward):
                (g,) = torch.autograd.grad(loss, a, create_graph=True)
            return g.sum()

        a = leaf(5)
        run(f, a).backward()
        return a.grad

    once = second(plain, False, False)
    for in_forward, in_backward, factor in (
        (False, False, 1),
        (True, False, 2),
        (False, True, 4),
        (True, True, 8),
    ):
        found = second(inside(how), in_forward, in_backward)
        assert_same(found, second(plain, in_forward, in_backward), f"{factor}")
        assert_same(found, once * factor, f"{factor}")


@with_a_graph
def test_wrapped_number_saved_tensors_hooks(how: str) -> None:
    """A number that autograd wraps into a tensor is not packed: not by the user's hooks in a
    region, and not by the region, which has nothing to bring back."""
    f = Counted(lambda v: v * 3)
    a = leaf(5)
    out = checkpoint(how, f, a * 1)
    torch.autograd.grad(out.sum(), a)
    assert f.calls == 1
    if how == "replay":
        with retape.recompute("full") as rec:
            f(a)
        assert rec.stats.values_saved == 0

    def g(v: Tensor) -> Tensor:
        with saved_tensors_hooks(_raise("pack"), _raise("unpack")):
            return (v * 3).sum()

    (found,) = torch.autograd.grad(checkpoint(how, g, a), a)
    assert_same(found, torch.full((5,), 3.0))


def _sparse() -> Tensor:
    indices = torch.tensor([[0, 2]])
    values = torch.tensor([1.5, 2.5])
    with torch.sparse.check_sparse_tensor_invariants(True):
        return torch.sparse_coo_tensor(indices, values, (3,)).requires_grad_()


@with_a_graph
@pytest.mark.parametrize(
    "make",
    [lambda: leaf(5), lambda: leaf(5, dtype=torch.double), _sparse],
    ids=["float", "double", "sparse"],
)
def test_graph_save_on_cpu(how: str, make: Callable[[], Tensor]) -> None:
    """Dtype, layout and value of what comes back, with save_on_cpu inside the region and without."""

    def dense(t: Tensor) -> Tensor:
        return t.detach().to_dense() if t.is_sparse else t.detach()

    def f(v: Tensor) -> Tensor:
        return v * v

    def offloaded(v: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return v * v

    for function in (f, offloaded):
        a, b = make(), make()
        y = checkpoint(how, function, a)
        saved = y.grad_fn._saved_self
        assert (saved.dtype, saved.layout) == (a.dtype, a.layout)
        assert_same(dense(saved), dense(a))
        (y.to_dense() if y.is_sparse else y).sum().backward()
        z = f(b)
        (z.to_dense() if z.is_sparse else z).sum().backward()
        assert_same(dense(a.grad), dense(b.grad))


@with_a_graph
def test_saved_tensor_constructor_with_hooks(how: str) -> None:
    """A SavedTensor that is made by hand in a region is packed by it, and unpacks to the same bits,
    after the region too."""
    a = leaf(5)
    made = []

    def f(v: Tensor) -> Tensor:
        hidden = v.sin()
        made.append(torch._C._autograd._make_saved_tensor(hidden, False))
        return hidden.exp()

    out = checkpoint(how, f, a)
    assert_same(made[0].unpack(), a.detach().sin())
    if how == "replay":
        made[0].register_hooks(same, same)
    with pytest.raises(RuntimeError, match="whose hooks have already been set"):
        made[0].register_hooks(same, same)
    out.sum().backward()
    b = same_leaf(a)
    b.sin().exp().sum().backward()
    assert_same(a.grad, b.grad)


def test_cant_create_saved_tensors() -> None:
    """SavedTensor has no constructor in Python, in a region as elsewhere."""

    def f(v: Tensor) -> Tensor:
        with pytest.raises(RuntimeError, match="Trying to create a SavedTensor object from Python"):
            torch.autograd.SavedTensor()
        return v.sin()

    a = leaf(5)
    checkpoint("replay", f, a).sum().backward()
    assert_same(a.grad, a.detach().cos())


@with_a_graph
def test_get_data_and_hooks_from_raw_saved_variable(how: str) -> None:
    """Of the user's hooks in a region the packed object and the unpack hook can be read. The
    region's own are no Python objects: reading them is an error, and no wrong tensor."""
    a = leaf(5)
    packed, unpack = object(), lambda _: a.detach().exp()

    def f(v: Tensor) -> tuple[Tensor, Tensor]:
        with saved_tensors_hooks(lambda x: packed, unpack):
            mine = v.exp()
        return mine, v.exp()

    mine, regions = checkpoint(how, f, a)
    raw = mine.grad_fn._raw_saved_result
    assert raw.data is packed
    assert raw.unpack_hook is unpack
    for name in ("data", "unpack_hook"):
        with pytest.raises(retape.UsageError):
            getattr(regions.grad_fn._raw_saved_result, name)


class Once(torch.autograd.Function):
    clear_saved_tensors_on_access = True
    times = 1

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        for _ in range(Once.times):
            (saved,) = ctx.saved_tensors
        return grad * saved


@every_way
def test_clear_saved_tensors_on_access(how: str) -> None:
    """A Function that gives up its saved tensors when it reads them gets them, once."""
    Once.times = 1
    a, b = leaf(5), leaf(5)
    checkpoint(how, lambda v: Once.apply(v.sin()), a).sum().backward()
    b.sin().exp().sum().backward()
    assert_same(a.grad, b.grad)


@every_way
def test_clear_saved_tensors_on_access_double_access_error(how: str) -> None:
    """Reading them a second time is autograd's error, in a region as outside."""
    Once.times = 2
    texts = []
    for run in (plain, inside(how)):
        with pytest.raises(RuntimeError) as error:
            run(lambda v: Once.apply(v.sin()), leaf(5)).sum().backward()
        texts.append(str(error.value))
    assert texts[0] == texts[1]
