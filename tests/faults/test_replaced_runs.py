"""``--force`` replaces a run when the new one has begun, never before, and never mixes two."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import quick
from programs import GPULEDGER, TRAIN, environment, recorded, start, write_script

import gpuledger.model.run_writer as writers
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.launch.ranks import claim_rank
from gpuledger.errors import UsageError
from gpuledger.model.run_directory import choose_directory
from gpuledger.model.run_writer import RunReplacedError, RunWriter, find_run_id, new_manifest
from gpuledger.services.runs import load

FORCED = ("-q", "--force", "--out", "keep")


@pytest.fixture
def old(tmp_path: Path) -> RunWriter:
    """Return a finished run with something in it."""
    run = RunWriter.open(tmp_path / "keep.ledger", new_manifest("keep", (), {}))
    (run.path / "rank-0").mkdir()
    (run.path / "rank-0" / "precious").touch()
    run.close()
    return run


def names_in(directory: Path) -> list[str]:
    return sorted(place.name for place in directory.iterdir())


@pytest.mark.parametrize(("command", "status"), [("./no-such-command", 127), ("./keep.ledger", 126)])
def test_a_command_that_does_not_start_leaves_the_old_run(
    old: RunWriter, tmp_path: Path, command: str, status: int
) -> None:
    assert recorded(["--", command], tmp_path, options=FORCED).status == status
    assert find_run_id(old.path) == old.run_id
    assert (old.path / "rank-0" / "precious").exists()
    assert names_in(tmp_path) == ["keep.ledger"]


def test_a_command_that_starts_replaces_it(old: RunWriter, tmp_path: Path) -> None:
    assert recorded(["--", "true"], tmp_path, options=FORCED).status == 0
    assert find_run_id(old.path) not in (None, old.run_id)
    assert names_in(tmp_path) == ["keep.ledger"]
    assert names_in(old.path) == ["manifest.json"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_old_run_stays_until_the_new_one_takes_its_place(
    old: RunWriter, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:  # as on NFS
        monkeypatch.setattr(writers, "_exchange", lambda *_: False)
    new = RunWriter.open(old.path, new_manifest("keep", (), {}), replace=True)
    assert (find_run_id(old.path), new.directory.parent) == (old.run_id, old.path.parent)
    new.take_place()
    assert (find_run_id(old.path), new.directory) == (new.run_id, new.path)
    assert names_in(old.path.parent) == ["keep.ledger"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_old_run_that_is_gone_by_then_is_no_fault(
    old: RunWriter, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(writers, "_exchange", lambda *_: False)
    new = RunWriter.open(old.path, new_manifest("keep", (), {}), replace=True)
    old.discard()
    new.take_place()
    assert find_run_id(old.path) == new.run_id


def test_without_replace_what_is_there_is_refused(old: RunWriter) -> None:
    with pytest.raises(FileExistsError):
        RunWriter.open(old.path, new_manifest("keep", (), {}))


def test_a_process_of_a_replaced_run_writes_no_more(
    old: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULEDGER_RUN_ID", f"{old.run_id} {old.path}")
    monkeypatch.delenv("RANK", raising=False)
    journal = RankJournal(lambda: claim_rank(old.path), [])
    journal.note("before")
    journal.write()
    new = RunWriter.open(old.path, new_manifest("keep", (), {}), replace=True)
    new.take_place()
    journal.note("after")
    with pytest.raises(RunReplacedError):
        journal.write()
    with pytest.raises(RunReplacedError):
        journal.directory()
    with pytest.raises(RunReplacedError):
        claim_rank(old.path)
    with pytest.raises(RunReplacedError):
        old.close()
    assert names_in(old.path) == ["manifest.json"]
    monkeypatch.setenv("GPULEDGER_RUN_ID", f"{old.run_id} {tmp_path / 'another.ledger'}")
    assert claim_rank(old.path).name == "rank-0"


@pytest.mark.torch
def test_recordings_that_overlap_do_not_mix(tmp_path: Path) -> None:
    """The first is replaced while it runs: its program goes on as if nothing were, and the second is whole."""
    write_script(tmp_path, TRAIN + "step(); step()\nprint('ready', flush=True)\ninput()\nstep(); step()\nprint('on')")
    first = start(["train.py"], tmp_path, options=("--steps", "1:9", "--out", "keep"), stdin=subprocess.PIPE)
    before = find_run_id(tmp_path / "keep.ledger")
    write_script(tmp_path, TRAIN + "step()", "other.py")
    assert quick.recorded(["other.py"], tmp_path, options=FORCED).status == 0
    stdout, stderr = first.communicate(b"\n", timeout=600)
    assert (first.returncode, stdout) == (0, b"on\n")
    assert b"gpuledger: error: keep.ledger: another recording replaced this run\n" in stderr
    run = load(tmp_path / "keep.ledger")
    assert run.manifest.run_id != before
    assert run.manifest.command[-1] == "other.py"
    assert [rank.number for rank in run.ranks] == [0]
    assert run.rank().manifest.steps_seen == 1


def test_a_link_is_followed_and_stays(old: RunWriter, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    old.path.rename(tmp_path / "disk" / "far.ledger")
    old.path.symlink_to(Path("disk", "far.ledger"))
    assert recorded(["--", "true"], tmp_path, options=FORCED[:1] + FORCED[2:]).status == UsageError.exit_code
    assert recorded(["--", "true"], tmp_path, options=FORCED).status == 0
    assert old.path.is_symlink()
    assert find_run_id(tmp_path / "disk" / "far.ledger") not in (None, old.run_id)
    assert names_in(tmp_path / "disk") == ["far.ledger"]


@pytest.mark.torch
def test_a_link_to_nothing_is_where_the_run_is_made(tmp_path: Path) -> None:
    """Under the name that the link has, which need not end as a run's does."""
    write_script(tmp_path, TRAIN + "step()")
    (tmp_path / "keep.ledger").symlink_to(tmp_path / "disk" / "far")
    for _ in range(2):
        assert quick.recorded(["train.py"], tmp_path, options=FORCED).status == 0
        assert load(tmp_path / "keep.ledger").rank().manifest.steps_seen == 1
    assert names_in(tmp_path / "disk") == ["far"]
    assert names_in(tmp_path) == ["disk", "keep.ledger", "train.py"]


