"""Runs in which a GPU was only watched: readings and one energy window, no blocks."""

from __future__ import annotations

from pathlib import Path

from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table, write_imported
from gpuledger.model.run import Run

SECOND_NS = 10**9


def watch_run(path: Path, used_bytes: list[int], energy_j: float | None = None) -> Run:
    """Return a run of one GPU, read once a second, and its energy window where ``energy_j`` is given."""
    samples = [{"t_ns": t * SECOND_NS, "device_idx": 0, "used_bytes": used} for t, used in enumerate(used_bytes)]
    window = {
        "device_idx": 0,
        "start_ns": 0,
        "end_ns": len(used_bytes) * SECOND_NS,
        "energy_j": energy_j,
        "uncertainty_j": 2.0,
        "ticks": 10,
    }
    tables = {
        "samples": rows_to_table("samples", samples),
        "windows": rows_to_table("windows", [] if energy_j is None else [window]),
    }
    rank = ImportedRank(0, tables, {"devices": [{"device_idx": 0, "name": "a card"}]}, ("The log has no times.",))
    return write_imported(ImportedRun(path.stem, "watch", (), (rank,)), path)
