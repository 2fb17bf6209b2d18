"""Whether a step processes one batch of a known size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuledger.analyze.step.rates import _has_one_batch
from gpuledger.model.flight_facts import FailedAllocation
from gpuledger.model.manifest import Inputs


@pytest.mark.parametrize(
    ("calls", "failed", "is_known"),
    [
        (((1, 1, 96, -1), (2, 3, 48, -1)), (), False),
        (((1, 1, 96, -1), (2, 3, 48, -1)), (1, None), True),
        (((1, 2, 96, -1), (3, 5, 48, -1)), (1,), False),
    ],
)
def test_a_step_that_ran_out_of_memory_does_not_hide_the_batch(
    calls: tuple[tuple[int, ...], ...], failed: tuple[int | None, ...], is_known: bool
) -> None:
    oom = tuple(FailedAllocation(device_idx=0, tried_bytes=1, step=step) for step in failed)
    inputs = Inputs(module_id=0, shape=(48, 1), tokens=False, step_calls=1)
    rank: Any = SimpleNamespace(manifest=SimpleNamespace(inputs=inputs, calls=calls, oom=oom))
    assert _has_one_batch(rank) == is_known
