"""Store how each rank's process ended, with its rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuledger.model.manifest import write_rank_manifest
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_writer import exit_status_of

if TYPE_CHECKING:
    from gpuledger.collect.launch.ends import ProcessEnd


def keep_ends(run: Run, ended: Mapping[int, ProcessEnd]) -> Run:
    """Return a run after writing into the manifests of its ranks when and how their processes ended.

    Args:
        run: The run.
        ended: Process id -> its end. Of another process, nothing is known.

    Raises:
        OSError: a manifest cannot be written.
    """
    for rank in run.ranks:
        end = None if rank.manifest.pid is None else ended.get(rank.manifest.pid)
        if end is None:
            continue
        exit_status, signal = (None, None) if end.status is None else exit_status_of(end.status)
        manifest = replace(rank.manifest, exit_status=exit_status, signal=signal, ended_ns=end.ended_ns)
        write_rank_manifest(rank.directory, manifest)
    return read_run(run.path)
