"""What the text of an estimate says about its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("torch")
from gpuledger.cli.predict.estimate_text import steps_text
from gpuledger.simulate.estimate.run import Estimate

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("steps", "peak_step", "said"),
    [
        (4, 2, "simulated steps 4, peak in step 2"),
        (4, 4, "simulated steps 4, peak in step 4"),
        (4, 5, "simulated steps 4, peak after step 4"),
        (4, 0, "simulated steps 4, peak before step 1"),
        (0, 0, "simulated steps 0"),
        (0, 1, "simulated steps 0"),
    ],
)
def test_a_peak_outside_the_steps_is_not_said_to_be_in_one(steps: int, peak_step: int, said: str) -> None:
    assert steps_text(cast(Estimate, SimpleNamespace(steps=steps, peak_step=peak_step))) == said
