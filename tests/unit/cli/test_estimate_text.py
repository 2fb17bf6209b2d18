"""What the text of an estimate says about its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("torch")
from rich.color import ColorSystem

from gpuledger.cli.predict.estimate_text import every_gpu_lines, fits_by_size, in_lines, steps_text, verdict_line
from gpuledger.report.base.terminal import BOLD, DIM, RESET, Terminal
from gpuledger.simulate.catalogue import catalogue, find_card
from gpuledger.simulate.estimate.fit import FITS, Fit
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


@pytest.mark.parametrize(
    ("lower", "process", "upper", "said"),
    [
        (49.2, 53.8, 55.2, "53.8 of 23.4 GiB at the peak, -4.6 +1.4"),
        (8.0, 8.3, 8.6, "8.3 of 23.4 GiB at the peak, ±0.3"),
        (0.48, 0.52, 0.53, "0.52 of 23.4 GiB at the peak, -0.04 +0.01"),
        (0.518, 0.52, 0.521, "0.520 of 23.4 GiB at the peak, -0.002 +0.001"),
        (0.52, 0.52, 0.52, "0.5 of 23.4 GiB at the peak, ±0.0"),
    ],
)
def test_both_sides_of_the_interval_have_a_digit(lower: float, process: float, upper: float, said: str) -> None:
    sizes = {"lower_bytes": lower, "process_bytes": process, "upper_bytes": upper}
    peaks = SimpleNamespace(**{name: size * (1 << 30) for name, size in sizes.items()})
    card = SimpleNamespace(key="rtx-3090", usable_bytes=23.4 * (1 << 30))
    fit = SimpleNamespace(verdict=FITS, full_after_steps=None)
    found = cast(Estimate, SimpleNamespace(peaks=peaks, card=card, fit=fit, memory_errors=0))
    assert verdict_line(found) == f"fits on rtx-3090 ({said})"


@pytest.mark.parametrize("asked", ["h200", "t4"])
def test_the_table_has_the_largest_peak_of_each_memory_size_and_the_gpu_that_was_asked_for(asked: str) -> None:
    every = tuple(Fit(card, FITS, card.multiprocessors, card.multiprocessors) for card in catalogue().values())
    found = cast(Estimate, SimpleNamespace(others=every, card=find_card(asked)))
    shown = fits_by_size(found)
    sizes = [fit.card.total_bytes for fit in shown]
    assert len(set(sizes)) == len(sizes) < len(every)
    assert set(sizes) == {fit.card.total_bytes for fit in every}
    assert asked in {fit.card.key for fit in shown}
    for fit in shown:
        alike = [other.upper_bytes for other in every if other.card.total_bytes == fit.card.total_bytes]
        assert fit.upper_bytes == max(alike) or fit.card.key == asked


def test_colours_add_nothing_but_escape_sequences() -> None:
    every = tuple(Fit(card, FITS, card.multiprocessors, card.multiprocessors) for card in catalogue().values())
    found = cast(Estimate, SimpleNamespace(others=every, steps=3, peak_step=2))
    coloured = every_gpu_lines(found, Terminal(colors=ColorSystem.STANDARD))
    assert coloured[0].startswith(BOLD)
    plain = [line.replace(BOLD, "").replace(DIM, "").replace(RESET, "") for line in coloured]
    assert plain == every_gpu_lines(found, Terminal())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_peak_in_numbers_is_no_wider_than_the_terminal(width: int) -> None:
    parts = ["allocated 57.4 MiB", "reserved 84.0 MiB", "context and libraries 412.9 MiB", "simulated steps 3"]
    lines = in_lines(Terminal(width), *parts)
    assert max(map(len, lines)) <= width
    assert "   ".join(lines) == "   ".join(parts)
    assert len(lines) == 1 or width < 100
