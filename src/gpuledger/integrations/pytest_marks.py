"""What the marks on a test ask for. Standard library and pytest only: this is loaded with every pytest session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

MEMORY, GROWTH, ENERGY = "limit_gpu_memory", "limit_gpu_growth", "limit_step_energy"
FIXTURE = "gpuledger_recording"
PEAK = "gpuledger_peak_bytes"
"""Name of the property a recorded test's report carries."""
UNJUDGED = "gpuledger_recorded_by"
"""Name of the property of a test that was not measured: the run of ``gpuledger run`` that records the process."""
UNUSED_GPU = "gpuledger_unused_gpu"
"""Name of the property of a test that put nothing on the simulated GPU."""
DESCRIPTIONS = (
    f'{MEMORY}("2 GiB"): fail the test if it allocates more memory than this on one GPU',
    f'{GROWTH}("0 B", calls=5, warmup=2): call the test repeatedly; fail it if memory grows by more than this',
    f'{ENERGY}("50 J", seconds=2.0): call the test for this time; fail it if one call uses more energy than this',
)


@dataclass(frozen=True)
class GrowthLimit:
    """The bytes a test may keep from ``calls`` calls after ``warmup`` ones."""

    limit_bytes: int
    calls: int
    warmup: int


@dataclass(frozen=True)
class EnergyLimit:
    """Limit on the energy of one call of a test in J, measured over at least ``seconds``."""

    limit_j: float
    seconds: float


@dataclass(frozen=True)
class MarkedLimits:
    """What a test is held to; None where it has no such mark."""

    memory_bytes: int | None = None
    growth: GrowthLimit | None = None
    energy: EnergyLimit | None = None

    @property
    def of_bytes(self) -> bool:
        """Return whether a recording is needed."""
        return self.memory_bytes is not None or self.growth is not None


def read_limits(item: pytest.Item) -> MarkedLimits:
    """Return the limits of a test.

    Raises:
        pytest.UsageError: a mark has arguments it does not take, or a value that cannot be read.
    """
    marks = {name: item.get_closest_marker(name) for name in (MEMORY, GROWTH, ENERGY)}
    if not any(marks.values()):
        return MarkedLimits()
    from gpuledger.units import parse_bytes, parse_joules

    def memory(limit: str | int) -> int:
        return int(_parsed(parse_bytes, limit))

    def growth(limit: str | int = 0, calls: int = 5, warmup: int = 2) -> GrowthLimit:
        _check_counts(calls=(calls, 1), warmup=(warmup, 0))
        return GrowthLimit(int(_parsed(parse_bytes, limit)), calls, warmup)

    def energy(limit: str | float, seconds: float = 2.0) -> EnergyLimit:
        if not 0 < seconds < 3600:
            raise ValueError(f"seconds={seconds}: expected more than 0")
        return EnergyLimit(float(_parsed(parse_joules, limit)), float(seconds))

    readers: dict[str, Callable[..., Any]] = {MEMORY: memory, GROWTH: growth, ENERGY: energy}
    found = {name: _apply(item, mark, readers[name]) for name, mark in marks.items() if mark is not None}
    return MarkedLimits(found.get(MEMORY), found.get(GROWTH), found.get(ENERGY))


def _apply(item: pytest.Item, mark: pytest.Mark, reader: Callable[..., Any]) -> Any:
    from gpuledger.errors import UsageError

    try:
        return reader(*mark.args, **mark.kwargs)
    except UsageError as error:
        raise pytest.UsageError(f"{item.nodeid}: {mark.name}: {error.message}") from error
    except (TypeError, ValueError) as error:
        reason = str(error).partition("() ")[2] or str(error)
        raise pytest.UsageError(f"{item.nodeid}: {mark.name}: {reason}") from error


def _parsed(parse: Callable[[str], float], value: Any) -> float:
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{value!r}: expected a text such as '2 GiB' or '50 J', or a number")
    return value


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: expected a whole number of at least {least}")
