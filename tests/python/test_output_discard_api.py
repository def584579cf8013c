"""OutputDiscardCheckpoint in the hands of its users: errors, refusals, lifetimes, threads, names."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.python.discard import BATCH, HIDDEN, WIDTH, Block, Counted, H, Plain, equal, loss
from torch import Tensor, nn

import retape

DROP = retape.Policy.full().anchors(False)


@pytest.fixture(params=["cpp", "python"])
def backend(request: pytest.FixtureRequest) -> str:
    Counted.freed = 0
    return request.param


def same(plain: list[Any], found: list[Any]) -> bool:
    return len(plain) == len(found) and all(map(equal, plain, found))


def expected() -> list[Any]:
    block = Block()
    loss(block.forward(Plain)).backward()
    return block.grads()


# ---------------------------------------------------------------- the calls, and their misuse


def test_exception_between_forward_and_discard(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    block.forward(lambda: Counted(backend))  # torch sets up its dispatch modes at first use
    gc.collect()
    gc.disable()
    try:
        with retape.memory.Meter() as meter:

            def broken() -> None:
                ckpt.checkpoint(block.inner, block.x)
                raise KeyError("the consumer's own")

            with pytest.raises(KeyError, match="the consumer's own"):
                broken()
            assert meter.current == 0
    finally:
        gc.enable()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    assert ckpt.discard_output_and_register_recompute(z) == H
    loss(z).backward()
    assert same(expected(), block.grads())


def test_exception_in_the_function_closes_its_scope(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)

    def broken(x: Tensor) -> Tensor:
        block.inner(x)
        raise KeyError("the function's own")

    with pytest.raises(KeyError, match="the function's own"):
        ckpt.checkpoint(broken, block.x)
    assert not retape.is_recording()
    loss(block.forward(lambda: ckpt)).backward()
    assert same(expected(), block.grads())
    assert Counted.freed == H


def test_discard_never_called(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    loss(block.down(ckpt.checkpoint(block.inner, block.x))).backward()
    assert same(expected(), block.grads())


def test_discard_called_twice_frees_nothing_more(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    assert ckpt.discard_output_and_register_recompute(z) == H
    assert ckpt.discard_output_and_register_recompute(z) == 0
    loss(z).backward()
    assert same(expected(), block.grads())


def test_second_hook_tensor_brings_the_output_back_too(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    h = ckpt.checkpoint(block.inner, block.x)
    z, other = block.down(h), h.sin()
    freed = ckpt.discard_output_and_register_recompute(z)
    assert freed == (H if backend == "cpp" else 0)  # Python cannot see that `other` reads it too
    assert ckpt.discard_output_and_register_recompute(other) == 0
    other.sum().backward()
    plain = Block()
    plain.inner(plain.x).sin().sum().backward()
    assert same(plain.grads(), block.grads())


def test_discard_before_any_call_says_what_to_do(backend: str) -> None:
    with pytest.raises(
        retape.UsageError, match=r"nothing to discard: expected a checkpoint\(\) call"
    ):
        Counted(backend).discard_output_and_register_recompute(torch.ones(3))


def test_hook_tensor_must_be_one(backend: str) -> None:
    ckpt = Counted(backend)
    ckpt.checkpoint(torch.sin, torch.ones(3))
    with pytest.raises(
        retape.UsageError, match="expected the tensor that the consumer made, got tuple"
    ):
        ckpt.discard_output_and_register_recompute((torch.ones(3),))


def test_clear_forgets_what_was_not_discarded(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.clear()
    assert ckpt.discard_output_and_register_recompute(z) == 0
    loss(z).backward()
    assert same(expected(), block.grads())


def test_outputs_are_the_tensors_of_the_last_call_until_they_are_back(backend: str) -> None:
    """The attribute of OLMo-core's and Megatron's classes: None, a tuple of tensors, None again."""
    block, ckpt = Block(), Counted(backend)
    assert ckpt.outputs is None
    h = ckpt.checkpoint(block.inner, block.x)
    assert isinstance(ckpt.outputs, tuple)
    assert [output is h for output in ckpt.outputs] == [True]
    z = block.down(h)
    assert ckpt.discard_output_and_register_recompute(z) == H
    assert ckpt.outputs[0] is h
    loss(z).backward()
    assert ckpt.outputs is None
    assert same(expected(), block.grads())


def test_outputs_are_flat_and_in_order(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    result = ckpt.checkpoint(lambda x: {"a": [x.sin(), 3], "b": (x.cos(), None)}, block.x)
    assert [id(t) for t in ckpt.outputs] == [id(result["a"][0]), id(result["b"][0])]
    ckpt.clear()
    assert ckpt.outputs is None


def test_outputs_are_those_of_a_plain_call_too(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    with torch.no_grad():
        h = ckpt.checkpoint(block.inner, block.x)
    assert ckpt.outputs[0] is h


def test_outputs_hold_nothing(backend: str) -> None:
    """Peers hold the tensors until backward; here an output that the caller has dropped is gone."""
    block, ckpt = Block(), Counted(backend)
    block.forward(lambda: Counted(backend))  # torch sets up its dispatch modes at first use
    gc.collect()
    with retape.memory.Meter() as meter:
        h = ckpt.checkpoint(block.inner, block.x)
        assert len(ckpt.outputs) == 1
        del h
        assert meter.current == 0
        assert ckpt.outputs == ()


def test_backward_of_an_earlier_call_leaves_the_outputs_of_the_last(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    first = block.forward(lambda: ckpt)
    h = ckpt.checkpoint(block.inner, block.x)
    loss(first).backward()
    assert ckpt.outputs[0] is h


def test_each_discard_finds_its_own_call(backend: str) -> None:
    """By the graph, not by the order of the calls."""
    block, ckpt = Block(), Counted(backend)
    first, second = (ckpt.checkpoint(block.inner, x) for x in (block.x, block.x * 2))
    z = block.down(second)
    assert ckpt.discard_output_and_register_recompute(z) == H
    first.detach().numpy()  # still there: numpy reads memory, it does not ask
    assert torch.equal(first, block.inner(block.x))


def test_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(retape.UsageError, match='expected backend "cpp" or "python", got "rust"'):
        retape.OutputDiscardCheckpoint("rust")


def test_backend_can_be_forced_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend, runs in (("cpp", 1), ("python", 2)):
        monkeypatch.setenv("RETAPE_OUTPUT_DISCARD", backend)
        block, calls = Block(), []
        block.up.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        loss(block.forward(retape.OutputDiscardCheckpoint)).backward()
        assert len(calls) == runs


def test_megatrons_names(backend: str) -> None:
    for fp8 in (False, None) if backend == "python" else (False, None, True):
        block = Block()
        ckpt = retape.CheckpointWithoutOutput(fp8=fp8, backend=backend)
        h = ckpt.checkpoint(block.inner, block.x)
        z = block.down(h)
        assert ckpt.discard_output_and_register_recompute(z) == H
        loss(z).backward()
        assert same(expected(), block.grads())


def test_megatrons_manager_and_contexts_are_refused() -> None:
    with pytest.raises(retape.UsageError, match="expected no ckpt_manager, got Block"):
        retape.CheckpointWithoutOutput(ckpt_manager=Block())
    with pytest.raises(retape.UsageError, match="expected fp8=False, got True"):
        retape.CheckpointWithoutOutput(fp8=True, backend="python")


# ---------------------------------------------------------------- who else holds the storage


def test_storage_in_a_cache_of_the_function_is_refused(backend: str) -> None:
    block, ckpt, cache = Block(), Counted(backend), []

    def caching(x: Tensor) -> Tensor:
        h = block.inner(x)
        cache.append(h.detach())
        return h

    h = ckpt.checkpoint(caching, block.x)
    z = block.down(h)
    with pytest.raises(
        retape.UsageError, match=r"output 0 .*1 more tensor on it outlived the function"
    ):
        ckpt.discard_output_and_register_recompute(z)
    assert torch.equal(cache[0], h)
    loss(z).backward()
    assert same(expected(), block.grads())


def test_memory_in_use_outside_torch_is_refused(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    h = ckpt.checkpoint(block.inner, block.x)
    array = h.detach().numpy()
    z = block.down(h)
    with pytest.raises(retape.UsageError, match=r"in use outside torch \(numpy"):
        ckpt.discard_output_and_register_recompute(z)
    assert torch.equal(torch.from_numpy(array), h)


def test_output_that_the_function_has_captured_is_refused_by_name(backend: str) -> None:
    captured = torch.ones(3, requires_grad=True) * 2
    linear = nn.Linear(3, 3)
    for fn, name in (
        (lambda x: captured.view(3, 1), '"captured"'),
        (lambda x: linear.weight.t(), "linear"),
    ):
        ckpt = Counted(backend)
        out = ckpt.checkpoint(fn, torch.ones(3))
        with pytest.raises(
            retape.UsageError, match=f"shares its storage with .*{name}.* Nothing was freed"
        ):
            ckpt.discard_output_and_register_recompute(out * out)
        assert out.sum() != 0


def test_parameter_among_the_outputs_stays(backend: str) -> None:
    """Megatron's linear layers return (output, bias)."""

    def grads(new: Callable[[], Any]) -> list[Any]:
        block, ckpt = Block(), new()
        h, bias = ckpt.checkpoint(lambda x: (block.inner(x), block.up.bias), block.x)
        z = block.down(h + bias)
        ckpt.discard_output_and_register_recompute(z)
        assert torch.equal(bias, block.up.bias)
        loss(z).backward()
        return block.grads()

    assert same(grads(Plain), grads(lambda: Counted(backend)))
    assert Counted.freed == H


