"""An error at any statement leaves no descriptor open, no lock held and no file: files, the journal, other threads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from folders import TESTS

pytestmark = pytest.mark.torch

SCRIPT = """
import json, os, sys, tempfile, threading
from pathlib import Path

import planted
planted.plant()
from gpuledger.collect.adapter import other_threads
from gpuledger.files import writing
from gpuledger.model.journal.journal import JournalWriter, Part

directory = Path(tempfile.mkdtemp())
threading.Thread(target=threading.Event().wait, daemon=True).start()

def replace_file():
    writing.write_whole(directory / "below" / "deeper" / "file", b"new", inside=directory)

def append_twice():
    writer = JournalWriter(directory)
    try:
        writer.append(Part())
        writer.append(Part())
    finally:
        for place in directory.glob("*.log"):
            place.unlink()

def stop_others():
    with other_threads.undisturbed() as nobody_else:
        assert nobody_else

def is_free():
    with other_threads.undisturbed() as nobody_else:
        return nobody_else

def state():
    return (
        len(os.listdir("/proc/self/fd")),
        sys.getswitchinterval(),
        is_free(),
        [place.name for place in directory.rglob("*.tmp")],
    )

before, walked, wrong = state(), {}, []
for function in (replace_file, append_twice, stop_others):
    planted.PLANTS.reached.clear()
    planted.PLANTS.target, planted.PLANTS.phase = None, lambda: "running"
    function()
    planted.PLANTS.phase = None
    places = list(planted.PLANTS.reached)
    walked[function.__name__] = len(places)
    for target in places:
        planted.PLANTS.target, planted.PLANTS.phase = target, lambda: "running"
        try:
            function()
        except ZeroDivisionError:
            pass
        planted.PLANTS.phase = None
        place = planted.PLANTS.places[target[0]]
        if state() != before:
            wrong.append((place, state()))
            break
print(json.dumps(walked))
assert not wrong, wrong
"""


def test_an_error_at_any_statement_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=TESTS / "support", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    walked: dict[str, int] = json.loads(done.stdout)
    assert all(count > 5 for count in walked.values())
