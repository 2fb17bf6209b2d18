"""The allocator's counters are read of the devices that are asked for: each read takes time in every recorded step."""

from __future__ import annotations

import pytest

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.memory.cuda_history import CudaRecorder

pytestmark = pytest.mark.torch


def test_counters_are_read_of_the_devices_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def memory_stats(device_idx: int) -> dict[str, dict[str, dict[str, int]]]:
        read.append(device_idx)
        return {"allocation": {"all": {"allocated": 10 + device_idx, "freed": device_idx}}}

    monkeypatch.setattr(torch_private, "memory_stats", memory_stats)
    monkeypatch.setattr(torch_private, "set_memory_metadata", lambda: lambda _token: None)
    monkeypatch.setattr(CudaRecorder, "devices", lambda _: range(4))
    recorder = CudaRecorder(StackTable(), TagTable())
    assert recorder.counts({2, -1}) == {2: (12, 2)}
    assert read == [2]
    assert recorder.counts().keys() == {0, 1, 2, 3}
