"""Steps that call torch's own ops: pointwise, products, norms, views, writes, random numbers."""

from __future__ import annotations

from .fillers import (
    affine,
    along,
    attention,
    cut,
    indexed,
    linear,
    one,
    one_number,
    one_of_rank,
    pair,
    product,
    rank,
    same_pair,
    same_pair_along,
    statistics,
    storage,
    written,
    written_along,
    written_from,
    written_row,
)
from .kinds import add

# ---- pointwise, pure

UNARY = {
    "sin": "torch.sin({a})",
    "cos": "torch.cos({a})",
    "tanh": "torch.tanh({a})",
    "sigmoid": "torch.sigmoid({a})",
    "relu": "torch.relu({a})",
    "exp": "torch.exp({a}.clamp(max=1.5))",
    "gelu": "F.gelu({a})",
    "gelu_tanh": 'F.gelu({a}, approximate="tanh")',
    "silu": "F.silu({a})",
    "mish": "F.mish({a})",
    "softplus": "F.softplus({a})",
    "logsigmoid": "F.logsigmoid({a})",
    "elu": "F.elu({a})",
    "leaky_relu": "F.leaky_relu({a}, 0.1)",
    "hardswish": "F.hardswish({a})",
    "abs": "torch.abs({a})",
    "neg": "-{a}",
    "square": "{a}.square()",
    "cube": "{a}.clamp(-3, 3) ** 3",
    "sqrt": "torch.sqrt({a}.abs() + 0.5)",
    "rsqrt": "torch.rsqrt({a}.abs() + 0.5)",
    "log1p": "torch.log1p({a}.abs())",
    "erf": "torch.erf({a})",
    "reciprocal": "1.0 / ({a}.abs() + 0.75)",
    "clamp": "{a}.clamp(-0.8, 0.9)",
    "to_double_and_back": "{a}.double().sin().float()",
    "to_bfloat16_and_back": "{a}.bfloat16().cos().float()",
    "clone": "{a}.clone()",
    "contiguous": "{a}.contiguous()",
    "branch_on_item": "torch.sin({a}) if {a}.sum().item() > 0 else torch.cos({a})",
    "detach": "{a}.detach()",
    "detach_and_require": "{a}.detach().clone().requires_grad_()",
}
for _name, _text in UNARY.items():
    add(_name, "{r} = " + _text, one, weight=0.6)
add("add_number", "{r} = {a} + {number}", one_number)
add("mul_number", "{r} = {a} * {number}", one_number)
add("where", "{r} = torch.where({a} > {number}, {a}, {a}.sin())", one_number)
add("masked_fill", "{r} = {a}.masked_fill({a} < 0, {number})", one_number)
add("add", "{r} = {a} + {b}", pair, weight=3)
add("sub", "{r} = {a} - {b}", pair, weight=2)
add("mul", "{r} = {a} * {b}", pair, weight=4)
add("div", "{r} = {a} / ({b}.abs() + 1)", pair, weight=2)
add("maximum", "{r} = torch.maximum({a}, {b})", pair)
add("atan2", "{r} = torch.atan2({a}, {b}.abs() + 0.5)", pair)
add("lerp", "{r} = torch.lerp({a}, {b}, 0.3)", same_pair)
add("addcmul", "{r} = torch.addcmul({a}, {b}, {a}, value={number})", pair)
add("where_pair", "{r} = torch.where({a} > {b}, {a}, {b})", pair)
add("foreach_mul", "{r0}, {r1} = torch._foreach_mul([{a}, {b}], {number})", pair)

# ---- reductions, scans, losses
for _name in ("sum", "mean", "logsumexp", "amax", "cumsum", "softmax", "log_softmax"):
    add(_name, f"{{r}} = {{a}}.{_name}({{dim}})", along)
