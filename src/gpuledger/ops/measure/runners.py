"""Run an operator: in a loop on a CPU; on a GPU as a CUDA graph, or eagerly if it cannot be captured."""

from __future__ import annotations

import math
import re
import statistics
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from gpuledger.ops.database.method import How

MOST_CALLS = 2_000
"""Maximum number of calls in a graph. More would take long to capture, and a replay takes milliseconds anyway."""
MOST_COPIES = 1_024
ROUNDS, MOST_LAUNCHES = 5, 64
HELD_NS = 5_000_000
"""Duration of queued launches, in ns, during which the GPU is kept busy."""
_KERNEL = re.compile(r"(?:\\n)?([A-Za-z_]\w+)(?:\\?<){3}")
"""A kernel in the text of a graph: its name is before its grid in escaped angle brackets."""


class RunnableCall(Protocol):
    """One call of an operator with its own inputs."""

    def __call__(self) -> object:
        """Run it."""

    def restore(self) -> None:
        """Restore the inputs that calls have changed, if any."""


class CpuRunner:
    """Runs calls one after the other, rotating through all copies."""

    how = How.CPU

    def __init__(self, calls: Sequence[RunnableCall]) -> None:
        self._calls = list(calls)
        self.copies = self.unit_calls = len(self._calls)

    def refresh(self) -> None:
        """Restore the inputs."""
        for call in self._calls:
            call.restore()

    def time_units(self, units: int) -> float:
        """Return the time of ``units`` units in ns."""
        calls = self._calls
        start_ns = time.perf_counter_ns()
        for _ in range(units):
            for call in calls:
                call()
        return float(time.perf_counter_ns() - start_ns)

    def submit(self, units: int) -> Callable[[], None]:
        """Run ``units`` units immediately. On a CPU there is nothing to wait for."""
        self.time_units(units)
        return _nothing


class _CudaRunner(ABC):
    """Common part of both GPU runners: events around launches."""

    def __init__(self, calls: Sequence[RunnableCall]) -> None:
        self._calls = list(calls)
        self.copies = len(self._calls)

    def refresh(self) -> None:
        """Restore the inputs."""
        for call in self._calls:
            call.restore()
        torch.cuda.synchronize()

    @abstractmethod
    def _launch(self) -> None:
        """Start one unit."""

    def time_units(self, units: int) -> float:
        """Return the time between the events before and after ``units`` units, in ns."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(units):
            self._launch()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def submit(self, units: int) -> Callable[[], None]:
        """Start ``units`` units. Return a function that waits for their end."""
        for _ in range(units):
            self._launch()
        end = torch.cuda.Event()
        end.record()
        return end.synchronize


class EagerRunner(_CudaRunner):
    """Launches each call separately, for operators that synchronize or have an output size that depends on values."""

    how = How.EAGER

    def __init__(self, calls: Sequence[RunnableCall]) -> None:
        super().__init__(calls)
        self.unit_calls = len(self._calls)

    def _launch(self) -> None:
        for call in self._calls:
            call()


class GraphRunner(_CudaRunner):
    """Replays a graph of many calls over all copies, so that the time has no launches from the host.

    Outputs are kept during capture, because otherwise every call would write to the same memory.
    """

    how = How.GRAPH

    def __init__(self, calls: Sequence[RunnableCall], unit_ns: float) -> None:
        super().__init__(calls)
        once_ns = self._once_ns()
        rounds = max(1, min(round(unit_ns / once_ns), MOST_CALLS // self.copies))
        self.unit_calls = rounds * self.copies
        self._graph = torch.cuda.CUDAGraph()
        outputs: deque[object] = deque(maxlen=self.copies)
        with _quietly(), torch.cuda.graph(self._graph):
            for _ in range(rounds):
                for call in self._calls:
                    outputs.append(call())
        outputs.clear()

    def _once_ns(self) -> float:
        """Return the approximate time of one rotation in ns, after calls on a side stream, which capture requires."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in self._calls[:3]:
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for call in self._calls:
            call()
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e6, 1_000.0)

    def _launch(self) -> None:
        self._graph.replay()


