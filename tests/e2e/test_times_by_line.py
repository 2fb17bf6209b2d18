"""Milliseconds by source line and function, of programs that are not changed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from backward_programs import SQUARE, UPDATES_IN_HOOKS
from click.testing import CliRunner
from programs import environment, write_script
from quick import recorded

from gpuledger.analyze.compare.diff import diff_runs
from gpuledger.analyze.memory.lines.source_lines import NO_LINE
from gpuledger.analyze.step.times import TimeBreakdown, break_down_time
from gpuledger.cli.main import main
from gpuledger.report.json.diff_document import diff_document
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

FUNCTIONS = f"""
import torch
{SQUARE}
def loss_of(weight, x):
    hidden = x @ weight  # product
    return Square.apply(hidden).mean()  # loss

weight = torch.randn(64, 64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(STEPS):
    x = torch.randn(256, 64)
    loss = loss_of(weight, x)
    optimizer.zero_grad()
    loss.backward()  # start
    optimizer.step()
"""


def place(text: str) -> str:
    """Return the place of the source line that contains ``text``, as it is in the views."""
    line = next(number for number, one in enumerate(FUNCTIONS.splitlines(), 1) if text in one)
    return f"train.py:{line}"


def where(line: str) -> str:
    """Return the file without its directory, and the number of a line."""
    return line.rpartition("/")[2].split(" ")[0]


def times_of(directory: Path, steps: int = 8) -> TimeBreakdown:
    write_script(directory, FUNCTIONS.replace("STEPS", str(steps)))
    recorded(["train.py"], directory, env=environment(GPULEDGER_PASSES=""))
    found = break_down_time(load(directory / "train.ledger").rank())
    assert found is not None
    return found


def test_every_operator_is_on_its_line_and_backward_on_that_of_its_forward(tmp_path: Path) -> None:
    found = times_of(tmp_path)
    assert sum(line.time_ns for line in found.lines) == pytest.approx(found.work_ns)
    phases = {(where(line.line), line.phase) for line in found.lines}
    assert {(place("# product"), "backward"), (place("# loss"), "backward")} <= phases
    assert not [line for line in found.lines if not line.line]
    assert {where(line.line) for line in found.lines if line.phase == "optimizer"} == {
        place("optimizer.step"),
    }


IN_BACKWARD = f"""
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
{UPDATES_IN_HOOKS}
for _ in range(12):
    loss = model(torch.randn(256, 64)).square().mean()  # forward
    loss.backward()
"""


def test_an_update_in_a_hook_of_backward_is_on_its_own_line(tmp_path: Path) -> None:
    write_script(tmp_path, IN_BACKWARD)
    recorded(["train.py"], tmp_path, env=environment(GPULEDGER_PASSES=""))
    found = break_down_time(load(tmp_path / "train.ledger").rank())
    assert found is not None
    assert sum(line.time_ns for line in found.lines) == pytest.approx(found.work_ns)
    lines = {(where(line.line), line.phase) for line in found.lines}
    places = {line.rpartition("# ")[2]: f"train.py:{at}" for at, line in enumerate(IN_BACKWARD.splitlines(), 1)}
    updates = {(places["mean"], "backward"), (places["change"], "backward"), (places["step"], "optimizer")}
    assert updates <= lines
    forward = places["forward"]
    assert (forward, "backward") in lines
    assert (forward, "optimizer") not in lines


def test_a_program_that_ends_before_the_step_with_lines_has_times_without_lines(tmp_path: Path) -> None:
    found = times_of(tmp_path, steps=5)
    assert found.steps == 2
    assert {line.line for line in found.lines} == {""}


def test_show_and_diff_have_times_by_line_and_function(tmp_path: Path) -> None:
    found = times_of(tmp_path)
    for word, label in (("line", f"{place('# product')} loss_of"), ("function", "train.py loss_of")):
        command = ["show", str(tmp_path / "train.ledger"), "--by", word]
        shown = CliRunner().invoke(main, [*command, "--json"])
        lines = {line["label"].rpartition("/")[2]: line for line in json.loads(shown.stdout)["lines"]}
        assert sum(line["time_ns"] for line in lines.values()) == pytest.approx(found.work_ns)
        assert lines[label]["backward_ns"] > 0
        assert lines[label]["bytes"] > 0
        assert NO_LINE not in lines
        text = CliRunner().invoke(main, command).stdout
        assert label in text
        assert "all ms" in text
    run = load(tmp_path / "train.ledger")
    place_diff = diff_runs(run, run, by=("category", "line")).main
    assert place_diff.after.work_by == "line"
    assert sum(one.time_ns for one in place_diff.after.times) == pytest.approx(found.work_ns)
    assert diff_document(diff_runs(run, run, by=("category", "function")))["time_by_function"] == []


def test_a_table_of_kernels_says_that_a_cpu_has_none(tmp_path: Path) -> None:
    times_of(tmp_path)
    for word, is_said in (("kernel", True), ("operator", False)):
        shown = CliRunner().invoke(main, ["show", str(tmp_path / "train.ledger"), "--by", word])
        assert ("A CPU runs no kernels: the rows are operators." in shown.output) is is_said


COMPILED = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        y = self.up(x)
        z = y.sigmoid() * y  # gate
        return self.down(z)  # down

model = torch.compile(Gated())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    x = torch.randn(256, 64)
    noisy = x + 0.1 * torch.randn_like(x)  # eager
    loss = (model(noisy) - x).square().mean()  # loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sorted(torch._dynamo.utils.counters["stats"].items()))
"""


@pytest.mark.usefixtures("compiler_caches")
def test_kernels_of_compiled_code_have_lines_and_eager_code_beside_them_too(tmp_path: Path) -> None:
    write_script(tmp_path, COMPILED)
    output = recorded(["train.py"], tmp_path, env=environment(GPULEDGER_PASSES="")).stdout
    assert b"('unique_graphs', 1)" in output  # nothing is compiled again in the step with lines
    found = break_down_time(load(tmp_path / "train.ledger").rank())
    assert found is not None
    texts = COMPILED.splitlines()
    phases = {
        (text.rpartition("# ")[2], line.phase)
        for line in found.lines
        if "train.py" in line.line and "# " in (text := texts[int(where(line.line).partition(":")[2]) - 1])
    }
    assert {(text, phase) for text in ("gate", "down") for phase in ("forward", "backward")} <= phases
    assert {("eager", "between"), ("loss", "backward")} <= phases
    assert sum(line.time_ns for line in found.lines) == pytest.approx(found.work_ns)
    assert sum(line.time_ns for line in found.lines if not line.line) <= 0.2 * found.work_ns
