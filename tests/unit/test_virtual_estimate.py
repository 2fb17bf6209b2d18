"""Estimates end to end: from Python in this process, and from the command line through a child."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import gpuledger  # noqa: E402
from gpuledger.analyze.breakdown import break_down  # noqa: E402
from gpuledger.analyze.instant import find_peak  # noqa: E402
from gpuledger.cli.main import main  # noqa: E402
from gpuledger.errors import InputError, UsageError  # noqa: E402

pytestmark = pytest.mark.torch
MIB = 1 << 20

TRAIN = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--steps", type=int, default=100)
options = parser.parse_args()
assert torch.cuda.is_available()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(options.steps):
    data = torch.randn(options.batch_size, 1024, device=device)
    loss = model(data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
    torch.save(model.state_dict(), "checkpoint.pt")
open("finished", "w").close()
"""


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def make_step(width: int) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())

    def step(data: Any) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    return model, step


def test_a_step_is_accounted_to_the_byte_and_nothing_changes() -> None:
    model, step = make_step(512)
    before = model[0].weight.detach().clone()
    found = gpuledger.estimate(step, torch.randn(4096, 512), gpu="a100-80gb")
    rank = found.run.rank(0)
    assert all(check["ok"] for check in rank.manifest["checks"])
    books = break_down(rank, find_peak(rank), by=("category",))
    sizes = {account.category: account.bytes for account in books.accounts}
    assert sizes["weight"] == 512 * 512 * 4
    assert sizes["optimizer_state"] == 2 * 512 * 512 * 4
    assert sizes["input"] == 4096 * 512 * 4
    assert sizes["workspace"] == 2 * 8_519_680
    assert sum(sizes.values()) == found.peak_allocated_bytes == books.allocated_bytes
    assert found.peak_allocated_bytes < found.peak_reserved_bytes < found.peak_process_bytes <= found.upper_bytes
    assert found.fits
    assert found.steps == 3
    assert torch.equal(model[0].weight, before)
    assert type(model[0].weight) is nn.Parameter
    step(torch.randn(2, 512))
    assert not torch.equal(model[0].weight, before)


def test_the_largest_batch_from_python() -> None:
    _, step = make_step(256)

    def train(batch: int) -> None:
        step(torch.randn(batch, 256, device="cuda"))

    found = gpuledger.find_batch(train, gpu="t4", start=1 << 20, steps=1)
    assert found.largest is not None
    sizes = [trial.process_bytes for trial in found.trials]
    assert sizes == sorted(sizes)
    fitting = [trial.value for trial in found.trials if trial.verdict == "fits"]
    assert found.largest == max(fitting)


def test_what_python_callers_get_wrong() -> None:
    _, step = make_step(8)
    with pytest.raises(UsageError, match="no such card"):
        gpuledger.estimate(step, torch.randn(1, 8), gpu="h2000")
    with pytest.raises(UsageError, match="at least one step"):
        gpuledger.estimate(step, torch.randn(1, 8), steps=0)
    with pytest.raises(UsageError, match="at least one sample"):
        gpuledger.find_batch(step, start=0)
    library = torch.library.Library("gpuledger_other", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    with pytest.raises(InputError, match="mystery"):
        gpuledger.estimate(lambda data: torch.ops.gpuledger_other.mystery(data), torch.randn(2))
    library._destroy()
    assert not torch.cuda.is_available() or torch.version.cuda


def test_a_script_is_followed_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    told = ask("estimate", "--json", "-q", "--gpu", "l4", "--steps", "2", "train.py", "--batch-size", "64")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["verdict"] == "fits"
    assert found["steps"] == 2
    weights = (1024 * 4096 * 2 + 4096 + 1024) * 4
    assert found["by_category"]["weight"] == weights
    assert found["by_category"]["optimizer_state"] == 2 * weights
    assert found["peak_process_bytes"] > found["peak_reserved_bytes"] >= found["peak_allocated_bytes"] > 4 * weights
    assert not Path("checkpoint.pt").exists()
    assert not Path("finished").exists()
    run = found["run"]
    for words in (("show", run, "--by", "module"), ("balance", run), ("diff", run, run)):
        assert ask(*words).exit_code == 0, ask(*words).output
    gate = ask("estimate", "-q", "--gpu", "t4", "--steps", "1", "--require-fit", "train.py", "--batch-size", "1000000")
    assert gate.exit_code == 5, gate.output
    assert "does not fit on t4" in gate.output
    assert Path("train-on-t4.ledger").is_dir()


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("raise ValueError('no data here')", 3, "ValueError: no data here"),
        ("print('nothing is trained')", 3, "before a training step was seen"),
        (
            "import torch; layer = torch.nn.Linear(2, 2); optimizer = torch.optim.SGD(layer.parameters())\n"
            "for _ in range(9):\n    layer(torch.randn(1, 2)).sum().backward(); optimizer.step()",
            3,
            "put nothing on the card",
        ),
    ],
)
def test_scripts_without_an_answer(
    script: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(script)
    told = ask("estimate", "-q", "bad.py")
    assert told.exit_code == code
    assert message in told.output
    assert not list(tmp_path.glob("*.ledger"))


@pytest.mark.parametrize(
    "words",
    [
        ("estimate",),
        ("estimate", "absent.py"),
        ("estimate", "--gpu", "h2000", "train.py"),
        ("estimate", "--steps", "0", "train.py"),
        ("estimate", "--alloc-conf", "nonsense", "train.py"),
        ("estimate", "--find-batch", "batch-size", "train.py"),
    ],
)
def test_wrong_calls_end_with_2(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    assert ask(*words).exit_code == 2
    assert not list(tmp_path.glob("*.ledger"))


def test_the_catalogue_is_listed() -> None:
    told = ask("cards")
    assert told.exit_code == 0
    assert "h200" in told.output
    cards = {card["gpu"]: card for card in json.loads(ask("cards", "--json").stdout)}
    assert cards["h200"]["context_bytes"]["source"] == "measured"
    assert cards["l4"]["memory_mib"]["source"] == "datasheet"