def _nothing() -> None:
    """Do nothing."""


def make_runner(
    calls: Sequence[RunnableCall], unit_ns: float, *, on_card: bool, why_no_graph: str = ""
) -> tuple[CpuRunner | EagerRunner | GraphRunner, str]:
    """Return a runner for ``calls``, and the reason if it is not a graph.

    Args:
        calls: One for each copy of the inputs.
        unit_ns: Target duration of a graph replay, in ns.
        on_card: The calls run on a CUDA device.
        why_no_graph: Why the calls cannot be captured; empty if they can.
    """
    if not on_card:
        return CpuRunner(calls), ""
    if why_no_graph:
        return EagerRunner(calls), why_no_graph
    try:
        return GraphRunner(calls, unit_ns), ""
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        return EagerRunner(calls), first_line(error)


def host_ns(calls: Sequence[RunnableCall], call_ns: float) -> float:
    """Return the host time of launching one call, in ns.

    Args:
        calls: One for each copy of the inputs.
        call_ns: Time of a call on the GPU in ns. Of long calls, fewer are launched.

    Source: host clock around asynchronous launches; median of rounds.
    """
    count = max(2, min(MOST_LAUNCHES, int(HELD_NS / call_ns)))
    turn = [calls[number % len(calls)] for number in range(count)]
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start_ns = time.perf_counter_ns()
        for call in turn:
            call()
        rounds.append((time.perf_counter_ns() - start_ns) / count)
    torch.cuda.synchronize()
    return statistics.median(rounds)


def queued_ns(runner: GraphRunner, calls: Sequence[RunnableCall], call_ns: float, launch_ns: float) -> float:
    """Return the GPU time of one queued call that is launched separately, in ns. The GPU does not wait for the host.

    Separate launches have gaps on the GPU that calls in a graph do not have.

    Args:
        runner: Keeps the GPU busy while calls are launched.
        calls: One for each copy of the inputs.
        call_ns: Time of a call in a replay, in ns.
        launch_ns: Host time of a launch, in ns.

    Source: CUDA events around the calls; median of rounds.
    """
    count = max(1, min(MOST_LAUNCHES, int(HELD_NS / (2 * launch_ns)), int(HELD_NS / call_ns)))
    held_units = math.ceil(HELD_NS / (call_ns * runner.unit_calls))
    turn = [calls[number % len(calls)] for number in range(count)]
    rounds = []
    for _ in range(ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        runner.submit(held_units)
        start.record()
        for call in turn:
            call()
        end.record()
        end.synchronize()
        rounds.append(float(start.elapsed_time(end)) * 1e6 / count)
    return statistics.median(rounds)


def kernels_of(call: RunnableCall) -> tuple[str, ...]:
    """Return the names of the kernels of one call, in order; empty if it cannot be captured.

    Source: the text of a captured graph. A profiler could make later launches slower.
    """
    graph = torch.cuda.CUDAGraph()
    graph.enable_debug_mode()
    try:
        with _quietly(), tempfile.TemporaryDirectory() as folder:
            with torch.cuda.graph(graph):
                call()
            place = Path(folder) / "graph.dot"
            graph.debug_dump(str(place))
            return kernel_names(place.read_text(encoding="utf-8", errors="replace"))
    except (RuntimeError, OSError):
        return ()


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the warnings that a graph is empty, and that its text is for debugging."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty", UserWarning)
        warnings.filterwarnings("ignore", "DEBUG: calling debug_dump", UserWarning)
        yield


def kernel_names(text: str) -> tuple[str, ...]:
    """Return the distinct names of kernels in the text of a graph."""
    return tuple(dict.fromkeys(_KERNEL.findall(text)))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
