"""Recordings of a real GPU as journals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from folders import RECORDINGS

from gpuledger.analyze.posting.posting import post_rank
from gpuledger.model.run import Rank

RECORDED = tuple(sorted(place.stem for place in RECORDINGS.glob("*.npz")))


def post_recording(name: str, directory: Path, recordings: Path = RECORDINGS) -> Rank:
    """Return a recording posted below ``directory``."""
    rank_directory = directory / f"{name}.ledger" / "rank-0"
    record_journal(name, rank_directory, recordings)
    return Rank(0, rank_directory, post_rank(rank_directory))


def record_journal(name: str, rank_directory: Path, recordings: Path = RECORDINGS) -> None:
    """Write a recording into the directory of a rank, without its tables."""
    (rank_directory / "journal").mkdir(parents=True)
    shutil.copy(recordings / f"{name}.npz", rank_directory / "journal" / "00000.npz")


def about(name: str) -> dict[str, Any]:
    """Return what the recorded program printed itself, and what it ran on."""
    facts: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return facts
