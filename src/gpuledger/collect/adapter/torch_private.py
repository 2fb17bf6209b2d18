"""Private functions of PyTorch that gpuledger uses; those of dispatch modes are in :mod:`.dispatch_modes`.

Each is looked up once. :func:`capabilities` reports which are missing and what does not work without them. Tested with
torch 2.11 (CUDA 13.0, H200) and torch 2.13 (CPU build).
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils.hooks import RemovableHandle

from gpuledger.collect.adapter.dynamo import without_importing_compiler

_C = torch._C
_record_memory_history = torch.cuda.memory._record_memory_history
"""The original function, saved before the session wraps it to detect a memory history that the program starts."""
_change_ring: Callable[..., None] = torch.cuda.memory._record_memory_history_impl
"""What that one calls. The session does not wrap it."""

LOST_WITHOUT = {
    "_cuda_setMemoryMetadata": "CUDA allocations have no module or phase, so the dispatch-mode recorder is used",
    "_cuda_memorySnapshot": "there is no allocator history, so the dispatch-mode recorder is used",
    "_cuda_record_memory_history": "there is no allocator history, so the dispatch-mode recorder is used",
    "_cuda_isHistoryEnabled": "a memory history that the program starts is not detected",
    "_cuda_attach_out_of_memory_observer": "an out-of-memory error is not explained",
    "_cuda_memoryStats": "the allocator's counters are not read, so the recording is not checked against them",
    "_get_sequence_nr": "backward allocations of functional code can be attributed to a neighboring module",
    "_enable_record_function": (
        "all steps of the timing measurement are recorded with their operators, which takes longer"
    ),
    "_current_graph_task_id": "a step that ends inside backward can leave a dispatch mode or a profiler behind",
    "_current_autograd_node": "sums of operators do not include autograd's time on the CPU",
    "_disable_current_modes": "estimates take longer: values that a program reads are computed in threads of their own",
}
"""Private functions of PyTorch in use -> what does not work if the function is missing."""


def find(name: str) -> Callable[..., Any] | None:
    """Return a private function of torch; None if this torch has no such function."""
    for place in (_C, torch.autograd, _python_dispatch):
        found: Callable[..., Any] | None = getattr(place, name, None)
        if found is not None:
            return found
    return None


def capabilities() -> dict[str, str | None]:
    """Return ``function -> None`` if this torch has it, otherwise ``function -> what does not work``."""
    built_for_cuda = torch.version.cuda is not None
    return {
        name: None if find(name) or (name.startswith("_cuda") and not built_for_cuda) else lost
        for name, lost in LOST_WITHOUT.items()
    }


def keeps_cuda_history() -> str | None:
    """Return why the allocator's history cannot record this process's CUDA allocations; None if it can."""
    for name in ("_cuda_setMemoryMetadata", "_cuda_memorySnapshot", "_cuda_memoryStats"):
        if find(name) is None:
            return f"torch {torch.__version__} has no {name}"
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
        return "PYTORCH_NO_CUDA_MEMORY_CACHING=1 turns the caching allocator off"
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        return f"the allocator {backend} keeps no history"
    return None


def sequence_reader() -> Callable[[], int]:
    """Return a function that reads the thread's next autograd sequence number; always 0 if torch has none."""
    return find("_get_sequence_nr") or (lambda: 0)


def current_node() -> object:
    """Return the autograd node that runs in this thread; None outside backward, or if torch does not expose it."""
    reader = find("_current_autograd_node")
    return None if reader is None else reader()


def is_in_backward() -> bool:
    """Return whether autograd runs a graph in this thread; if torch does not expose that, whether a node is running."""
    task_id = find("_current_graph_task_id")
    return current_node() is not None if task_id is None else bool(task_id() != -1)


def compiles_backward() -> bool:
    """Return whether compiled autograd is on, which compiles the hooks of a graph together with its nodes."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


def set_memory_metadata() -> Callable[[str], None]:
    """Return the function that sets the metadata of the calling thread's next CUDA allocations."""
    return _C._cuda_setMemoryMetadata


def history_enabled() -> bool:
    """Return whether the allocator's history is already being recorded, and not only by the flight recorder."""
    return bool(_history_is_on()) and not _ring.is_on


def _history_is_on() -> bool | None:
    """Return whether anybody records the allocator's history; None if torch does not tell."""
    asks = find("_cuda_isHistoryEnabled")
    if asks is None:
        return None
    try:
        return bool(asks())
    except RuntimeError:
        if torch.cuda.is_initialized():
            raise
        return False  # a build of torch for CUDA on a machine without a driver


class _Ring:
    """Whether the history that is on is the flight recorder's, and since when."""

    is_on = False
    from_ns = 0


_ring = _Ring()
_ours_at_work: list[int] = []


def history_is_ours() -> bool:
    """Return whether gpuledger itself is starting or stopping the history right now, in this thread."""
    return threading.get_ident() in _ours_at_work


