"""The file that a journal's steps are appended to: what is read is what was written, as far as it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpuledger.model.journal import log
from gpuledger.model.journal.extent import is_posted
from gpuledger.model.journal.journal import COLUMNS, JournalWriter, Part
from gpuledger.model.journal.reading import journal_of, read_journal
from gpuledger.model.run_directory import write_json

STEPS = 5


def part_of(step: int) -> Part:
    """Return what a step could leave: scalars, lists, arrays, several batches, texts."""
    part = Part(names=[f"é{step}\udcff"], notes=[], facts={"steps_seen": step}, stacks=[[("a.py", step, "f")]])
    part.add("pauses", reason=2, start_ns=-1, duration_ns=1 << 60)
    for first in (0, 10):
        part.add("pauses", reason=[1], start_ns=[first, first + step], duration_ns=np.arange(2))
    part.add("ticks", t_ns=step, device_idx=True, energy_mj=2, reading_ns=3, throttled_ns=-1)
    part.add("windows", device_idx=0, name_id=-1, start_ns=1, end_ns=2, energy_j=1.5, uncertainty_j=[float("nan")],
             ticks=np.int64(3), throttled_ns=4)  # fmt: skip
    return part


def written(directory: Path) -> Path:
    writer = JournalWriter(directory)
    for step in range(STEPS):
        writer.append(part_of(step))
    return directory / "00000.log"


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    written(tmp_path)
    journal, expected = read_journal(tmp_path), journal_of(map(part_of, range(STEPS)))
    assert os.listdir(tmp_path) == ["00000.log"]
    assert journal.damaged == []
    assert (journal.names, journal.stacks, journal.facts) == (expected.names, expected.stacks, expected.facts)
    for table in COLUMNS:
        for column, values in expected.tables[table].items():
            np.testing.assert_array_equal(journal.tables[table][column], values)


def test_whole_parts_and_steps_keep_their_order(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    for number, write in enumerate([writer.append, writer.append, writer.write, writer.append, writer.write]):
        write(Part(notes=[str(number)]))
    assert read_journal(tmp_path).notes == ["0", "1", "2", "3", "4"]
    assert sorted(os.listdir(tmp_path)) == ["00000.log", "00001.npz", "00002.log", "00003.npz"]


def test_a_long_log_goes_on_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuledger.model.journal.journal.LARGEST_BYTES", 1000)
    writer = JournalWriter(tmp_path)
    for number in range(30):
        writer.append(Part(notes=[str(number)]))
    assert len(os.listdir(tmp_path)) > 2
    assert read_journal(tmp_path).notes == list(map(str, range(30)))


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("failure", [OSError(28, "no space"), KeyboardInterrupt()])
def test_what_could_not_be_written_is_not_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, failure: BaseException
) -> None:
    writer = JournalWriter(tmp_path)
    for _ in range(before):
        writer.append(Part(notes=["before"]))
    write = os.write

    def fail(place: int, content: bytes) -> int:
        write(place, content[:9])
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(type(failure)):
            writer.append(Part(notes=["lost"]))
    writer.append(Part(notes=["after"]))
    journal = read_journal(tmp_path)
    assert (journal.notes, journal.damaged) == (["before"] * before + ["after"], [])


@pytest.mark.parametrize("kept", range(STEPS))
def test_a_last_entry_that_was_cut_off_costs_itself_alone(tmp_path: Path, kept: int) -> None:
    whole = written(tmp_path).read_bytes()
    ends = [len(log.MAGIC)]
    for step in range(STEPS):
        other = tmp_path / str(step)
        JournalWriter(other).append(part_of(step))
        ends.append(ends[-1] + len((other / "00000.log").read_bytes()) - len(log.MAGIC))
    assert ends[-1] == len(whole)
    for size in {ends[kept] + 1, ends[kept] + 14, ends[kept + 1] - 1}:
        (tmp_path / "00000.log").write_bytes(whole[:size])
        journal = read_journal(tmp_path)
        assert journal.damaged == ["00000.log: damaged recording: the last entry is cut off"]
        assert (len(journal.names), journal.rows("ticks")) == (kept, kept)


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: b"",
        lambda content: content[:7],
        lambda content: b"X" + content[1:],
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
        lambda content: content[:200] + content[201:],
        lambda content: content + b"\xff" * 40,
        lambda content: content + log.pack_entry({}, {"ticks": 1 << 62}, []),
        lambda content: content + log.pack_entry({}, {"ticks": -1}, []),
        lambda content: content + log.pack_entry({}, {"no such table": 1}, []),
        lambda content: content + log.pack_entry({"names": 5}, {}, []),
    ],
)
def test_damage_is_named_and_what_lies_before_it_kept(harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    place = written(tmp_path)
    place.write_bytes(harm(place.read_bytes()))
    JournalWriter(tmp_path / "later").write(Part())
    journal = read_journal(tmp_path)
    assert len(journal.damaged) == 1
    assert journal.damaged[0].startswith("00000.log: damaged recording: ")
    assert journal.names == [f"é{step}\udcff" for step in range(journal.rows("ticks"))]


def test_an_entry_is_never_written_into_another_process_file(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(Part())
    before = written(tmp_path / "other").read_bytes()
    (tmp_path / "00000.log").unlink()
    with pytest.raises(FileNotFoundError):
        writer.append(Part())
    (tmp_path / "00000.log").write_bytes(before)
    with pytest.raises(OSError, match="another process has written to this file"):
        writer.append(Part())
    assert (tmp_path / "00000.log").read_bytes() == before


def test_a_columns_name_is_checked_as_in_a_whole_part() -> None:
    part = Part()
    part.add("pauses", reason=1, start_ns=2)
    with pytest.raises(ValueError, match="pauses: columns"):
        part.packed()


def test_a_log_that_has_grown_is_posted_again(tmp_path: Path) -> None:
    rank = tmp_path / "rank-0"
    writer = JournalWriter(rank / "journal")
    writer.append(Part())
    size_bytes = (rank / "journal" / "00000.log").stat().st_size
    write_json(rank / "manifest.json", {"schema_version": 1, "journal_parts": 1, "journal_bytes": size_bytes})
    assert is_posted(rank)
    writer.append(Part())
    assert not is_posted(rank)