def test_view_in_the_callers_hands_can_be_read(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    h = ckpt.checkpoint(block.inner, block.x)
    flat = h.view(-1, HIDDEN)
    z = block.down(flat)
    freed = ckpt.discard_output_and_register_recompute(z)
    assert freed == (H if backend == "cpp" else 0)
    assert torch.equal(flat, Block().inner(block.x).view(-1, HIDDEN))
    loss(z).backward()
    assert same(expected(), block.grads())


# ---------------------------------------------------------------- writes


def test_write_that_the_version_counter_does_not_see(backend: str) -> None:
    def grads(new: Callable[[], Any]) -> list[Any]:
        block, ckpt = Block(), new()
        h = ckpt.checkpoint(block.inner, block.x)
        h.data.mul_(2)
        z = block.down(h)
        ckpt.discard_output_and_register_recompute(z)
        del h
        loss(z).backward()
        return block.grads()

    if backend == "cpp":
        assert same(grads(Plain), grads(lambda: Counted(backend)))
        assert Counted.freed == 0
    else:
        with pytest.raises(retape.ReplayMismatch, match="expected the same bytes, got others"):
            grads(lambda: Counted(backend))


def gradient_after_a_write(new: Callable[[], Any], write: Callable[[Tensor], Any]) -> Tensor:
    """`write` changes what the discarded output is replayed from."""
    x, given, ckpt = torch.ones(2, 4, requires_grad=True), torch.ones(2, 4), new()
    h = ckpt.checkpoint(lambda x: x + given, x)
    z = h * h
    ckpt.discard_output_and_register_recompute(z)
    del h
    write(given)
    z.sum().backward()
    return x.grad


def on_another_thread(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def written(tensor: Tensor) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(write, tensor).result()

    return written


@pytest.mark.parametrize(
    "write", [lambda t: t.mul_(2), lambda t: t.data.mul_(2)], ids=["itself", "data"]
)
def test_write_to_what_a_discarded_output_is_replayed_from(write: Callable[[Tensor], Any]) -> None:
    Counted.freed = 0
    plain = gradient_after_a_write(Plain, write)
    assert equal(gradient_after_a_write(lambda: Counted("cpp"), write), plain)
    assert Counted.freed > 0


def test_write_of_another_thread_to_what_a_discarded_output_is_replayed_from() -> None:
    def by_data(tensor: Tensor) -> None:
        tensor.data.mul_(2)

    in_place = on_another_thread(lambda tensor: tensor.mul_(2))
    with pytest.raises(retape.ReplayMismatch, match="inplace"):
        gradient_after_a_write(lambda: Counted("cpp"), in_place)
    plain = gradient_after_a_write(Plain, on_another_thread(by_data))
    found = gradient_after_a_write(lambda: Counted("cpp"), on_another_thread(by_data))
    assert not equal(found, plain)  # docs/limits.md


@pytest.mark.parametrize("discard", [False, True])
def test_write_after_discard_raises_what_plain_autograd_raises(discard: bool, backend: str) -> None:
    block = Block()
    ckpt = Counted(backend) if discard else Plain()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    with torch.no_grad():
        h.add_(1)
    assert torch.equal(h, Block().inner(block.x) + 1)
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation.*is at version 1; expected version 0"
    ):
        loss(z).backward()


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])  # by the version counter
@pytest.mark.parametrize("discarded", [False, True], ids=["before", "after"])
def test_write_to_an_input_that_plain_autograd_does_not_need(
    seen: bool, discarded: bool, backend: str
) -> None:
    """A sum saves nothing, so plain autograd goes on. A recipe would read what was written."""

    def write(t: Tensor) -> None:
        (t.detach() if seen else t.data).mul_(3)

    def grads(new: Callable[[], Any]) -> list[Any]:
        block, ckpt = Block(), new()
        given = block.x * 2
        h = ckpt.checkpoint(lambda t: t.repeat(1, 1, 4) + 1, given)
        z = block.down(h)
        if not discarded:
            write(given)
        ckpt.discard_output_and_register_recompute(z)
        if discarded:
            write(given)
        del h
        loss(z).backward()
        return [given, *block.grads()]

    if backend == "python" and (discarded or not seen):
        with pytest.raises(retape.ReplayMismatch):
            grads(lambda: Counted(backend))
    else:
        assert same(grads(Plain), grads(lambda: Counted(backend)))
        assert Counted.freed == (H if discarded else 0)