def _change_history(**how: Any) -> None:
    _ours_at_work.append(threading.get_ident())
    try:
        _record_memory_history(**how)
    finally:
        _ours_at_work.pop()


_HISTORY_OPTIONS = inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters

_IN_ALL_THREADS = {"global_record_annotations": True} if "global_record_annotations" in _HISTORY_OPTIONS else {}
"""Record annotations of the history in all threads. Those of a single thread could only be stopped in that thread."""

_FEWER_EVENTS = {"skip_actions": ["free_completed"]} if "skip_actions" in _HISTORY_OPTIONS else {}
"""Leave out a third of the events. The ones left are enough to replay the allocations."""


def start_history(*, stacks: bool, max_entries: int, clear: bool) -> None:
    """Start the allocator's history, with or without Python stacks.

    A second call changes the mode without losing events.
    """
    _ring.is_on = False
    _change_history(**_history_options("alloc" if stacks else None, max_entries, clear=clear))


def _history_options(context: str | None, max_entries: int, *, clear: bool) -> dict[str, Any]:
    return {
        **{"enabled": "all", "context": context, "stacks": "python"},
        **{"max_entries": max_entries, "clear_history": clear},
        **_IN_ALL_THREADS,
    }


def stop_history() -> None:
    """Stop the allocator's history and discard it."""
    _ring.is_on = False
    _change_history(enabled=None)


def start_ring(max_entries: int, kept_with: str | None = None) -> None:
    """Keep the last ``max_entries`` allocations and requests to free of the allocator.

    Args:
        max_entries: Number of events.
        kept_with: Which Python stacks are taken, as for :func:`take_ring_stacks`.
    """
    _change_ring(**_history_options(kept_with, max_entries, clear=True), **_FEWER_EVENTS)
    _ring.is_on, _ring.from_ns = True, time.time_ns()


def take_ring_stacks(kept_with: str | None, max_entries: int) -> None:
    """Take Python stacks of allocations from now on, while the ring is on, or none any more. No event is lost.

    Args:
        kept_with: "state": live blocks keep the stacks. "alloc": events of the ring keep them as well. None: no stacks.
        max_entries: As given to :func:`start_ring`.
    """
    _change_ring(**_history_options(kept_with, max_entries, clear=False), **_FEWER_EVENTS)


def stop_ring() -> None:
    """Stop the ring and discard it. Live blocks keep their stacks."""
    _change_ring(enabled=None)
    _ring.is_on = False


def ring_is_on() -> bool:
    """Return whether the allocator's history is on for the flight recorder."""
    return _ring.is_on and bool(_history_is_on())


def ring_from_ns() -> int:
    """Return when the ring began, in ns since 1970; 0 if it is off."""
    return _ring.from_ns if ring_is_on() else 0


def is_history_off() -> bool:
    """Return whether nobody records the allocator's history."""
    return _history_is_on() is False


snapshots: deque[bool] = deque(maxlen=100_000)
"""Whether each snapshot was ours. The allocator adds an event for each to the history that the next one has."""


def note_snapshot(*, is_ours: bool) -> None:
    """Note that a snapshot was taken, if the history has events."""
    if _history_is_on():
        snapshots.append(is_ours)


def full_snapshot() -> dict[str, Any]:
    """Return segments, blocks and every event since the history was cleared."""
    return _own_snapshot(None)


def light_snapshot() -> dict[str, Any]:
    """Return segments and blocks only. Takes 0.1–1 ms."""
    return _own_snapshot((0, 0, False))


def _own_snapshot(what: tuple[int, int, bool] | None) -> dict[str, Any]:
    with without_importing_compiler():  # blocks can have stacks
        found: dict[str, Any] = _C._cuda_memorySnapshot(what)
    note_snapshot(is_ours=True)
    return found


def has_cuda_context() -> bool:
    """Return whether the program has a CUDA context. Asks without creating one.

    ``torch.cuda.is_initialized`` is not enough: ``torch.random.fork_rng`` initializes CUDA in a program that uses no
    GPU, and most CUDA calls would then create a context of hundreds of MiB.
    """
    if not torch.cuda.is_initialized():
        return False
    asks = find("_cuda_hasPrimaryContext")
    try:
        return asks is None or any(asks(device_idx) for device_idx in range(torch.cuda.device_count()))
    except RuntimeError:
        return False  # a simulated GPU, in a build of torch for CUDA on a machine without a driver


def holds_graphs() -> bool:
    """Return whether the allocator has private pools, of captured CUDA graphs or of a ``MemPool``."""
    if not torch.cuda.is_initialized() or find("_cuda_memorySnapshot") is None:
        return False
    return any(tuple(one.get("segment_pool_id", (0, 0))) != (0, 0) for one in light_snapshot()["segments"])


def memory_stats(device_idx: int) -> dict[str, Any]:
    """Return the allocator's counters as a nested dict, directly from C++ (8 µs on an H200; public function: 67 µs)."""
    return _C._cuda_memoryStats(device_idx)


