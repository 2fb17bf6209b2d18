"""Threads of a program: all of them use the simulated GPU, and some things each has for itself."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpuledger.collect.adapter.dispatch_modes import OWN_THREAD
from gpuledger.collect.adapter.torch_private import sequence_reader
from gpuledger.simulate.gpu.patches import Patches


class Where(threading.local):
    """Device of new tensors: as requested by the current call, or that of its arguments."""

    def __init__(self) -> None:
        self.asked: bool | None = None
        self.around = False

    @contextmanager
    def asking(self, on_card: bool | None) -> Iterator[None]:
        """Place new storages on the GPU (True), on the CPU (False), or on the device of the arguments (None)."""
        before, self.asked = self.asked, on_card
        try:
            yield
        finally:
            self.asked = before


class OfThread(threading.local):
    """What the current thread uses of the GPU.

    Attributes:
        stream: Its current stream.
        token: Its step, phase and module, as one text.
        in_backward: Whether it runs a backward.
        number: The number of its handle of a library; 0 in the main thread.
    """

    def __init__(self) -> None:
        self.stream = 0
        self.token = ""
        self.in_backward = False
        self.number = 0


class Handles:
    """Numbers the handles of libraries, such as cuBLAS, by thread. A new thread gets that of one that has ended.

    Source: aten/src/ATen/cuda/detail/DeviceThreadHandles.h.
    """

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return the number of a handle that no other running thread has."""
        with self._lock:
            number = next(one for one in itertools.count(1) if one not in self._used)
            self._used.add(number)
        return number

    def give_back(self, number: int) -> None:
        """Let the next new thread have a handle."""
        with self._lock:
            self._used.discard(number)

    @contextmanager
    def taken(self, of_thread: OfThread) -> Iterator[None]:
        """Give the current thread a handle that no other running thread has."""
        of_thread.number = number = self.take()
        try:
            yield
        finally:
            self.give_back(number)


class EngineThread:
    """Lets a backward run nodes that an earlier one has created in the order of a GPU, as for gradients of gradients.

    Each thread numbers the nodes that it creates, and of the nodes that are ready, a backward runs the one with the
    highest number first. On a GPU, a thread of the engine runs each backward, and here the program's own. Source:
    torch/csrc/autograd/engine.cpp and aten/src/ATen/SequenceNumber.cpp. Observed with a gradient penalty on an H200.
    """

    def __init__(self) -> None:
        self._next_number = sequence_reader()
        self._starts: list[int] = []
        """Number of the first node of each backward that has created nodes."""
        self._program_had: list[int] = []
        """For each of them, the nodes that the program itself had created before."""
        self._engine_had: list[int] = [0]
        """For each of them, the nodes that the engine had created before, and all that it has created."""

    @contextmanager
    def running(self, outputs: Iterable[Any], *, creates_graph: bool) -> Iterator[None]:
        """Let the nodes behind ``outputs`` have the numbers of a GPU while a backward runs.

        Args:
            outputs: What is differentiated.
            creates_graph: Whether the nodes that this backward creates are for another one, and are counted.
        """
        nodes = self._created_nodes(outputs) if self._starts else {}
        first = self._next_number()
        of_program = first - self._engine_had[-1]
        for number, node in nodes.items():
            node._set_sequence_nr(self._number_on_gpu(number, of_program))
        try:
            yield
        finally:
            for number, node in nodes.items():
                node._set_sequence_nr(number)
            created = self._next_number() - first
            if creates_graph and created > 0:
                self._starts.append(first)
                self._program_had.append(of_program)
                self._engine_had.append(self._engine_had[-1] + created)

    def _created_nodes(self, outputs: Iterable[Any]) -> dict[int, Any]:
        """Return number -> node of the nodes of a graph that a backward has created."""
        seen: dict[int, Any] = {}
        left: list[Any] = [getattr(output, "grad_fn", None) for output in outputs]
        while left:
            node = left.pop()
            number = -1 if node is None else node._sequence_nr()
            if self._starts[0] <= number < _ACCUMULATES and number not in seen:
                seen[number] = node
                left += [one for one, _ in node.next_functions]
        return {number: node for number, node in seen.items() if self._own_number(number) is not None}

    def _own_number(self, number: int) -> int | None:
        """Return the number of a node among those that the engine has created; None if the program has created it."""
        place = bisect_right(self._starts, number) - 1
        if place < 0:
            return None
        own = self._engine_had[place] + number - self._starts[place]
        return own if own < self._engine_had[place + 1] else None

    def _number_on_gpu(self, number: int, of_program: int) -> int:
        """Return a number in the order of a GPU, where ``of_program`` nodes are the program's.

        The engine's nodes are not among the numbers of the program's thread there, as they are here.
        """
        own = self._own_number(number) or 0
        if own >= of_program:
            return _ABOVE_ALL + own
        return own + self._engine_had[bisect_right(self._program_had, own)]


_ABOVE_ALL, _ACCUMULATES = 1 << 48, 1 << 62
"""Above the numbers of a program; the least number of nodes that add to a gradient, which run first."""


class ThreadMemory:
    """What each thread of a program has in memory, and its most: they may need it at the same time.

    Args:
        allocated_bytes: What the main thread has when the first other one starts.
    """

    def __init__(self, allocated_bytes: int) -> None:
        self._now = {0: allocated_bytes}
        self._most = {0: allocated_bytes}
        self._owners: dict[int, tuple[int, int]] = {}
        """Address -> the thread that allocated it, and its bytes."""

    def allocated(self, address: int, size_bytes: int, thread: int) -> None:
        """Count a block for the thread that allocates it."""
        self._owners[address] = thread, size_bytes
        self._now[thread] = self._now.get(thread, 0) + size_bytes
        self._most[thread] = max(self._most.get(thread, 0), self._now[thread])

    def freed(self, address: int, size_bytes: int) -> None:
        """Count the free of a block, by any thread. The main thread had those of before."""
        thread, own_bytes = self._owners.pop(address, (0, size_bytes))
        self._now[thread] -= own_bytes

    def more_bytes(self, peak_bytes: int) -> int:
        """Return the bytes above a peak that the program needs if all threads have their most at once."""
        return max(sum(self._most.values()) - peak_bytes, 0)


def simulate_threads(patches: Patches, entering: Callable[[], AbstractContextManager[object]]) -> None:
    """Run threads that this one starts from now on, and those that they start, with the simulated GPU.

    Args:
        patches: Restores everything.
        entering: Returns the context in which a thread uses the GPU. Modes of torch are those of one thread.
    """
    plain_start, current = threading.Thread.start, threading.local()
    current.uses_gpu = True

    def start(thread: threading.Thread) -> None:
        is_of_program = hasattr(current, "uses_gpu") and not thread.name.startswith(OWN_THREAD)
        if thread.ident is None and is_of_program:
            plain_run = thread.run

            def run() -> None:
                del thread.run  # its own one again, which keeps nothing alive
                current.uses_gpu = True
                with entering():
                    plain_run()

            thread.run = run  # type: ignore[method-assign]
        plain_start(thread)

    patches.put(threading.Thread, "start", start)
