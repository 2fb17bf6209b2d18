"""Kernels of compiled code: what each computes, for which modules and lines, and its time in a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.memory.lifetimes import distinct_numbers
from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.manifest import RankManifest
    from gpuledger.model.run import Rank


@dataclass(frozen=True)
class FusedKernel:
    """One kernel of compiled code in one profiled step.

    ``modules`` are paths, "" outside modules; if there are several, they share the kernel's time by ``moved_bytes``.
    ``nodes`` are the graph nodes that it computes, ``sources`` the lines of the program they come from, as FILE:LINE.
    ``time_ns`` is the sum of its calls.

    Source: Inductor's nodes at compilation; Kineto (CUPTI on a GPU).
    """

    kernel: str
    modules: tuple[str, ...]
    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    moved_bytes: int
    time_ns: float
    is_shared: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """Return ``sources`` without directories."""
        return tuple(dict.fromkeys(PurePath(source).name for source in self.sources))


def fused_kernels(rank: Rank, device_idx: int) -> tuple[FusedKernel, ...]:
    """Return the kernels of compiled code in one step on one device, the longest first; empty if there are none."""
    fusions = rank.manifest.fusions
    if not fusions:
        return ()
    table = rank.table("spans", ("device_idx", "step", "fusion_id", "module_id", "start_ns", "end_ns"))
    device, step, fusion, module, start, end = (to_numbers(table[name]) for name in table.column_names)
    timed = rank.manifest.time_steps or (0, -1)
    mine = (fusion >= 0) & (fusion < len(fusions)) & (device == device_idx) & (step >= timed[0]) & (step <= timed[1])
    steps = max(len(distinct_numbers(step[mine])), 1)
    paths = module_paths(rank)
    times: dict[int, float] = {}
    modules: dict[int, dict[str, None]] = {}
    columns = (fusion[mine].tolist(), module[mine].tolist(), (end - start)[mine].tolist())
    for number, module_id, one_ns in zip(*columns, strict=True):
        times[number] = times.get(number, 0.0) + one_ns / steps
        modules.setdefault(number, {})[paths.get(module_id, "")] = None
    found = [
        FusedKernel(
            kernel=fusions[number].kernel,
            modules=tuple(modules[number]),
            nodes=fusions[number].nodes,
            sources=fusions[number].sources,
            moved_bytes=sum(part.moved_bytes for part in fusions[number].parts),
            time_ns=time_ns,
            is_shared=len(fusions[number].parts) > 1,
        )
        for number, time_ns in times.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.time_ns))


def why_no_kernels(manifest: RankManifest) -> tuple[str, str]:
    """Return why a rank has no kernels of compiled code, and what to do."""
    done = manifest.compilation
    record = "record with --passes memory,energy,time"
    if done is None:
        return "the run has no profiled kernels of compiled code", f"Compile the model with torch.compile, and {record}"
    if not done.graphs:
        failed = [f"{one.function} ({PurePath(one.source).name}): {one.failure}" for one in done.regions if one.failure]
        broken = [f"Graph break ({PurePath(one.source).name}): {one.reason}" for one in done.places]
        hint = next(iter(failed + broken), "A note of gpuledger show says what can be the reason")
        return "torch.compile compiled no graph", hint
    if manifest.time_steps is None:
        return "the run has no timing measurement", f"The program runs compiled code: {record}"
    return (
        "the profiled steps ran no kernels of TorchInductor",
        "Another backend of torch.compile, such as aot_eager, generates no kernels: try --by operator",
    )
