"""pytest plugin: the fixture `assert_same_gradients`.

A package of its own, so that pytest starts without importing torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_same_gradients() -> Callable[..., Any]:
    """Fails unless a step, recomputed, has every bit of the plain one, and might not have had.

    >>> def test_block(assert_same_gradients):
    ...     assert_same_gradients(block, x, policy="cheap")

    Takes what `retape.verify` takes and returns its verdict. A vacuous verdict fails too.
    """
    import retape

    def check(step_or_model: Any, inputs: Any = None, **options: Any) -> Any:
        __tracebackhide__ = True
        verdicts = retape.verify(step_or_model, inputs, **options)
        policies = options["policy"] if isinstance(verdicts, list) else [None]
        found = verdicts if isinstance(verdicts, list) else [verdicts]
        for policy, verdict in zip(policies, found, strict=True):
            if not verdict:
                which = "" if len(found) == 1 else f"policy {policy}: "
                pytest.fail(which + verdict.explain(), pytrace=False)
        return verdicts

    return check