def test_function_that_changes_its_argument(backend: str) -> None:
    def grads(new: Callable[[], Any]) -> list[Any]:
        block, ckpt = Block(), new()
        x = block.x * 2
        h = ckpt.checkpoint(lambda t: block.inner(t.mul_(3)), x)
        z = block.down(h)
        ckpt.discard_output_and_register_recompute(z)
        loss(z).backward()
        return [x, *block.grads()]

    if backend == "cpp":
        assert same(grads(Plain), grads(lambda: Counted(backend)))
        assert Counted.freed == H
    else:
        with pytest.raises(retape.UsageError, match='changes a tensor in place.*backend="cpp"'):
            grads(lambda: Counted(backend))


# ---------------------------------------------------------------- reads that nobody can see


def test_read_past_the_dispatcher_says_what_happened() -> None:
    block, ckpt = Block(), retape.OutputDiscardCheckpoint("cpp", name="ffn")
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    text = r'region "ffn": output 0 \(Float \[2, 3, 32\]\) was discarded and is not back yet'
    for read in (
        Tensor.data_ptr,
        lambda t: t.detach().numpy(),
        lambda t: torch.to_dlpack(t.detach()),
    ):
        with pytest.raises(RuntimeError, match=text):
            read(h)
    loss(z).backward()
    assert same(expected(), block.grads())
    assert h.data_ptr() != 0