add("sum_keepdim", "{r} = {a}.sum({dim}, keepdim=True)", along)
add("norm", "{r} = torch.linalg.vector_norm({a} + 0.1, dim={dim})", along)
add("normalize", "{r} = F.normalize({a} + 0.1, dim={dim})", along)
add("cumprod", "{r} = {a}.sigmoid().cumprod({dim})", along)
add("mse_loss", "{r} = F.mse_loss({a}, {b})", same_pair)
add("smooth_l1_loss", "{r} = F.smooth_l1_loss({a}, {b})", same_pair)
add(
    "cross_entropy",
    "{r} = F.cross_entropy({a}, torch.zeros({a}.shape[0], dtype=torch.long))",
    one_of_rank(2),
)

# ---- products
add("mm", "{r} = torch.mm({a}, {b})", product(2, 2), weight=2)
add("mv", "{r} = torch.mv({a}, {b})", product(2, 1))
add("bmm", "{r} = torch.bmm({a}, {b})", product(3, 3), weight=3)
add("matmul", "{r} = {a} @ {b}", product(3, 2), weight=3)
add("matmul_transposed", "{r} = {a} @ {a}.transpose(-1, -2)", one_of_rank(2, 3))
add("linear", "{r} = F.linear({a}, {b}, {c})", linear, weight=3)
add("linear_without_bias", "{r} = F.linear({a}, {b})", linear)
add("rnn_cell", "{r} = torch.rnn_tanh_cell({a}, {a}, {b}, {b}, {c}, {c})", linear)
add("addmm", "{r} = torch.addmm({a}, {a}, {b})", product(2, 2))
add("einsum", '{r} = torch.einsum("...i,...j->...ij", {a}, {a}).sum(-1)', one_of_rank(1, 2))
add("sparse_mm", "{r} = torch.sparse.mm({a}.detach().to_sparse(), {b})", product(2, 2), weight=0.4)

# ---- norms
add("layer_norm", "{r} = F.layer_norm({a}, ({size},), {b}, {c})", affine, weight=2)
add("layer_norm_bare", "{r} = F.layer_norm({a}, {a}.shape[-1:])", one_of_rank(2, 3))
add("rms_norm", "{r} = F.rms_norm({a}, ({size},), {b})", affine, weight=2)
add("group_norm", "{r} = F.group_norm({a}, 1)", one_of_rank(3))
add(
    "batch_norm",
    "{r} = F.batch_norm({a}, {c}, {d}, training=True, momentum={number})",
    statistics(2),
    writes="cd",
    weight=2,
)
add(
    "batch_norm_1d",
    "{r} = F.batch_norm({a}.transpose(1, 2), {c}, {d}, training=True, momentum={number})",
    statistics(3),
    writes="cd",
    weight=2,
)
add(
    "batch_norm_eval",
    "{r} = F.batch_norm({a}, {c}, {d}, training=False)",
    statistics(2, free=False),
    weight=0.5,
)
add(
    "instance_norm",
    "{r} = F.instance_norm({a}.transpose(1, 2), {c}, {d}, use_input_stats=True)",
    statistics(3),
    writes="cd",
    weight=4,
)

# ---- several outputs
add("cat", "{r} = torch.cat([{a}, {b}], {dim})", same_pair_along, weight=2)
add("stack", "{r} = torch.stack([{a}, {b}, {a}], {dim})", same_pair)
add("chunk", "{r0}, {r1} = torch.chunk({a}, 2, {dim})", cut, weight=2)
add("split", "{r0}, {r1} = torch.split({a}, [{at}, {rest}], {dim})", cut)
add("unbind", "{r0}, {r1} = torch.unbind({a}, {dim})[:2]", cut)
add("topk", "{r0}, {r1} = torch.topk({a}, 2, {dim})", cut)
add("sort", "{r0}, {r1} = torch.sort({a}, dim={dim}, stable=True)", along)
add("max_dim", "{r0}, {r1} = torch.max({a}, {dim})", along)
add("min_dim", "{r0}, {r1} = {a}.sin().min({dim})", along)
add("cummax", "{r0}, {r1} = torch.cummax({a}, {dim})", along)
add("var_mean", "{r0}, {r1} = torch.var_mean({a} + 0, {dim}, correction=0)", along)
add("kthvalue", "{r0}, {r1} = torch.kthvalue({a}, 1, {dim})", along)
add("argmax", "{r} = {a}.argmax({dim})", along, weight=0.5)
add("argsort", "{r} = {a}.argsort(dim={dim}, stable=True)", along, weight=0.5)