def test_links_that_cannot_be_followed_are_refused_before_the_program_starts(tmp_path: Path) -> None:
    (tmp_path / "keep.ledger").symlink_to("keep.ledger")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "folder.ledger").symlink_to("thesis")
    for name in ("keep", "folder"):
        ended = recorded(["--", "touch", "started"], tmp_path, options=("--force", "--out", name))
        assert ended.status == UsageError.exit_code
        assert b"hint" in ended.stderr or b"will not remove it" in ended.stderr
    assert names_in(tmp_path) == ["folder.ledger", "keep.ledger", "thesis"]


def test_a_number_is_taken_by_a_link_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.ledger").symlink_to("nothing")
    assert choose_directory(None, force=False, stem="train") == Path("train-2.ledger")


@pytest.mark.torch
def test_an_estimate_that_fails_leaves_the_old_run(old: RunWriter, tmp_path: Path) -> None:
    write_script(tmp_path, "raise SystemExit(7)")
    command = [*quick.quick_gpuledger(), "estimate", "-q", "--gpu", "l4", "--out", "keep", "--force", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=600, check=False)
    assert done.returncode == 3
    assert find_run_id(old.path) == old.run_id
    assert names_in(tmp_path) == ["keep.ledger", "train.py"]


def test_an_import_that_fails_leaves_the_old_run(old: RunWriter, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("nothing of nvidia-smi")
    command = [*GPULEDGER, "import", "nvidia-smi", "log.txt", "--out", "keep", "--force"]
    assert subprocess.run(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL, check=False).returncode
    assert find_run_id(old.path) == old.run_id


def test_a_run_from_before_the_numbers_is_replaced_too(tmp_path: Path) -> None:
    (tmp_path / "keep.ledger").mkdir()
    (tmp_path / "keep.ledger" / "manifest.json").write_text(json.dumps({"schema_version": 1}))
    assert recorded(["--", "true"], tmp_path, options=FORCED).status == 0
    assert find_run_id(tmp_path / "keep.ledger") is not None
    assert os.listdir(tmp_path) == ["keep.ledger"]
