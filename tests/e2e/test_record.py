"""``gpuledger.record``: recordings made from Python, one process for all of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from present import present

import gpuledger
from gpuledger.errors import InputError, UsageError
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import Run
from gpuledger.units import format_bytes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROWS = 8


class Training:
    """A small model and its optimizer; one step a call."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(ROWS, 16)).sum().backward()
        self.optimizer.step()


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    """Return a training in a directory of its own; afterwards nothing of ours is left in torch."""
    from torch.optim.optimizer import _global_optimizer_pre_hooks
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    monkeypatch.chdir(tmp_path)
    functions = (torch.nn.Module.__call__, torch.autograd.backward, torch.autograd.grad)
    before = [function.__code__ for function in functions]
    yield Training()
    assert [function.__code__ for function in functions] == before
    assert (torch.nn.Module.__call__, torch.autograd.backward, torch.autograd.grad) == functions
    assert _get_current_dispatch_mode_stack() == []
    assert not _global_optimizer_pre_hooks


def checked(run: Run) -> RankManifest:
    """Return the only rank's manifest, every check of which holds and nothing of which is damaged."""
    manifest = run.rank().manifest
    assert len(run.ranks) == 1
    assert manifest.checks
    assert [check for check in manifest.checks if not check.ok] == []
    assert (manifest.damaged, manifest.status, run.manifest.status) == ((), "closed", "complete")
    return manifest


def window(manifest: RankManifest) -> tuple[int | None, int | None, int | None]:
    """Return the first and the last step recorded, and how many were seen."""
    recorded = present(manifest.window)
    return recorded.first_step, recorded.last_step, manifest.steps_seen


def test_a_block_is_recorded_whole(step: Training) -> None:
    with gpuledger.record("whole") as recording:
        for _ in range(5):
            step()
    assert recording.path == Path("whole.ledger").absolute()
    run = recording.run()
    assert present(run.manifest.started_ns) < present(run.manifest.ended_ns)
    manifest = checked(run)
    assert (window(manifest), manifest.closed_by) == ((1, 5, 5), "end of record")
    sizes = {(row["category"], row["requested_bytes"]) for row in run.table("blocks").to_pylist()}
    assert {("input", ROWS * 16 * 4), ("weight", 16 * 16 * 4), ("gradient", 16 * 16 * 4)} <= sizes
    assert ("optimizer_state", 16 * 16 * 4) in sizes


def test_only_the_steps_asked_for(step: Training) -> None:
    with gpuledger.record("some", steps=(2, 3)) as recording:
        for _ in range(6):
            step()
    assert window(checked(recording.run())) == (2, 3, 6)


def test_steps_that_are_not_reached(step: Training) -> None:
    with gpuledger.record("later", steps=(10, 12)) as recording:
        step()
    assert window(checked(recording.run())) == (None, None, 1)


def test_marked_steps_count_instead_of_the_optimizers(step: Training) -> None:
    with gpuledger.record("marked", devices="cpu") as recording:
        for _ in range(3):
            step.model(torch.randn(ROWS, 16)).sum().backward()
            recording.step()
        step()
    run = recording.run()
    assert window(checked(run)) == (1, 3, 3)
    assert run.table("steps").column("kind").to_pylist() == ["marked"] * 3


def test_an_empty_block_is_a_run(step: Training) -> None:
    with gpuledger.record("empty") as recording:
        pass
    assert window(checked(recording.run())) == (None, None, 0)


def test_a_recording_and_its_run_say_what_they_are(step: Training) -> None:
    recording = gpuledger.record("it's\n", out="said")
    assert repr(recording) == """<Recording "it's\\n": not begun>"""
    with recording:
        step()
        assert repr(recording) == """<Recording "it's\\n": recording into said.ledger, 1 step>"""
    peak = format_bytes(recording.peak_allocated_bytes)
    assert repr(recording) == f"""<Recording "it's\\n": ended, said.ledger, 1 step, peak {peak}>"""
    run = recording.run()
    assert repr(run) == "<Run 'said': complete, 1 rank, CPU tensors, 1 step>"
    assert repr(run.rank()) == "<Rank 0: closed, CPU tensors, 1 step>"
    shutil.rmtree(run.path)
    assert repr(recording).startswith(f'<Recording "it\'s\\n": ended, {run.path}: no such run')
    assert repr(run) == "<Run 'said': complete, 1 rank, CPU tensors, 1 step>"


def test_an_exception_is_the_blocks_own_and_what_was_recorded_stays(step: Training) -> None:
    recording = gpuledger.record("x")

    def wrong() -> None:
        with recording:
            step()
            step.model(torch.randn(3, 3))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        wrong()
    assert not hasattr(caught.value, "__notes__")
    manifest = checked(recording.run())
    assert (window(manifest), manifest.closed_by) == ((1, 1, 1), "exception")


