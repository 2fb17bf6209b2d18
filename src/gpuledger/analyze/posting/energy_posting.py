"""Build the ``windows`` table from an energy measurement: its start and end times, and the samples of its GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.analyze.posting.pass_energy import CardReadings, measure_pass, readings_of
from gpuledger.model.energy_window import ENERGY_JOURNAL, ENERGY_PASS
from gpuledger.model.journal.checks import read_checked
from gpuledger.model.journal.reading import Journal
from gpuledger.model.manifest import RankManifest, with_notes, write_rank_manifest
from gpuledger.model.pass_facts import PassEnergy
from gpuledger.model.run import read_ranks, write_table
from gpuledger.model.run_directory import SAMPLE_JOURNALS
from gpuledger.model.schema.tables import TABLES

_PART = 1
"""Part 0 of ``windows`` comes from the rank's own journal."""


def post_energy(run_directory: Path) -> list[Path]:
    """Return the directories of the ranks with new energies. Writes their ``windows`` and ``energy``.

    Raises:
        OSError: the tables cannot be written.
    """
    place = run_directory / SAMPLE_JOURNALS / ENERGY_JOURNAL
    journal = read_checked(place) if place.is_dir() else None
    posted = []
    for _, directory, manifest in read_ranks(run_directory):
        edges = manifest.energy_pass
        if edges is None or manifest.energy is not None:
            continue
        if None in (edges.first_step, edges.last_step, edges.start_ns, edges.end_ns):
            manifest = with_notes(
                manifest, "The energy measurement was cut off: its process was killed, or is still running."
            )
            write_rank_manifest(directory, replace(manifest, energy=()))
            continue
        found = [measure_pass(device_idx, edges, _readings(journal, uuid)) for device_idx, uuid in edges.cards]
        write_table(directory, _window_rows(found), "windows", _PART)
        manifest = with_notes(manifest, *(note for one in found for note in one.notes), *_of_other_training(manifest))
        write_rank_manifest(directory, replace(manifest, energy=tuple(found)))
        if any(one.energy_j is not None for one in found):
            posted.append(directory)
    return posted


def _of_other_training(manifest: RankManifest) -> list[str]:
    """Return a note if other steps than those of the profiled training were measured, too."""
    edges, times = manifest.energy_pass, manifest.time_steps
    if edges is None or edges.first_step is None or edges.last_step is None:
        return []
    first, last = edges.first_step, edges.last_step
    mine = manifest.training_of(first if times is None else times[0])
    other = manifest.leaves_training(mine, first, last)
    if other is None:
        return []
    return [f"The energy of steps {first} to {last} was measured. From step {other} on, another optimizer steps."]


def _readings(journal: Journal | None, uuid: str) -> CardReadings | None:
    uuids = [] if journal is None else journal.facts.get("card_uuids") or []
    return readings_of(journal, uuids.index(uuid)) if journal is not None and uuid in uuids else None


def _window_rows(found: list[PassEnergy]) -> Any:
    import pyarrow as pa

    rows = [
        {
            "device_idx": one.device_idx,
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
            "energy_j": one.energy_j,
            "uncertainty_j": one.uncertainty_j,
            "name": ENERGY_PASS,
            "ticks": one.ticks,
            "throttled_ns": one.throttled_ns,
        }
        for one in found
    ]
    return pa.Table.from_pylist(rows, TABLES["windows"].arrow_schema())
