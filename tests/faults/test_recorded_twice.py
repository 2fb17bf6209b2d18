"""A program that records itself runs below ``gpuledger run`` as it does bare, and the outer run holds everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from present import present
from programs import TRAIN, manifest, write_script
from quick import bare, recorded

from gpuledger.collect.session.outer_run import NOTE
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

BLOCKS = """
import gpuledger
for name in ("one", "two"):
    with gpuledger.record(name, force=True, out=name, devices="cpu") as recording:
        step()
        recording.step()
    assert recording.path.name.endswith(".ledger")
    recording.metrics, recording.peak_allocated_bytes, recording.step_energy_j, recording._repr_html_()

@gpuledger.record("three", devices="cpu")
def train():
    step()
    return 3

print(train())
try:
    with gpuledger.record("four", devices="cpu"):
        raise KeyError("theirs")
except KeyError as error:
    print(error, getattr(error, "__notes__", []))
raise SystemExit(4)
"""


def test_record_does_nothing_and_the_outer_run_notes_it_once(tmp_path: Path) -> None:
    alone, below = tmp_path / "alone", tmp_path / "below"
    for directory in (alone, below):
        write_script(directory, TRAIN + BLOCKS)
    ended = recorded(["train.py"], below)
    assert ended == bare(["train.py"], alone)
    assert (ended.status, ended.stdout) == (4, b"3\n'theirs' []\n")
    assert [place.name for place in below.glob("*.ledger")] == ["train.ledger"]
    rank = load(below / "train.ledger").rank()
    assert rank.manifest.notes == (NOTE,)
    assert (rank.manifest.steps_seen, present(rank.manifest.window).last_step) == (3, 3)


ASKS = """
import gpuledger
with gpuledger.record(devices="cpu") as early:
    pass
print(early.metrics, early.peak_allocated_bytes, early.run().ranks)
with gpuledger.record(devices="cpu") as recording:
    step(); step()
print(recording)
print(recording.recorded_by == recording.path == recording.run().path, recording.path.name)
print(recording.peak_allocated_bytes == recording.metrics["peak_allocated_bytes"] > 0)
print(recording.run().rank().manifest.window.last_step)
"""


def test_its_results_are_those_of_the_outer_run_so_far(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + ASKS)
    ended = recorded(["train.py"], tmp_path, options=("-q", "--steps", "1:9"))
    assert (ended.status, ended.stderr) == (0, b"")
    assert ended.stdout.decode().splitlines() == [
        "{} None ()",
        "<Recording 'recording': recorded by gpuledger run into train.ledger, which holds it>",
        "True train.ledger",
        "True",
        "2",
    ]
    rank = load(tmp_path / "train.ledger").rank()
    assert (rank.manifest.status, present(rank.manifest.window).last_step) == ("closed", 2)


PROFILED = """
from gpuledger import memory_profiler
profiler = memory_profiler(model, print_period=2)
for _ in range(4):
    step()
    profiler.record_stats()
profiler.epoch_end()
"""


def test_the_drop_in_profiler_says_who_records(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + PROFILED)
    ended = recorded(["train.py"], tmp_path, options=("-q", "--steps", "1:9"))
    why = b"not recorded, `gpuledger run` records this process into train.ledger"
    assert (ended.status, ended.stdout.count(why), ended.stderr) == (0, 2, b"")
    notes = load(tmp_path / "train.ledger").rank().manifest.notes
    assert notes == (NOTE,)


FRAMEWORK = """
from gpuledger.integrations.training import RecordedTraining
training = RecordedTraining("mine", {"devices": "cpu"})
training.begin()
for _ in range(3):
    step()
    training.mark()
print(training.end() == {})
"""


def test_a_frameworks_callback_marks_the_outer_runs_steps(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + FRAMEWORK)
    assert recorded(["train.py"], tmp_path).stdout == b"True\n"
    assert load(tmp_path / "train.ledger").rank().manifest.steps_seen == 3


TESTED = """
import pytest, torch

@pytest.mark.limit_gpu_memory("1 GiB")
def test_limit():
    kept = torch.ones(1000)

@pytest.mark.limit_gpu_growth("1 GiB")
def test_growth():
    kept = torch.ones(1000)

def test_fixture(gpuledger_recording):
    with gpuledger_recording:
        torch.ones(1000)
"""


def test_tests_with_limits_pass_unmeasured_and_that_is_said(tmp_path: Path) -> None:
    write_script(tmp_path, TESTED, "test_it.py")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpuledger-devices", "cpu", "test_it.py"]
    assert bare(words, tmp_path).status == 0
    ended = recorded(words, tmp_path, options=("-q", "--out", "outer"))
    assert ended.status == 0, ended.stdout
    assert b"gpuledger: 2 tests not measured: `gpuledger run` records this process into outer.ledger\n" in ended.stdout
    assert manifest(tmp_path / "outer.ledger")["exit_status"] == 0
