"""The journal: what is written is read, what is damaged ends the reading and is named, nothing else happens."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.errors import InputError
from gpuledger.model.journal.journal import COLUMNS, JOURNAL_VERSION, JournalWriter, Part
from gpuledger.model.journal.reading import read_journal
from gpuledger.model.schema.tables import TABLES

HOSTILE = ["a\0b", "\ud800 lone", "</script>", "😀" * 100, "", "\n", "ß.weight", "\u202e"]

whole = st.integers(-(1 << 63), (1 << 63) - 1)


def row(table: str, number: int = 0) -> dict[str, int]:
    return dict.fromkeys(COLUMNS[table], number)


def write(directory: Path, *parts: Part) -> list[Path]:
    writer = JournalWriter(directory)
    for part in parts:
        writer.write(part)
    return sorted(directory.iterdir())


@settings(max_examples=40)
@given(
    batches=st.lists(
        st.tuples(st.sampled_from(sorted(COLUMNS)), st.lists(st.integers(-1, 100), min_size=1)), max_size=12
    ),
    texts=st.lists(st.text(st.characters(exclude_categories=())), max_size=5),
    cut=st.integers(0, 12),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[str, list[int]]], texts: list[str], cut: int
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    parts = [Part(), Part()]
    for number, (table, values) in enumerate(batches):
        given_columns = dict.fromkeys(COLUMNS[table], values)
        first = next(iter(given_columns))
        parts[number >= cut].add(table, **{**given_columns, first: values})
    parts[0].names = parts[1].notes = texts
    parts[1].stacks = [[(text, 3, text)] for text in texts]
    parts[0].facts, parts[1].facts = {"a": 1, "b": 1}, {"b": 2}
    write(directory, *parts)
    journal = read_journal(directory)
    order = [b for n, b in enumerate(batches) if n < cut] + [b for n, b in enumerate(batches) if n >= cut]
    for table, columns in COLUMNS.items():
        expected = [value for name, values in order if name == table for value in values]
        for column, dtype in columns.items():
            assert journal.tables[table][column].tolist() == np.array(expected, dtype).tolist()
            assert journal.tables[table][column].dtype == np.dtype(dtype)
    assert (journal.names, journal.notes, journal.facts) == (texts, texts, {"a": 1, "b": 2})
    assert journal.stacks == [[(text, 3, text)] for text in texts]
    assert journal.damaged == []


def test_scalars_are_spread_over_a_batch_and_wrong_columns_are_refused() -> None:
    part = Part()
    part.add("events", **{**row("events"), "bytes": [1, 2, 3]})
    assert part.arrays()["events.address"].tolist() == [0, 0, 0]
    part.add("steps", step=1)
    with pytest.raises(ValueError, match=r"steps: columns .*kind.* missing or unknown"):
        part.arrays()


def test_a_part_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path)
    writer.write(Part())

    def full(stream: io.BufferedWriter, **_: object) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(Part())
    assert [path.name for path in tmp_path.iterdir()] == ["00000.npz"]


def three_parts(directory: Path) -> list[Path]:
    parts = [Part(), Part(), Part()]
    for number, part in enumerate(parts):
        part.add("events", **{**row("events", number), "bytes": [number] * 5})
        part.names = [f"name {number}"]
    return write(directory, *parts)


@pytest.mark.parametrize("kept", [0, 1, 30, 0.5, 0.9, -1])
def test_a_truncated_part_ends_the_reading_and_is_named(tmp_path: Path, kept: float) -> None:
    place = three_parts(tmp_path)[1]
    content = place.read_bytes()
    place.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)])
    journal = read_journal(tmp_path)
    assert journal.names == ["name 0"]
    assert journal.tables["events"]["address"].tolist() == [0] * 5
    assert len(journal.damaged) == 1
    assert journal.damaged[0].startswith("00001.npz: damaged recording")


def test_any_flipped_byte_is_read_or_named_and_never_raises(tmp_path: Path) -> None:
    place = three_parts(tmp_path)[1]
    content = place.read_bytes()
    for at in range(0, len(content), 7):
        place.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        journal = read_journal(tmp_path)
        assert bool(journal.damaged) == (len(journal.names) == 1), at


def replace_text(place: Path, text: object) -> None:
    with zipfile.ZipFile(place) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(json.dumps(text).encode(), dtype=np.uint8))
    with zipfile.ZipFile(place, "w") as archive:
        for name, content in {**members, "text.npy": stream.getvalue()}.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("text", [{"journal_version": JOURNAL_VERSION + 1}, {}, [], None, {"journal_version": "1"}])
def test_another_version_is_refused(tmp_path: Path, text: object) -> None:
    replace_text(three_parts(tmp_path)[1], text)
    journal = read_journal(tmp_path)
    assert journal.names == ["name 0"]
    assert "recording version" in journal.damaged[0]


def test_a_part_that_lacks_its_lists_is_damaged(tmp_path: Path) -> None:
    replace_text(three_parts(tmp_path)[1], {"journal_version": JOURNAL_VERSION})
    assert "damaged" in read_journal(tmp_path).damaged[0]


def test_hostile_names_reach_the_tables(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    part = Part(names=HOSTILE, stacks=[[(name, 1, name)] for name in HOSTILE], notes=HOSTILE)
    part.modules = [
        {"path": n, "class_name": n, "parent": -1, "root": i, "parameters": 1, "compiled": False}
        for i, n in enumerate(HOSTILE)
    ]
    part.facts["closed"] = "end"
    write(tmp_path / "rank-0" / "journal", part)
    post_rank(tmp_path / "rank-0")
    safe = [name.encode("utf-8", "backslashreplace").decode() for name in HOSTILE]
    assert pq.read_table(tmp_path / "rank-0" / "names")["name"].to_pylist() == safe
    assert pq.read_table(tmp_path / "rank-0" / "modules")["class_name"].to_pylist() == safe
    assert pq.read_table(tmp_path / "rank-0" / "stacks")["file"].to_pylist() == safe


@pytest.mark.parametrize("parts", [[], [Part()], [Part(facts={"closed": "exit"})]], ids=["none", "empty", "closed"])
def test_a_journal_without_events_is_posted(tmp_path: Path, parts: list[Part]) -> None:
    (tmp_path / "rank-3" / "journal").mkdir(parents=True)
    write(tmp_path / "rank-3" / "journal", *parts)
    manifest = post_rank(tmp_path / "rank-3")
    assert manifest.rank == 3
    assert manifest.status == ("closed" if parts and parts[0].facts else "cut off")
    assert bool(manifest.notes) == (manifest.status == "cut off")
    for name in ("blocks", "segments", "steps", "spans", "counters", "modules", "names", "stacks"):
        assert name in TABLES
        assert (tmp_path / "rank-3" / name / "part-00000.parquet").is_file()


def test_writing_empties_what_was_waiting(tmp_path: Path) -> None:
    claims = []
    journal = RankJournal(lambda: claims.append(1) or tmp_path, [])
    assert claims == []
    journal.note("once")
    journal.pause("drain", 0)
    journal.write()
    journal.write()
    assert journal.part.rows == {}
    read = read_journal(tmp_path / "journal")
    assert read.notes == ["once"]
    assert read.rows("pauses") == 1
    assert claims == [1]


def test_an_unreadable_directory_is_no_journal(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "missing").rows("events") == 0
    (tmp_path / "00000.npz").mkdir()
    assert len(read_journal(tmp_path).damaged) == 1


def test_a_part_s_error_is_one_of_ours(tmp_path: Path) -> None:
    from gpuledger.model.journal.reading import _read_part

    (tmp_path / "00000.npz").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(InputError, match="damaged recording"):
        _read_part(tmp_path / "00000.npz")