def test_read_on_another_thread_is_right_or_says_what_happened(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    seen: list[Any] = []

    def read() -> None:
        try:
            seen.append(float(h.detach().sum()))
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    total = float(Block().inner(block.x).sum().detach())
    assert seen == [total] if backend == "python" else "on another thread" in seen[0]
    loss(z).backward()
    assert same(expected(), block.grads())


# ---------------------------------------------------------------- backward elsewhere


def test_backward_on_another_thread(backend: str) -> None:
    block = Block()
    total = loss(block.forward(lambda: Counted(backend)))
    thread = threading.Thread(target=total.backward)
    thread.start()
    thread.join()
    assert same(expected(), block.grads())


def test_reads_of_a_branch_on_another_thread() -> None:
    """No hook tensor on the way: the ops of that backward bring the output back themselves."""
    block, ckpt = Block(), Counted("cpp")
    h = ckpt.checkpoint(block.inner, block.x)
    branch = h.square().sum()
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    del h
    thread = threading.Thread(target=branch.backward)
    thread.start()
    thread.join()
    plain = Block()
    plain.inner(plain.x).square().sum().backward()
    assert same(plain.grads(), block.grads())


def test_backward_on_two_threads_at_once(backend: str) -> None:
    block = Block()
    total = loss(block.forward(lambda: Counted(backend)))
    leaves = [block.x, *block.up.parameters(), *block.down.parameters()]
    found: list[list[Tensor]] = []
    gate = threading.Barrier(2)

    def gradients() -> None:
        gate.wait()
        found.append(list(torch.autograd.grad(total, leaves, retain_graph=True)))

    threads = [threading.Thread(target=gradients) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert same(expected(), found[0])
    assert same(expected(), found[1])


class _Product(torch.autograd.Function):
    """Saves the output by autograd's means and by its own."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(h, w)
        ctx.mine = h
        return h @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, w = ctx.saved_tensors
        return grad @ w.t() + ctx.mine * 0, h.flatten(0, -2).t() @ grad.flatten(0, -2)


def test_consumer_that_is_a_function_of_the_user(backend: str) -> None:
    def grads(new: Callable[[], Any]) -> list[Any]:
        block, ckpt = Block(), new()
        h = ckpt.checkpoint(block.inner, block.x)
        z = _Product.apply(h, block.down.weight.t())
        ckpt.discard_output_and_register_recompute(z)
        loss(z).backward()
        return block.grads()

    assert same(grads(Plain), grads(lambda: Counted(backend)))
    assert Counted.freed == H


def test_compiled_consumer(backend: str) -> None:
    """What a compiled graph has saved is read by code of its own."""
    compiled = torch.compile(lambda block, h: block.down(h).sin(), backend="aot_eager")

    def grads(new: Callable[[], Any]) -> list[Any]:
        block, ckpt = Block(), new()
        h = ckpt.checkpoint(block.inner, block.x)
        z = compiled(block, h)
        ckpt.discard_output_and_register_recompute(z)
        loss(z).backward()
        return block.grads()

    assert same(grads(Plain), grads(lambda: Counted(backend)))
    assert Counted.freed == H


def test_compiled_autograd_gets_an_error_that_says_what_to_do() -> None:
    total = loss(Block().forward(lambda: Counted("cpp")))
    enable = torch._dynamo.compiled_autograd._enable
    with (
        pytest.raises(RuntimeError, match=r"cannot trace replay\. Fix: run this backward without"),
        enable(torch.compile(backend="eager")),
    ):
        total.backward()


@pytest.mark.parametrize("policy", ["none", "full", "cheap", DROP], ids=str)
def test_inside_a_recompute_scope(policy: object, backend: str) -> None:
    block = Block()
    with retape.recompute(policy):
        z = block.forward(lambda: Counted(backend)).sin()
    loss(z).backward()
    plain = Block()
    loss(plain.forward(Plain).sin()).backward()
    assert same(plain.grads(), block.grads())
    held_by_the_scope = backend == "python" and policy in ("none", "cheap")
    assert Counted.freed == (0 if held_by_the_scope else H)


def test_inside_torchs_reentrant_checkpoint(backend: str) -> None:
    def grads(new: Callable[[], Any]) -> list[Any]:
        block = Block()
        z = torch.utils.checkpoint.checkpoint(
            lambda x: block.forward(new, x), block.x, use_reentrant=True
        )
        loss(z).backward()
        return block.grads()

    assert same(grads(Plain), grads(lambda: Counted(backend)))
    assert Counted.freed == H


def test_output_of_an_inner_region_is_also_that_of_the_outer(backend: str) -> None:
    block, inner, outer = Block(), Counted(backend), Counted(backend)
    h = outer.checkpoint(lambda x: inner.checkpoint(block.inner, x), block.x)
    z = block.down(h)
    freed = [ckpt.discard_output_and_register_recompute(z) for ckpt in (inner, outer)]
    assert sum(freed) == H
    loss(z).backward()
    assert same(expected(), block.grads())


# ---------------------------------------------------------------- lives


def test_long_chain_of_regions_dies_flat_and_comes_back(backend: str) -> None:
    """Each region's input is a discarded output: none may die, or be filled, inside another's end."""

    def run(new: Callable[[], Any], length: int, *, backward: bool) -> Tensor | None:
        x = torch.linspace(0, 1, 64).requires_grad_()
        y, before = x, None
        for _ in range(length):
            ckpt = new()
            h = ckpt.checkpoint(lambda t: (t * 1.01).sin(), y)
            if before is not None:
                before.discard_output_and_register_recompute(h)
            y, before = h, ckpt
        del h
        if backward:
            y.sum().backward()
        return x.grad

    length = {"cpp": 8000, "python": 50}[backend]  # Python's own stack ends earlier
    plain = run(Plain, length, backward=True)
    assert equal(plain, run(lambda: Counted(backend), length, backward=True))
    assert Counted.freed == (length - 1) * 64 * 4
    run(lambda: Counted(backend), length, backward=False)


def test_output_is_what_forward_made_after_backward_and_a_step(backend: str) -> None:
    block, ckpt = Block(), Counted(backend)
    before = block.inner(block.x).detach()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    torch.optim.SGD([*block.up.parameters()], lr=1.0).step()
    assert torch.equal(h, before)


def test_nothing_is_watched_once_all_outputs_are_back() -> None:
    block = Block()
    included = torch._C._dispatch_tls_is_dispatch_key_included
    total = loss(block.forward(lambda: Counted("cpp")))
    assert included("DeferredInit")
    total.backward()
    del total
    torch.ones(1) + 1
    assert not included("DeferredInit")


def test_outputs_of_other_types_are_left_alone(backend: str) -> None:
    ckpt = Counted(backend)
    out = ckpt.checkpoint(
        lambda x: {"n": 3, "none": None, "sparse": x.to_sparse()}, torch.eye(WIDTH)
    )
    assert ckpt.discard_output_and_register_recompute(torch.ones(BATCH)) == 0
    assert out["n"] == 3
    assert torch.equal(out["sparse"].to_dense(), torch.eye(WIDTH))
