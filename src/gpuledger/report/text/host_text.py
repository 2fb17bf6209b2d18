"""Host memory of a recorded process: the peak of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.manifest import RankManifest

LABELS = {
    "resident": "resident",
    "pinned": "pinned",
    "workers": "started processes",
    "dev_shm": "/dev/shm of all processes",  # noqa: S108 - a label
}
"""Kind -> what it is called. The shared part of resident memory is in the JSON document only."""

_LEAST_BYTES = 1 << 20
"""Smallest amount that is shown, beside hundreds of MiB of any process with PyTorch."""


def host_memory_text(manifest: RankManifest) -> str:
    """Return the peak of each kind of host memory, and the memory limit; "" without the flight recorder."""
    peaks = {one.kind: one.peak_bytes for one in manifest.host_memory}
    shown = {label: peaks[kind] for kind, label in LABELS.items() if peaks.get(kind, 0) >= _LEAST_BYTES}
    parts = [f"{label} {format_bytes(size)}" for label, size in shown.items()]
    if not parts:
        return ""
    limit = manifest.host_limit_bytes
    text = f"{'peak' if len(parts) == 1 else 'peaks'}: {', '.join(parts)}"
    return text if limit is None else f"{text}; limit of the cgroup {format_bytes(limit)}"
