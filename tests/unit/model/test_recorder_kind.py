"""What a kind of recorder is said to have is in the tables that it makes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from card_recordings import post_recording
from folders import DATA

from gpuledger.formats.readers import FORMATS, read_files
from gpuledger.model.imported import write_imported
from gpuledger.model.recorder_kind import RecorderKind
from gpuledger.model.run import Rank

FILES = {
    "memory-csv": DATA / "memory_csv" / "20200405120000.csv",
    "mxnet": DATA / "mxnet" / "mxnet_gpu_memory_profiler.csv",
    "tbd-log": DATA / "tbd" / "sockeye.log",
}


@pytest.fixture(scope="module", params=["cuda-history", *FILES])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[RecorderKind, Rank]]:
    """Return a kind, and a rank that it made."""
    with tempfile.TemporaryDirectory() as directory:
        if request.param in FILES:
            imported = read_files(request.param, [FILES[request.param]], "imported", {})
            rank = write_imported(imported, Path(directory) / "imported.ledger").rank()
        else:
            rank = post_recording("gan", Path(directory))
        yield RecorderKind(request.param), rank


def test_a_rank_knows_what_made_it(made: tuple[RecorderKind, Rank]) -> None:
    kind, rank = made
    assert rank.manifest.recorder is kind
    assert rank.manifest.recorder_name == kind.value


def test_what_is_said_to_be_there_is_there(made: tuple[RecorderKind, Rank]) -> None:
    kind, rank = made
    blocks = rank.table("blocks")
    inside = [row for row in blocks.to_pylist() if row["alloc_index"] >= 0]
    if kind.has_segments:
        assert rank.table("segments").num_rows
    assert kind.has_tags == (kind in (RecorderKind.MXNET, RecorderKind.TBD_LOG))
    if kind.has_tags:
        assert all(row["name_id"] is not None for row in inside)


def test_every_format_is_a_kind() -> None:
    assert all(RecorderKind(name) is not RecorderKind.UNKNOWN for name in FORMATS)
