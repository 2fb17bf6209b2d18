"""bench/time/flight_recorder_cpu.py, and how many functions of gpuledger a later step calls."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from folders import BENCH

import gpuledger
from gpuledger.collect.adapter import optimizer_hooks

sys.path.insert(0, str(BENCH / "lib"))
sys.path.insert(0, str(BENCH / "time"))

import flight_recorder_cpu
from forks import in_a_fork

PACKAGE = str(Path(gpuledger.__file__).parent)
MOST_CALLS = 46
"""56 before counters were kept as they are read; each call takes about 0.5 µs in a training."""


def test_the_cost_of_a_step_is_measured_whole_and_without_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder_cpu, "WARM", 30)
    monkeypatch.setattr(flight_recorder_cpu, "BLOCKS", 5)
    found = in_a_fork(lambda: flight_recorder_cpu.step_us(tmp_path))
    assert found.keys() == {"whole", "without_counters", "without_flight"}, found
    assert all(one["without"] > 1 for one in found.values())


def test_hooks_that_are_taken_out_come_back() -> None:
    before = dict(optimizer_hooks._BEFORE)
    optimizer_hooks._BEFORE[1 << 40] = max
    for hooks, taken in flight_recorder_cpu.taken_out():
        assert not hooks
        hooks.update(taken)
    assert optimizer_hooks._BEFORE.pop(1 << 40) is max
    assert before == optimizer_hooks._BEFORE


def test_a_later_step_calls_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted() -> dict[str, Any]:
        names: list[str] = []
        steps: list[list[str]] = []

        def see(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                names.append(frame.f_code.co_name)

        def in_between(train: flight_recorder_cpu.Training) -> dict[str, Any]:
            for _ in range(9):
                names.clear()
                sys.setprofile(see)
                train(1)
                sys.setprofile(None)
                steps.append(list(names))
            return {"names": min(steps, key=len)}  # a step now and then has a search, or is written

        monkeypatch.setattr(flight_recorder_cpu, "more_us", in_between)
        return flight_recorder_cpu.step_us(tmp_path)["whole"]

    monkeypatch.setattr(flight_recorder_cpu, "WARM", 30)
    monkeypatch.setattr("gpuledger.collect.flight.step_counters.HOST_EVERY_NS", 1 << 62)
    found = in_a_fork(counted)
    assert "step_ended" in found["names"]
    assert len(found["names"]) <= MOST_CALLS, found["names"]
