"""Weights that a program saves with safetensors: it can read its temporary files, and no other file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")
from loop_programs import estimate_of

pytestmark = pytest.mark.torch

_SAVES = """
import tempfile
import torch
from safetensors.torch import load_file, save_file, save_model, storage_ptr

model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024).half())
assert len({{storage_ptr(weight) for weight in model.parameters()}}) == 4
with tempfile.TemporaryDirectory() as folder:
    save_file(model.state_dict(), f"{{folder}}/weights", {{"format": "pt"}})
    loaded = load_file(f"{{folder}}/weights")
assert {{name: (each.shape, each.dtype) for name, each in loaded.items()}} == {{
    name: (each.shape, each.dtype) for name, each in model.state_dict().items()
}}
for save, what in ((save_model, model), (save_file, model.state_dict())):
    save(what, {kept!r})
on_gpu = {{name: weight.cuda() for name, weight in loaded.items()}}
"""
_LOADS = """
import os
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

new, kept = {new!r}, {kept!r}
weight = torch.nn.Linear(1024, 1024, bias=False).cuda().weight
assert not os.path.exists(new)
save_file({{"first": weight[:512].clone()}}, new)
save_file({{"first": weight.detach()}}, new)
save_file({{"first": weight.half()}}, kept)
assert os.path.isfile(new)
assert os.path.getsize(new) > 4 * 1024 * 1024 > os.path.getsize(kept) > 2 * 1024 * 1024
with open(new, "rb") as file:
    assert len(file.read()) == os.path.getsize(new)
with safe_open(new, framework="pt", device="cpu") as file:
    assert file.get_slice("first").get_shape() == [1024, 1024]
    first = file.get_tensor("first").cuda()
second = load_file(kept)["first"].cuda()
"""


def test_weights_are_loaded_from_a_file_that_was_not_written(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.safetensors", tmp_path / "new.safetensors"
    kept.write_bytes(b"weights of another day")
    found = estimate_of(tmp_path, _LOADS.format(kept=str(kept), new=str(new)))
    assert found.peak_allocated_bytes == 1024 * 1024 * (4 + 4 + 2)
    assert kept.read_bytes() == b"weights of another day"
    assert not new.exists()


_MOVES = """
import os
import shutil
import torch
from safetensors.torch import load_file, save_file

new, kept, copied = {new!r}, {kept!r}, {copied!r}
weight = torch.nn.Linear(1024, 1024, bias=False).cuda().weight
save_file({{"first": weight.detach()}}, new)
shutil.copy(new, copied)
save_file({{"first": weight.half()}}, new)
os.replace(new, kept)
assert (os.path.exists(new), os.path.exists(copied)) == (False, True)
first, second = load_file(copied)["first"], load_file(kept)["first"]
assert (first.dtype, second.dtype) == (torch.float32, torch.float16)
"""


def test_weights_that_were_not_written_are_renamed_and_copied(tmp_path: Path) -> None:
    places = {name: tmp_path / f"{name}.safetensors" for name in ("new", "kept", "copied")}
    places["kept"].write_bytes(b"weights of another day")
    estimate_of(tmp_path, _MOVES.format(**{name: str(place) for name, place in places.items()}))
    assert places["kept"].read_bytes() == b"weights of another day"
    assert not places["copied"].exists()


def test_weights_that_were_saved_to_a_temporary_file_are_loaded_from_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept.safetensors"
    kept.write_bytes(b"weights of another day")
    found = estimate_of(tmp_path, _SAVES.format(kept=str(kept)))
    assert found.peak_allocated_bytes == 1024 * 1024 * (4 + 2) + 1024 * (4 + 2)
    assert kept.read_bytes() == b"weights of another day"
    assert any("safetensors: the file was not written" in note for note in found.notes)


_IN_MEMORY = """
import torch
from safetensors.torch import load, save

model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024).half()).cuda()
content = save(model.state_dict(), metadata={"format": "pt"})
assert type(content) is bytes
loaded = load(content)
assert {name: (each.shape, each.dtype) for name, each in loaded.items()} == {
    name: (each.shape, each.dtype) for name, each in model.state_dict().items()
}
model.load_state_dict(loaded)
assert load(save({"host": torch.arange(3)}))["host"].tolist() == [0, 1, 2]
"""


def test_weights_that_were_saved_in_memory_are_loaded_from_it(tmp_path: Path) -> None:
    found = estimate_of(tmp_path, _IN_MEMORY)
    assert found.peak_allocated_bytes == 1024 * 1024 * (4 + 2) + 1024 * (4 + 2)
