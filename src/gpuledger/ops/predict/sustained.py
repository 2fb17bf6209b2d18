"""The float32 rate that a GPU sustains without tensor cores, as a share of its data sheet's peak.

Two limits are below the peak. From compute capability 8.6 on, a multiprocessor has 128 instead of 64 float32 lanes with
the same shared memory, which cannot feed all of them. And GPUs with a low power limit lower their clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuledger.simulate.catalogue import GpuModel

WIDE = ((8, 6), 0.78)
"""First compute capability with 128 lanes, and the share of the peak that its products reach.

Source: the best tenth of 164 large products on an H200.
"""
NARROW_FRAC = 0.92
"""Share that products reach with 64 lanes.

Source: chosen with a V100 and an A100 of NeuSight's measurements in sight.
"""
POWER_FRAC = 0.72
"""Share of the power limit that is assumed to be left for arithmetic."""
J_PER_TFLOP = (((8, 9), 4.0), ((8, 0), 8.0), ((7, 0), 11.0), ((0, 0), 23.0))
"""Energy of 10^12 float32 operations in J, from this compute capability on.

Source: the rates of an L4 (8.9), a T4 (7.5) and a P100 (6.0) in NeuSight's measurements, at their power limits. That of
8.0 is a guess between them; the A100 and H100 there do not reach their limits.
"""


def sustained_frac(card: GpuModel) -> float:
    """Return the share of the float32 peak that large products sustain on a GPU without tensor cores."""
    capability, peak_tflop_s = card.compute_capability, card.peak_tflop_s.get("float32")
    is_wide = capability >= WIDE[0]
    reached_frac = WIDE[1] if is_wide else NARROW_FRAC
    if not peak_tflop_s or not card.power_limit_w:
        return reached_frac
    each_j = next(energy_j for first, energy_j in J_PER_TFLOP if capability >= first)
    return min(reached_frac, POWER_FRAC * card.power_limit_w / each_j / peak_tflop_s)
