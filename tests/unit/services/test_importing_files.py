"""Importing files of older formats from Python, as ``gpuledger import`` does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from folders import DATA

from gpuledger.errors import InputError, UsageError
from gpuledger.services.imports import import_each
from gpuledger.services.runs import runs_inside

LOGS = DATA / "nvidia_smi"
NAMES = sorted(path.stem for path in LOGS.glob("*.txt"))


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    shutil.copy(LOGS / "memory_fft.txt", tmp_path)
    (tmp_path / "empty.txt").touch()
    files = [tmp_path / name for name in ("empty.txt", "memory_fft.txt")]
    not_read: list[str] = []
    found = list(import_each("nvidia-smi", files, {}, out=str(tmp_path / "runs"), not_read=not_read))
    assert [run.path for run in found] == [tmp_path / "runs" / "memory_fft.ledger"]
    assert len(not_read) == 1
    assert "empty.txt" in not_read[0]
    with pytest.raises(InputError, match=r"empty\.txt"):
        list(import_each("nvidia-smi", files[:1], {}, out=str(tmp_path / "none"), not_read=[]))
    assert not (tmp_path / "none.ledger").exists()


def test_places_are_chosen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(*paths: Path, out: str | None = None, force: bool = False) -> list[str]:
        return [run.path.name for run in import_each("nvidia-smi", paths, {}, out=out, force=force, not_read=[])]

    monkeypatch.chdir(tmp_path)
    log = LOGS / "memory_fft.txt"
    with pytest.raises(UsageError, match="would have the same name"):
        imported(log, tmp_path / log.name)
    Path("out.ledger").mkdir()
    (tmp_path / "out.ledger" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="already exists"):
        imported(log, out="out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.ledger"]
    assert imported(log, out="out", force=True) == ["out.ledger"]
    assert imported(log) == ["memory_fft.ledger"]
    assert imported(LOGS, out="all") == [f"{name}.ledger" for name in NAMES]


def test_a_folder_stands_for_what_is_in_it(tmp_path: Path) -> None:
    assert [Path(one).stem for one in runs_inside(str(LOGS))] == NAMES
    for name in ("b", "a"):
        (tmp_path / f"{name}.ledger").mkdir()
        (tmp_path / f"{name}.ledger" / "manifest.json").touch()
    assert runs_inside(str(tmp_path)) == [str(tmp_path / "a.ledger"), str(tmp_path / "b.ledger")]
    for itself in (tmp_path / "a.ledger", tmp_path / "absent"):
        assert runs_inside(str(itself)) == [str(itself)]
