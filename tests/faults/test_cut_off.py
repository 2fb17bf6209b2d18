"""A run that is killed, damaged or read too early: what is there is shown, what is not is named, nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from present import present
from programs import TRAIN, Ended, execute, manifest, write_script
from quick import quick_gpuledger, recorded

from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

READS_AND_DIES = (
    TRAIN
    + """
import os, subprocess, sys
from gpuledger.collect.session import active
read = "import gpuledger; print(gpuledger.load('train.ledger').rank().manifest.window.last_step)"
for number in range(1, 5):
    step()
    if number < 4:
        active.current().window.drain()
    if number < 3:
        subprocess.run([sys.executable, "-c", read], check=True)
model(torch.ones(8, 16))
os.kill(os.getpid(), 9)
"""
)
"""Writes a whole part after each step but the last, as long steps do, and dies in its fifth.

It is read after its first and its second one.
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """Return how the program ended, and its run."""
    directory = tmp_path_factory.mktemp("killed")
    write_script(directory, READS_AND_DIES)
    return recorded(["train.py"], directory, options=("--steps", "1:9")), directory / "train.ledger"


@pytest.fixture
def run(killed: tuple[Ended, Path], tmp_path: Path) -> Path:
    """Return a copy of the run as the killed program left it: its journal and nothing made from it."""
    copy = tmp_path / "train.ledger"
    shutil.copytree(killed[1], copy)
    for place in (copy / "rank-0").iterdir():
        if place.name != "journal":
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    return copy


def show(run: Path, *options: str) -> Ended:
    return execute([*quick_gpuledger(), "show", run.name, *options], run.parent)


def test_the_status_is_the_signals_and_the_end_is_told(killed: tuple[Ended, Path]) -> None:
    ended, run = killed
    assert ended.status == -9
    lines = ended.stderr.decode().splitlines()
    assert any(line.startswith("Peak memory ") for line in lines)
    assert "Steps 5 to 9 were not reached: the program ended after 4 steps" in ended.stderr.decode()
    kept = manifest(run)
    assert (kept["status"], kept["exit_status"], kept["signal"]) == ("complete", 137, 9)


def test_all_that_was_written_is_there(killed: tuple[Ended, Path]) -> None:
    rank = load(killed[1]).rank()
    assert (rank.manifest.status, rank.manifest.steps_seen, rank.manifest.damaged) == ("cut off", 4, ())
    assert present(rank.manifest.window).to_json() == {"first_step": 1, "last_step": 4, "asked": [1, 9]}
    assert [check for check in rank.manifest.checks if not check.ok] == []
    assert len(rank.manifest.checks) > 8


def test_a_run_under_way_is_read_as_far_as_it_is_and_goes_on(killed: tuple[Ended, Path]) -> None:
    assert killed[0].stdout == b"1\n2\n"
    assert present(load(killed[1]).rank().manifest.window).last_step == 4


def test_show_works_on_what_was_written(run: Path) -> None:
    ended = show(run, "--json")
    assert (ended.status, (run / "rank-0" / "manifest.json").is_file()) == (0, True)


@pytest.mark.parametrize(
    "harm",
    [lambda content: content[: len(content) // 2], lambda _: b"", lambda content: content[:200] + content[201:]],
    ids=["cut in half", "empty", "one byte lost"],
)
def test_a_damaged_journal_part_is_named_and_the_parts_before_it_kept(
    harm: Callable[[bytes], bytes], run: Path
) -> None:
    last = sorted((run / "rank-0" / "journal").iterdir())[-1]
    last.write_bytes(harm(last.read_bytes()))
    ended = show(run)
    assert ended.status == 0
    rank = manifest(run / "rank-0")
    assert [words.partition(":")[0] for words in rank["damaged"]] == [last.name]
    assert rank["window"]["last_step"] == 3
    assert [check for check in rank["checks"] if not check["ok"]] == []
    assert last.name.encode() in ended.stdout + ended.stderr


def test_a_journal_damaged_from_the_first_part_on_is_an_empty_run(run: Path) -> None:
    for part in (run / "rank-0" / "journal").iterdir():
        part.write_bytes(b"PK")
    ended = show(run)
    assert ended.stderr.startswith(b"gpuledger: error: train.ledger: no allocation was recorded\n")
    assert b"Traceback" not in ended.stderr


def test_a_table_cut_in_half_is_bad_input(run: Path) -> None:
    load(run)
    place = run / "rank-0" / "blocks" / "part-00000.parquet"
    place.write_bytes(place.read_bytes()[:100])
    ended = show(run)
    assert ended.status == 3
    assert b"rank-0/blocks/part-00000.parquet: damaged part" in ended.stderr


@pytest.mark.parametrize("where", [".", "rank-0"])
def test_a_newer_schema_is_bad_input(where: str, run: Path) -> None:
    load(run)
    place = run / where / "manifest.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"schema_version": SCHEMA_VERSION + 1}))
    ended = show(run)
    assert (ended.status, ended.stdout) == (3, b"")
    assert (
        f"schema version {SCHEMA_VERSION + 1}, but this gpuledger reads up to version {SCHEMA_VERSION}"
        in ended.stderr.decode()
    )


def test_a_run_whose_directory_cannot_be_written_is_still_read(run: Path) -> None:
    load(run)
    stamps = {place: place.stat().st_mtime_ns for place in run.rglob("*")}
    assert show(run).status == 0
    assert {place: place.stat().st_mtime_ns for place in run.rglob("*")} == stamps
