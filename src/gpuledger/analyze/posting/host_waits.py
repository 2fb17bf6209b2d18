"""How much of a device's idle time it waited for the host: nothing was launched that it could have gone on with."""

from __future__ import annotations

import numpy as np

from gpuledger.analyze.posting.activities import SPAN_KINDS, OwnedSpans
from gpuledger.model.manifest import HostWait


def host_waits(spans: OwnedSpans) -> tuple[HostWait, ...]:
    """Return for each device ``gap_ns``, with nothing under way, and ``host_ns``, the part of it that the host took.

    A gap is the host's where the operator that launched what ends it began after everything before had ended. Counted
    in steps that were recorded with their operators; those take the host longer than bare ones do.
    """
    counts = (spans.launched_ns >= 0) & (spans.kind != SPAN_KINDS.index("host"))
    return tuple(
        HostWait(device_idx=device_idx, gap_ns=gap_ns, host_ns=host_ns)
        for device_idx in np.unique(spans.device_idx[counts]).tolist()
        for gap_ns, host_ns in [_gaps(spans, counts & (spans.device_idx == device_idx))]
    )


def _gaps(spans: OwnedSpans, mine: np.ndarray) -> tuple[int, int]:
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    ended = np.maximum.accumulate(spans.end_ns[rows])[:-1]
    starts, launched = spans.start_ns[rows][1:], spans.launched_ns[rows][1:]
    gaps = np.maximum(starts - ended, 0)
    return int(gaps.sum()), int(gaps[launched > ended].sum())
