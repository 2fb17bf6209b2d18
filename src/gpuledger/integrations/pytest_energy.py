"""Check a test against a limit on the energy of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuledger.errors import GpuLedgerError
from gpuledger.integrations.pytest_marks import ENERGY, EnergyLimit
from gpuledger.integrations.step_energy import CallEnergy, card_energy_counter, measure_call_energy
from gpuledger.units import format_joules

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_ENERGY = "gpuledger_step_energy_j"


def judge_energy(item: Any, limit: EnergyLimit, counter: Callable[[], Callable[[], float]] | None = None) -> None:
    """Call the test repeatedly to measure the energy of one call, and fail it if that is above the limit."""
    try:
        found = measure_call_energy(lambda: _call(item), (counter or card_energy_counter)(), limit.seconds)
    except GpuLedgerError as error:
        pytest.fail(f"{ENERGY}: not measured: {error.message}", pytrace=False)
    item.user_properties.append((STEP_ENERGY, found.joules))
    if found.joules > limit.limit_j:
        pytest.fail(f"{ENERGY}: {over_energy(found, limit.limit_j)}", pytrace=False)


def over_energy(found: CallEnergy, limit_j: float) -> str:
    """Return why a test fails."""
    more = format_joules(found.joules - limit_j)
    return (
        f"one call used {format_joules(found.joules, found.uncertainty_j)}, {more} over the limit of "
        f"{format_joules(limit_j)} ({found.calls} calls in {found.seconds:.1f} s)"
    )


def _call(item: Any) -> None:
    import torch

    item.runtest()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
