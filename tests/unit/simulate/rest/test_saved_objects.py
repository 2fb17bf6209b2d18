"""What a program saves with ``torch.save`` it can load again, and no file of its own changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from loop_programs import estimate_of

from gpuledger.errors import InputError
from gpuledger.simulate.rest import saved_objects

pytestmark = pytest.mark.torch

_BEFORE = """
import io
import os
import tempfile
from pathlib import Path
import torch

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(1024, 1024)
        self.second = torch.nn.Linear(1024, 1024)
        self.second.weight = self.first.weight

model = Tied().cuda()
kept = Path({kept!r})
"""
_CHECKPOINT = """
assert not (kept.exists() or os.path.isfile(kept))
torch.save({"model": model.state_dict(), "steps": torch.arange(3), "epoch": 7}, kept)
assert kept.is_file() and os.path.exists(kept)
del model
loaded = torch.load(kept, map_location="cpu", weights_only=True)
assert (loaded["epoch"], loaded["steps"].tolist()) == (7, [0, 1, 2])
assert {weight.device.type for weight in loaded["model"].values()} == {"cpu"}
new = Tied()
new.load_state_dict(loaded["model"])
del loaded
new.cuda()
kept.unlink()
assert not kept.exists()
"""
_FOUND = """
import glob
torch.save(model.state_dict(), kept)
folder, name = kept.parent, kept.name
assert os.path.getsize(kept) == kept.stat().st_size > 0
assert os.listdir(folder).count(name) == 1
assert glob.glob(f"{{folder}}/*{{kept.suffix}}") == [str(kept)] == [str(one) for one in folder.glob(name)]
with os.scandir(folder) as entries:
    found, = [entry for entry in entries if entry.name == name]
assert (found.is_file(), found.is_dir(), os.fspath(found)) == (True, False, str(kept))
assert found.stat().st_size == kept.stat().st_size
with open(kept, "rb") as file:
    model.load_state_dict(torch.load(file))
model.load_state_dict(torch.load(io.BytesIO(kept.read_bytes())))
(folder / "other").write_bytes(b"of the program")
assert (folder / "other").read_bytes() == b"of the program"
torch.save(model.state_dict(), folder / "other")
with open(folder / "other", "wb") as file:
    file.write(b"again")
assert (folder / "other").read_bytes() == b"again"
assert (folder / "other").stat().st_size == 5
"""
_PICKLED = """
import copy
import pickle
class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tied, self.layers = Tied(), torch.nn.LSTM(256, 256, 2)

both = Both().cuda()
before = torch.cuda.memory_allocated()
again = pickle.loads(pickle.dumps(both))
assert torch.cuda.memory_allocated() - before == sum(one.nbytes for one in both.parameters())
assert again.tied.first.weight is again.tied.second.weight
assert all(weight.requires_grad and weight.is_cuda for weight in again.parameters())
assert isinstance(again.tied.first.weight, torch.nn.Parameter)
del again
assert torch.cuda.memory_allocated() == before
host = pickle.loads(pickle.dumps({{name: weight.cpu() for name, weight in both.state_dict().items()}}))
assert {{weight.device.type for weight in host.values()}} == {{"cpu"}}
both.load_state_dict(host)
assert torch.cuda.memory_allocated() == before
alias = copy.copy(both.tied.first.weight)
assert torch.cuda.memory_allocated() == before
assert pickle.loads(pickle.dumps([torch.arange(3), torch.ones(2)]))[0].tolist() == [0, 1, 2]
"""
_WITH_AN_OPTIMIZER = """
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
before = torch.cuda.memory_allocated()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}, kept)
assert torch.cuda.memory_allocated() == before
found = torch.load(str(kept))
model.load_state_dict(found["model"])
optimizer.load_state_dict(found["optimizer"])
assert found["step"] == 7
"""
_ON_THE_GPU = """
torch.save(model.state_dict(), kept)
loaded = torch.load(str(kept))
assert loaded["first.weight"].untyped_storage()._cdata == loaded["second.weight"].untyped_storage()._cdata
assert loaded["first.weight"].is_cuda
torch.load(kept, map_location=lambda storage, _place: storage)
torch.load(kept, map_location={"cuda:0": "cpu"})
"""
_IN_MEMORY = """
file = io.BytesIO()
torch.save(model, file)
file.seek(0)
again = torch.load(file, weights_only=False)
assert again.first.weight is again.second.weight and isinstance(again.first.weight, torch.nn.Parameter)
"""
_WRITTEN = """
file = io.BytesIO()
torch.save(model.state_dict(), file)
kept.write_bytes(file.getvalue())
new = kept.with_name("new.pt")
new.write_bytes(file.getvalue())
new.write_bytes(file.getvalue())
assert new.stat().st_size > 0
del model
loaded = torch.load(kept), torch.load(str(new))
"""
_OPENED = """
with tempfile.TemporaryFile() as file:
    file.write(b"before")
    torch.save(model.state_dict(), file)
    file.seek(6)
    loaded = torch.load(file)
