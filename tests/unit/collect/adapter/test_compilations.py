"""How often ``torch.compile`` has compiled something is known."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuledger.collect.adapter import dynamo  # noqa: E402 - it needs torch to be there

pytestmark = pytest.mark.torch


def test_a_function_that_is_compiled_for_another_shape_counts_again() -> None:
    counts = [dynamo.compilations()]
    double = torch.compile(lambda numbers: numbers * 2, backend="eager", dynamic=False)
    for length in (2, 2, 3):
        double(torch.ones(length))
        counts.append(dynamo.compilations())
    assert counts[1] == counts[2] > counts[0]
    assert counts[3] > counts[2]
