"""``gpuledger estimate --fit`` end to end: changes of a script, as text, as JSON and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

import gpuledger
from gpuledger.cli.main import main
from gpuledger.errors import InputError, UsageError

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_children")]

TRAIN = """
import argparse, sys, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
options = parser.parse_args()
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, data):
        return data + self.second(torch.relu(self.first(data)))
model = nn.Sequential(Block(), Block()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    data = torch.randn(options.batch_size, 1024, 512, device="cuda")
    loss = model(data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLAIN = """
import torch
weight = torch.zeros(1 << 24, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
for step in range(10):
    (weight * 2).sum().backward()
    optimizer.step()
"""


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("plain.py").write_text(PLAIN)


def test_the_changes_are_those_of_a_script_that_fits() -> None:
    """The estimate of the script with the smaller batch is the one in the table."""
    asked = ("estimate", "-q", "--json", "--gpu", "t4", "--steps", 2)
    told = ask(*asked, "--fit", "700MiB", "train.py", "--batch-size", "16")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["fits"]
    best = found["best"]
    assert best["upper_bytes"] <= found["limit_bytes"] == 700 << 20
    assert best["changes"]
    assert found["changes"]
    assert found["time_source"] == "by FLOPs, not measured"
    unchanged = next(one for one in found["tried"] if not one["changes"])
    assert not unchanged["fits"]
    assert unchanged["time_ratio"] == 1
    smaller = next(one for one in found["tried"] if one["changes"] == ["smaller"])
    assert not list(Path().glob("*.ledger"))
    for size, expected in ((16, unchanged), (smaller["batch"], smaller)):
        plain = json.loads(ask(*asked, "train.py", "--batch-size", size).stdout)
        assert expected["peak_process_bytes"] == plain["peak_process_bytes"]
        assert expected["upper_bytes"] == plain["upper_bytes"]
    again = next(one for one in found["tried"] if one["changes"] == ["checkpoint"])
    assert 1 < again["time_ratio"] < 4 / 3


def test_the_answer_in_words_and_as_exit_status() -> None:
    told = ask("estimate", "-q", "--gpu", "t4", "--fit", "14GiB", "train.py", "--batch-size", "1")
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("fits 14.0 GiB on t4 without changes")
    assert "by FLOPs, not measured" in told.stdout
    none = ask("estimate", "-q", "--gpu", "t4", "--fit", "350MiB", "--require-fit", "plain.py")
    assert none.exit_code == 5, none.output
    assert none.stdout.startswith("no combination fits 350.0 MiB on t4")
    for reason in ("no list of repeated blocks", "--batch-argument", "no optimizer has fused kernels", "neither Adam"):
        assert reason in none.output


def test_a_compiled_program_has_a_note() -> None:
    Path("compiled.py").write_text(TRAIN.replace("for step", "model = torch.compile(model)\nfor step"))
    said = gpuledger.advise("compiled.py", memory="24GiB", gpu="h200")
    assert said.notes[0] == ("The memory of compiled code is approximated (compiled.py:15). Nothing is compiled.")


def test_advice_from_python() -> None:
    found = gpuledger.advise("train.py", "--batch-size", "4", memory="14GiB", gpu="t4")
    assert isinstance(found, gpuledger.Advice)
    assert found.best == found.unchanged
    assert found.changes == ()
    assert repr(found).startswith("<Advice: fits without changes.")
    assert not any("torch.compile" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (("--fit", "much", "train.py"), 2, "much"),
        (("--fit", "80GiB", "--gpu", "t4", "train.py"), 2, "a process on t4 can use"),
        (("--fit", "1MiB", "train.py"), 2, "context and libraries alone need"),
        (("--fit", "8GiB", "--gpu", "all", "train.py"), 2, "--fit and --gpu all cannot be combined"),
        (("--fit", "8GiB", "--find-batch", "batch-size", "train.py"), 2, "--fit and --find-batch cannot be combined"),
        (("--fit", "8GiB", "--out", "there", "train.py"), 2, "--fit writes no run"),
        (("--batch-argument", "b", "train.py"), 2, "--batch-argument needs --fit"),
        (("--fit", "8GiB", "--batch-argument", "rows", "train.py"), 2, "--batch-argument rows: --rows is not among"),
        (("--fit", "8GiB", "missing.py"), 2, "no such script"),
        (("--fit", "8GiB", "raising.py"), 3, "ValueError: no data"),
    ],
)
def test_wrong_calls_have_a_hint(words: tuple[str, ...], status: int, expected: str) -> None:
    Path("raising.py").write_text("raise ValueError('no data')")
    told = ask("estimate", "-q", *words)
    assert told.exit_code == status, told.output
    assert expected in told.output
    assert "Traceback" not in told.output


def test_errors_from_python() -> None:
    with pytest.raises(UsageError):
        gpuledger.advise("missing.py", memory="8GiB")
    Path("raising.py").write_text("raise ValueError('no data')")
    with pytest.raises(InputError):
        gpuledger.advise("raising.py", memory="8GiB")