# ---- views
add("transpose", "{r} = {a}.transpose(-1, -2)", one_of_rank(2, 3), weight=2)
add("permute", "{r} = {a}.permute(2, 0, 1)", one_of_rank(3))
add("reshape", "{r} = {a}.reshape(-1, {a}.shape[-1])", one_of_rank(2, 3, 4), weight=2)
add("flatten", "{r} = {a}.flatten()", one)
add("unsqueeze", "{r} = {a}.unsqueeze(0)", one_of_rank(1, 2))
add("squeeze", "{r} = {a}.squeeze()", one)
add("narrow", "{r} = {a}.narrow({dim}, {at}, {rest})", cut, weight=2)
add("slice", "{r} = {a}[:{at}]", lambda v: cut(v) | {"dim": 0})
add("slice_step", "{r} = {a}[..., ::2]", one_of_rank(1, 2, 3))
add("select", "{r} = {a}.select({dim}, {at})", cut)
add("expand", "{r} = {a}.unsqueeze(0).expand(2, *{a}.shape)", one_of_rank(1, 2))
add(
    "as_strided",
    "{r} = {a}.as_strided((2, 2), (2, 1), 1)",
    lambda v: {"a": v.real(lambda t: t.numel() >= 6 and t.is_contiguous())},
)
add("diagonal", "{r} = {a}.diagonal(0, -2, -1)", one_of_rank(2, 3))
add("unfold", "{r} = {a}.unfold({dim}, 2, 1)", cut)
add("view_dtype", "{r} = {a}.detach().view(torch.int32).bitwise_and(-16).view(torch.float32)", one)
add("roll", "{r} = {a}.roll(1, {dim})", along)
add("flip", "{r} = {a}.flip({dim})", along)
add("pad", "{r} = F.pad({a}, (1, 1))", one_of_rank(1, 2, 3))
add("tril", "{r} = {a}.tril()", one_of_rank(2, 3))
add("repeat_interleave", "{r} = {a}.repeat_interleave(2, {dim})", along, weight=0.5)
add("view_as_real_fft", "{r} = torch.view_as_real(torch.fft.rfft({a}))", one_of_rank(1, 2, 3))
add("complex_product", "{r} = (torch.complex({a}, {b}).conj() * {number}).real.sin()", same_pair)
add("complex_imag", "{r} = (torch.complex({a}, {b}).conj().imag * {a}).cos()", same_pair)

# ---- in place, whole tensors
for _name in ("sigmoid_", "tanh_", "relu_", "sin_", "neg_", "zero_"):
    add(_name, f"{{a}}.{_name}()", written, writes="a", weight=0.7)
add("mul_", "{a}.mul_({number})", written, writes="a", weight=2)
add("clamp_", "{a}.clamp_(-1, 1)", written, writes="a")
add("fill_", "{a}.fill_({number})", written, writes="a", weight=0.5)
add("add_", "{a}.add_({b}, alpha={number})", written_from, writes="a", weight=2)
add("sub_", "{a}.sub_({b})", written_from, writes="a")
add("copy_", "{a}.copy_({b})", written_from, writes="a")
add("addcmul_", "{a}.addcmul_({b}, {b}, value={number})", written_from, writes="a")
add("exponent_in_place", "F.elu({a}, inplace=True)", written, writes="a")
add("dropout_in_place", "F.dropout({a}, 0.3, inplace=True)", written, writes="a")
add(
    "foreach_mul_",
    "torch._foreach_mul_([{a}, {b}], {number})",
    lambda v: {
        "a": (a := v.target()),
        "b": v.target(lambda t: storage(t) != storage(v.env[a])),
        "number": v.number(),
    },
    writes="ab",
    weight=0.7,
)
add(
    "buffer_update",
    "with torch.no_grad():\n    {a}.mul_(0.9).add_({b}, alpha=0.1)",
    written_from,
    writes="a",
    weight=2,
)
add("function_in_place", "{r} = WritesInPlace.apply({a})", written, writes="a", weight=0.7)

