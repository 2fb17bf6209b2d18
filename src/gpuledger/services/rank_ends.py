"""Store how each rank's process ended, with its rank."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from gpuledger.model.flight_facts import HOST, FailedAllocation, KernelKill
from gpuledger.model.manifest import write_rank_manifest
from gpuledger.model.run import Rank, Run, read_run
from gpuledger.model.run_writer import exit_status_of
from gpuledger.services.program_end import KILLED, KernelKills, ProgramEnd

_UNKNOWN_NS = 1 << 63
"""Later than every time."""


def keep_ends(run: Run, end: ProgramEnd) -> Run:
    """Return a run after writing into the manifests of its ranks when, how and why their processes ended.

    Raises:
        OSError: a manifest cannot be written.
    """
    for rank in run.ranks:
        known = None if rank.manifest.pid is None else end.processes.get(rank.manifest.pid)
        if known is None and end.stopped_ns is None:
            continue
        manifest = replace(rank.manifest, stopped_ns=end.stopped_ns)
        if known is not None:
            exit_status, number = (None, None) if known.status is None else exit_status_of(known.status)
            manifest = replace(manifest, exit_status=exit_status, signal=number, ended_ns=known.ended_ns)
        write_rank_manifest(rank.directory, manifest)
    kept = read_run(run.path)
    if end.kills is None or not end.kills.processes or not end.status or not kept.ranks:
        return kept
    _keep_kills(kept.ranks, end.kills, end.status)
    return read_run(run.path)


def _keep_kills(ranks: Sequence[Rank], kills: KernelKills, status: int) -> None:
    """Store what the kernel ended as an out-of-memory error: that of the ranks that it ended, or of one beside them.

    No status shows who sent SIGKILL. Launchers send it to the ranks that are left, so the first ones are the kernel's.
    """
    in_order = sorted(ranks, key=lambda rank: rank.manifest.ended_ns or _UNKNOWN_NS)
    killed = [rank for rank in in_order if rank.manifest.signal == signal.SIGKILL]
    if not killed and status in KILLED:
        killed = [rank for rank in in_order if rank.manifest.exit_status is None]
    for rank in killed[: kills.processes]:
        _keep_kill(rank, kills, of_program=True)
    if not killed and (kills.at_limit or status in KILLED):
        failed = [rank for rank in in_order if rank.manifest.exit_status]
        _keep_kill((failed or in_order)[0], kills, of_program=False)


def _keep_kill(rank: Rank, kills: KernelKills, *, of_program: bool) -> None:
    used = {one.kind: one.bytes for one in rank.manifest.host_memory}
    failure = FailedAllocation(
        device_idx=HOST,
        total_bytes=kills.limit_bytes,
        allocated_bytes=used.get("resident"),
        t_ns=rank.manifest.ended_ns,
        killed=KernelKill(processes=kills.processes, of_program=of_program, at_limit=kills.at_limit),
    )
    write_rank_manifest(rank.directory, replace(rank.manifest, oom=(*rank.manifest.oom, failure)))
