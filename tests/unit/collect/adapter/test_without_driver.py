"""A build of PyTorch for CUDA on a machine without a driver, such as a laptop: its private functions raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuledger.collect.adapter import torch_private


def fail(*_device: Any) -> bool:
    raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")


@pytest.fixture(autouse=True)
def without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("_cuda_isHistoryEnabled", "_cuda_hasPrimaryContext")
    monkeypatch.setattr(torch_private, "find", lambda name: fail if name in names else None)


def test_nobody_records_the_history_there() -> None:
    assert not torch_private.history_enabled()
    assert not torch_private.ring_is_on()
    assert torch_private.is_history_off()


def test_an_error_of_a_gpu_in_use_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="insufficient"):
        torch_private.history_enabled()


def test_a_simulated_gpu_has_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not torch_private.has_cuda_context()