# ---- in place, parts of tensors
add("slice_mul_", "{a}.narrow({dim}, {at}, 1).mul_({number})", written_along, writes="a", weight=2)
add("select_add_", "{a}.select({dim}, {at}).add_({number})", written_along, writes="a")
add("last_column_", "{a}[..., -1] = {number}", written_along, writes="a")
add("transposed_row_", "{a}.transpose(0, -1)[0].sin_()", written_along, writes="a")
add("assign_row", "{a}[{at}] = {b}", written_row, writes="a", weight=2)
add("add_to_row", "{a}[{at}] += {b}", written_row, writes="a")
add("copy_into_slice", "{a}[{at}:].copy_({b})", written_row, writes="a")
add("masked_fill_", "{a}.masked_fill_({a} > 0.5, {number})", written, writes="a")
add("masked_assign", "{a}[{a} > 0.3] = {number}", written, writes="a")
add(
    "index_put_",
    "{a}.index_put_((torch.tensor([{at}, {at}]),), {b}, accumulate=True)",
    written_row,
    writes="a",
)
add(
    "index_fill_",
    "{a}.index_fill_({dim}, torch.tensor([{at}]), {number})",
    written_along,
    writes="a",
)
add(
    "index_add_",
    "{a}.index_add_(0, torch.tensor([{at}]), {b}.expand({a}[:1].shape))",
    written_row,
    writes="a",
)
add(
    "scatter_",
    "{a}.scatter_({dim}, torch.zeros_like({a}, dtype=torch.long), {number})",
    written_along,
    writes="a",
)
add(
    "diagonal_mul_",
    "{a}.diagonal(0, -2, -1).mul_({number})",
    lambda v: {"a": v.target(rank(2, 3)), "number": v.number()},
    writes="a",
)

# ---- writes through aliases
add("detached_mul_", "{a}.detach().mul_({number})", written, writes="a")
add("view_of_detached_", "{a}.detach().view(-1)[:1].add_({number})", written, writes="a")
add(
    "dtype_view_",
    "{a}.detach().view(torch.int32).bitwise_and_(-256)",
    written,
    writes="a",
    weight=0.5,
)
add("data_mul_", "{r} = {a} + {number}\n{r}.data.mul_({number})", one_number)
add("data_part_", "{r} = {a} + {number}\n{r}.data.view(-1)[::2].neg_()", one_number)
add("data_swap", "{r} = {a}.detach().clone()\n{r}.data = {b}.detach().clone()", pair, weight=0.4)
add("set_", "{r} = {a}.detach().clone()\n{r}.set_({b}.detach().clone())", pair, weight=0.4)
add(
    "resize_",
    "{r} = {a}.detach().clone()\n{r}.resize_(2, 2)",
    lambda v: {"a": v.real(lambda t: t.numel() >= 4)},
    weight=0.4,
)
add(
    "out_fresh",
    "{r} = torch.empty(0)\nwith torch.no_grad():\n    torch.mul({a}, {b}, out={r})",
    pair,
)
add(
    "out_into",
    "with torch.no_grad():\n    torch.add({b}, {b}, out={a})",
    lambda v: {
        "b": (b := v.real()),
        "a": v.target(lambda t: not t.requires_grad and t.shape == v.env[b].shape),
    },
    writes="a",
    weight=2,
)
add(
    "out_into_row",
    "with torch.no_grad():\n    torch.sin({b}.expand({a}[0].shape), out={a}[{at}])",
    written_row,
    writes="a",
)

