"""Predicted cost of each module: of a workload, and of a recorded run on another GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.step.work import read_work
from gpuledger.errors import EmptyRunError, UsageError
from gpuledger.ops.predict.roof import FLOOR_NS, Roof, roof_of_card
from gpuledger.ops.totals.sum import OperatorLine
from gpuledger.simulate.catalogue import find_card

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuledger.model.run import Rank

OUTSIDE = "(outside modules)"


@dataclass(frozen=True)
class ModuleCost:
    """One module's own operators in one step, without the modules inside it.

    ``recorded_ns`` is the time on the GPU of the recording; None for a workload. ``energy_j`` is None if unknown.
    """

    module: str
    time_ns: float
    energy_j: float | None = None
    recorded_ns: float | None = None


@dataclass(frozen=True)
class RunForecast:
    """The modules of a recorded run on another GPU, longest first, and the share of the time with known work."""

    source: str
    target: str
    modules: tuple[ModuleCost, ...]
    known_frac: float


def modules_of_lines(lines: Sequence[OperatorLine]) -> tuple[ModuleCost, ...]:
    """Return the cost of each module of a workload, longest first."""
    times: dict[str, float] = {}
    energies: dict[str, float] = {}
    for line in lines:
        if line.cost is None:
            continue
        for path, count in line.use.modules or (("", line.use.count),):
            times[path] = times.get(path, 0.0) + count * line.cost.time_ns
            energies[path] = energies.get(path, 0.0) + count * (line.cost.energy_j or 0.0)
    has_energy = all(line.cost is None or line.cost.energy_j is not None for line in lines)
    found = [ModuleCost(path or OUTSIDE, times[path], energies[path] if has_energy else None) for path in times]
    return tuple(sorted(found, key=lambda one: -one.time_ns))


def modules_of_run(rank: Rank, gpu: str) -> RunForecast:
    """Return what the modules of a recorded run take on another GPU.

    Each kernel keeps the share of the roofline that it reached. Kernels with unknown FLOPs and bytes scale with the
    memory bandwidth, down to the duration of an empty kernel.

    Args:
        rank: One process of the run, with a timing measurement on a GPU.
        gpu: A GPU of the catalogue.

    Raises:
        EmptyRunError: the run has no times of kernels.
        UsageError: the catalogue does not have one of the two GPUs.
    """
    work = read_work(rank)
    if work is None or work.on_host:
        raise EmptyRunError(
            "the run has no kernel times, which a prediction for another GPU needs",
            hint="Record it on a GPU with: gpuledger run --passes memory,time",
        )
    name = next((one.name for one in rank.manifest.devices if one.device_idx == work.device_idx), None)
    if name is None:
        raise UsageError("the run does not name its GPU")
    source, target = roof_of_card(find_card(name)), roof_of_card(find_card(gpu))
    took_ns = work.duration_ns / work.steps
    spans = zip(work.duration_ns.tolist(), work.flops.tolist(), work.moved_bytes.tolist(), work.numbers, strict=True)
    there_ns = np.array([_scaled_ns(*span, source, target) for span in spans]) / work.steps
    paths = module_paths(rank)
    times: dict[str, list[float]] = {}
    for number, here, there in zip(work.module_id.tolist(), took_ns.tolist(), there_ns.tolist(), strict=True):
        sums = times.setdefault(paths.get(number, "") or OUTSIDE, [0.0, 0.0])
        sums[0] += here
        sums[1] += there
    found = [ModuleCost(path, there, None, here) for path, (here, there) in times.items()]
    known = ~np.isnan(work.moved_bytes)
    known_frac = float(took_ns[known].sum() / max(took_ns.sum(), 1e-9))
    return RunForecast(source.card, target.card, tuple(sorted(found, key=lambda one: -one.time_ns)), known_frac)


def _scaled_ns(
    took_ns: float, flops: float, moved_bytes: float, numbers: str | None, source: Roof, target: Roof
) -> float:
    """Return a kernel's time on another GPU, in ns."""
    if np.isnan(moved_bytes):
        moved_bytes = max(took_ns - FLOOR_NS, 0.0) * source.byte_per_ns
    flops = 0.0 if np.isnan(flops) else flops
    here_ns, there_ns = (
        max(flops / roof.peak_of(numbers or "float32"), moved_bytes / roof.byte_per_ns) + FLOOR_NS
        for roof in (source, target)
    )
    return took_ns * there_ns / here_ns
