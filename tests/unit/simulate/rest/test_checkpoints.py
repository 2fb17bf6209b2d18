"""A program loads what it has saved, though nothing is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.rest.checkpoints import install_checkpoints
from gpuledger.simulate.rest.side_effects import follow_temporary_files

pytestmark = pytest.mark.torch


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    made = SimulatedDevice(find_card("h200"), CachingAllocator())
    follow_temporary_files()
    with in_place(made, lambda _: None, install_more=install_checkpoints):
        yield made


def test_a_checkpoint_is_loaded_where_it_was(device: SimulatedDevice, tmp_path: Path) -> None:
    model = nn.Linear(512, 512, bias=False, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 512, device="cuda")).sum().backward()
    optimizer.step()
    path = tmp_path / "best.pt"
    before = device.counters.allocated_bytes
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}, path)
    assert not path.exists()
    assert device.counters.allocated_bytes == before
    found = torch.load(str(path))
    assert device.counters.allocated_bytes == before + 2 * (1 << 20)  # weights and momentum
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert found["step"] == 7


@pytest.mark.parametrize(("place", "is_on_gpu"), [("cpu", False), ("cuda:0", True), (torch.device("cuda"), True)])
def test_the_place_can_be_chosen(device: SimulatedDevice, tmp_path: Path, place: Any, is_on_gpu: bool) -> None:
    torch.save([nn.Parameter(torch.ones(3)), torch.arange(3)], tmp_path / "a.pt")
    weight, numbers = torch.load(tmp_path / "a.pt", map_location=place)
    assert device.holds(weight) is device.holds(numbers) is is_on_gpu
    assert isinstance(weight, FakeTensor)
    if not is_on_gpu:
        assert numbers.tolist() == [0, 1, 2]


def test_a_temporary_file_exists(device: SimulatedDevice) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.pt")
        torch.save({"a": torch.ones(2, device="cuda")}, path)
        assert device.holds(torch.load(path)["a"])
        os.remove(path)


def test_other_files_are_read(device: SimulatedDevice, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "absent.pt")
