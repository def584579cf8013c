"""Steps about memory: where it lies, who else names it, state that is read and written in turn."""

from __future__ import annotations

from typing import Any

import torch

from .fillers import (
    NoFit,
    Values,
    broadcast,
    one,
    one_number,
    one_of_rank,
    pair,
    rank,
    statistics,
    storage,
    written,
)
from .kinds import add

# ---- at an address that is no multiple of 64


def at_offset(v: Values) -> dict[str, Any]:
    return one(v) | {"at": v.rng.randrange(1, 16)}


add("placed", "{r} = placed({a}, {at})", at_offset)
add("frombuffer", "{r} = buffered({a}, {at})", at_offset)
add("placed_and_required", "{r} = placed({a}, {at}).requires_grad_()", at_offset)


def vectors(v: Values) -> dict[str, Any]:
    a = v.real(rank(1))
    b = v.real(lambda t: t.shape == v.env[a].shape and t.dtype == v.env[a].dtype)
    return {"a": a, "b": b, "at": v.rng.randrange(1, 16)}


add("dot", "{r} = torch.dot({a}, {b})", vectors, weight=2)
add("vdot", "{r} = torch.vdot({a}, placed({b}, {at}))", vectors)
add("dot_of_placed", "{r} = torch.dot({a}, placed({b}, {at})) * {a}", vectors, weight=2)


def matrix_and_vector(v: Values) -> dict[str, Any]:
    a = v.real(rank(2))
    b = v.real(lambda t: t.shape == v.env[a].shape[1:] and t.dtype == v.env[a].dtype)
    return {"a": a, "b": b, "at": v.rng.randrange(1, 16)}


add("mv_of_placed", "{r} = torch.mv({a}, placed({b}, {at}))", matrix_and_vector, weight=2)
add("dot_of_slices", "{r} = torch.dot({a}[1:], {b}[1:]) * {a}", vectors)

# ---- aliases with a version counter of their own
ALIASES = {
    "numpy": "torch.from_numpy({a}.detach().numpy())",
    "dlpack": "torch.from_dlpack({a}.detach())",
    "data": "{a}.data",
    "set": "torch.empty(0).set_({a}.detach())",
}


def whole_storage(v: Values) -> dict[str, Any]:
    """An alias's storage begins where the tensor does: both are to be known by one address."""
    return {"a": v.target(lambda t: t.storage_offset() == 0)}


for _name, _text in ALIASES.items():
    # One that lasts. What is written through it, or through {a}, no other counter shows.
    add(f"{_name}_alias", f"{{r}} = {_text}", whole_storage, aliases="a", weight=0.7)
    add(
        f"{_name}_alias_mul_",
        f"{_text}.mul_({{number}})",
        written,
        writes="a",
        unseen=True,
    )
    add(
        f"{_name}_alias_between_reads",
        f"{{r0}} = {{a}} * {{number}}\n{_text}.view(-1)[::2].neg_()\n{{r1}} = {{a}}.sin()",
        written,
        writes="a",
        unseen=True,
    )
    add(
        f"{_name}_alias_of_fresh",
        f"{{r}} = {{b}}.detach() * {{number}}\n{_text.replace('{a}', '{r}')}.sin_()\n{{r}} = {{r}} * {{b}}",
        lambda v: {"b": v.real(), "number": v.number()},
    )
add(
    "preserved_version_counter",
    "with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter({a}):\n"
    "    {a}.mul_({number})",
    written,
    writes="a",
    unseen=True,
)


def behind(v: Values) -> dict[str, Any]:
    """Seen by a scope that has closed, not saved by autograd: eager goes on, Retape may refuse."""

    def legal(t: torch.Tensor) -> bool:
        leaf = t.requires_grad and t.is_leaf and torch.is_grad_enabled()
        closed = v.behind_a_scope(t) and storage(t) not in v.saved
        return closed and not leaf and storage(t) not in v.aliased

    if v.scope:
        raise NoFit
    return {"a": v.real(legal), "number": v.number()}


add("mul_behind_a_scope", "{a}.mul_({number})", behind, writes="a", weight=3)
add("data_then_mul_", "{a}.data.mul_({number})\n{a}.mul_(0.5)", written, writes="a", unseen=True)


add(
    "storage_resized",
    "moved_storage({a}.detach(), {number})",
    written,
    writes="a",
    unseen=True,
)
add(
    "storage_resized_between_reads",
    "{r0} = {a} * {number}\nmoved_storage({a}.detach(), 0.5)\n{r1} = {a}.sin()",
    written,
    writes="a",
    unseen=True,
)


def made_and_looked_at(v: Values) -> dict[str, Any]:
    make = v.rng.choice(("zeros", "lifted", "written", "gradient"))
    look = v.rng.choice(("itself", "data", "numpy", "dlpack", "set"))
    return one_number(v) | {"make": make, "look": look}


add(
    "written_behind_an_alias",  # what a scope made may change after it
    "with R.recompute():\n    {r1} = MADE['{make}']({a}, {number})\n"
    "    {r0} = ({a} + LOOKED_AT['{look}']({r1})).sin()\n{r1}.add_({number})",
    made_and_looked_at,
    weight=2,
)


