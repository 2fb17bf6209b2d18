"""The self-test: small tensors computed on each device, recorded, and every byte found again.

``gpuledger doctor`` runs it as a child job, so that a torch that crashes or hangs is a finding and not the end.
``python -m gpuledger.services.selftest`` prints its outcome.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.processes.child_job import serve_job

if TYPE_CHECKING:
    from gpuledger.model.run import Run


@dataclass(frozen=True)
class DeviceFindings:
    """What was made on one device and what of it the recording holds; ``missing`` names the rest."""

    device: str
    recorder: str
    tensors: int
    made_bytes: int
    found_bytes: int
    missing: tuple[str, ...]
    error: str | None = None


def examine_devices(_order: dict[str, Any], _arguments: list[str]) -> dict[str, Any]:
    """Return what torch is here, and the self-test of each device."""
    document: dict[str, Any] = {"torch_version": None, "devices": []}
    try:
        from gpuledger.collect.session.self_test_workload import describe_torch

        document |= describe_torch()
        with tempfile.TemporaryDirectory(prefix="gpuledger-selftest-") as directory:
            devices = ["cpu", *(f"cuda:{number}" for number in range(document["device_count"]))]
            document["devices"] = [asdict(_tested(device, Path(directory))) for device in devices]
    except ImportError as error:
        document["import_error"] = str(error)
    return document


def _tested(device: str, directory: Path) -> DeviceFindings:
    try:
        return run_selftest(device, directory)
    except Exception as error:
        return DeviceFindings(device, "", 0, 0, 0, (), f"{type(error).__name__}: {error}")


def run_selftest(device: str, directory: Path) -> DeviceFindings:
    """Return what a recording of one forward and backward on ``device`` holds of the tensors made.

    Args:
        device: ``cpu`` or ``cuda:N``.
        directory: Where the recording goes.
    """
    from gpuledger.collect.session.self_test_workload import compute
    from gpuledger.services.recording import record

    kind = device.partition(":")[0]
    with record("selftest", out=directory / device.replace(":", "-"), devices=kind) as recording:
        specimen = compute(device)
    return compare(device, specimen.storages(), recording.run())


def compare(device: str, sizes: dict[str, tuple[int, int]], run: Run) -> DeviceFindings:
    """Return which of ``name -> (address, bytes)`` are alive with that size at the end of ``run``."""
    rank = run.ranks[0]
    rows = rank.table("blocks", ("device_idx", "address", "requested_bytes", "free_requested_index")).to_pylist()
    wanted = int(device.partition(":")[2] or -1)
    alive = {
        (row["address"], row["requested_bytes"])
        for row in rows
        if row["device_idx"] == wanted and row["free_requested_index"] is None
    }
    found = {name: size for name, (address, size) in sizes.items() if (address, size) in alive}
    return DeviceFindings(
        device=device,
        recorder=rank.manifest.recorder_name,
        tensors=len(sizes),
        made_bytes=sum(size for _, size in sizes.values()),
        found_bytes=sum(found.values()),
        missing=tuple(name for name in sizes if name not in found),
    )


if __name__ == "__main__":
    sys.exit(serve_job(examine_devices))
