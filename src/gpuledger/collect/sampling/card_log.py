"""Samples of the GPUs since the last written part, as rows of the journal. All such tables are written here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuledger.cards.card import MemoryReading, Processes, SensorReading
    from gpuledger.model.energy_window import Tick, WindowEnergy
    from gpuledger.model.journal.journal import Part

_NOTHING = float("nan")


class CardLog:
    """Rows of every table. A value that was not read is -1 or NaN, as in the journal."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._readings: list[tuple[int, int, MemoryReading]] = []
        self._sensors: list[tuple[int, int, SensorReading]] = []

    def __len__(self) -> int:
        """Return the number of rows in the longest table."""
        return max(len(self._readings), len(self._sensors), *map(len, self._rows.values()), 0)

    def add_memory(self, t_ns: int, index: int, memory: MemoryReading) -> None:
        """Append one sample of a GPU's memory."""
        self._readings.append((t_ns, index, memory))

    def add_sensors(self, t_ns: int, index: int, found: SensorReading) -> None:
        """Append one sample of the slower sensors."""
        self._sensors.append((t_ns, index, found))

    def add_processes(self, t_ns: int, index: int, processes: Processes | None) -> None:
        """Append the bytes of each process on a GPU; do nothing if the driver does not list them."""
        if processes:
            rows = self._rows.setdefault("process_samples", [])
            rows += [(t_ns, index, pid, _known(held_bytes)) for pid, held_bytes in processes]

    def add_tick(self, index: int, tick: Tick) -> None:
        """Append an update of a GPU's energy counter."""
        row = (tick.t_ns, index, tick.energy_mj, tick.reading_ns, _known(tick.throttled_ns))
        self._rows.setdefault("ticks", []).append(row)

    def add_window(self, name_id: int, index: int, window: WindowEnergy) -> None:
        """Append the energy of an energy window on a GPU; ``name_id`` is -1 for the whole command."""
        times = (index, name_id, window.start_ns, window.end_ns)
        energy = (_float_of(window.energy_j), _float_of(window.uncertainty_j))
        self._rows.setdefault("windows", []).append((*times, *energy, window.ticks, _known(window.throttled_ns)))

    def take(self, part: Part) -> None:
        """Move all rows into ``part``."""
        from gpuledger.model.journal.journal import COLUMNS

        rows, self._rows = self._rows, {}
        readings, self._readings = self._readings, []
        if readings:
            rows["samples"] = [
                (t_ns, index, memory.used_bytes, _known(memory.driver_bytes), memory.total_bytes)
                for t_ns, index, memory in readings
            ]
        sensors, self._sensors = self._sensors, []
        if sensors:
            rows["sensors"] = [(t_ns, index, *_sensor_cells(found)) for t_ns, index, found in sensors]
        for table, lines in rows.items():
            part.add(table, **dict(zip(COLUMNS[table], zip(*lines, strict=True), strict=True)))


def _sensor_cells(found: SensorReading) -> tuple[Any, ...]:
    floats = (found.power_average_w, found.power_instant_w, None, found.utilization_frac)
    whole = (found.sm_clock_mhz, found.temperature_c, found.throttle)
    return (*map(_float_of, floats), *map(_known, whole))


def _known(value: int | None) -> int:
    return -1 if value is None else value


def _float_of(value: float | None) -> float:
    return _NOTHING if value is None else value
