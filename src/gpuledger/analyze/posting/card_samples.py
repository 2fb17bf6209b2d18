"""Copy the GPU samples that the parent process took to the ranks that use those GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.rows import process_sample_table, sample_table
from gpuledger.model.journal.checks import read_checked
from gpuledger.model.journal.reading import Journal
from gpuledger.model.manifest import RankManifest, write_rank_manifest
from gpuledger.model.run import read_ranks, write_table
from gpuledger.model.run_directory import SAMPLE_JOURNALS

_FIRST_PART = 1
"""Part 0 contains the rank's own samples, read together with the allocator's counters."""

_NOBODYS = -2
"""Index of a GPU that the rank does not use."""


def post_card_samples(run_directory: Path) -> None:
    """Write the parent's samples of its GPUs into every rank with tables, as further parts of both sample tables.

    Raises:
        OSError: the tables cannot be written.
    """
    journals = sorted((run_directory / SAMPLE_JOURNALS).glob("*"))
    if not journals:
        return
    parts = sum(1 for place in journals for _ in place.glob("*.npz"))
    for directory, manifest, devices in _ranks(run_directory):
        if manifest.sample_parts is not None and manifest.sample_parts >= parts:
            continue
        for number, place in enumerate(journals, _FIRST_PART):
            journal = _of_rank(read_checked(place), devices)
            write_table(directory, sample_table(journal), "samples", number)
            write_table(directory, process_sample_table(journal), "process_samples", number)
        write_rank_manifest(directory, replace(manifest, sample_parts=parts))


def _ranks(run_directory: Path) -> Iterator[tuple[Path, RankManifest, dict[str, int]]]:
    """Yield directory and manifest of each rank with tables and GPUs, and UUID -> torch's index of its GPUs."""
    for _, directory, manifest in read_ranks(run_directory):
        devices = {one.uuid: one.device_idx for one in manifest.devices if one.uuid}
        devices |= {uuid: device_idx for device_idx, uuid in manifest.energy_pass.cards} if manifest.energy_pass else {}
        if devices:
            yield directory, manifest, devices


def _of_rank(journal: Journal, devices: dict[str, int]) -> Journal:
    """Return the rows of a rank's own GPUs, with torch's index."""
    uuids = journal.facts.get("card_uuids") or []
    index_of = np.array([devices.get(uuid, _NOBODYS) for uuid in uuids], dtype=np.int32)
    return replace(
        journal,
        tables={
            **journal.tables,
            **{name: _renumbered(journal.tables[name], index_of) for name in ("samples", "sensors", "process_samples")},
        },
    )


def _renumbered(table: dict[str, NDArray[Any]], index_of: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    card = table["device_idx"]
    is_known = (card >= 0) & (card < index_of.size)
    device_idx = np.full(card.size, _NOBODYS, np.int32)
    device_idx[is_known] = index_of[card[is_known]]
    own = device_idx != _NOBODYS
    return {**{name: column[own] for name, column in table.items()}, "device_idx": device_idx[own]}