# ---- in a backward inside the scope
def written_somehow(v: Values) -> dict[str, Any]:
    ways = ("mul_", "data", "slice", "foreach", "numpy", "storage")
    return written(v) | {"way": v.rng.choice(ways)}


add(
    "written_in_a_backward",
    "{r0} = {a} * {number}\n"
    "in_a_backward(lambda t={a}.detach(): WRITTEN['{way}'](t, {number}))\n{r1} = {a}.sin()",
    written_somehow,
    writes="a",
    unseen=True,
    weight=2,
)
add(
    "counted_in_a_backward",
    "{r0} = {a} * {number}\ncounted_by_a_backward({a}.detach())\n{r1} = {a}.sin()",
    written,
    writes="a",
    unseen=True,
)
add(
    "accumulated_gradient",
    "{r} = {b}.detach().float().clone().requires_grad_()\n({r} * 2).sum().backward()\n"
    "{r0} = ({a} + {r}.grad).sin()\n({r} * {number}).sum().backward()\n{r1} = {a} * {r}.grad".replace(
        "{r}", "{r2}"
    ),
    pair,
    weight=2,
)

# ---- Python functions over elements: past the dispatcher, and no version moves


def few_elements(v: Values) -> dict[str, Any]:
    return {"a": v.target(lambda t: t.numel() <= 200), "number": v.number()}


def few_elements_from(v: Values) -> dict[str, Any]:
    a = v.target(lambda t: t.numel() <= 200)
    x = v.env[a]
    b = v.real(lambda t: t.shape == x.shape and t.dtype == x.dtype)
    return {"a": a, "b": b}


add(
    "apply_",
    "{a}.detach().apply_(lambda x: x * {number})",
    few_elements,
    writes="a",
    unseen=True,
)
add(
    "map_",
    "{a}.detach().map_({b}.detach(), lambda x, y: x + 0.5 * y)",
    few_elements_from,
    writes="a",
    unseen=True,
)
add(
    "apply_between_reads",
    "{r0} = {a} * {number}\n{a}.detach().apply_(abs)\n{r1} = {a}.sin()",
    few_elements,
    writes="a",
    unseen=True,
)

# ---- stretches without gradients
add(
    "no_grad_stretch",
    "with torch.no_grad():\n    {r} = {a}\n    for _ in range({count}):\n        {r} = ({r} + {b}).sin()",
    lambda v: pair(v) | {"count": v.rng.choice((3, 8, 20))},
    weight=2,
)
add(
    "frozen_stretch",
    "{r} = {a}.detach()\nfor _ in range({count}):\n    {r} = torch.tanh({r}) * {r}",
    lambda v: one(v) | {"count": v.rng.choice((3, 8, 20))},
    weight=2,
)
add(
    "frozen_layers",
    "{r} = {a}.detach()\nfor _ in range({count}):\n    {r} = F.gelu({r} @ {b}.detach()) * 0.5 + {a}",
    lambda v: {
        "a": (a := v.real(rank(2, 3))),
        "b": v.real(lambda t: tuple(t.shape) == (v.env[a].shape[-1],) * 2),
        "count": v.rng.choice((2, 4)),
    },
)
add(
    "low_rank_layers",
    "{r} = {a}\nfor _ in range({count}):\n"
    "    {r} = ({r} @ {b}.detach() + {r} @ {b}[:, :1] @ {b}[:1]).relu()",
    lambda v: {
        "a": (a := v.real(rank(2, 3))),
        "b": v.real(lambda t: tuple(t.shape) == (v.env[a].shape[-1],) * 2),
        "count": v.rng.choice((4, 12, 24)),
    },
    weight=1.5,
)


# ---- a cache: slices written, then read in part or whole


def cached(v: Values) -> dict[str, Any]:
    """A state of three dimensions, and one that fits into a step of it."""
    a = v.target(lambda t: t.dim() == 3 and not t.requires_grad and t.shape[1] > 1)
    x = v.env[a]
    step = torch.Size((x.shape[0], x.shape[2]))
    b = v.real(lambda t: broadcast(t.shape, step) and t.dim() <= 2)
    return {"a": a, "b": b, "at": v.rng.randrange(x.shape[1]), "size": x.shape[1]}


add("cache_write", "{a}[:, {at}] = {b}.detach()", cached, writes="a", weight=3)
add("cache_read", "{r} = {b} * {a}[:, : {at} + 1].mean(1)", cached, weight=2)
add("cache_read_whole", "{r} = {b} + {a}.sum(1)", cached, weight=2)
add(
    "cache_in_turn",
    "{r} = {b}\nfor t in range({size}):\n    {a}[:, t] = {r}.detach().cos()\n"
    "    {r} = ({r} * {a}[:, : t + 1].mean(1)).sin()",
    cached,
    writes="a",
    weight=2,
)
add(
    "cache_attended",
    "{r} = {b}\nfor t in range({size}):\n    {a}[:, t].copy_({r}.detach())\n"
    "    {r} = ({r} + ({a}.softmax(1) * 0.5).sum(1)).tanh()",
    cached,
    writes="a",
    weight=2,
)
add(
    "scan",
    "{r} = {a}.clone()\nfor t in range(1, {r}.shape[1]):\n"
    "    {r}[:, t] = ({r}[:, t - 1] * {number} + {r}[:, t]).sin()",
    lambda v: {"a": v.real(lambda t: t.dim() == 3 and t.shape[1] > 1), "number": v.number()},
    weight=2,
)


