"""Inspect other threads while none of them can run, and keep them out of gpuledger's own tables.

A thread can lose the GIL between any two bytecodes. :func:`gradients_of` therefore looks and reads in one call of C
code. :func:`undisturbed` is for rare work in Python: it makes it unlikely that another thread runs. :class:`Exclusive`
is for tables that several threads of the program fill.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, compress
from operator import call, eq, is_not
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.autograd import graph

import gpuledger
from gpuledger.collect.adapter.frames import RESULT, Uncollected, frames_by_thread
from gpuledger.collect.adapter.program_objects import grad_of

_STANDARD_LIBRARY = os.path.dirname(threading.__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(gpuledger.__file__) + os.sep
"""An operator can have called gpuledger, as one does that a dispatch mode sees."""
_COMPILE_WORKERS = os.path.join(_TORCH, "_inductor", "compile_worker") + os.sep
"""Its threads wait for the processes that compile kernels."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_section = threading.Lock()
_LONG_S = 1.0
"""Thread switch interval during the inspection; longer than any of it takes. A thread that computes in Python alone can
hold up the inspection for this long."""
_LONGEST_WAIT_S = 2.0
_Kept = TypeVar("_Kept")


class Exclusive:
    """Lets one thread at a time change a table. Usable in ``with``, also inside itself.

    It never holds up the program for good: a thread that has waited 2 s goes on without it, and later ones do not wait.
    The thread that has it can be waiting for a lock of the program itself, as in a finalizer.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wait_s = _LONGEST_WAIT_S
        self._taken = threading.local()
        _exclusives.add(self)

    def __enter__(self) -> None:
        taken = self._lock.acquire(timeout=self._wait_s)
        if not taken:
            self._wait_s = 0.0
        self._taken.__dict__.setdefault("all", []).append((self._lock, taken))

    def __exit__(self, *_: object) -> None:
        lock, taken = self._taken.all.pop()
        if taken:
            lock.release()

    def renew(self) -> None:
        """Forget who has it: in a forked child, where the parent's other threads do not exist."""
        self._lock = threading.RLock()


def take_all(queue: deque[_Kept]) -> list[_Kept]:
    """Remove and return what is in a queue. Other threads can add to it meanwhile, which stays, or take from it."""
    taken: list[_Kept] = []
    with suppress(IndexError):  # another thread has taken the last one
        taken.extend(queue.popleft() for _ in range(len(queue)))
    return taken


_exclusives: weakref.WeakSet[Exclusive] = weakref.WeakSet()


def _renew_in_child() -> None:
    for one in _exclusives:
        one.renew()


os.register_at_fork(after_in_child=_renew_in_child)


def tracked_objects() -> tuple[list[Any], list[Any]]:
    """Return what the garbage collector tracks, young objects without tuples and old ones. An object can be in both.

    ``tuple(generator)`` fails in another thread if anything refers to the tuple before it is complete. Such a tuple is
    young, so those are left out in one call of C code. It would be old only after two collections.
    """
    every: list[Any] = []
    fill, clear = map(every.extend, map(gc.get_objects, (0, 1))), map(call, (every.clear,))
    found: list[Any] = list(chain(fill, compress(every, map(id(tuple).__ne__, map(id, map(type, every)))), clear))
    young = list(filter(partial(is_not, found), found))
    found.clear()  # it contains itself
    return young, gc.get_objects(2)


@contextmanager
def undisturbed() -> Iterator[bool]:
    """Keep other threads from running inside the block, provided that nothing in it blocks.

    Yields:
        True if no other thread runs. False if another thread is already inside this context.
    """
    if threading.active_count() == 1:
        yield True
        return
    with ExitStack() as undo:  # each cleanup is registered before its action, so an error leaves nothing changed
        # Never block on this lock: a fork can copy it in the locked state.
        nobody_else = _section.acquire(blocking=False) and bool(undo.callback(_section.release))
        if nobody_else:
            interval_s = sys.getswitchinterval()
            undo.callback(sys.setswitchinterval, interval_s)
            sys.setswitchinterval(_LONG_S)
            time.sleep(interval_s)  # threads that already wait for the GIL request it within the old interval
        yield nobody_else


def gradients_of(leaves: Sequence[Any], read: Callable[[Any], Any] = grad_of) -> list[Any] | None:
    """Return the gradients of leaf tensors, None for a leaf without one; None if another thread could write gradients.

    Two writes do not exclude readers. Autograd assigns gradients without the GIL. And while a gradient is removed
    (``weight.grad = None``), torch releases the GIL to free the tensor, before the weight forgets it. Who reads it in
    between uses freed memory: the program crashes, or torch aborts later, where a storage is freed.

    So every other thread must be in a function of the standard library, such as one that waits, or of a library that
    does not use torch, and neither in a backward pass nor in a finalizer. Iterators written in C check that this has
    not changed, and then read, in one call that never releases the GIL.

    Args:
        leaves: Leaf tensors.
        read: Reads the gradient of one of them; a function written in C.
    """
    looking = Uncollected(sys._current_frames)
    before: dict[int, FrameType] = {}
    try:
        before = list(looking.steps)[RESULT]
        own = threading.get_ident()
        if any(_may_write_gradients(frame) for thread, frame in before.items() if thread != own):
            return None
        is_same = map(eq, map(call, (sys._current_frames,)), (before,))
        readable = chain.from_iterable(map({True: leaves, False: ()}.__getitem__, is_same))
        looking = Uncollected(partial(list, map(read, readable)))
        found: list[Any] = list(looking.steps)[RESULT]
        return found if len(found) == len(leaves) else None
    except BaseException:
        looking.restore()
        raise
    finally:
        before.clear()  # it contains this frame: see frames.frames_by_thread


def do_others_compute(waiting: set[int] | frozenset[int] = frozenset()) -> bool:
    """Return whether another thread could be inside an operator, or about to begin one.

    All others must wait in a function of the standard library, or of a library that does not use torch.

    Args:
        waiting: Ids of threads that wait for gpuledger.
    """
    for thread, frame in frames_by_thread().items():  # no generator: what a signal handler raises in one can be lost
        if thread not in waiting and (_may_write_gradients(frame) or frame.f_code.co_name == "run"):
            return True
    return False


def _may_write_gradients(innermost: FrameType) -> bool:
    """Return whether a thread could be writing a gradient."""
    if not _is_harmless(innermost):
        return True
    engine: Any = graph._engine_run_backward
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        if code is engine.__code__ or code.co_name == "__del__" or code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def _is_harmless(frame: FrameType) -> bool:
    """Return whether a frame is of the standard library, or of an installed module that does not use torch.

    A thread that waits for torch's compile workers is harmless, too. A program on a GPU has one as soon as it compiles.
    """
    file = frame.f_code.co_filename
    if file.startswith(_COMPILE_WORKERS):
        return True
    if file.startswith(_OWN):
        return False
    if any(map(file.__contains__, _INSTALLED)):
        return not file.startswith(_TORCH) and all(map(partial(is_not, torch), list(frame.f_globals.values())))
    return file.startswith(_STANDARD_LIBRARY)
