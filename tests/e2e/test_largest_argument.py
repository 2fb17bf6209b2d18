"""The largest value of a script's argument that fits a GPU, searched in forks of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuledger.errors import InputError, UsageError
from gpuledger.processes.child_job import ProgramTraceback
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.batch import search_argument
from gpuledger.simulate.estimate.run import Order, estimate_program

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_children")]
SCRIPT = """
import sys
import torch
from torch import nn

batch = int(sys.argv[sys.argv.index("--batch") + 1])
print("written by the script")
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    hidden = model(torch.randn(batch, 512, device="cuda"))
    hidden[hidden > 0].sum().backward()
    optimizer.step()
"""
CARD = find_card("rtx-4060")


def write(folder: Path, script: str) -> str:
    place = folder / "train.py"
    place.write_text(script, encoding="utf-8")
    return str(place)


def test_each_value_is_said_and_has_the_estimate_of_its_own_command(tmp_path: Path) -> None:
    """Also of a program with values that are assumed, which is followed three times. Its own output is dropped."""
    script = write(tmp_path, SCRIPT)
    with (tmp_path / "said.txt").open("w+", encoding="utf-8") as said:
        found = search_argument(Order((script, "--batch", "65536"), CARD), "batch", said)
        said.seek(0)
        lines = said.read().splitlines()
    assert len([line for line in lines if line.startswith("gpuledger: --batch")]) == len(found.trials)
    assert "written by the script" not in lines
    assert found.largest is not None
    verdicts = {trial.value: trial.verdict for trial in found.trials}
    assert verdicts[found.largest] == "fits"
    assert all(verdict != "fits" for value, verdict in verdicts.items() if value > found.largest)
    first = next(trial for trial in found.trials if trial.value == 65536)
    alone = estimate_program(Order((script, "--batch", "65536"), CARD), tmp_path / "alone.ledger")
    assert alone.peaks.assumed is not None
    assert (first.process_bytes, first.upper_bytes) == (alone.peak_process_bytes, alone.upper_bytes)


def test_a_search_loads_torch_once_and_tries_five_values_at_most(tmp_path: Path) -> None:
    """Loading torch takes about as long as to follow this script once, so this is about three times one estimate."""
    started = tmp_path / "started.txt"
    once = SCRIPT.replace("hidden[hidden > 0]", "hidden")  # no value is assumed, so that each value needs one start
    script = write(tmp_path, f"import os\nopen({str(started)!r}, 'a').write(f'{{os.getppid()}}\\n')\n{once}")
    found = search_argument(Order((script, "--batch", "16384"), CARD), "batch")
    parents = started.read_text(encoding="utf-8").split()
    assert found.largest is not None
    assert found.largest > 65536
    assert len(parents) == len(found.trials) <= 5
    assert len(set(parents)) == 1


def test_an_argument_that_is_missing_is_an_error(tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT)
    with pytest.raises(UsageError, match="--find-batch size: --size is not among the program's arguments") as error:
        search_argument(Order((script, "--batch", "8"), CARD), "size")
    assert "train.py --size 8" in (error.value.hint or "")
    with pytest.raises(UsageError, match="no such script"):
        search_argument(Order((str(tmp_path / "none.py"), "--batch", "8"), CARD), "batch")


def test_an_argument_that_changes_nothing_has_no_largest_value(tmp_path: Path) -> None:
    unused = "import torch\nheld = torch.zeros(1 << 20, device='cuda')\n"
    script = write(tmp_path, unused)
    with pytest.raises(UsageError, match=r"the peak is .* MiB for every value of --batch from 2,097,152 to 16,777,216"):
        search_argument(Order((script, "--batch", str(1 << 21)), CARD), "batch")


def test_a_failure_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT.replace("nn.ReLU()", "nn.Missing()"))
    with pytest.raises(InputError, match=r"train\.py:8: AttributeError: .*Missing"):
        search_argument(Order((script, "--batch", "8"), CARD), "batch")


@pytest.mark.parametrize(
    ("line", "message", "cause"),
    [
        ("os.abort()", r"train\.py:2: its process ended early, with signal 6", None),
        ("raise ValueError('lost')", r"train\.py:2: ValueError: lost", "raise ValueError('lost')"),
    ],
)
def test_a_search_says_where_the_program_failed(tmp_path: Path, line: str, message: str, cause: str | None) -> None:
    script = write(tmp_path, f"import os\n{line}\n")
    with pytest.raises(InputError, match=message) as error:
        search_argument(Order((script, "--batch", "8"), CARD), "batch")
    found = error.value.__cause__
    assert (cause in str(found)) if cause else not isinstance(found, ProgramTraceback)
