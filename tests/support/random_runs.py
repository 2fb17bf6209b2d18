"""Small runs drawn by hypothesis: any order of events, ties in time, blocks alive before, after and never freed."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from gpuledger.model.accounts import CATEGORIES, PHASES
from gpuledger.model.run import Rank, read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

PATHS = ("Net", "a", "a.b", "a.b.c", "d", "Other", "Other.e")
PARENTS = (None, 0, 1, 2, 0, None, 5)


@dataclass(frozen=True)
class Life:
    """One drawn block; times are whole numbers that may tie."""

    requested: int
    rounding: int
    category: str
    phase: str
    module: int
    name: int
    device: int
    before: bool
    born: int
    lasts: int | None
    waits: int | None


lives = st.lists(
    st.builds(
        Life,
        requested=st.integers(0, 1 << 40),
        rounding=st.integers(0, 1 << 21),
        category=st.sampled_from(CATEGORIES),
        phase=st.sampled_from(PHASES),
        module=st.integers(-1, len(PATHS)),
        name=st.integers(-1, 3),
        device=st.sampled_from((0, 0, 0, 1, -1)),
        before=st.booleans(),
        born=st.integers(0, 20),
        lasts=st.none() | st.integers(0, 10),
        waits=st.none() | st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)


def block_rows(drawn: list[Life]) -> list[dict[str, Any]]:
    """Return rows of ``blocks`` whose indices follow the drawn times, a distinct index for every event."""
    rows: list[dict[str, Any]] = [dict.fromkeys(TABLES["blocks"].column_names) for _ in drawn]
    for device in {life.device for life in drawn}:
        events: list[tuple[int, int, int, str]] = []
        for number, life in enumerate(drawn):
            if life.device != device:
                continue
            if not life.before:
                events.append((life.born, number, 0, "alloc"))
            if life.lasts is not None:
                events.append((life.born + life.lasts, number, 1, "free_requested"))
                if life.waits is not None:
                    events.append((life.born + life.lasts + life.waits, number, 2, "free"))
        for index, (time, number, _, kind) in enumerate(sorted(events)):
            rows[number][f"{kind}_index"], rows[number][f"{kind}_ns"] = index, 1_000 + time
    for number, (row, life) in enumerate(zip(rows, drawn, strict=True)):
        row["alloc_index"] = -1 if life.before else row["alloc_index"]
        row |= {
            "device_idx": life.device,
            "stream": 0,
            "address": number << 42,
            "requested_bytes": life.requested,
            "allocated_bytes": life.requested + (life.rounding if life.device >= 0 else 0),
            "step": 1,
            "phase": life.phase,
            "category": life.category,
            "module_id": None if life.module < 0 else life.module,
            "name_id": None if life.name < 0 else life.name,
        }
    return rows


def segment_rows(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one segment per block of a GPU, a little larger than it and never given back."""
    return [
        {
            "device_idx": row["device_idx"],
            "address": row["address"],
            "bytes": row["allocated_bytes"] + 512,
            "stream": 0,
            "pool": "large",
            "alloc_index": row["alloc_index"],
        }
        for row in blocks
        if row["device_idx"] >= 0
    ]


@contextmanager
def written(blocks: list[dict[str, Any]], **manifest: Any) -> Iterator[Rank]:
    """Yield the rank of a run with these blocks, written to disk and read back."""
    tables = {
        "blocks": blocks,
        "segments": segment_rows(blocks),
        "modules": [
            {
                "module_id": number,
                "parent_id": parent,
                "path": path,
                "class_name": path[-1],
                "root_id": 0,
                "depth": path.count("."),
                "compiled": False,
            }
            for number, (path, parent) in enumerate(zip(PATHS, PARENTS, strict=True))
        ],
        "names": [{"name_id": number, "name": f"name {number}"} for number in range(3)],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "drawn.ledger"
        (path / "rank-0").mkdir(parents=True)
        for name, rows in tables.items():
            write_table(path / "rank-0", to_table(name, rows), name)
        facts = {"schema_version": SCHEMA_VERSION, "rank": 0, "devices": [], **manifest}
        write_json(path / "rank-0" / "manifest.json", facts)
        write_json(path / "manifest.json", {"schema_version": SCHEMA_VERSION, "name": "drawn"})
        yield read_run(path).rank()


def to_table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as the Arrow table ``name``."""
    schema = TABLES[name].arrow_schema()
    return pa.table({f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in schema}, schema=schema)
