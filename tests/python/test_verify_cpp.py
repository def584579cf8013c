"""C++ models through Python's verify."""

from __future__ import annotations

import pytest

from retape.subjects.cpp import MODELS
from retape.verifying.case import Case, run


@pytest.mark.parametrize("policy", ["full", "cheap"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_cpp_is_equal_in_every_order(name: str, dtype: str, policy: str) -> None:
    result = run(Case(f"cpp:{name}", policy=policy, dtype=dtype, orders=True))
    assert result.kind == "equal", result.explanation
    assert len(result.verdict.orders) == 5  # together, apart in both orders, twice, two forwards


def test_a_fault_in_it_is_told_by_name() -> None:
    result = run(Case("cpp:pi05", fault="rng-not-restored"))
    assert result.kind == "different"
    assert result.verdict.findings[0].kind == "generator state"
