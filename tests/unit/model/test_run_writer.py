"""One lifecycle: every recording is opened, closed and posted by ``RunWriter``, and nothing else writes a run."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuledger
from gpuledger.errors import InputError, UsageError
from gpuledger.model import run_manifest, run_writer
from gpuledger.model.manifest import read_json
from gpuledger.model.run_directory import choose_directory
from gpuledger.model.run_manifest import read_run_manifest, write_run_manifest
from gpuledger.model.run_writer import NOTHING_SEEN, RunReplacedError, RunWriter, new_manifest

STEPS_BY_FLAG = {"steps": {"value": [1, 3], "origin": "flag"}}


def opened(path: Path, **options: Any) -> RunWriter:
    return RunWriter.open(path, new_manifest(path.name, (), {}), **options)


def test_a_run_is_opened_closed_and_posted(tmp_path: Path) -> None:
    run = opened(tmp_path / "a.ledger")
    assert read_json(run.path / "manifest.json")["status"] == "running"
    (run.path / "notes").mkdir()
    (run.path / "notes" / "7.txt").write_text("told by a process\ntold by a process\n")
    posted: list[tuple[Path, str]] = []
    run.close(
        ["told by the parent"],
        status=-9,
        times_ns=(3, 8),
        post=lambda place: posted.append((place, read_json(place / "manifest.json")["status"])),
    )
    found = read_json(run.path / "manifest.json")
    assert posted == [(run.path, "complete")]
    assert found["notes"] == ["told by a process", "told by the parent"]
    assert (found["exit_status"], found["signal"]) == (137, 9)
    assert (found["started_ns"], found["ended_ns"]) == (3, 8)


def test_what_is_written_of_a_run_is_what_is_read(tmp_path: Path) -> None:
    manifest = new_manifest("a.ledger", ("train.py", "--lr", "0.1"), {"steps": ((1, 3), "flag"), "live": (None, "")})
    run = RunWriter.open(tmp_path / "a.ledger", manifest)
    written = json.loads((run.path / "manifest.json").read_text())
    assert " ".join(written) == (
        "command ended_ns exit_status gpuledger_version name notes run_id schema_version settings signal "
        "started_ns status"
    )
    assert written == {**manifest.to_json(), "settings": {"live": {"value": None, "origin": ""}, **STEPS_BY_FLAG}}
    found = read_run_manifest(run.path)
    assert found == replace(manifest, settings=written["settings"])
    assert (found.status, found.command, found.run_id) == ("running", ("train.py", "--lr", "0.1"), run.run_id)

    (run.path / "manifest.json").write_text(json.dumps({**written, "of_a_newer_version": [1, {"a": None}]}))
    run.close(["a note"], status=3, times_ns=(5, 9))
    closed = {"status": "complete", "started_ns": 5, "ended_ns": 9, "exit_status": 3, "notes": ["a note"]}
    assert json.loads((run.path / "manifest.json").read_text()) == {
        **written,
        **closed,
        "of_a_newer_version": [1, {"a": None}],
    }
    again = read_run_manifest(run.path)
    write_run_manifest(run.path, again)
    assert read_run_manifest(run.path) == again
    assert (again.status, again.exit_status, again.signal, again.notes) == ("complete", 3, None, ("a note",))


def test_a_run_whose_manifest_was_damaged_meanwhile_is_not_closed(tmp_path: Path) -> None:
    run = opened(tmp_path / "a.ledger")
    (run.path / "manifest.json").write_text(json.dumps({"schema_version": 1, "run_id": run.run_id, "notes": 7}))
    with pytest.raises(InputError, match="damaged manifest"):
        run.close(post=lambda _: pytest.fail("posted"))


@pytest.mark.parametrize(
    ("status", "note", "exit_status", "signal"),
    [(0, NOTHING_SEEN, 0, None), (-15, "SIGTERM ended the program before it wrote a recording.", 143, 15)],
)
def test_a_run_in_which_nothing_is_says_so(
    tmp_path: Path, status: int, note: str, exit_status: int, signal: int | None
) -> None:
    run = opened(tmp_path / "a.ledger")
    run.close(status=status)
    found = read_json(run.path / "manifest.json")
    assert found["notes"] == [note]
    assert (found["exit_status"], found["signal"]) == (exit_status, signal)
    assert found["ended_ns"] >= found["started_ns"]


def test_a_run_that_was_replaced_is_neither_closed_nor_posted(tmp_path: Path) -> None:
    old = opened(tmp_path / "a.ledger")
    opened(old.path, replace=True).take_place()
    with pytest.raises(RunReplacedError):
        old.close(post=lambda _: pytest.fail("posted"))
    assert read_json(old.path / "manifest.json")["status"] == "running"


def test_a_name_that_is_taken_in_between_is_chosen_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def slowly(*args: Any, **options: Any) -> Path:
        path = choose_directory(*args, **options)
        if path.name == "train.ledger":
            opened(path)  # by another process
        return path

    monkeypatch.setattr(run_writer, "choose_directory", slowly)
    assert RunWriter.choose(None, force=False, stem="train").path == Path("train-2.ledger")
    with pytest.raises(UsageError, match="already exists"):
        RunWriter.choose("train", force=False, stem="train")


def test_a_run_of_this_process_is_in_its_place_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = opened(tmp_path / "keep.ledger")
    run = RunWriter.choose("keep", force=True, stem="mine", of_this_process=True)
    assert (run.path, run.directory) == (old.path, old.path)
    found = read_json(old.path / "manifest.json")
    assert (found["run_id"], found["name"]) == (run.run_id, "mine")
    assert os.listdir(tmp_path) == ["keep.ledger"]


def test_where_a_run_cannot_be_made_nothing_is_left_and_its_path_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "manifest.json")

    monkeypatch.setattr(run_manifest, "write_json", full)
    with pytest.raises(OSError, match="No space") as raised:
        opened(tmp_path / "a.ledger")
    assert raised.value.filename == str(tmp_path / "a.ledger")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        opened(tmp_path / "file" / "a.ledger")


def test_of_several_processes_one_opens_a_shared_run(tmp_path: Path) -> None:
    manifest = new_manifest("a", (), {})
    first = RunWriter.open_shared(tmp_path / "a.ledger", manifest)
    assert first is not None
    assert RunWriter.open_shared(tmp_path / "a.ledger", new_manifest("a", (), {})) is None
    assert os.listdir(first.path) == ["manifest.json"]
    first.check()


def test_a_forked_child_leaves_a_run_to_its_parent(tmp_path: Path) -> None:
    run = opened(tmp_path / "a.ledger")
    child = os.fork()
    if not child:
        os._exit(int(run.is_of_this_process))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run.is_of_this_process


def test_what_fails_at_the_end_does_not_hide_the_programs_own_error(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = opened(tmp_path / "a.ledger")
    mine = ValueError("the program's")
    with run.adding_to(mine):
        fail()
    assert mine.__notes__ == ["gpuledger: a.ledger could not be written: No space left on device"]
    with pytest.raises(OSError, match="No space"), run.adding_to(None):
        fail()


def record(out: Path) -> None:
    with gpuledger.record(out=out, devices="cpu"):
        pass


def estimate(out: Path) -> None:
    import torch

    gpuledger.estimate(lambda: torch.zeros(8, device="cuda"), steps=1, out=out)


def virtual(out: Path) -> None:
    from gpuledger.integrations.simulated_recording import SimulatedRecording

    with SimulatedRecording("l4", out) as recording:
        recording.step()


@pytest.mark.torch
@pytest.mark.parametrize("make", [record, estimate, virtual])
def test_recordings_of_this_process_go_through_the_writer(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(RunWriter, name)

        def call(*args: Any, **how: Any) -> Any:
            steps.append(name)
            return real(*args, **how)

        return call

    for name in ("open", "close"):
        monkeypatch.setattr(RunWriter, name, noting(name))
    out = tmp_path / "a.ledger"
    make(out)
    assert steps == ["open", "close"]
    run = gpuledger.load(out)
    assert (run.manifest.status, run.manifest.ended_ns is None) == ("complete", False)
    assert all((rank.directory / "manifest.json").is_file() for rank in run.ranks)


@pytest.mark.torch
def test_an_estimate_without_an_answer_leaves_nothing_and_what_is_there_is_refused(tmp_path: Path) -> None:
    def step() -> None:
        raise ValueError("the step's own")

    out = tmp_path / "a.ledger"
    with pytest.raises(ValueError, match="the step's own"):
        gpuledger.estimate(step, out=out)
    assert not out.exists()
    out.mkdir()
    with pytest.raises(UsageError, match="cannot be created"):
        gpuledger.estimate(step, out=out)
    assert out.exists()


def test_nothing_else_writes_the_manifest_of_a_run() -> None:
    package = Path(gpuledger.__file__).parent
    name = r"\([^\n]*(?:manifest\.json|MANIFEST\b)"
    writes = re.compile(rf"(?:write_json|rename){name}|\bwrite_run_manifest\(")
    found = {place.name for place in package.rglob("*.py") if writes.search(place.read_text(encoding="utf-8"))}
    # a rank's; what an import, an export, a series of variants and a merge write
    of_others = {"manifest.py", "imported.py", "tables.py", "variants.py", "merging.py"}
    assert found == {"run_writer.py", "run_manifest.py", *of_others}


def test_the_writer_loads_what_a_recorded_program_may_load() -> None:
    code = (
        "import sys, gpuledger.model.run_writer; print(*{'torch', 'pyarrow', 'duckdb', 'click'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