"""
_RENAMED = """
new = kept.with_suffix(".new")
torch.save(model.state_dict(), new)
os.replace(new, kept)
assert not new.exists()
loaded = torch.load(kept)
"""
_TEMPORARY_RENAMED = """
with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
    torch.save(model.state_dict(), file.name)
os.replace(file.name, kept)
assert not os.path.exists(file.name)
loaded = torch.load(kept)
"""
_OPENED_RENAMED = """
new = kept.with_suffix(".new")
with open(new, "wb") as file:
    torch.save(model.state_dict(), file)
new.rename(kept)
assert not new.exists()
loaded = torch.load(kept)
"""
_COPIED = """
import shutil
new = kept.with_suffix(".new")
torch.save(model.state_dict(), new)
assert shutil.copyfile(new, kept) == kept
os.mkdir(kept.with_suffix(""))
shutil.copy(new, kept.with_suffix(""))
assert new.exists() and kept.with_suffix("").joinpath(new.name).exists()
os.rmdir(kept.with_suffix(""))
loaded = torch.load(kept)
"""
_TEMPORARY = """
with tempfile.TemporaryDirectory() as folder:
    torch.save(model.state_dict(), f"{folder}/weights.pt")
    assert os.listdir(folder) == ["weights.pt"]
    loaded = torch.load(f"{folder}/weights.pt")
"""
MODEL = 4 * (1024 * 1024 + 2 * 1024)


@pytest.mark.parametrize(
    "after",
    [
        *(_WITH_AN_OPTIMIZER, _ON_THE_GPU, _IN_MEMORY, _WRITTEN, _OPENED, _TEMPORARY),
        *(_RENAMED, _TEMPORARY_RENAMED, _OPENED_RENAMED, _COPIED),
    ],
    ids=[
        *("with an optimizer", "on the GPU", "in memory", "written from memory", "an open file", "a temporary file"),
        *("renamed", "a temporary file renamed", "an open file renamed", "copied"),
    ],
)
def test_what_was_saved_is_loaded(after: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    kept.write_bytes(b"a checkpoint of another day")
    found = estimate_of(tmp_path, _BEFORE.format(kept=str(kept)) + after)
    assert found.peak_allocated_bytes == 2 * MODEL
    assert kept.read_bytes() == b"a checkpoint of another day"


def test_a_checkpoint_is_there_until_the_program_removes_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    found = estimate_of(tmp_path, _BEFORE.format(kept=str(kept)) + _CHECKPOINT)
    assert found.peak_allocated_bytes == MODEL
    assert not kept.exists()
    assert any("torch.save: the file was not written" in note for note in found.notes)


def test_a_file_that_was_not_written_is_listed_measured_and_read(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    estimate_of(tmp_path, _BEFORE.format(kept=str(kept)) + _FOUND.format())
    assert not kept.exists()
    assert (tmp_path / "other").read_bytes() == b"again"


def test_tensors_are_pickled_by_others_than_torch(tmp_path: Path) -> None:
    estimate_of(tmp_path, _BEFORE.format(kept=str(tmp_path / "kept.pt")) + _PICKLED.format())


def test_a_checkpoint_of_an_earlier_run_stays_if_the_program_removes_its_own(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    kept.write_bytes(b"a checkpoint of another day")
    estimate_of(tmp_path, _BEFORE.format(kept=str(kept)) + "torch.save(model.state_dict(), kept)\nos.remove(kept)\n")
    assert kept.read_bytes() == b"a checkpoint of another day"


def test_other_files_are_renamed_and_copied_as_usual(tmp_path: Path) -> None:
    names = {name: str(tmp_path / name) for name in ("notes", "renamed", "copied", "of_torch", "kept.pt")}
    moves = """
