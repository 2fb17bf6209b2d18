"""bench/house/suite.py: what a test takes is counted, in its own process, in its children and in what outlives them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from folders import BENCH

WORK_S = 0.3
TESTS = f"""
import subprocess, sys, time
BUSY = "import time\\nwhile time.process_time() < {WORK_S}: pass"
def test_itself():
    end = time.process_time() + {WORK_S}
    while time.process_time() < end: pass
def test_a_child():
    subprocess.run([sys.executable, "-c", BUSY], check=True)
def test_an_orphan():
    subprocess.run(["sh", "-c", '"$0" -c "$1" & exit 0', sys.executable, BUSY], check=True)
def test_nothing():
    pass
"""
MEASURE = "import json, sys; from suite import measure; figures = measure(sys.argv[1:]); print(json.dumps(figures))"


def test_the_whole_process_tree_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(TESTS)
    words = ["-q", "-p", "no:cacheprovider", "-c", str(tmp_path / "none.ini"), str(tmp_path / "test_busy.py")]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], cwd=BENCH / "house", capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert (figures["status"], figures["tests"], figures["outcome"]) == (0, 4, "4 passed")
    took_s = {test.rpartition("::")[2]: seconds for test, seconds in figures["slowest_tests"].items()}
    assert took_s["test_itself"] >= WORK_S
    assert took_s["test_a_child"] >= WORK_S
    assert took_s["test_nothing"] < WORK_S
    (file,) = figures["files"].values()
    assert file["tests"] == 4
    assert figures["outside_of_tests_s"] >= WORK_S  # the orphan, which its parent did not wait for
    assert abs(file["processor_s"] + figures["outside_of_tests_s"] - figures["processor_s"]) < 0.2
