"""NVML samples taken inside the recorded process, stored beside the allocator's counters."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from gpuledger.cards.card import Card, torch_uuid
from gpuledger.cards.opening import survey_cards
from gpuledger.errors import NoDeviceError
from gpuledger.model.journal.journal import Part


class CardReader:
    """Reads used bytes of the visible GPUs, in total and per process (30 µs per GPU on an H200)."""

    def __init__(self) -> None:
        self._there = survey_cards(present_only=True)
        self._cards: dict[int, Card] = {}

    def describe(self, device_indices: list[int]) -> list[dict[str, Any]]:
        """Return ``{device_idx, name, uuid, total_bytes, driver_version}`` of CUDA devices."""
        described = []
        for device_idx in device_indices:
            properties = torch.cuda.get_device_properties(device_idx)
            uuid = torch_uuid(getattr(properties, "uuid", None))
            with suppress(NoDeviceError):
                card = self._there.find(uuid)
                if card is not None:
                    self._cards[device_idx] = card
            described.append(
                {
                    "device_idx": device_idx,
                    "name": properties.name,
                    "uuid": uuid,
                    "total_bytes": properties.total_memory,
                    "driver_version": self._there.driver_version,
                    "compute_capability": f"{properties.major}.{properties.minor}",
                }
            )
        return described

    def read(self, part: Part, t_ns: int) -> None:
        """Append a sample of every described device, with the time of the counters row that it belongs to."""
        for device_idx, card in self._cards.items():
            reading = card.read_memory()
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
            for pid, held_bytes in card.read_processes() or ():
                part.add(
                    "process_samples",
                    t_ns=t_ns,
                    device_idx=device_idx,
                    pid=pid,
                    bytes=-1 if held_bytes is None else held_bytes,
                )