names = {names!r}
Path(names["notes"]).write_text("of the program")
os.rename(names["notes"], names["renamed"])
shutil.copy(names["renamed"], names["copied"])
torch.save(model.state_dict(), names["of_torch"])
os.replace(names["copied"], names["kept.pt"])
"""
    begin = _BEFORE.format(kept=names["kept.pt"]) + "import shutil\n"
    estimate_of(tmp_path, begin + moves.format(names=names))
    assert sorted(path.name for path in tmp_path.glob("*") if path.name in names) == ["kept.pt", "renamed"]
    assert Path(names["kept.pt"]).read_text() == "of the program"


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.made,)


def test_a_file_that_looks_like_a_description_is_not_executed(tmp_path: Path) -> None:
    kept, made = tmp_path / "kept.pt", tmp_path / "made"
    mark, _, _ = saved_objects._MARK.partition(b"\n")
    kept.write_bytes(mark + b"\n" + pickle.dumps(Hostile(made)))
    load = """
with open(kept, "rb") as file:
    try:
        torch.load(file, weights_only=True)
    except Exception as error:
        print(type(error))
"""
    estimate_of(tmp_path, _BEFORE.format(kept=str(kept)) + load)
    assert not made.exists()


@pytest.mark.parametrize(
    ("where", "kib"),
    [
        ("'cpu'", 0),
        ("'cuda'", 1024),
        ("torch.device('cuda', 0)", 1024),
        ("lambda storage, _saved: storage", 0),
        ("lambda storage, _saved: storage.cuda(0)", 1024),
        ("{'cpu': 'cuda:0'}", 1024),
        ("None", 0),
    ],
)
def test_a_file_of_another_program_is_loaded(where: str, kib: int, tmp_path: Path) -> None:
    kept, weight = tmp_path / "kept.pt", torch.ones(256, 1024)
    torch.save({"model": {"weight": weight, "tied": weight}, "history": [(1, torch.ones(3))]}, kept)
    load = f"other = torch.load(kept, map_location={where})\n"
    read = "assert other['model']['weight'] is other['model']['tied'] and other['history'][0][0] == 1\n"
    found = estimate_of(tmp_path, _BEFORE.format(kept=str(kept)) + load + read)
    assert found.peak_allocated_bytes == MODEL + kib * 1024 + (512 if kib else 0)


@pytest.mark.parametrize(
    ("saved", "error"),
    [
        ("lambda: 1", r"Can't (pickle|get local)|cannot pickle|not found as"),
        ("__import__('threading').Lock()", "cannot pickle '_thread.lock' object"),
    ],
)
def test_what_torch_cannot_save_is_an_error_with_its_line(tmp_path: Path, saved: str, error: str) -> None:
    source = f"""import torch
weight = torch.zeros(8, device="cuda", requires_grad=True)
torch.save({{"weight": weight, "more": {saved}}}, {str(tmp_path / "kept.pt")!r})
"""
    with pytest.raises(InputError, match=f"script_0.py:3: .*({error})"):
        estimate_of(tmp_path, source)
