"""Threads of a program: all of them use the simulated GPU, and some things each has for itself."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from gpuledger.collect.adapter.dispatch_modes import OWN_THREAD
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