# ---- statistics that ops move without saying so
def other_statistics(*ranks: int) -> Any:
    fill = statistics(*ranks)
    return lambda v: fill(v) | {"b": v.real()}


add(
    "batch_norm_update_stats",
    "{r0}, {r1} = torch.batch_norm_update_stats({a}.detach(), {c}, {d}, {number})",
    statistics(2),
    writes="cd",
    weight=3,
)
add(
    "statistics_between_reads",
    "{r0} = ({a} - {c}).sin()\ntorch.batch_norm_update_stats({a}.detach(), {c}, {d}, {number})\n"
    "{r1} = ({a} - {c}).cos() + {d}",
    statistics(2),
    writes="cd",
    weight=4,
)
add(
    "statistics_read",
    "{r} = ({a} - {c}).sin() + {d}",
    statistics(2, 3, free=False),
)
add(
    "native_batch_norm",
    "{r} = torch.native_batch_norm({a}, None, None, {c}, {d}, True, {number}, 1e-5)[0]",
    statistics(2),
    writes="cd",
    weight=2,
)
add(
    "batch_norm_legit",
    "{r} = torch.ops.aten._native_batch_norm_legit({a}, None, None, {c}, {d}, True, {number}, 1e-5)[0]",
    statistics(2),
    writes="cd",
    weight=2,
)
add(
    "batch_norm_with_update",
    "{r} = torch.ops.aten._batch_norm_with_update({a}, None, None, {c}, {d}, {number}, 1e-5)[0]",
    statistics(2),
    writes="cd",
    weight=2,
)
add(
    "moving_average_observer",
    "{r} = torch.fused_moving_avg_obs_fake_quant({a}, torch.tensor(1), torch.tensor(1), {c}[:1], {d}[:1],\n"
    "    torch.ones(1), torch.zeros(1, dtype=torch.int32), 0.1, 0, 255, 0) + {c}[:1]",
    statistics(2),
    writes="cd",
    weight=1.5,
)
add(
    "rrelu_with_noise",
    "{r} = {a}.detach().cos()\n"
    "{r} = torch.ops.aten.rrelu_with_noise({a}, {r}, 0.1, 0.3, {training}) * {r}",
    lambda v: one(v) | {"training": v.rng.random() < 0.3},
)


# ---- steps of training inside a scope
def trained(v: Values) -> dict[str, Any]:
    a = v.real(rank(2))
    b = v.real(lambda t: tuple(t.shape) == (v.env[a].shape[1],) * 2)
    return {"a": a, "b": b, "count": v.rng.choice((2, 3, 6, 40))}


add(
    "training_steps",
    "{r} = {b}.detach().clone().requires_grad_()\nfor _ in range({count}):\n"
    "    ({a}.detach() @ {r}).sin().square().mean().backward()\n"
    "    with torch.no_grad():\n        {r} -= 0.1 * {r}.grad\n    {r}.grad = None",
    trained,
    weight=1.5,
)
add(
    "training_with_dropout",
    "{r} = {b}.detach().clone().requires_grad_()\noptimizer = torch.optim.SGD([{r}], lr=0.1, momentum=0.5)\n"
    "for _ in range({count}):\n    optimizer.zero_grad()\n"
    "    F.dropout(F.gelu({a}.detach() @ {r}), 0.2).square().mean().backward()\n    optimizer.step()",
    trained,
)
add(
    "a_list_of_losses",
    "{r} = list_of_losses({a}.detach(), {b}.detach().clone().requires_grad_(), {count})",
    trained,
    weight=1.5,
)
add(
    "backward_inside",
    "{a}.float().sin().sum().backward(retain_graph=True)",
    lambda v: {"a": v.real(lambda t: t.requires_grad)},
    weight=1.5,
)
add(
    "checkpoints_in_turn",
    "{r} = {a}\nfor _ in range({count}):\n    {r} = R.checkpoint(lambda x: (x * {number}).sin(), {r})",
    lambda v: one_number(v) | {"count": v.rng.choice((2, 5))},
    weight=1.5,
)
add(
    "checkpoint_in_checkpoint",
    "{r} = R.checkpoint(lambda x: R.checkpoint(lambda y: y.tanh() * y, x.sin()) + x, {a})",
    one,
    weight=1.5,
)
add(
    "layers_as_scopes",
    "{r} = {a}\nfor i in range(3):\n    with R.recompute(name=str(i)):\n"
    "        {r} = F.layer_norm({r}, {r}.shape[-1:]).sigmoid() * {r}",
    one_of_rank(2, 3),
)
