"""Processes that a program starts are not simulated: where, and what to estimate instead."""

from __future__ import annotations

import multiprocessing
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.started import Started

pytestmark = pytest.mark.torch


def started_by(tmp_path: Path, source: str) -> Started:
    """Run a script, and return what it has started."""
    script = tmp_path / "launch.py"
    script.write_text(source, encoding="utf-8")
    found, patches = Started(SimulatedDevice(find_card("h200"), CachingAllocator())), Patches()
    found.install(patches)
    try:
        runpy.run_path(str(script))
    finally:
        patches.undo()
    return found


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("[sys.executable, '-m', 'this_is.no_module', '--lr', '1']", "-m this_is.no_module --lr 1"),
        ("[sys.executable, '-u', 'none.py', '3']", "none.py 3"),
        ("'python3 none.py', shell=True", "none.py"),
        ("[sys.executable, '-c', 'pass']", None),
        ("[sys.executable, '-V']", None),
        ("['true', 'python', 'none.py']", None),
        ("'true'", None),
    ],
)
def test_a_python_program_that_is_started_is_to_be_estimated_itself(
    tmp_path: Path, command: str, program: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    found = started_by(tmp_path, f"import subprocess, sys\nsubprocess.run({command})\n")
    told = "Processes that are started at launch.py:2 are not simulated"
    assert found.hint() == ("" if program is None else f"{told}. Estimate their program: gpuledger estimate {program}")
    assert list(found.describe()) == ([] if program is None else [f"{told}: what they allocate is not included."])


def test_a_function_in_a_process_is_to_be_called_in_the_first_one(tmp_path: Path) -> None:
    source = "import multiprocessing\ndef train(): pass\none = multiprocessing.get_context('fork').Process(target={})\n"
    run = "one.start()\none.join()\n"
    found = started_by(tmp_path, source.format("train") + run)
    assert found.hint().endswith("launch.py:4 are not simulated. Call their function in the first process")
    assert started_by(tmp_path, source.format("print") + run).hint() == ""


def test_processes_start_as_before_afterwards(tmp_path: Path) -> None:
    before = subprocess.Popen.__init__, multiprocessing.process.BaseProcess.start
    started_by(tmp_path, "")
    assert (subprocess.Popen.__init__, multiprocessing.process.BaseProcess.start) == before
    assert subprocess.run([sys.executable, "-c", "pass"], check=True).returncode == 0
