"""The comparison that every other proof rests on: what it calls the same, and what it does not."""

from __future__ import annotations

import pytest
import torch
from tests.python.bits import assert_same_bits, explain_difference, same_bits

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.half, torch.float8_e4m3fn],
    ids=str,
)
def test_one_changed_bit_differs_in_every_float_dtype(dtype: torch.dtype) -> None:
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype)
    b = a.clone()
    assert same_bits(a, b)
    b.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()])[
        1, 0
    ] += 1
    assert not same_bits(a, b)


def test_signed_zeros_differ_and_nans_do_not() -> None:
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    quiet = torch.tensor([0x7FC00000, 0x3F800000], dtype=torch.int32).view(torch.float32)
    other = torch.tensor([-0x400000 + 5, 0x3F800000], dtype=torch.int32).view(torch.float32)
    assert quiet[0].isnan()
    assert other[0].isnan()
    assert same_bits(quiet, other)
    assert not same_bits(torch.tensor([NAN]), torch.tensor([INF]))
    assert same_bits(torch.tensor([NAN, INF]), torch.tensor([NAN, INF]))


def test_dtype_shape_and_none_count() -> None:
    x = torch.zeros(2)
    assert not same_bits(x, x.double())
    assert not same_bits(x, x.view(2, 1))
    assert not same_bits(x, None)
    assert not same_bits(None, x)
    assert same_bits(None, None)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.complex64], ids=str)
def test_other_dtypes_compare_by_value(dtype: torch.dtype) -> None:
    a, b = torch.tensor([1, 0, 1]).to(dtype), torch.tensor([1, 1, 1]).to(dtype)
    assert same_bits(a, a.clone())
    assert not same_bits(a, b)


def test_views_conjugates_and_sparse_tensors_compare_by_content() -> None:
    x = torch.arange(12.0).view(3, 4)
    assert same_bits(x.T, x.T.contiguous())
    z = torch.complex(x, -x)
    assert same_bits(z.conj(), z.conj().resolve_conj())
    assert not same_bits(z.conj(), z)
    assert same_bits(x.to_sparse(), x.to_sparse())
    assert not same_bits(x.to_sparse(), (x + 1).to_sparse())


def test_containers_compare_element_by_element() -> None:
    x = torch.ones(2)
    assert same_bits({"a": [x, 1, NAN]}, {"a": (x.clone(), 1, NAN)})
    assert not same_bits([x], [x, x])
    assert not same_bits({"a": x}, {"b": x})
    assert not same_bits([1, x], [2, x])


def test_a_difference_says_how_many_and_where_first() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    b[1, 1:] = 2.5
    text = explain_difference(a, b, "grad of w")
    assert (
        text
        == "grad of w: 2 of 6 elements of torch.float32[2, 3] differ, first at [1, 1]: 0.0 against 2.5"
    )
    with pytest.raises(AssertionError, match="first at"):
        assert_same_bits(a, b)
