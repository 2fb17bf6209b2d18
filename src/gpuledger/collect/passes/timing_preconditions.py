"""Conditions for a timing measurement by default: it must not use memory that the program needs."""

from __future__ import annotations

import os

import torch

from gpuledger.collect.adapter import kineto, torch_private
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.passes import energy_cards
from gpuledger.collect.passes.outcomes import USES_GRAPHS
from gpuledger.units import format_bytes

CARD_BYTES = 1 << 30
"""Free bytes required on each GPU in use. CUPTI keeps its records in GPU buffers until they are fetched.

The value is an assumption: it leaves room for CUPTI and for a program that grows.
"""

STEP_ALLOCATIONS = 50_000
"""Maximum number of allocations in one step.

Kineto uses 9.4 KB of host memory per allocating operator when it stops (measured: ``ones(4) + 1``, torch 2.13 on the
CPU), so two such steps use 0.9 GiB.
"""

FEWEST_TIME_STEPS = 2
"""Number of profiled steps with which a shorter program is timed completely."""

TIME_TRIES = 2
"""Maximum number of attempts at the timing measurement: a fork ends one, and so does a step of very many calls."""

OUTER_PROFILERS = ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NV_NSIGHT_INJECTION_PORT_BASE")
"""Environment variables set by CUDA profilers such as Nsight Systems. CUPTI supports one profiler at a time."""


def why_no_time_pass(step_allocations: int) -> str | None:
    """Return why the timing measurement should not begin now, as a clause; None if nothing prevents it.

    Args:
        step_allocations: The largest number of allocations in a recorded step.

    Source: the GPU's free bytes from CUDA; the allocator's pools; the environment.
    """
    if not kineto.starts_silently():
        return "its steps end in another thread than the one that imported torch, where torch's profiler prints errors"
    if not kineto.can_end_thread():
        return "torch's profiler would leave a thread running, and forked processes would wait for it when they exit"
    if not torch_private.has_cuda_context() and energy_cards.can_use_cuda():
        return (
            "the program has not used the GPU, and torch's profiler would load CUPTI; "
            "run it with CUDA_VISIBLE_DEVICES= to measure CPU times"
        )
    if any(os.environ.get(name) for name in OUTER_PROFILERS):
        return "the program runs under another profiler, and only one can run at a time"
    if step_allocations > STEP_ALLOCATIONS:
        return f"a step makes {step_allocations:,} allocations, and a trace of them needs too much memory"
    for device_idx in (one for one, _ in energy_cards.cards_in_use() if one >= 0):
        free_bytes, _ = torch.cuda.mem_get_info(device_idx)
        if free_bytes < CARD_BYTES:
            return f"cuda:{device_idx} has {format_bytes(free_bytes)} free, which is too little for CUPTI"
    has_cuda = torch.version.cuda is not None and torch_private.has_cuda_context()
    if has_cuda and torch_private.keeps_cuda_history() is not None:
        return "its allocator does not report CUDA graphs, and CUPTI can break those when it starts and stops"
    if torch_private.holds_graphs():
        return USES_GRAPHS
    return None


def advice_for(steps: int, settings: RecordSettings, *, still_recorded: bool = False) -> str:
    """Return what lets a measurement start earlier in a program that ended after ``steps``; "" if nothing does.

    Args:
        steps: Number of steps of the program.
        settings: How it was recorded.
        still_recorded: Whether the memory recording had not ended. After more steps than asked, it has waited, because
            calls could have been no steps.
    """
    if still_recorded and steps > settings.last_step:
        return " Use --step-on module, so that each call of the model is a step at once."
    earlier = " Use --steps 1:1 to record fewer steps before it." if settings.last_step > 1 else ""
    return earlier if steps > 1 else " It needs a second step."
