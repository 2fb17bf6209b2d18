"""When passes that nobody asked for are begun: only where they take nothing that the program needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuledger.collect import energy_cards, room, torch_private
from gpuledger.collect.energy_meter import EnergyMeter
from gpuledger.collect.nvml import MemoryReading
from gpuledger.collect.sensors import SensorReading
from gpuledger.model.energy_window import METERED_CARDS

pytestmark = pytest.mark.torch

GIB = 1 << 30


@pytest.fixture
def roomy_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_cards, "cards_in_use", lambda: [(0, "GPU-a")])
    monkeypatch.setattr(room.torch.cuda, "mem_get_info", lambda device_idx: (5 * GIB, 80 * GIB))
    for name in room.OUTER_PROFILERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("roomy_card")
def test_nothing_is_against_a_time_pass_where_there_is_room() -> None:
    assert room.why_no_time_pass(1_000) is None


@pytest.mark.usefixtures("roomy_card")
def test_a_full_card_is_left_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.torch.cuda, "mem_get_info", lambda device_idx: (GIB // 2, 80 * GIB))
    assert room.why_no_time_pass(1_000) == "cuda:0 has 512.0 MiB left, and CUPTI needs room there"


@pytest.mark.usefixtures("roomy_card")
def test_a_step_whose_trace_is_too_long_is_not_traced() -> None:
    assert "2,000,000 allocations" in str(room.why_no_time_pass(2_000_000))


@pytest.mark.usefixtures("roomy_card")
def test_a_profiler_around_the_program_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    assert "below another profiler" in str(room.why_no_time_pass(1_000))


@pytest.mark.usefixtures("roomy_card")
@pytest.mark.parametrize(("pool", "held"), [((0, 0), False), ((0, 1), True)])
def test_captured_graphs_are_left_alone(pool: tuple[int, int], held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch_private, "_find", lambda name: name)
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: {"segments": [{"segment_pool_id": pool}]})
    assert ("CUDA graphs" in str(room.why_no_time_pass(1_000))) == held


class Card:
    """A card that answers what it is told to."""

    def __init__(self, uuid: str, power_w: float | None, energy_mj: int | None) -> None:
        self.uuid, self._power_w, self._energy_mj = uuid, power_w, energy_mj

    def read_memory(self) -> MemoryReading | None:
        return None

    def read_sensors(self) -> SensorReading:
        return SensorReading(self._power_w, None, None, None, None, None)

    def read_energy_mj(self) -> int | None:
        return self._energy_mj

    def read_throttled_ns(self) -> int | None:
        return None

    def read_processes(self) -> list[tuple[int, int | None]]:
        return []


def test_the_program_knows_which_cards_are_read_while_somebody_reads_them(tmp_path: Path) -> None:
    cards = [Card("GPU-counter", None, 7), Card("GPU-power", 80.0, None), Card("GPU-neither", None, None)]
    assert energy_cards.metered_cards(tmp_path) == frozenset()
    with EnergyMeter(tmp_path, list(cards), until_end=False, pid=lambda: None) as meter:
        meter.start()
        assert energy_cards.metered_cards(tmp_path) == {"GPU-counter", "GPU-power"}
    assert not (tmp_path / METERED_CARDS).exists()
    (tmp_path / METERED_CARDS).write_text(json.dumps([])[:1])
    assert energy_cards.metered_cards(tmp_path) == frozenset()
