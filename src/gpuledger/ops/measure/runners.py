"""What calls an operator: on a CPU in a loop, on a GPU by replaying a graph, or eagerly where no graph can be made."""

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
"""Calls in one graph: more take long to record, and a replay lasts milliseconds anyway."""
MOST_COPIES = 1_024
ROUNDS, MOST_LAUNCHES = 5, 64
HELD_NS = 5_000_000
"""How long launches may take together, and the GPU is kept busy meanwhile."""
_KERNEL = re.compile(r"(?:\\n)?([A-Za-z_]\w+)(?:\\?<){3}")
"""A kernel in the text of a graph: its name, before its grid in escaped angle brackets."""


class Call(Protocol):
    """One call of an operator with inputs of its own."""

    def __call__(self) -> object:
        """Run it."""

    def restore(self) -> None:
        """Put back what calls have written into the inputs; nothing where they write none."""


class CpuRunner:
    """Calls one after the other, through all copies in turn."""

    how = How.CPU

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self.copies = self.unit_calls = len(self._calls)

    def refresh(self) -> None:
        """Put the inputs back to what they were."""
        for call in self._calls:
            call.restore()

    def time_units(self, units: int) -> float:
        """Return the nanoseconds that so many units took."""
        calls = self._calls
        start_ns = time.perf_counter_ns()
        for _ in range(units):
            for call in calls:
                call()
        return float(time.perf_counter_ns() - start_ns)

    def submit(self, units: int) -> Callable[[], None]:
        """Run so many units at once: a CPU has nothing to wait for."""
        self.time_units(units)
        return _nothing


class _CudaRunner(ABC):
    """What both ways on a GPU share: events around what was launched."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self.copies = len(self._calls)

    def refresh(self) -> None:
        """Put the inputs back to what they were."""
        for call in self._calls:
            call.restore()
        torch.cuda.synchronize()

    @abstractmethod
    def _launch(self) -> None:
        """Start one unit."""

    def time_units(self, units: int) -> float:
        """Return the nanoseconds between the events before and after so many units."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(units):
            self._launch()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e6

    def submit(self, units: int) -> Callable[[], None]:
        """Start so many units and return what waits for their end."""
        for _ in range(units):
            self._launch()
        end = torch.cuda.Event()
        end.record()
        return end.synchronize


class EagerRunner(_CudaRunner):
    """Launches each call by itself: where an operator waits for the host, or its output's shape depends on its data."""

    how = How.EAGER

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__(calls)
        self.unit_calls = len(self._calls)

    def _launch(self) -> None:
        for call in self._calls:
            call()


class GraphRunner(_CudaRunner):
    """Replays a graph of many calls over all copies, so that no launch from the host is timed.

    The outputs of a whole turn are kept while the graph is recorded, or every call would write to the same place.
    """

    how = How.GRAPH

    def __init__(self, calls: Sequence[Call], unit_ns: float) -> None:
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
        """Return about what one turn takes, after calls on a stream of its own as recording asks for."""
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
    """Wait for nothing."""


def make_runner(
    calls: Sequence[Call], unit_ns: float, *, on_card: bool, needs_host: bool
) -> tuple[CpuRunner | EagerRunner | GraphRunner, str]:
    """Return what runs ``calls`` here, and why it is not a graph, where it might have been one.

    Args:
        calls: One for each copy of the inputs.
        unit_ns: How long a replay of a graph should take.
        on_card: The calls run on a CUDA device.
        needs_host: The operator's output depends on its data, which no graph can record.
    """
    if not on_card:
        return CpuRunner(calls), ""
    if needs_host:
        return EagerRunner(calls), "the shape of its output depends on its data"
    try:
        return GraphRunner(calls, unit_ns), ""
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        return EagerRunner(calls), first_line(error)


def host_ns(calls: Sequence[Call], call_ns: float) -> float:
    """Return the nanoseconds the host needs to launch one call.

    Args:
        calls: One for each copy of the inputs.
        call_ns: What a call takes on the GPU: of a long one fewer are launched.

    Source: the host's clock around launches that nothing waits for; the median of rounds.
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


def queued_ns(runner: GraphRunner, calls: Sequence[Call], call_ns: float, launch_ns: float) -> float:
    """Return the nanoseconds of one call that is launched by itself and queues: the GPU never waits for the host.

    Between launches the GPU needs a moment that calls in one graph do not need.

    Args:
        runner: Its replays keep the GPU busy while calls are launched.
        calls: One for each copy of the inputs.
        call_ns: What a call takes in a replay.
        launch_ns: What the host needs to launch one.

    Source: the device's events around the calls; the median of rounds.
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


def kernels_of(call: Call) -> tuple[str, ...]:
    """Return the names of the kernels one call launches, in the order they are recorded; none where no graph can be.

    Source: the text of a recorded graph. A profiler would tell as well, but can leave the GPU slower.
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
    """Leave out the warnings that a graph is empty, as some operators' are, and that its text is for debugging."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The CUDA Graph is empty", UserWarning)
        warnings.filterwarnings("ignore", "DEBUG: calling debug_dump", UserWarning)
        yield


def kernel_names(text: str) -> tuple[str, ...]:
    """Return the names of kernels in the text of a graph, each once."""
    return tuple(dict.fromkeys(_KERNEL.findall(text)))


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
