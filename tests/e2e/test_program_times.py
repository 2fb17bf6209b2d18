"""Kernel times of a GPU program without steps, with the CPU in place of the GPU: when it is measured, and what is left.

The recorder of a GPU installs no dispatch mode. Here the one of the CPU is hidden, does not time operators itself, and
does not stop for a profiler.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from folders import BENCH, TESTS
from programs import write_script
from quick import bare

from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.view.view import build_view
from gpuledger.collect.passes.program_times import AWAITED
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

START = """
import sys
import threading
import torch
sys.path.insert(0, {lib!r})
import gpuledger
from numeric_programs import HEAD, PROGRAMS
from gpuledger.collect.adapter import dispatch_modes
from gpuledger.collect.passes import program_times
from gpuledger.collect.session.active import current
from gpuledger.collect.passes.line_marks import _LineMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

def modes():
    return sum(isinstance(one, _LineMode) for one in _get_current_dispatch_mode_stack())

recording = gpuledger.record(out="run", passes="memory,time", devices="cpu")
recording.__enter__()
session = current()
session.window.recorder.times = session.window._times = None
session._recorders.stop_watching()
seen, dispatch_modes.has_dispatch_mode = dispatch_modes.has_dispatch_mode, lambda: False
session._later.watch_program(lambda: session.window.read_counters("operator"))
dispatch_modes.has_dispatch_mode = seen
print("watched", modes())
"""
END = """
print("left", modes())
recording.__exit__(None, None, None)
print("end", modes(), torch.autograd._profiler_enabled())
"""
IN_A_THREAD = """
sys.path.insert(0, {support!r})
from device_thread import backward_in_another_thread
with backward_in_another_thread():
    exec(compile(HEAD + PROGRAMS[{name!r}], 'numeric.py', 'exec'), {{}})
"""
LOOP = "x = torch.ones(64, 64)\nfor _ in range({count}):\n    x = torch.tanh(x @ x)\n"
TRAINING = """
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""

COMPILED = """
import torch.nn
def backend(graph, _inputs):
    def call(*args):
        print("compiled", modes())
        return graph(*args)
    return call
x = torch.ones(8, 64)
"""
COMPILED += (
    TRAINING.replace("for _", "compiled = torch.compile(model, backend=backend)\nfor _")
    .replace("range(8)", "range(4)")
    .replace("model(x)", "compiled(x)")
)
COMPILED_FUNCTION = """
tries = []
marks = session._later._time_pass._lines
remove = marks.remove
marks.remove = lambda: (tries.append(1), remove())[1]
def function(x):
    for _ in range(400):
        x = torch.tanh(x)
    return x
model = torch.nn.Linear(4, 4)
torch.compile(function, backend="eager")(torch.ones(8))
print(len(tries) < 12, modes())
x = [torch.tanh(torch.ones(8)) for _ in range(400)]
"""


def run(directory: Path, source: str) -> list[str]:
    write_script(directory, START.format(lib=str(BENCH / "lib")) + source + END)
    ended = bare(["train.py"], directory)
    assert ended.status == 0, ended.stderr.decode()
    return ended.stdout.decode().splitlines()


@pytest.mark.parametrize("name", ["k-means", "custom function", "factorization", "meta-learning"])
def test_the_first_operators_are_on_their_lines(name: str, tmp_path: Path) -> None:
    said = run(tmp_path, f"exec(compile(HEAD + PROGRAMS[{name!r}], 'numeric.py', 'exec'), {{}})\n")
    assert said == ["watched 1", "left 1", "end 0 False"]
    rank = load(tmp_path / "run.ledger").rank()
    assert "operator" in rank.table("counters", ("reason",)).column("reason").to_pylist()
    assert rank.manifest.timed_program is not None
    times = break_down_time(rank)
    assert times is not None
    known = sum(line.time_ns for line in times.lines if line.line.startswith("numeric.py:"))
    assert known >= 0.95 * times.work_ns


@pytest.mark.parametrize("name", ["custom function", "factorization", "physics", "meta-learning"])
def test_bytes_of_a_thread_of_autograd_are_on_the_programs_lines(name: str, tmp_path: Path) -> None:
    said = run(tmp_path, IN_A_THREAD.format(support=str(TESTS / "support"), name=name))
    assert said == ["watched 1", "left 1", "end 0 False"]
    device = build_view(load(tmp_path / "run.ledger")).highest
    own = sum(line.bytes or 0 for line in device.line_amounts if line.label.startswith("numeric.py:"))
    assert own >= 0.95 * device.breakdown.allocated_bytes


def test_it_ends_after_enough_operators_and_the_mode_is_removed(tmp_path: Path) -> None:
    said = run(tmp_path, "program_times.MOST_OPERATORS = 100\n" + LOOP.format(count=400))
    assert said == ["watched 1", "left 0", "end 0 False"]
    timed = load(tmp_path / "run.ledger").rank().manifest.timed_program
    assert timed is not None
    assert 100 <= timed.operators <= 110
    assert AWAITED <= timed.before <= AWAITED + 10


def test_a_program_with_modules_is_left_to_the_measurement_of_its_steps(tmp_path: Path) -> None:
    said = run(tmp_path, "other = torch.nn.Linear(4, 4)\n" + LOOP.format(count=AWAITED) + TRAINING)
    assert said == ["watched 1", "left 0", "end 0 False"]
    manifest = load(tmp_path / "run.ledger").rank().manifest
    assert (manifest.timed_program, manifest.time_steps) == (None, (4, 6))


@pytest.mark.parametrize("waits", ["thread.join()", "while thread.is_alive(): thread.join(0.001)"])
def test_a_training_in_another_thread_is_measured_there(waits: str, tmp_path: Path) -> None:
    """The mode of the main thread is removed in that thread: as soon as it runs, or before its next operators."""
    training = "x = torch.ones(4, 64)\ndef train():\n" + textwrap.indent(TRAINING, "    ")
    said = run(tmp_path, f"{training}thread = threading.Thread(target=train)\nthread.start()\n{waits}\n")
    assert said == ["watched 1", "left 0", "end 0 False"]
    manifest = load(tmp_path / "run.ledger").rank().manifest
    assert (manifest.timed_program, manifest.time_steps) == (None, (4, 6))
    assert not any("profiler" in sentence for sentence in manifest.left_out)
    times = break_down_time(load(tmp_path / "run.ledger").rank())
    assert times is not None
    assert sum(line.time_ns for line in times.lines if "train.py:" in line.line) >= 0.9 * times.work_ns


@pytest.mark.parametrize("most", [100, 5_000])
def test_a_training_that_follows_drops_what_was_measured_before(most: int, tmp_path: Path) -> None:
    said = run(tmp_path, f"program_times.MOST_OPERATORS = {most}\n" + LOOP.format(count=AWAITED * 2) + TRAINING)
    assert said == ["watched 1", "left 0", "end 0 False"]
    manifest = load(tmp_path / "run.ledger").rank().manifest
    assert (manifest.timed_program, manifest.time_steps) == (None, (4, 6))


def test_the_mode_is_removed_before_the_code_of_a_compiled_module_runs(tmp_path: Path) -> None:
    assert run(tmp_path, COMPILED) == ["watched 1", *["compiled 0"] * 4, "left 0", "end 0 False"]


def test_few_attempts_are_made_where_the_mode_cannot_be_removed(tmp_path: Path) -> None:
    assert run(tmp_path, COMPILED_FUNCTION) == ["watched 1", "True 1", "left 0", "end 0 False"]