# ---- made from nothing
add(
    "zeros_and_assign",
    "{r} = torch.zeros_like({a})\n{r}[..., :1] = {a}[..., :1]",
    one_of_rank(1, 2, 3),
)
add("zeros_and_fill", "{r} = {a}.new_zeros({a}.shape)\n{r}.fill_({number})", one_number)
add("empty_and_copy", "{r} = torch.empty_like({a})\n{r}.copy_({a})", one)
add(
    "empty_in_parts",
    "{r} = torch.empty_like({a})\n{r}[..., :1] = {a}[..., :1]\n{r}[..., 1:] = {a}[..., 1:] * 2",
    one_of_rank(1, 2, 3),
)
add("empty_and_numpy", "{r} = torch.empty({a}.shape)\n{r}.numpy().fill({number})", one_number)
add("from_inference", "with torch.inference_mode():\n    {r} = {a}.cos()\n{r} = {r}.clone()", one)
add("full", "{r} = torch.full({a}.shape, {number})", one_number)
add("arange", "{r} = torch.arange({a}.numel(), dtype=torch.float32).view({a}.shape) * 0.01", one)

# ---- random numbers
add("dropout", "{r} = F.dropout({a}, 0.3)", one, weight=3)
add("alpha_dropout", "{r} = F.alpha_dropout({a}, 0.2, training=True)", one)
add("feature_dropout", "{r} = F.dropout1d({a}, 0.4)", one_of_rank(3))
add("rrelu", "{r} = F.rrelu({a}, training=True)", one, weight=2)
add("rand_like", "{r} = {a} * torch.rand_like({a})", one)
add(
    "private_bernoulli_",
    "{r} = {a} * torch.empty_like({a}).bernoulli_(0.7, generator=gen)",
    one,
    weight=2,
)
add("private_normal_", "{r} = {a} + torch.empty_like({a}).normal_(generator=gen)", one)
add(
    "private_uniform_",
    "{a}.uniform_(-1, 1, generator=gen)",
    lambda v: {"a": v.target(lambda t: not t.requires_grad)},
    writes="a",
)
add("private_bernoulli", "{r} = {a} * torch.bernoulli({a}.detach().sigmoid(), generator=gen)", one)
add("private_randn", "{r} = torch.randn({a}.shape, generator=gen) * {a}", one)
add(
    "private_permutation",
    "{r} = {a}[torch.randperm({a}.shape[0], generator=gen)]",
    one_of_rank(1, 2, 3),
)
add(
    "multinomial",
    "{r} = torch.multinomial({a}.detach().sigmoid(), 2, replacement=True)",
    one_of_rank(2),
)
add("gumbel_softmax", "{r} = F.gumbel_softmax({a}, hard=False)", one_of_rank(2, 3))
add("reseed", "torch.manual_seed({seed})", lambda v: {"seed": v.rng.randrange(99)}, weight=0.5)
add(
    "reseed_private", "gen.manual_seed({seed})", lambda v: {"seed": v.rng.randrange(99)}, weight=0.5
)

# ---- indices
add(
    "embedding",
    "{r} = F.embedding({b}.remainder({rows}), {a})",
    lambda v: indexed(v) | {"a": (a := v.real(rank(2))), "rows": v.env[a].shape[0]},
    weight=2,
)
add(
    "embedding_max_norm",
    "{r} = F.embedding({b}.remainder({rows}), {a}, max_norm=0.7)",
    lambda v: (
        indexed(v)
        | {
            "a": (a := v.target(lambda t: t.dim() == 2 and not t.requires_grad)),
            "rows": v.env[a].shape[0],
        }
    ),
    writes="a",
    weight=0.7,
)
add("index_select", "{r} = {a}.index_select({dim}, {b}.flatten().remainder({size}))", indexed)
add("index", "{r} = {a}[{b}.remainder({rows})]", indexed)
add("gather", "{r} = {a}.gather({dim}, {a}.detach().argsort(dim={dim}, stable=True))", along)
add(
    "scatter_add",
    "{r} = {a}.scatter_add({dim}, {a}.detach().argsort(dim={dim}, stable=True), {a})",
    along,
)
add(
    "take_along_dim",
    "{r} = torch.take_along_dim({a}, {a}.detach().argmax({dim}, True), {dim})",
    along,
)
add("masked_select", "{r} = {a}.masked_select({a} > 0)", one, weight=0.4)
add("nonzero", "{r} = ({a} > 0).nonzero()", one, weight=0.3)

