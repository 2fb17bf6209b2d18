"""Measure operators on one device, with a reference operator in between, and the base power."""

from __future__ import annotations

import time
from dataclasses import replace

from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import BASE_EVERY, REFERENCE_EVERY, Method, Mode
from gpuledger.ops.database.records import Record
from gpuledger.ops.measure.blocks import Clock, base_power_w
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.one import measure_one

_MATRIX = {"shape": [512, 512], "dtype": "float32", "stride": [512, 1]}
REFERENCE = OperatorKey("aten.mm.default", (_MATRIX, {**_MATRIX}))
"""Reference operator, measured repeatedly to detect drift of the device."""


class MeasurementSession:
    """Measures operators on one device.

    Attributes:
        references: Median and half interval of each measurement of the reference operator, in ns.
    """

    def __init__(self, place: Device, method: Method, clock_ns: Clock = time.time_ns) -> None:
        self.place = place
        self.references: list[tuple[float, float]] = []
        self._method = method
        self._clock_ns = clock_ns
        self._begun = 0
        self._base_w: float | None = None
        self._energies = 0

    def measure(self, key: OperatorKey, mode: Mode, *, energy: bool) -> Record:
        """Return one operator's record. Measures the reference first if it is due.

        Raises:
            CardLostError: the operator broke the connection to the GPU.
        """
        if self._begun % REFERENCE_EVERY == 0:
            self.take_reference()
        self._begun += 1
        return self.measure_again(key, mode, energy=energy)

    def measure_again(self, key: OperatorKey, mode: Mode, *, energy: bool) -> Record:
        """Return one operator's record, without the reference."""
        record = measure_one(key, mode, self.place, replace(self._method, energy=energy), self._clock_ns)
        return record if record.energy_median_j is None else replace(record, base_w=self._waiting_w())

    def take_reference(self) -> None:
        """Measure the time of the reference operator, which is not stored in the database."""
        record = measure_one(REFERENCE, Mode.HOT, self.place, replace(self._method, energy=False), self._clock_ns)
        if record.time_median_ns and record.time_low_ns is not None and record.time_high_ns is not None:
            self.references.append((record.time_median_ns, (record.time_high_ns - record.time_low_ns) / 2))

    def _waiting_w(self) -> float | None:
        """Return the GPU's idle power in W, measured after the first operator with energy and every tenth."""
        if self._energies % BASE_EVERY == 0 and self.place.sensors is not None:
            self._base_w = base_power_w(self._method, self.place.sensors, self._clock_ns)
        self._energies += 1
        return self._base_w
