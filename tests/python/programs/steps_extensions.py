"""Steps that leave torch's own ops: custom ops, subclasses, higher-order ops, objects that autograd saves."""

from __future__ import annotations

from typing import Any

import torch

from .fillers import (
    Values,
    one,
    one_number,
    pair,
    product,
    same_pair,
    storage,
    written,
    written_from,
)
from .kinds import add

# ---- custom ops
add("custom_pure", "{r} = ops.pure({a})", one, weight=2)
add("custom_opted_in", "{r} = ops.opted_in({a})", one, weight=3)
add(
    "custom_counting",
    "{r} = counted(ops.counts, {a}, {c})",
    lambda v: one(v) | {"c": "calls"},
    weight=2,
)
add("custom_drawing", "{r} = ops.draws({a})", one, weight=2)
add("custom_drawing_from", "{r} = {a} * ops.draws_from({a}.detach(), gen)", one, weight=2)
add("custom_by_numpy", "{r} = ops.by_numpy({a})", one)
add("custom_of_a_list", "{r} = ops.total([{a}, {b}, {a}])", same_pair)
for _name in ("pure", "opted_in", "draws", "by_numpy"):
    add(f"custom_{_name}_kernel", f"{{r}} = {{a}} * ops.{_name}_kernel({{a}}.detach())", one)
add(
    "custom_counts_kernel",
    "{r} = {a} * counted(ops.counts_kernel, {a}.detach(), {c})",
    lambda v: one(v) | {"c": "calls"},
)
add("custom_composite", "{r} = ops.composite({a})", one)


def without_grad(t: torch.Tensor) -> bool:
    return not t.requires_grad


def unrecorded_write(v: Values) -> dict[str, Any]:
    """A tensor without gradient to write to: custom ops that write have no formula."""
    return {"a": v.target(without_grad), "number": v.number()}


add("custom_write", "ops.scale_({a}, {number})", unrecorded_write, writes="a", weight=2)
add(
    "custom_mutates_args",
    "{r} = ops.accumulate({b}.detach(), {a})",
    lambda v: {"b": v.real(), "a": v.target(without_grad)},
    writes="a",
    weight=2,
)
add(
    "custom_between_reads",
    "{r0} = {b} + {a}\nops.scale_({a}, {number})\n{r1} = {b} * {a}.sum()",
    lambda v: unrecorded_write(v) | {"b": v.real(lambda t: t.dim() < 3)},
    writes="a",
    weight=2,
)

# ---- subclasses with __torch_dispatch__
add("wrapped", "{r} = (Wrapped.of({a}).sin() * {number}).cos().plain()", one_number)
add("wrapped_pair", "{r} = (Wrapped.of({a}) * Wrapped.of({b})).tanh().plain()", pair)
add("wrapped_mm", "{r} = torch.mm(Wrapped.of({a}), Wrapped.of({b})).plain()", product(2, 2))
add("wrapped_cat", "{r} = torch.cat([Wrapped.of({a}), Wrapped.of({b})], {dim}).plain()", same_pair)
add(
    "wrapped_mul_",
    "{r} = Wrapped.of({a}).mul_({number}).plain()",
    written,
    writes="a",
    unseen=True,
    weight=2,
)
add(
    "wrapped_foreach_",
    "with torch.no_grad():\n    torch._foreach_mul_([Wrapped.of({a}), Wrapped.of({b})], {number})",
    lambda v: {
        "a": (a := v.target()),
        "b": v.target(lambda t: storage(t) != storage(v.env[a])),
        "number": v.number(),
    },
    writes="ab",
    unseen=True,
)
add(
    "wrapped_copy_",
    "with torch.no_grad():\n    Wrapped.of({a}).copy_({b}.detach())",
    written_from,
    writes="a",
    unseen=True,
)

# ---- subclasses with __torch_function__ alone, and what autograd hands back
add(
    "tagged",
    "{r} = ({a}.as_subclass(Tagged).sin() * {number}).as_subclass(torch.Tensor)",
    one_number,
)
add("tagged_value", "{r} = ({a} * {number}).as_subclass(Tagged)\n{r}.tag = {number}", one_number)
add(
    "tagged_saved",
    "{r} = {a}.sin().as_subclass(Tagged)\n{r}.tag = 0.5\n"
    "{r} = SavesTagged.apply({r}, {b}).as_subclass(torch.Tensor)",
    same_pair,
)
add(
    "attribute_saved",
    "{r} = {a}.cos()\n{r}.tag = {number}\n{r} = SavesTagged.apply({r}, {b})",
    same_pair,
)