# ---- convolution, pooling, attention
add(
    "conv1d",
    "{r} = F.conv1d({a}, {b}, padding=1)",
    lambda v: {
        "a": (a := v.real(rank(3))),
        "b": v.real(lambda t: t.dim() == 3 and t.shape[1] == v.env[a].shape[1] and t.shape[2] <= 3),
    },
    weight=2,
)
add(
    "conv2d",
    "{r} = F.conv2d({a}.unsqueeze(1), {b}, padding=1)",
    lambda v: {
        "a": v.real(rank(3)),
        "b": v.real(lambda t: t.dim() == 4 and t.shape[1] == 1 and t.shape[2] <= 3),
    },
    weight=2,
)
add("max_pool1d", "{r} = F.max_pool1d({a}, 2)", one_of_rank(3))
add("max_pool2d", "{r} = F.max_pool2d({a}, 2)", one_of_rank(3, 4))
add("avg_pool2d", "{r} = F.avg_pool2d({a}, 2)", one_of_rank(3, 4))
add("interpolate", '{r} = F.interpolate({a}, scale_factor=2, mode="linear")', one_of_rank(3))
add(
    "attention",
    "{r} = F.scaled_dot_product_attention({a}, {b}, {c}, is_causal={causal})",
    attention,
    weight=2,
)
add(
    "attention_with_heads",
    "{r} = F.scaled_dot_product_attention({a}.unsqueeze(1), "
    "{b}.unsqueeze(1), {c}.unsqueeze(1), is_causal={causal})",
    attention,
    weight=2,
)
add(
    "attention_with_dropout",
    "{r} = F.scaled_dot_product_attention({a}, {b}, {c}, None, 0.2)",
    attention,
)

# ---- autograd's own tools
add("function_saves_input", "{r} = SavesInput.apply({a})", one, weight=2)
add("function_saves_output", "{r} = SavesOutput.apply({a})", one)
add("function_saves_intermediate", "{r} = SavesIntermediate.apply({a}, {b})", pair)
add("function_two_outputs", "{r0}, {r1} = TwoOutputs.apply({a})", one_of_rank(1, 2, 3))
add(
    "inner_grad",
    "{r} = torch.autograd.grad({a}.square().sum(), {b}, create_graph=True)[0]",
    lambda v: {
        "a": v.real(lambda t: t.requires_grad),
        "b": v.real(lambda t: t.requires_grad),
    },
    weight=6,
)
# Not on views: in torch 2.13 a hook on a view whose base was written to crashes the process.
add(
    "register_hook",
    "{a}.register_hook(lambda grad: None if grad is None else grad * 0.5)",
    lambda v: {"a": v.real(lambda t: t.requires_grad and not t.is_leaf and not t._is_view())},
    weight=0.5,
)
add(
    "torch_checkpoint",
    "{r} = torch.utils.checkpoint.checkpoint(lambda x: x.sin() * x, {a}, use_reentrant=False)",
    one,
    weight=0.5,
)
add(
    "save_on_cpu",
    "with torch.autograd.graph.save_on_cpu():\n    {r} = {a}.sin() * {a}",
    one,
    weight=0.5,
)
add("vmap", "{r} = torch.vmap(lambda x: x.sin() * x)({a})", one_of_rank(1, 2, 3), weight=0.4)
add("func_grad", "{r} = torch.func.grad(lambda x: x.sin().sum())({a}.detach())", one, weight=0.4)
add(
    "delete",
    "del {a}",
    lambda v: {
        "a": v.rng.choice([n for n in v.names(lambda t: True) if n not in v.fixed] or ["?"])
    },
    weight=4,
)
