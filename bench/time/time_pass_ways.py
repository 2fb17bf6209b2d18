"""Ways to record kernels, for bench/time/time_pass_cost.py: the timing measurement, its parts, and lighter ways."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig

from gpuledger.collect.adapter import kineto as our_kineto
from gpuledger.collect.adapter import torch_private
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes.time_pass import TimePass

Step = Callable[[], None]
Way = Callable[[], AbstractContextManager[Step | None]]
"""A way to record; what it gives is called after its first step."""
DRIVER_CALLS, RUNTIME_CALLS = 4, 5
"""CUPTI's numbers of these kinds of activities (cupti_activity.h)."""
PER_THREAD = "none\nCUPTI_PER_THREAD_BUFFER_ENABLED=true"
"""A line of Kineto's configuration, behind one that it takes no notice of: buffers of CUPTI's for each thread alone."""
LOGGED: list[tuple[int, int, int, int, int]] = []
"""Module calls of the last turn that logged them: begin, end, module, sequence numbers at both."""
RESULTS: list[Any] = []
"""Kineto's results of the last turn."""


def activities(on_host: bool = True) -> set[ProfilerActivity]:
    """Return what Kineto is asked to record."""
    asked = {ProfilerActivity.CUDA} if torch.cuda.is_available() else set()
    return asked | {ProfilerActivity.CPU} if on_host or not asked else asked


@contextlib.contextmanager
def kineto(
    asked: set[ProfilerActivity],
    scopes: set[RecordScope],
    *,
    correlate: bool = True,
    shapes: bool = False,
    flops: bool = False,
    configuration: str = "",
) -> Iterator[None]:
    """Record with Kineto, and take CUPTI out again at the end."""
    more = {"custom_profiler_config": configuration} if configuration else {}
    own = _ExperimentalConfig(disable_external_correlation=not correlate, **more)
    config = ProfilerConfig(ProfilerState.KINETO, shapes, False, False, flops, False, own)
    with our_kineto._variables(TEARDOWN_CUPTI="1", KINETO_LOG_LEVEL="99"):
        _prepare_profiler(config, asked)
        _enable_profiler(config, asked, scopes)
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            RESULTS[:] = [_disable_profiler()]
            if torch.cuda.is_available():
                our_kineto._see_cupti_off()


@contextlib.contextmanager
def module_log() -> Iterator[None]:
    """Log begin and end of every module call, with autograd's sequence numbers, in a list of Python's."""
    LOGGED.clear()
    original, log, now_ns = nn.Module.__call__, LOGGED.append, time.time_ns
    sequence, numbers = torch_private.sequence_reader(), {}

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        began_ns, first = now_ns(), sequence()
        try:
            return original(self, *args, **kwargs)
        finally:
            log((began_ns, now_ns(), numbers.setdefault(id(self), len(numbers)), first, sequence()))

    with mock.patch.object(nn.Module, "__call__", __call__):
        yield


@contextlib.contextmanager
def warmed() -> Iterator[None]:
    """Launch a few kernels first, so that what CUPTI sets up with the first launch is done before the steps."""
    for _ in range(8):
        torch.zeros(8, device="cuda" if torch.cuda.is_available() else "cpu")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    yield


def leave_out_calls() -> None:
    """Have the CUPTI that Kineto loaded record no calls of the driver and the runtime from here on.

    Raises:
        OSError: there is none, or it refuses.
    """
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    place = next((line.split()[-1] for line in lines if "libcupti.so" in line), None)
    if place is None:
        raise OSError("no libcupti is loaded")
    library = ctypes.CDLL(place)
    for kind in (DRIVER_CALLS, RUNTIME_CALLS):
        if status := library.cuptiActivityDisable(kind):
            raise OSError(f"cuptiActivityDisable({kind}): {status}")


@contextlib.contextmanager
def without_calls(way: AbstractContextManager[Step | None]) -> Iterator[Step | None]:
    """Enter a way, and record no calls of the driver and the runtime: from its second step on where it has a say."""
    with way as after_first:
        if after_first is None:
            leave_out_calls()
            yield None
        else:
            first = after_first

            def leave_out() -> None:
                first()
                leave_out_calls()

            yield leave_out


@contextlib.contextmanager
def time_pass(*, operators: bool = False, **replaced: Any) -> Iterator[Step | None]:
    """Record with our time pass, operators in the first step or in all, with functions of torch_private replaced."""
    from tempfile import gettempdir

    recorded = TimePass(RankJournal(lambda: Path(gettempdir()), []), ModuleRegistry(), lambda: None)
    with mock.patch.multiple(torch_private, **replaced) if replaced else contextlib.nullcontext():
        recorded.begin()
        profiler = recorded._profiler
        try:
            yield None if operators else lambda: recorded.leave_out_operators(2)
        finally:
            recorded.end(keep=False)
            RESULTS[:] = [getattr(getattr(profiler, "_profile", None), "kineto_results", None)]


class NoProfiler:
    """Stands in for Kineto."""

    def leave_out_operators(self) -> bool:
        """Go on as before."""
        return False

    def stop(self, *, wait: bool) -> list[Any]:
        """Return nothing."""
        return []


@contextlib.contextmanager
def both(*ways: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter several."""
    with contextlib.ExitStack() as stack:
        for way in ways:
            stack.enter_context(way)
        yield


NODES = {RecordScope.BACKWARD_FUNCTION}
TELLING: dict[str, Way] = {
    "torch_profiler": lambda: kineto(activities(), set()),
    "time_pass": time_pass,
    "time_pass_without_calls": lambda: without_calls(time_pass()),
    "cuda_only": lambda: kineto(activities(False), set()),
    "cuda_only_without_calls": lambda: without_calls(kineto(activities(False), set())),
    "cuda_only_per_thread": lambda: kineto(activities(False), set(), configuration=PER_THREAD),
}
"""Compared with bare steps in every round."""

FURTHER: dict[str, Way] = {
    "time_pass_with_operators": lambda: time_pass(operators=True),
    "uncorrelated": lambda: kineto(activities(), set(), correlate=False),
    "nodes": lambda: both(kineto(activities(), NODES), module_log()),
    "nodes_warmed": lambda: both(kineto(activities(), NODES), warmed(), module_log()),
    "nodes_uncorrelated": lambda: both(kineto(activities(), NODES, correlate=False), module_log()),
    "host_only": lambda: kineto({ProfilerActivity.CPU}, set()),
    "ranges_alone": lambda: time_pass(operators=True, Profiler=NoProfiler),
    "log_alone": module_log,
    "time_pass_warmed": lambda: both(time_pass(operators=True), warmed()),
    "flops": lambda: kineto(activities(), set(), flops=True),
    "shapes": lambda: kineto(activities(), set(), shapes=True),
}
"""``nodes`` leaves out operators' records and keeps those of graph nodes."""
WAYS = TELLING | FURTHER
