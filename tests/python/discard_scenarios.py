"""The scenarios of OutputDiscardCheckpoint: each is written once and runs plain or with a backend."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.python.discard import HIDDEN, WIDTH, Block, H, New, Result, loss
from torch import Tensor, nn
from torch.nn import functional as F


def easy(new: New) -> Result:
    block = Block()
    z = block.forward(new)
    loss(z).backward()
    return [z, *block.grads()]


def dropout(new: New) -> Result:
    block = Block()
    loss(block.forward(new, fn=lambda x: F.dropout(block.inner(x), 0.5))).backward()
    return block.grads()


def rng_after(new: New) -> Result:
    block = Block()
    loss(block.forward(new, fn=lambda x: F.dropout(block.inner(x), 0.5))).backward()
    return [torch.rand(4), *block.grads()]


def autocast_bf16(new: New) -> Result:
    block = Block()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = block.forward(new)
    loss(z.float()).backward()
    return [z, *block.grads()]


def input_no_grad(new: New) -> Result:
    block = Block(grad=False)
    loss(block.forward(new)).backward()
    return block.grads()


def no_grad_forward(new: New) -> Result:
    block = Block()
    with torch.no_grad():
        return [block.forward(new)]


def sum_after_discard(new: New) -> Result:
    block = Block()
    ckpt = new()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    total = h.sum()
    (loss(z) + total.square()).backward()
    return [total, *block.grads()]


def read_after_discard(new: New) -> Result:
    block = Block()
    ckpt = new()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    again = block.down(h)
    loss(z + again.sin()).backward()
    return [again, *block.grads()]


def closure_nonleaf_shared(new: New) -> Result:
    block = Block()
    shared = block.x * 2
    z = block.forward(new, fn=lambda x: F.silu(block.up(x) + block.up(shared)))
    (loss(z) + shared.sin().sum()).backward()
    return block.grads()


def grad_accumulation_two_micro(new: New) -> Result:
    block = Block()
    first, second = block.forward(new), block.forward(new, block.x * 2)
    loss(second).backward()
    loss(first).backward()
    return block.grads()


def one_object_two_forwards(new: New) -> Result:
    block = Block()
    ckpt = new()
    hs = [ckpt.checkpoint(block.inner, x) for x in (block.x, block.x * 2)]
    zs = [block.down(h) for h in hs]
    del hs
    for z in zs:
        ckpt.discard_output_and_register_recompute(z)
    for z in zs:
        loss(z).backward()
    return block.grads()


def alias_identity(new: New) -> Result:
    block = Block()
    x = block.x * 2
    z = block.forward(new, fn=lambda t: t.float(), x=block.inner(x))
    loss(z).backward()
    return block.grads()


def alias_view_of_input(new: New) -> Result:
    block = Block()
    h = block.inner(block.x)
    z = block.forward(new, fn=lambda t: t.view(-1, HIDDEN), x=h)
    (loss(z) + h.sin().sum()).backward()
    return [h, *block.grads()]


def output_offset_view(new: New) -> Result:
    block = Block()
    wide = nn.Linear(WIDTH, 2 * HIDDEN)
    loss(block.forward(new, fn=lambda x: F.silu(wide(x))[..., HIDDEN:])).backward()
    return [*block.grads()[:1], wide.weight.grad, *block.grads()[3:]]


def two_outputs_one_storage(new: New) -> Result:
    block = Block()
    wide = nn.Linear(WIDTH, 2 * HIDDEN)
    ckpt = new()
    a, b = ckpt.checkpoint(lambda x: F.silu(wide(x)).chunk(2, -1), block.x)
    z = block.down(a) * block.down(b)
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    return [block.x.grad, wide.weight.grad, *block.grads()[3:]]


def several_outputs(new: New) -> Result:
    block = Block()
    ckpt = new()
    out = ckpt.checkpoint(lambda x: {"a": block.inner(x), "b": [block.up(x).tanh(), None]}, block.x)
    z = block.down(out["a"]) + block.down(out["b"][0])
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    return block.grads()


def output_nongrad_second(new: New) -> Result:
    block = Block()
    ckpt = new()

    def route(x: Tensor) -> tuple[Tensor, Tensor]:
        h = block.inner(x)
        return h, h.detach().argmax(-1)

    h, chosen = ckpt.checkpoint(route, block.x)
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    loss(z * chosen.unsqueeze(-1)).backward()
    return [chosen, *block.grads()]


def layout_differs(new: New) -> Result:
    block = Block()

    def inner(x: Tensor) -> Tensor:
        h = block.inner(x)
        return h if torch.is_grad_enabled() else h.transpose(0, 1).contiguous().transpose(0, 1)

    loss(block.forward(new, fn=inner)).backward()
    return block.grads()


def second_consumer_outside_hook(new: New) -> Result:
    block = Block()
    ckpt = new()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h)
    branch = h.square().sum() + (h.detach() * block.down.weight.sum()).sum()
    ckpt.discard_output_and_register_recompute(z)
    del h
    branch.backward(retain_graph=True)
    loss(z).backward()
    return block.grads()


def retain_graph_twice(new: New) -> Result:
    block = Block()
    total = loss(block.forward(new))
    total.backward(retain_graph=True)
    total.backward()
    return block.grads()


def double_backward(new: New) -> Result:
    block = Block()
    total = loss(block.forward(new))
    (gradient,) = torch.autograd.grad(total, block.x, create_graph=True)
    gradient.square().sum().backward()
    return [gradient, *block.grads()]


def autograd_grad(new: New) -> Result:
    block = Block()
    (gradient,) = torch.autograd.grad(loss(block.forward(new)), block.x)
    return [gradient, *block.grads()]


def backward_inputs_subset(new: New) -> Result:
    block = Block()
    loss(block.forward(new)).backward(inputs=[block.down.weight])
    return block.grads()


def nested(new: New) -> Result:
    block = Block()
    outer = new()
    h = outer.checkpoint(lambda x: F.silu(block.forward(new, x)), block.x)
    z = block.up(h)
    outer.discard_output_and_register_recompute(z)
    loss(z).backward()
    return block.grads()


def inside_torch_ckpt_nr(new: New) -> Result:
    block = Block()
    checkpoint = torch.utils.checkpoint.checkpoint
    z = checkpoint(lambda x: block.forward(new, x).sin(), block.x, use_reentrant=False)
    loss(z).backward()
    return block.grads()


def kwarg_nonleaf_tensor(new: New) -> Result:
    block = Block()
    ckpt = new()
    h = ckpt.checkpoint(
        lambda x, *, scale: block.inner(x) * scale, block.x, scale=block.x.sum() * 2
    )
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    return block.grads()


def closure_nonleaf_tensor(new: New) -> Result:
    block = Block()
    scale = block.x.sum() * 2
    loss(block.forward(new, fn=lambda x: block.inner(x) * scale)).backward()
    return block.grads()


def tensors_in_dict(new: New) -> Result:
    block = Block()
    ckpt = new()
    h = ckpt.checkpoint(
        lambda d: block.inner(d["x"]) * d["scale"], {"x": block.x, "scale": block.x.sum() * 2}
    )
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    return block.grads()


def inplace_on_output(new: New) -> Result:
    block = Block()
    ckpt = new()
    h = ckpt.checkpoint(block.inner, block.x)
    z = block.down(h.mul_(2))
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    return block.grads()


def hook_on_output(new: New) -> Result:
    block = Block()
    seen: list[Tensor] = []
    ckpt = new()
    h = ckpt.checkpoint(block.inner, block.x)
    h.register_hook(lambda g: seen.append(g.clone()))
    z = block.down(h)
    ckpt.discard_output_and_register_recompute(z)
    loss(z).backward()
    return [len(seen), *seen, *block.grads()]


def saved_tensor_hooks_save_on_cpu(new: New) -> Result:
    block = Block()
    with torch.autograd.graph.save_on_cpu():
        z = block.forward(new)
    loss(z).backward()
    return block.grads()


def _chained(new: New, reverse: bool) -> Result:
    block = Block()
    first, second = new(), new()
    a = first.checkpoint(block.inner, block.x)
    b = second.checkpoint(lambda t: F.silu(t.tanh() * t), a)
    z = block.down(b)
    calls = [(first, b), (second, z)]
    del a
    for ckpt, hook_tensor in reversed(calls) if reverse else calls:
        ckpt.discard_output_and_register_recompute(hook_tensor)
    del b, calls, hook_tensor
    loss(z).backward()
    return block.grads()


def two_regions_chained(new: New) -> Result:
    return _chained(new, reverse=False)


def two_regions_chained_rev(new: New) -> Result:
    return _chained(new, reverse=True)


def frozen_hook_tensor(new: New) -> Result:
    block = Block()
    block.down.requires_grad_(False)
    ckpt = new()
    h = ckpt.checkpoint(block.inner, block.x)
    branch = h.square().sum()
    z = block.down(h.detach())
    assert not z.requires_grad
    ckpt.discard_output_and_register_recompute(z)
    del h
    branch.backward()
    return [z, *block.grads()]


def frozen_region(new: New) -> Result:
    block = Block(grad=False)
    block.up.requires_grad_(False)
    loss(block.forward(new)).backward()
    return block.grads()


def loop_over_layers(new: New) -> Result:
    blocks = [Block() for _ in range(4)]
    x = blocks[0].x
    for block in blocks:
        x = x + block.forward(new, x)
    loss(x).backward()
    return [g for block in blocks for g in block.grads()[1:]] + [blocks[0].x.grad]


# name -> bytes that discard frees: with the C++ backend, with the Python one
FREED: dict[Callable[[New], Result], tuple[int, int]] = {
    easy: (H, H),
    dropout: (H, H),
    rng_after: (H, H),
    autocast_bf16: (H // 2, H // 2),
    input_no_grad: (H, H),
    no_grad_forward: (0, 0),
    sum_after_discard: (H, H),
    read_after_discard: (H, H),
    closure_nonleaf_shared: (H, H),
    grad_accumulation_two_micro: (2 * H, 2 * H),
    one_object_two_forwards: (2 * H, 2 * H),
    alias_identity: (0, 0),
    alias_view_of_input: (0, 0),
    output_offset_view: (2 * H, 2 * H),
    two_outputs_one_storage: (2 * H, 2 * H),
    several_outputs: (2 * H, 2 * H),
    output_nongrad_second: (H, H + 6 * 8),
    layout_differs: (H, H),
    second_consumer_outside_hook: (H, 0),  # Python cannot see who reads it there: it stays
    retain_graph_twice: (H, H),
    double_backward: (H, H),
    autograd_grad: (H, H),
    backward_inputs_subset: (H, H),
    nested: (H + H // 4, H + H // 4),
    inside_torch_ckpt_nr: (2 * H, H),  # in forward, and when torch runs the block again
    kwarg_nonleaf_tensor: (H, H),
    closure_nonleaf_tensor: (H, H),
    tensors_in_dict: (H, H),
    inplace_on_output: (0, 0),  # what is there is not what the function made
    hook_on_output: (H, H),
    saved_tensor_hooks_save_on_cpu: (H, 0),  # the user's hooks hold it
    two_regions_chained: (2 * H, 2 * H),
    two_regions_chained_rev: (2 * H, 2 * H),
    frozen_hook_tensor: (H, 0),
    frozen_region: (H, H),
    loop_over_layers: (4 * H, 4 * H),
}
