"""A block that tensors of several modules share counts as its parts, which sum to the block at every instant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuledger.analyze.memory.lifetimes import read_labels, read_lives, read_numbers
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import KeptRank
from gpuledger.model.schema.tables import TABLES

BLOCKS = ((-1, 700, 1024, 4), (0, 300, 512, 5), (-1, 50, 512, 6))
"""Device, requested and allocated bytes, and module."""
Part = tuple[int, int | None, int, int]
"""Block, module, offset and bytes."""


def rank_of(*parts: Part) -> KeptRank:
    schema = TABLES["blocks"].arrow_schema()
    missing: dict[str, Any] = {field.name: None if field.nullable else 0 for field in schema}
    missing |= {"phase": "setup", "category": "gradient"}
    rows = [
        missing | {"device_idx": device, "requested_bytes": asked, "allocated_bytes": given, "module_id": module}
        for device, asked, given, module in BLOCKS
    ]
    names = ("block", "module_id", "offset_bytes", "bytes")
    tables = {
        "blocks": pa.Table.from_pylist(rows, schema),
        "block_parts": pa.Table.from_pylist(
            [dict(zip(names, part, strict=True)) for part in parts], TABLES["block_parts"].arrow_schema()
        ),
    }
    return KeptRank(0, Path(), RankManifest.from_json({"schema_version": 1, "rank": 0}), tables=tables)


WHOLE: tuple[Part, ...] = ((0, 8, 100, 500), (0, 7, 0, 100), (0, None, 600, 100))


def test_each_part_has_its_module_and_its_bytes() -> None:
    rank = rank_of(*WHOLE)
    assert read_numbers(rank, "blocks", "module_id", -1).tolist() == [7, 8, -1, 6]
    lives = read_lives(rank, -1)
    assert lives.requested_bytes.tolist() == [100, 500, 100, 50]
    assert lives.allocated_bytes.tolist() == [100, 500, 424, 512]
    codes, words = read_labels(rank, "blocks", "category", -1)
    assert [words[code] for code in codes] == ["gradient"] * 4
    assert read_numbers(rank, "blocks", "module_id", 0).tolist() == [5]


def test_parts_of_the_last_block_alone() -> None:
    lives = read_lives(rank_of((2, 1, 0, 20), (2, 2, 20, 30)), -1)
    assert lives.allocated_bytes.tolist() == [1024, 20, 492]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        WHOLE[:2],  # a gap
        [*WHOLE[:2], (0, None, 600, 99)],  # not to the end
        [*WHOLE[:2], (0, None, 599, 101)],  # an overlap
        [(0, 7, 0, 700), (0, 8, 700, 0)],  # no bytes
        [(0, 7, -5, 705)],
        [(3, 7, 0, 700)],  # no such block
        [(-1, 7, 0, 50)],
    ],
)
def test_parts_that_are_not_a_whole_block_are_ignored(parts: list[Part]) -> None:
    lives = read_lives(rank_of(*parts), -1)
    assert lives.allocated_bytes.tolist() == [1024, 512]


def test_damaged_parts_do_not_affect_other_blocks() -> None:
    rank = rank_of(*WHOLE, (2, 1, 10, 40))
    assert read_numbers(rank, "blocks", "module_id", -1).tolist() == [7, 8, -1, 6]
    assert np.array_equal(read_lives(rank, -1).requested_bytes, [100, 500, 100, 50])