def has_allocated(device_idx: int) -> bool:
    """Return whether the process has allocated memory of a GPU, now or before."""
    stats = memory_stats(device_idx)
    return bool(stats) and bool(stats["allocation"]["all"]["allocated"])


def has_used_gpu() -> bool:
    """Return whether the process has allocated memory of any GPU. Does not initialize CUDA."""
    return torch.cuda.is_initialized() and any(map(has_allocated, range(torch.cuda.device_count())))


def is_capturing() -> bool:
    """Return whether the current stream captures a CUDA graph."""
    reader = find("_cuda_isCurrentStreamCapturing")
    return bool(reader and torch.cuda.is_initialized() and reader())


def memory_fraction(device_idx: int) -> float | None:
    """Return the share of the GPU's memory that the process may use; None if torch does not expose it."""
    reader = find("_cuda_getMemoryFraction")
    return None if reader is None else float(reader(device_idx))


def pinned_bytes() -> int | None:
    """Return the bytes of pinned host memory that torch keeps; None if torch does not expose them."""
    reader = find("_cuda_hostMemoryStats")
    if reader is None or not torch.cuda.is_initialized():
        return None
    sizes = dict(reader()).get("allocated_bytes")
    current = sizes.get("current") if isinstance(sizes, dict) else None
    return current if isinstance(current, int) else None


def watch_out_of_memory(observer: Callable[[int, int, int, int], None]) -> None:
    """Call ``observer(device_idx, tried_bytes, total_bytes, free_bytes)`` before an out-of-memory error is raised.

    torch cannot unregister the observer, so it must disable itself.
    """
    attach = find("_cuda_attach_out_of_memory_observer")
    if attach is not None:
        attach(observer)


def workspace_bytes(device_idx: int) -> list[int]:
    """Return the sizes of the cuBLAS and cuBLASLt workspaces in this process, in bytes.

    Source: PyTorch's own rule (aten/src/ATen/cuda/CublasHandlePool.cpp). cuBLAS: CUBLAS_WORKSPACE_CONFIG, else 32 MiB
    on compute capability 9 and later, else 8,519,680 bytes. cuBLASLt: CUBLASLT_WORKSPACE_SIZE in KiB, else 1 MiB, or 32
    MiB on compute capability 9.
    """
    hopper_or_later = torch.cuda.get_device_capability(device_idx)[0] >= 9
    sizes = {_configured_cublas_bytes() or (32 << 20 if hopper_or_later else 8_519_680)}
    configured = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    sizes |= (
        {int(configured) << 10} if configured.isdecimal() else {1 << 20, 32 << 20} if hopper_or_later else {1 << 20}
    )
    return sorted(sizes)


def _configured_cublas_bytes() -> int | None:
    """Return the bytes set by ``CUBLAS_WORKSPACE_CONFIG=:KiB:count[:KiB:count…]``."""
    fields = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "").strip(":").split(":")
    if len(fields) < 2 or len(fields) % 2 or not all(field.isdecimal() for field in fields):
        return None
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return sum(int(kib) * int(count) for kib, count in pairs) << 10


_our_hooks = itertools.count(1 << 60)


def register_hook(register: Callable[[Any], RemovableHandle], hook: Callable[..., Any]) -> RemovableHandle:
    """Return the handle of ``register(hook)``, without a change to the ids of the program's next hooks.

    If another thread registers a hook meanwhile, later ids are large ones. No id is given twice.
    """
    number, before = next(_our_hooks), RemovableHandle.next_id
    handle = None
    try:
        RemovableHandle.next_id = number
        handle = register(hook)
        _use_hook_ids_from(before, number)
        return handle
    except BaseException:
        if handle is not None:
            handle.remove()
        _use_hook_ids_from(before, number)
        raise


def _use_hook_ids_from(before: int, number: int) -> None:
    """Give the next hook the id ``before``, unless another thread has registered one after ``number``."""
    if RemovableHandle.next_id in (number, number + 1):
        RemovableHandle.next_id = before


_range: Callable[[str], Any] = (
    getattr(_C._profiler, "_RecordFunctionFast", None) or torch.autograd.profiler.record_function
)
"""The cheapest range that torch offers."""
_NO_RANGE = nullcontext()


def open_range(name: str) -> Any:
    """Return a context that appears in a profile as an event of the given name. Enter it at once, in this thread.

    It does nothing if no profiler records this thread. A range of torch that is entered then raises an error if it ends
    after one has begun.
    """
    return _range(name) if is_profiling() else _NO_RANGE


profilers_of_all_threads: set[int] = set()
"""Ids of gpuledger's profilers that record all threads. torch says of no thread that one of these records it."""


def is_profiling(besides: int | None = None) -> bool:
    """Return whether a profiler is recording this thread. One in its wait or warm-up phase is not detected.

    Args:
        besides: Id of a profiler of all threads that does not count.
    """
    return bool(_C._autograd._profiler_enabled() or profilers_of_all_threads - {besides})
