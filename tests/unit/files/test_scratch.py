"""Temporary directories of results are removed with the result, with its process, and without a result."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

from gpuledger.files.scratch import block_directory, process_directory, remove, remove_all, scratch_directory


def made_in(directory: Path) -> list[str]:
    """Return the names in a directory, without the one that torch makes."""
    return [name for name in os.listdir(directory) if not name.startswith("torchinductor")]


class Owner:
    """What reads the directory."""


def test_a_directory_stays_as_long_as_its_owner() -> None:
    owner = Owner()
    with scratch_directory() as (directory, keep_with):
        keep_with(owner)
    (directory / "file").write_text("kept")
    gc.collect()
    assert (directory / "file").read_text() == "kept"
    del owner
    gc.collect()
    assert not directory.exists()


def test_a_directory_of_several_owners_stays_as_long_as_the_last_of_them() -> None:
    owners = [Owner(), Owner(), Owner()]
    with scratch_directory() as (directory, keep_with):
        keep_with(*owners)
    for _ in range(2):
        owners.pop()
        gc.collect()
        assert directory.exists()
    owners.pop()
    gc.collect()
    assert not directory.exists()


def test_without_an_owner_it_is_removed_at_once() -> None:
    with pytest.raises(ValueError, match="no result"), scratch_directory() as (directory, _):
        raise ValueError("no result")
    assert not directory.exists()


def assert_removed_at_its_end_only(program: str) -> None:
    """Run a program that prints whether its directory is there, and which it is. It is gone when the program ended."""
    told = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    was_there, place = told.stdout.split()
    assert was_there == "True"
    assert not Path(place).exists()


def test_it_is_removed_when_the_process_ends_but_not_by_a_fork_of_it() -> None:
    program = """
        import os, sys
        from gpuledger.files.scratch import scratch_directory
        class Owner: pass
        owner = Owner()
        with scratch_directory() as (directory, keep_with):
            keep_with(owner)
        if not (child := os.fork()):
            sys.exit()
        os.waitpid(child, 0)
        print(directory.is_dir(), directory)
    """
    assert_removed_at_its_end_only(program)


def test_a_directory_of_a_process_is_not_removed_by_its_fork() -> None:
    program = """
        import os, sys
        from gpuledger.files.scratch import process_directory
        directory = process_directory()
        if not (child := os.fork()):
            sys.exit()
        os.waitpid(child, 0)
        print(directory.is_dir(), directory)
    """
    assert_removed_at_its_end_only(program)


def test_nothing_is_done_at_the_end_of_a_process_without_a_directory() -> None:
    program = """
        import atexit
        import gpuledger.files.scratch as scratch
        counts = [atexit._ncallbacks()]
        for _ in range(2):
            scratch.process_directory()
            counts.append(atexit._ncallbacks())
        print(*(count - counts[0] for count in counts))
    """
    lines = "\n".join(line[8:] for line in program.splitlines())
    told = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert told.stdout == "0 1 1\n"


def test_all_directories_of_a_process_can_be_removed_at_once(tmp_path: Path) -> None:
    with block_directory(beside=tmp_path) as block:
        kept = process_directory("kept-", tmp_path)
        assert {block, kept} == set(tmp_path.iterdir())
        remove_all()
        assert not list(tmp_path.iterdir())
    remove(kept)  # twice is no error


def test_a_directory_of_a_block_is_removed_with_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no result"), block_directory(beside=tmp_path):
        raise ValueError("no result")
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_an_estimate_leaves_no_directory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import gpuledger

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = torch.nn.Linear(8, 8)
    found = gpuledger.estimate(lambda data: model(data).sum().backward(), torch.ones(2, 8), steps=1)
    assert found.run.path.is_relative_to(tmp_path)
    assert found.peak_step == 1
    del found
    gc.collect()
    assert made_in(tmp_path) == []
    with pytest.raises(ZeroDivisionError):
        gpuledger.estimate(lambda: 1 / 0, steps=1)
    assert made_in(tmp_path) == []
    kept = gpuledger.estimate(
        lambda data: model(data).sum().backward(), torch.ones(2, 8), steps=1, out=tmp_path / "run.ledger"
    )
    del kept
    gc.collect()
    assert made_in(tmp_path) == ["run.ledger"]
