"""Programs without modules: their bytes and milliseconds are on source lines, at most 5 % of either without one."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner
from folders import BENCH
from programs import environment, write_script
from quick import recorded

from gpuledger.analyze.overview.findings import find_findings
from gpuledger.analyze.view.device_view import DeviceView
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.report.base.phrases import place_text
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

WRITTEN = runpy.run_path(str(BENCH / "lib" / "numeric_programs.py"))
MOST_WITHOUT_LINE = 0.05
FILE = "train.py:"


def view_of(directory: Path, source: str) -> DeviceView:
    write_script(directory, source)
    recorded(["train.py"], directory, env=environment(GPULEDGER_PASSES=""))
    return build_view(load(directory / "train.ledger")).highest


@pytest.mark.parametrize("name", WRITTEN["PROGRAMS"])
def test_bytes_and_times_are_on_the_programs_own_lines(name: str, tmp_path: Path) -> None:
    device = view_of(tmp_path, WRITTEN["HEAD"] + WRITTEN["PROGRAMS"][name])
    timed = device.rank.manifest.timed_program
    assert timed is not None
    assert timed.is_whole
    lines = device.line_amounts
    own = [line for line in lines if FILE in line.label]
    assert sum(line.bytes or 0 for line in own) >= (1 - MOST_WITHOUT_LINE) * device.breakdown.allocated_bytes
    assert device.times is not None
    assert sum(line.time_ns or 0 for line in lines) == pytest.approx(device.times.work_ns)
    assert sum(line.time_ns or 0 for line in own) >= (1 - MOST_WITHOUT_LINE) * device.times.work_ns
    assert (device.breakdown.instant.step, device.breakdown.instant.phase in ("", "backward")) == (0, True)
    advised = [one.action for one in find_findings(device.rank)]
    assert not [action for action in advised if "batch" in action or "autocast" in action]


def test_backward_is_on_the_line_of_its_forward_and_python_code_in_it_on_its_own(tmp_path: Path) -> None:
    source = WRITTEN["HEAD"] + WRITTEN["PROGRAMS"]["custom function"]
    device = view_of(tmp_path, source)
    backward = {line.label.rpartition(FILE)[2]: line.backward_ns for line in device.line_amounts if line.backward_ns}
    places = {number: text.strip() for number, text in enumerate(source.splitlines(), 1)}
    texts = {places[int(label.split(" ")[0])] for label in backward}
    assert "return gradient * (cdf + x * density)" in texts
    assert "loss = (Gelu.apply(x @ first) @ second - y).square().mean()" in texts
    assert not [text for text in texts if text.startswith("with torch.no_grad")]


NUMERIC = """
import torch
x = torch.randn(64, 64)
for _ in range(20):
    x = torch.tanh(x @ x)
"""
GRADIENTS = """
import torch
x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
for _ in range(6):
    loss = torch.tanh(x @ w).square().mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
"""


@pytest.mark.parametrize(("source", "wanted"), [(NUMERIC, {"between"}), (GRADIENTS, {"between", "backward"})])
def test_bytes_and_times_have_the_same_phases(source: str, wanted: set[str], tmp_path: Path) -> None:
    device = view_of(tmp_path, source)
    blocks = device.rank.table("blocks", ("phase",))["phase"].to_pylist()
    spans = device.rank.table("spans", ("phase", "kind")).to_pylist()
    assert set(blocks) == wanted
    for kind in ("phase", "host"):
        assert {row["phase"] for row in spans if row["kind"] == kind} == wanted
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "train.ledger"), "--by", "phase", "--json"])
    assert "setup" not in shown.stdout


@pytest.mark.parametrize(("source", "place"), [(NUMERIC, "at train.py:5"), (GRADIENTS, "in backward")])
def test_the_place_of_the_peak_is_its_line_where_nothing_else_is_known(source: str, place: str, tmp_path: Path) -> None:
    instant = view_of(tmp_path, source).breakdown.instant
    assert place_text(instant) == place
    assert instant.line == ("train.py:5" if place.startswith("at") else "")
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "train.ledger")])
    assert f"of CPU tensors, {place}\n" in shown.stdout


MARKED = """
import gpuledger, torch
x = torch.randn(64, 64)
for _ in range(6):
    x = torch.tanh(x @ x)
    gpuledger.step()
"""


def test_nothing_after_the_first_marked_step_is_setup(tmp_path: Path) -> None:
    device = view_of(tmp_path, MARKED)
    blocks = device.rank.table("blocks", ("phase", "step")).to_pylist()
    assert {row["phase"] for row in blocks if row["step"] > 1} == {"between"}
    assert {row["phase"] for row in blocks if row["step"] <= 1} == {"setup"}


STEPS_LATER = """
import torch
x = torch.randn(64, 64)
for _ in range(20):
    x = torch.tanh(x @ x)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def test_a_program_with_steps_has_the_times_of_its_steps_only(tmp_path: Path) -> None:
    device = view_of(tmp_path, STEPS_LATER)
    assert device.rank.manifest.timed_program is None
    assert device.rank.manifest.time_steps == (4, 6)
    assert {line.label.rpartition("/")[2] for line in device.line_amounts if line.time_ns} == {
        "train.py:10 <module>",
        "train.py:11 <module>",
    }


def test_a_long_program_says_that_its_first_operators_were_timed(tmp_path: Path) -> None:
    few = "import torch\nfrom gpuledger.collect.memory import operator_times\noperator_times.MOST_OPERATORS = 2_000\n"
    view_of(tmp_path, f"{few}x = torch.ones(4)\nfor _ in range(2_001):\n    x.neg_()\n")
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "train.ledger")]).stdout
    assert "for the first 2,000 operators of the program" in shown