def test_a_decorated_function_makes_a_numbered_run_each_call(step: Training) -> None:
    @gpuledger.record("fit")
    def fit(steps: int) -> int:
        """Train."""
        for _ in range(steps):
            step()
        return steps

    assert (fit.__name__, fit.__doc__, fit(2), fit(3)) == ("fit", "Train.", 2, 3)
    assert window(checked(gpuledger.load("fit.ledger")))[1] == 2
    assert window(checked(gpuledger.load("fit-2.ledger")))[1] == 3


def test_a_second_recording_is_refused_before_it_removes_or_makes_anything(step: Training) -> None:
    with gpuledger.record("old"):
        pass
    kept = sorted(Path("old.ledger").rglob("*"))
    with gpuledger.record("outer") as outer:
        for options in ({"out": "inner"}, {"out": "old", "force": True}):
            with pytest.raises(UsageError, match="another recording is active"), gpuledger.record(**options):
                pass
        step()
    assert not Path("inner.ledger").exists()
    assert sorted(Path("old.ledger").rglob("*")) == kept
    assert window(checked(outer.run())) == (1, 1, 1)


def test_an_existing_run_is_kept_unless_forced(step: Training) -> None:
    with gpuledger.record(out="one") as first:
        pass
    with pytest.raises(UsageError, match="already exists"), gpuledger.record(out="one"):
        pass
    with gpuledger.record(out="one", force=True) as second:
        step()
    assert first.path == second.path
    assert window(checked(second.run())) == (1, 1, 1)


def test_outside_the_block_there_is_nothing_to_mark_or_read_yet(step: Training) -> None:
    recording = gpuledger.record("never")
    with pytest.raises(UsageError, match="the recording is not active"):
        recording.step()
    with pytest.raises(UsageError, match="is still active"):
        recording.run()
    with recording, pytest.raises(UsageError, match="is still active"):
        recording.run()


@pytest.mark.parametrize("leaves", ["by the block's end", "by _exit"])
def test_a_forked_child_leaves_the_recording_to_its_parent(leaves: str, step: Training) -> None:
    with gpuledger.record("forked") as recording:
        step()
        child = os.fork()
        if not child and leaves == "by _exit":
            torch.ones(4)
            recording.step()
            os._exit(5)
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
            step()
    if not child:
        os._exit(5)
    assert window(checked(recording.run())) == (1, 2, 2)


def take_away(then: str) -> None:
    """Record where the run's place is taken away under way."""
    with gpuledger.record("gone"):
        shutil.rmtree("gone.ledger")
        Path("gone.ledger").touch()
        if then:
            raise ZeroDivisionError(then)


def test_what_cannot_be_written_is_told_unless_the_block_has_an_error_of_its_own(step: Training) -> None:
    with pytest.raises(InputError, match=r"gone\.ledger"):
        take_away("")
    Path("gone.ledger").unlink()
    with pytest.raises(ZeroDivisionError) as caught:
        take_away("theirs")
    (note,) = caught.value.__notes__
    assert note.startswith("gpuledger: gone.ledger could not be written: ")


def test_reading_while_it_is_recorded_freezes_nothing(step: Training) -> None:
    with gpuledger.record("read") as recording:
        step()
        assert recording.path is not None
        early = gpuledger.load(recording.path)
        step()
    assert (early.manifest.status, early.rank().manifest.status) == ("running", "cut off")
    assert present(early.rank().manifest.window).last_step == 1
    assert window(checked(recording.run())) == (1, 2, 2)
    posted_ns = (recording.path / "rank-0" / "manifest.json").stat().st_mtime_ns
    gpuledger.load(recording.path)
    assert (recording.path / "rank-0" / "manifest.json").stat().st_mtime_ns == posted_ns


def test_all_passes_give_their_figures_as_values(step: Training) -> None:
    with gpuledger.record("all", passes="memory,energy,time") as recording:
        for _ in range(20):
            step()
    assert recording.peak_allocated_bytes is not None
    assert recording.peak_allocated_bytes > 0
    assert recording.step_time_ns is not None
    assert recording.step_energy_j is None
    assert recording.sample_energy_j is None
    assert recording.gpu_busy_frac is None
    rank = recording.run().rank()
    assert rank.manifest.time_steps == (4, 6)
    assert present(rank.manifest.inputs).shape == (ROWS, 16)
    assert rank.manifest.energy == ()
    assert [note for note in rank.manifest.notes if note.startswith("Energy was not measured")]


def test_passes_of_a_recording_are_checked_before_anything_is_written(step: Training) -> None:
    with (
        pytest.raises(UsageError, match="unknown measurement 'joules'"),
        gpuledger.record("none", passes="memory,joules"),
    ):
        step()
    assert not Path("none.ledger").exists()
