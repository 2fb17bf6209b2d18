"""Profile the GPU memory, time and energy of PyTorch programs, layer by layer.

The public API is ``__all__`` of this package, of ``gpuledger.ops`` and of ``gpuledger.integrations``. For packages that
add GPUs of another vendor, ``Card`` and ``Vendor`` of ``gpuledger.cards`` are public, too. Everything else may change
without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger._lazy import lazy_names
from gpuledger._version import __version__

if TYPE_CHECKING:
    from gpuledger.analyze.compare.budget import Gate
    from gpuledger.analyze.compare.diff import Diff
    from gpuledger.analyze.memory.breakdown import Breakdown
    from gpuledger.analyze.overview.balance import Balance
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.steps import StepTimes
    from gpuledger.collect.attribution.scopes import scope
    from gpuledger.collect.steps.marked_steps import step
    from gpuledger.errors import (
        BudgetExceededError,
        EmptyRunError,
        GpuLedgerError,
        InputError,
        NoDeviceError,
        UsageError,
    )
    from gpuledger.integrations.memory_profiler import MemoryProfiler, memory_profiler
    from gpuledger.model.run import Rank, Run
    from gpuledger.services.merges.merging import merge
    from gpuledger.services.queries import balance, breakdown, check, step_energy, step_times
    from gpuledger.services.recording import Recording, flight_recorder, record
    from gpuledger.services.runs import diff, load
    from gpuledger.services.watching import Watch, watch
    from gpuledger.simulate.advice.advise import Advice, advise
    from gpuledger.simulate.estimate.api import estimate, find_batch
    from gpuledger.simulate.estimate.ranks import RanksEstimate
    from gpuledger.simulate.estimate.run import Estimate
    from gpuledger.simulate.estimate.search import Search
    from gpuledger.simulate.estimate.sharded import estimate_ranks, find_world_size
    from gpuledger.simulate.estimate.world_search import WorldSearch
    from gpuledger.simulate.gpu.hints import fake_output

_MODULES = {
    "Advice": "gpuledger.simulate.advice.advise",
    "Balance": "gpuledger.analyze.overview.balance",
    "Breakdown": "gpuledger.analyze.memory.breakdown",
    "BudgetExceededError": "gpuledger.errors",
    "Diff": "gpuledger.analyze.compare.diff",
    "EmptyRunError": "gpuledger.errors",
    "EnergyBreakdown": "gpuledger.analyze.step.energy",
    "Estimate": "gpuledger.simulate.estimate.run",
    "Gate": "gpuledger.analyze.compare.budget",
    "GpuLedgerError": "gpuledger.errors",
    "InputError": "gpuledger.errors",
    "MemoryProfiler": "gpuledger.integrations.memory_profiler",
    "NoDeviceError": "gpuledger.errors",
    "Rank": "gpuledger.model.run",
    "RanksEstimate": "gpuledger.simulate.estimate.ranks",
    "Recording": "gpuledger.services.recording",
    "Run": "gpuledger.model.run",
    "Search": "gpuledger.simulate.estimate.search",
    "StepTimes": "gpuledger.analyze.step.steps",
    "UsageError": "gpuledger.errors",
    "Watch": "gpuledger.services.watching",
    "WorldSearch": "gpuledger.simulate.estimate.world_search",
    "advise": "gpuledger.simulate.advice.advise",
    "balance": "gpuledger.services.queries",
    "breakdown": "gpuledger.services.queries",
    "check": "gpuledger.services.queries",
    "diff": "gpuledger.services.runs",
    "estimate": "gpuledger.simulate.estimate.api",
    "estimate_ranks": "gpuledger.simulate.estimate.sharded",
    "fake_output": "gpuledger.simulate.gpu.hints",
    "find_batch": "gpuledger.simulate.estimate.api",
    "find_world_size": "gpuledger.simulate.estimate.sharded",
    "load": "gpuledger.services.runs",
    "memory_profiler": "gpuledger.integrations.memory_profiler",
    "merge": "gpuledger.services.merges.merging",
    "flight_recorder": "gpuledger.services.recording",
    "record": "gpuledger.services.recording",
    "scope": "gpuledger.collect.attribution.scopes",
    "step": "gpuledger.collect.steps.marked_steps",
    "step_energy": "gpuledger.services.queries",
    "step_times": "gpuledger.services.queries",
    "watch": "gpuledger.services.watching",
}
"""Public name -> module that defines it. A test checks that it matches the imports above, which type checkers read."""

__all__ = [
    "Advice",
    "Balance",
    "Breakdown",
    "BudgetExceededError",
    "Diff",
    "EmptyRunError",
    "EnergyBreakdown",
    "Estimate",
    "Gate",
    "GpuLedgerError",
    "InputError",
    "MemoryProfiler",
    "NoDeviceError",
    "Rank",
    "RanksEstimate",
    "Recording",
    "Run",
    "Search",
    "StepTimes",
    "UsageError",
    "Watch",
    "WorldSearch",
    "__version__",
    "advise",
    "balance",
    "breakdown",
    "check",
    "diff",
    "estimate",
    "estimate_ranks",
    "fake_output",
    "find_batch",
    "find_world_size",
    "flight_recorder",
    "load",
    "memory_profiler",
    "merge",
    "record",
    "scope",
    "step",
    "step_energy",
    "step_times",
    "watch",
]

if not TYPE_CHECKING:  # Hidden from type checkers: with __getattr__, they would accept any name as public.
    # "import gpuledger" loads neither torch nor numpy. Services register the HTML renderer for notebooks.
    __getattr__ = lazy_names(__name__, _MODULES, before="gpuledger.services")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
