"""A few lines of training recorded in this process, and its blocks in words."""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  what the first optimizer would load, before conftest.py sets aside what is loaded

from gpuledger import record
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import Rank
from gpuledger.model.schema.tables import TABLES


@dataclass(frozen=True)
class Block:
    """One block's life in words; "" and None stand for what it has not."""

    category: str
    module: str
    name: str
    phase: str
    step: int
    bytes: int
    alloc_index: int
    free_index: int | None
    address: int
    scope: str = ""

    @property
    def kept(self) -> bool:
        """Return whether it was alive when the recording ended."""
        return self.free_index is None


@dataclass(frozen=True)
class Recorded:
    """A finished recording: its manifest, its blocks, and every table as rows."""

    manifest: RankManifest
    blocks: tuple[Block, ...]
    tables: dict[str, list[dict[str, Any]]]

    def of(self, category: str, **words: Any) -> list[Block]:
        """Return the blocks of a category that also have these words."""
        return [b for b in self.blocks if b.category == category and all(getattr(b, k) == v for k, v in words.items())]

    def kept_names(self, category: str) -> Counter[str]:
        """Return how many blocks of a category each name has at the end."""
        return Counter(b.name for b in self.of(category) if b.kept)

    def bytes_of(self, category: str, *, kept: bool = True) -> int:
        """Return the bytes of a category at the end, or of all its blocks."""
        return sum(b.bytes for b in self.of(category) if b.kept or not kept)

    @property
    def paths(self) -> list[str]:
        """Return every module's path."""
        return [row["path"] for row in self.tables["modules"]]

    @property
    def steps(self) -> list[tuple[int, str, bool]]:
        """Return number, kind and "was it recorded" of every step."""
        return [(row["step"], row["kind"], row["recorded"]) for row in self.tables["steps"]]

    @property
    def phases(self) -> list[tuple[int, str]]:
        """Return step and phase of every stay in a phase that allocated or freed something."""
        return [(row["step"], row["phase"]) for row in self.tables["spans"]]


def scopes_by_size(recorded: Recorded, *phases: str) -> dict[int, set[str]]:
    """Return the scopes of the blocks of each number of floats, of those made in ``phases``."""
    found: dict[int, set[str]] = {}
    for block in recorded.blocks:
        if block.phase in phases and block.alloc_index >= 0:
            found.setdefault(block.bytes // 4, set()).add(block.scope)
    return found


def record_run(function: Callable[[Any], Any], **options: Any) -> Recorded:
    """Return the recording of ``function(recording)`` on CPU tensors; what it returns is kept alive until the end."""
    gc.collect()  # what another test left over is alive, too
    with tempfile.TemporaryDirectory() as directory:
        with record(out=Path(directory) / "run", devices="cpu", **options) as recording:
            keep = function(recording)
        del keep
        return read_recorded(recording.run().rank())


def record_own(function: Callable[[Any], Any], **options: Any) -> Recorded:
    """Return a recording with the blocks of ``function`` alone: other tests' tensors can be alive in this process."""
    found = record_run(function, **options)
    return replace(found, blocks=tuple(block for block in found.blocks if block.alloc_index >= 0))


def read_recorded(rank: Rank) -> Recorded:
    """Return a rank's tables in words, read whole."""
    tables = {name: rank.table(name).to_pylist() for name in TABLES}
    return Recorded(rank.manifest, tuple(_blocks(tables)), tables)


def _blocks(tables: dict[str, list[dict[str, Any]]]) -> list[Block]:
    paths = {row["module_id"]: row["path"] for row in tables["modules"]}
    names = {row["name_id"]: row["name"] for row in tables["names"]}
    return [
        Block(
            category=row["category"],
            module=paths.get(row["module_id"], ""),
            name=names.get(row["name_id"], ""),
            phase=row["phase"],
            step=row["step"],
            bytes=row["requested_bytes"],
            alloc_index=row["alloc_index"],
            free_index=row["free_requested_index"],
            address=row["address"],
            scope=names.get(row["scope_id"], ""),
        )
        for row in tables["blocks"]
    ]
