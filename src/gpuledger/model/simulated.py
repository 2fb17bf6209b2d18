"""Runs on a simulated GPU: nothing ran, so host times say nothing, and the GPU's name says that it is simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.model.manifest import RankManifest

SIMULATED = " (simulated)"


def as_simulated(manifest: RankManifest) -> RankManifest:
    """Return the manifest of a simulated rank without pauses, and with "simulated" behind the name of every GPU.

    Other manifests are returned unchanged.
    """
    if manifest.recorder.has_measured_times:
        return manifest
    devices = tuple(
        replace(one, name=one.name.removesuffix(SIMULATED) + SIMULATED) if one.name and one.device_idx >= 0 else one
        for one in manifest.devices
    )
    return replace(manifest, devices=devices, pauses=())


def without_times(table: pa.Table, name: str) -> pa.Table:
    """Return table ``name`` without times, as an imported file that has none: null, or 0 where it must not be."""
    import pyarrow as pa

    untimed = {column.name: column.nullable for column in TABLES[name].columns if column.unit == "ns"}
    for place, column in enumerate(table.schema):
        if column.name in untimed:
            values = pa.nulls(table.num_rows, column.type)
            table = table.set_column(place, column, values if untimed[column.name] else values.fill_null(0))
    return table