def leaf_and_value(v: Values) -> dict[str, Any]:
    names = [n for n in v.fixed if v.env[n].requires_grad and v.env[n].is_leaf and v.env[n].dim()]
    return {"a": v.real(), "b": v.rng.choice(sorted(names))}


add("leaf_saved", "{r} = SavesLeaf.apply({a}, {b})", leaf_and_value)
add(
    "read_saved_self",
    "{r} = {a}.sin()\n{r} = {r} + {r}.grad_fn._saved_self",
    lambda v: {"a": v.real(lambda t: t.requires_grad)},
    weight=0.5,
)
# Eager raises in backward: programs that hold it prove that Retape does.
add(
    "write_saved_self",
    "{r} = {a} * 2\n{r} = {r}.sin()\nwith torch.no_grad():\n    {r}.grad_fn._saved_self.mul_(2)",
    lambda v: {"a": v.real(lambda t: t.requires_grad)},
    weight=0.2,
)

# ---- higher-order ops
add(
    "cond_on_bool",
    "{r} = torch.cond({truth}, lambda x: x.sin() * x, lambda x: x.cos(), ({a},))",
    lambda v: one(v) | {"truth": v.rng.random() < 0.5},
)
add(
    "cond_on_tensor",
    "{r} = torch.ops.higher_order.cond(\n"
    "    {b}.detach().sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos() * 2,), ({a}.detach(),))[0]",
    pair,
)


def with_grad(v: Values) -> dict[str, Any]:
    return {"a": v.real(lambda t: t.requires_grad), "b": v.real()}


add(
    "cond_with_gradient",
    "{r} = torch.ops.higher_order.cond(\n"
    "    {b}.detach().sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos() * 2,), ({a},))[0]",
    with_grad,
    weight=0.15,  # tracing a branch takes 30 ms
)
add(
    "while_loop",
    "{r} = torch.ops.higher_order.while_loop(\n"
    "    lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), {a}.detach()), ())[1]",
    one,
    weight=0.7,
)
add(
    "out_dtype",
    "{r} = torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32,\n"
    "    ({a}.detach() * 4).to(torch.int8), ({b}.detach() * 4).to(torch.int8)).float() * 0.1",
    product(2, 2),
    weight=0.7,
)

# ---- lists of tensors
FOREACH = {
    "add": "torch._foreach_add([{a}, {b}], [{b}, {a}], alpha={number})",
    "sin": "torch._foreach_sin([{a}, {b}])",
    "addcmul": "torch._foreach_addcmul([{a}, {b}], [{b}, {b}], [{a}, {a}], value={number})",
    "lerp": "torch._foreach_lerp([{a}, {b}], [{b}, {a}], 0.3)",
    "norm": "torch._foreach_norm([{a} + 0.1, {b} + 0.1])",
}
for _name, _text in FOREACH.items():
    add(f"foreach_{_name}", "{r0}, {r1} = " + _text, same_pair, weight=0.7)


def two_targets(v: Values) -> dict[str, Any]:
    """Two of the same shape to write to, and one to read."""
    a = v.target()
    x = v.env[a]
    b = v.target(lambda t: storage(t) != storage(x) and t.shape == x.shape)
    c = v.real(lambda t: t.shape == x.shape)
    return {"a": a, "b": b, "c": c, "number": v.number()}


FOREACH_IN_PLACE = {
    "add_": "torch._foreach_add_([{a}, {b}], [{c}.detach(), {c}.detach()], alpha={number})",
    "neg_": "torch._foreach_neg_([{a}, {b}])",
    "zero_": "torch._foreach_zero_([{a}, {b}])",
    "copy_": "torch._foreach_copy_([{a}, {b}], [{c}.detach(), {c}.detach()])",
    "lerp_": "torch._foreach_lerp_([{a}, {b}], [{c}.detach(), {c}.detach()], 0.2)",
}
for _name, _text in FOREACH_IN_PLACE.items():
    add(
        f"foreach_{_name}",
        f"with torch.no_grad():\n    {_text}",
        two_targets,
        writes="ab",
        weight=0.7,
    )
add(
    "foreach_mul_under_flop_counter",
    "with FlopCounterMode(display=False), torch.no_grad():\n"
    "    torch._foreach_mul_([{a}, {b}], {number})",
    two_targets,
    writes="ab",
)
