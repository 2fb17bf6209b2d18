"""Compute how long a device was idle because it waited for the CPU to launch work."""

from __future__ import annotations

import numpy as np

from gpuledger.analyze.posting.activities import OwnedSpans
from gpuledger.model.accounts import SPAN_KINDS
from gpuledger.model.pass_facts import HostWait


def host_waits(spans: OwnedSpans) -> tuple[HostWait, ...]:
    """Return for each device ``gap_ns``, its idle time, and ``host_ns``, the part of it spent waiting for the CPU.

    A gap counts as waiting for the CPU if the launch that ends it began after all earlier work had ended. Counted in
    the steps with recorded operators. Recording makes the CPU slower than in unprofiled steps.
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
