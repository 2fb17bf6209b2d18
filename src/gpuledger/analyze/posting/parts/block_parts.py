"""The parts of blocks that tensors of several modules share, such as buckets of gradients.

A part has a tensor's bytes. What is in no tensor, or where tensors of several modules overlap, belongs to the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.module_paths import ModulesAround
from gpuledger.analyze.posting.owners import block_at
from gpuledger.analyze.posting.rows import join, maybe
from gpuledger.model.accounts import CATEGORIES, IDENTITY_CATEGORY, Identity
from gpuledger.model.journal.reading import Journal

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.analyze.posting.device import DeviceHistory

_Range = tuple[int, int]
"""Offset and bytes."""
_Owner = tuple[int, int]
"""Ids of a module and of a name."""


def block_part_table(journal: Journal, histories: list[DeviceHistory]) -> pa.Table:
    """Return the ``block_parts`` table of all devices."""
    rows: list[tuple[int, int, int, int, int]] = []
    first = 0
    for history in histories:
        rows += [(first + block, *part) for block, part in _parts_of(journal, history)]
        first += int(history.lives.address.size)
    if not rows:
        return join("block_parts", [])
    block, module_id, name_id, offset_bytes, size_bytes = np.array(rows, dtype=np.int64).T
    columns: dict[str, Any] = {"block": block, "offset_bytes": offset_bytes, "bytes": size_bytes}
    columns |= {name: maybe(ids, ids < 0, "int32") for name, ids in (("module_id", module_id), ("name_id", name_id))}
    return join("block_parts", [columns])


def _parts_of(journal: Journal, history: DeviceHistory) -> list[tuple[int, tuple[int, int, int, int]]]:
    """Return row, module, name, offset and bytes of each part on one device, by row and offset.

    Only tensors of the kind that gave a block its category count: others are views of it for a while.
    """
    table, lives, owners = journal.tables["storage_parts"], history.lives, history.owners
    mine = table["device_idx"] == history.device_idx
    at = history.counts.index_of(table["alloc_count"][mine], table["free_count"][mine])
    block = block_at(lives, table["address"][mine], at)
    around = ModulesAround(journal.modules)
    seen: dict[int, dict[_Range, _Owner]] = {}
    for row, kind, *owner, offset, size in zip(block.tolist(), *_columns(table, mine), strict=True):
        if row < 0 or IDENTITY_CATEGORY.get(Identity(kind)) != CATEGORIES[int(owners.category[row])]:
            continue
        of_block = seen.setdefault(row, {})
        known = of_block.setdefault((offset, size), (owner[0], owner[1]))
        if known[0] != owner[0]:
            of_block[offset, size] = around.of(known[0], owner[0]), -1
    found: list[tuple[int, tuple[int, int, int, int]]] = []
    for row, tensors in sorted(seen.items()):
        whole_bytes, rest = int(lives.requested_bytes[row]), (int(owners.module_id[row]), int(owners.name_id[row]))
        if len({module for module, _ in tensors.values()}) > 1 and _fit(list(tensors), whole_bytes):
            found += [(row, part) for part in _with_gaps(tensors, whole_bytes, rest)]
    return found


def _columns(table: dict[str, NDArray[Any]], mine: NDArray[np.bool_]) -> list[list[int]]:
    names = ("kind", "module_id", "name_id", "offset_bytes", "bytes")
    return [table[name][mine].tolist() for name in names]


def _fit(ranges: list[_Range], whole_bytes: int) -> bool:
    """Return whether ranges do not overlap and are all inside a block."""
    end = 0
    for offset, size in sorted(ranges):
        if offset < end or size <= 0:
            return False
        end = offset + size
    return end <= whole_bytes


def _with_gaps(tensors: dict[_Range, _Owner], whole_bytes: int, rest: _Owner) -> list[tuple[int, int, int, int]]:
    """Return module, name, offset and bytes of each tensor of a block and of each gap between them, in their order."""
    found, end = [], 0
    for (offset, size), owner in [*sorted(tensors.items()), ((whole_bytes, 0), rest)]:
        if offset > end:
            found.append((*rest, end, offset - end))
        if size:
            found.append((*owner, offset, size))
        end = offset + size
    return found
