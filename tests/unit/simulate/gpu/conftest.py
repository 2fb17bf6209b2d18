"""Fixtures of the tests of the simulated GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    """Simulate an H200 during a test."""
    from simulated_gpu import simulated_h200

    with simulated_h200() as made:
        yield made
