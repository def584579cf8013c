"""Higher-order ops inside a region: control flow, and ops that take functions.

They have no schema that a tape could replay. A region passes them through and keeps their results.
"""

from __future__ import annotations

import pytest
import torch
from tests.python.as_eager import WAYS, Way, assert_as_eager, leaf
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# Outside torch.compile torch warns that these are slow.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def by_cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def by_cond_of_a_captured_tensor(x: Tensor) -> Tensor:
    scale = x.exp()
    return torch.cond(x.sum() > 1e6, lambda x, s: x * s, lambda x, s: x / s, (x, scale))


def by_while_loop(x: Tensor) -> Tensor:
    _, h = while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, h * 1.5), (torch.tensor(0), x.detach())
    )
    return x * h


def by_out_dtype(x: Tensor) -> Tensor:
    small = (x.detach() * 8).to(torch.int8)
    product = out_dtype(torch.ops.aten.mm.default, torch.int32, small, small)
    return x * product.to(x.dtype)


def by_flex_attention(x: Tensor) -> Tensor:
    q = x.detach().view(1, 1, *x.shape)
    return x * flex_attention(q, q, q)[0, 0]


def by_flex_attention_with_a_mask(x: Tensor) -> Tensor:
    q = x.detach().view(1, 1, *x.shape)
    length = x.shape[0]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
    out = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s * 0.5, block_mask=mask)
    return x * out[0, 0]


def by_map(x: Tensor) -> Tensor:
    return map_rows(lambda row, scale: row.sin() * scale, x, torch.ones(x.shape[1]))


def by_scan(x: Tensor) -> Tensor:
    start = torch.zeros(x.shape[1])
    return scan(lambda carry, row: (carry * 0.5 + row, carry + row), start, x)[1]


def by_associative_scan(x: Tensor) -> Tensor:
    return x * associative_scan(torch.add, x.detach(), dim=0, combine_mode="generic")


OPS = pytest.mark.parametrize(
    "op",
    [
        by_cond,
        by_cond_of_a_captured_tensor,
        by_while_loop,
        by_out_dtype,
        by_flex_attention,
        by_flex_attention_with_a_mask,
        by_map,
        by_scan,
        by_associative_scan,
    ],
)


@WAYS
@OPS
def test_a_higher_order_op_runs_in_a_region(way: Way, op) -> None:
    def program(way: Way):
        x = leaf(8, 8)
        y = way(lambda x: op(x * 2), x)
        y.sum().backward()
        return y.detach(), x.grad

    assert_as_eager(program, way)


@WAYS
@OPS
def test_ops_before_and_after_a_higher_order_op_are_replayed(way: Way, op) -> None:
    def program(way: Way):
        x = leaf(8, 8)

        def region(x: Tensor) -> Tensor:
            h = torch.nn.functional.dropout(x.sin(), 0.3).exp()
            h = op(h - h.mean()).tanh()
            return torch.nn.functional.dropout(h, 0.3) * h.cos()

        y = way(region, x)
        y.sum().backward()
        return y.detach(), x.grad, torch.get_rng_state()

    assert_as_eager(program, way)


@WAYS
def test_a_buffer_that_a_branch_reads_changes_after_the_region(way: Way) -> None:
    def program(way: Way):
        x, limit = leaf(8, 8), torch.zeros(())

        def region(x: Tensor) -> Tensor:
            return torch.cond(limit < 1, lambda x: x.sin(), lambda x: x.cos(), (x * 2,)).exp()

        y = way(region, x)
        limit.fill_(2)
        y.sum().backward()
        return x.grad

    assert_as_eager(program, way)
