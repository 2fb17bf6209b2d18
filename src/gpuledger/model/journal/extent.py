"""Where a rank's journal is, and whether the rank's tables cover it."""

from __future__ import annotations

from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.model.journal.log import journal_files
from gpuledger.model.manifest import read_rank_manifest
from gpuledger.model.run_directory import MANIFEST

JOURNAL_DIRECTORY = "journal"


def is_posted(rank_directory: Path) -> bool:
    """Return whether the tables cover the whole journal. A process that still runs can have written more since.

    Raises:
        InputError: the rank's manifest is damaged.
    """
    if not (rank_directory / MANIFEST).is_file():
        return False
    files, size_bytes = journal_extent(rank_directory)
    manifest = read_rank_manifest(rank_directory)
    has_all_files = manifest.journal_parts is None or manifest.journal_parts >= files
    return has_all_files and (manifest.journal_bytes is None or manifest.journal_bytes >= size_bytes)


def journal_extent(rank_directory: Path) -> tuple[int, int]:
    """Return the number of a journal's files and their total bytes. The last file can still grow."""
    files = journal_files(rank_directory / JOURNAL_DIRECTORY)
    return len(files), sum(place.stat().st_size for place in files)


def has_new_journal(rank_directory: Path) -> bool:
    """Return whether a rank has a journal that its tables do not cover.

    False where the manifest is damaged, which is said where the run is read.
    """
    if not (rank_directory / JOURNAL_DIRECTORY).is_dir():
        return False
    try:
        return not is_posted(rank_directory)
    except InputError:
        return False
