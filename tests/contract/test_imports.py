"""What is loaded when: importing gpuledger is cheap, and the recorded program loads no library for reading."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from folders import DATA, ROOT
from synthetic import make_run

SOURCE = ROOT / "src" / "gpuledger"
ON_DEMAND = ("torch", "numpy", "pyarrow", "duckdb", "rich", "click", "pynvml", "psutil")
READING = ("pyarrow", "duckdb", "rich", "click", "gpuledger.analyze", "gpuledger.report", "gpuledger.cli")
IMPORT_LIMIT_S = 0.1


def loaded_by(statement: str) -> set[str]:
    """Return the modules a fresh interpreter has after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


def test_importing_gpuledger_loads_nothing_heavy() -> None:
    assert loaded_by("import gpuledger").isdisjoint(ON_DEMAND)


def test_importing_gpuledger_is_quick() -> None:
    code = "import time; start = time.process_time(); import gpuledger; print(time.process_time() - start)"
    times_s = (float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(10))
    assert any(time_s < IMPORT_LIMIT_S for time_s in times_s)  # a busy machine's shared core takes twice as long


def test_a_run_with_all_its_tables_is_read_without_what_builds_tables(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run.ledger", blocks=20)
    loaded = loaded_by(f"from gpuledger.services.runs import load; load({str(run)!r})")
    assert "gpuledger.services.runs" in loaded
    assert loaded.isdisjoint({"gpuledger.analyze.posting.posting", "gpuledger.analyze.posting.activities"})


@pytest.mark.torch
def test_recording_loads_no_library_for_reading() -> None:
    assert loaded_by("import gpuledger.collect.session.active").isdisjoint(READING)


def test_help_loads_no_library_for_reading_or_recording() -> None:
    loaded = loaded_by("import gpuledger.cli.main")
    assert loaded.isdisjoint({"torch", "pyarrow", "duckdb", "numpy"})


@pytest.mark.parametrize("words", [["show"], ["export", "--to", "json", "-o", "dump.json"]], ids=lambda words: words[0])
def test_a_command_loads_no_pandas_though_it_is_there(words: list[str], tmp_path: Path) -> None:
    place = next((DATA / "memory_csv").glob("*.csv"))
    code = f"""
import sys
from gpuledger.__main__ import start
sys.argv = {["gpuledger", words[0], str(place), *words[1:]]}
try:
    start()
except SystemExit as end:
    assert not end.code
assert "pyarrow" in sys.modules
assert "pandas" not in sys.modules
import pandas
assert pandas.DataFrame({{"a": [1]}}).shape == (1, 1)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.torch
def test_a_model_of_the_users_own_has_its_pandas(tmp_path: Path) -> None:
    factory = r"""
import pyarrow.csv, torch
from pathlib import Path

def build():
    Path("x.csv").write_text("a\n1\n")
    assert pyarrow.csv.read_csv("x.csv").to_pandas().shape == (1, 1)
    return torch.nn.Linear(4, 4)
"""
    (tmp_path / "own.py").write_text(factory)
    words = ["ops", "capture", "--model", "own:build", "--input", "2x4", "--gpu", "cpu"]
    subprocess.run([sys.executable, "-m", "gpuledger", *words], cwd=tmp_path, check=True, capture_output=True)


RECORDED = ("collect", "model", "files", "cards", "processes")
BESIDE = {
    "collect/launch/bootstrap/__main__.py",
    "collect/launch/bootstrap/sitecustomize.py",
    "collect/sampling/watch_process.py",
    "processes/child_job.py",
}
"""Modules that run before the recorded program or in a process of their own."""


def test_what_runs_in_a_recorded_program_does_not_call_the_programs_builtins() -> None:
    """A program may replace ``open`` or ``print``, and would see our calls."""
    found = []
    for folder in RECORDED:
        for path in (SOURCE / folder).rglob("*.py"):
            if path.relative_to(SOURCE).as_posix() in BESIDE:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print"):
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert found == []
