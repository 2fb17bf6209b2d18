"""What the card says, from inside the recorded process: readings that stand beside the allocator's counters."""

from __future__ import annotations

import os
from typing import Any

import torch

from gpuledger.cards.nvml import Nvml, open_nvml
from gpuledger.model.journal.journal import Part


class CardReader:
    """Reads used bytes and per-process bytes of the devices this process sees (30 µs a card on an H200)."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = open_nvml()
        self._uuids: dict[int, str] = {}

    def describe(self, device_indices: list[int]) -> list[dict[str, Any]]:
        """Return ``{device_idx, name, uuid, total_bytes, driver_version}`` of CUDA devices."""
        described = []
        for device_idx in device_indices:
            properties = torch.cuda.get_device_properties(device_idx)
            uuid = getattr(properties, "uuid", None)
            self._uuids[device_idx] = f"GPU-{uuid}" if uuid is not None else ""
            described.append(
                {
                    "device_idx": device_idx,
                    "name": properties.name,
                    "uuid": self._uuids[device_idx],
                    "total_bytes": properties.total_memory,
                    "driver_version": self._nvml.driver_version() if self._nvml else None,
                    "compute_capability": f"{properties.major}.{properties.minor}",
                }
            )
        return described

    def read(self, part: Part, t_ns: int) -> None:
        """Append a reading of every described device, under the time of the counters row it belongs to."""
        if self._nvml is None:
            return
        for device_idx, uuid in self._uuids.items():
            reading = self._nvml.read_memory(uuid)
            if reading is None:
                continue
            part.add(
                "samples",
                t_ns=t_ns,
                device_idx=device_idx,
                used_bytes=reading.used_bytes,
                driver_bytes=-1 if reading.driver_bytes is None else reading.driver_bytes,
                total_bytes=reading.total_bytes,
            )
            for pid, held_bytes in self._nvml.read_processes(uuid) or ():
                part.add(
                    "process_samples",
                    t_ns=t_ns,
                    device_idx=device_idx,
                    pid=pid,
                    bytes=-1 if held_bytes is None else held_bytes,
                )

    @staticmethod
    def own_pid() -> int:
        """Return this process's id."""
        return os.getpid()
