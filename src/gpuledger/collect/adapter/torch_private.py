"""The one place that names PyTorch's private functions.

Each is looked up once; what is missing is reported by :func:`capabilities` together with what is lost without it.
Seen to work with torch 2.11 (CUDA 13.0, H200) and torch 2.13 (CPU build).
"""

from __future__ import annotations

import inspect
import math
import os
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from gpuledger.collect.adapter.program_objects import attributes_of
from gpuledger.model.journal.journal import ActivityKind

_C = torch._C
_record_memory_history = torch.cuda.memory._record_memory_history
"""Taken before anybody wraps it: the session wraps it to notice a history of the program's own."""

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
}
"""Private functions of PyTorch that are used, and what is lost where one is missing."""


def find(name: str) -> Callable[..., Any] | None:
    """Return a private function of torch; None where this torch has none of that name."""
    for place in (_C, torch.autograd):
        found: Callable[..., Any] | None = getattr(place, name, None)
        if found is not None:
            return found
    return None


def capabilities() -> dict[str, str | None]:
    """Return ``function -> None`` where this torch has it, else what is lost without it."""
    built_for_cuda = torch.version.cuda is not None
    return {
        name: None if find(name) or (name.startswith("_cuda") and not built_for_cuda) else lost
        for name, lost in LOST_WITHOUT.items()
    }


def keeps_cuda_history() -> str | None:
    """Return why this process's CUDA allocations cannot be taken from the allocator's history; None when they can."""
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
    """Return a function that reads the thread's next autograd sequence number; constant 0 where torch has none."""
    return find("_get_sequence_nr") or (lambda: 0)


def current_node() -> object:
    """Return the autograd node whose backward runs in this thread; None outside, or where torch does not tell."""
    reader = find("_current_autograd_node")
    return None if reader is None else reader()


def is_in_backward() -> bool:
    """Return whether autograd runs a graph in this thread; where torch does not tell, whether a node's code runs."""
    task_id = find("_current_graph_task_id")
    return current_node() is not None if task_id is None else bool(task_id() != -1)


def set_memory_metadata() -> Callable[[str], None]:
    """Return the function that tags the calling thread's next CUDA allocations."""
    return _C._cuda_setMemoryMetadata


def history_enabled() -> bool:
    """Return whether somebody records the allocator's history already."""
    enabled = find("_cuda_isHistoryEnabled")
    return bool(enabled()) if enabled else False


_ours_at_work: list[int] = []


def history_is_ours() -> bool:
    """Return whether it is we who start or stop a history at this moment, in this thread."""
    return threading.get_ident() in _ours_at_work


def _change_history(**how: Any) -> None:
    _ours_at_work.append(threading.get_ident())
    try:
        _record_memory_history(**how)
    finally:
        _ours_at_work.pop()


_IN_ALL_THREADS = (
    {"global_record_annotations": True}
    if "global_record_annotations" in inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters
    else {}
)
"""Annotations of the history are noted in all threads: those of one thread could be stopped in that thread alone."""


def start_history(*, stacks: bool, max_entries: int, clear: bool) -> None:
    """Keep the allocator's history, with Python stacks or without; called again it changes the mode, losing nothing."""
    _change_history(
        enabled="all",
        context="alloc" if stacks else None,
        stacks="python",
        max_entries=max_entries,
        clear_history=clear,
        **_IN_ALL_THREADS,
    )


def stop_history() -> None:
    """Stop keeping the allocator's history and drop it."""
    _change_history(enabled=None)


def full_snapshot() -> dict[str, Any]:
    """Return segments, blocks and every event since the history was cleared."""
    return _C._cuda_memorySnapshot(None)


def light_snapshot() -> dict[str, Any]:
    """Return segments and blocks only; leaves a SNAPSHOT event in the history. 0.1–1 ms."""
    return _C._cuda_memorySnapshot((0, 0, False))


def holds_graphs() -> bool:
    """Return whether memory is kept apart for CUDA graphs that were captured, or in another pool of the program's."""
    if not torch.cuda.is_initialized() or find("_cuda_memorySnapshot") is None:
        return False
    return any(tuple(one.get("segment_pool_id", (0, 0))) != (0, 0) for one in light_snapshot()["segments"])


def memory_stats(device_idx: int) -> dict[str, Any]:
    """Return the allocator's counters as a nested dict, straight from C++ (8 µs on an H200, the public one 67)."""
    return _C._cuda_memoryStats(device_idx)


def watch_out_of_memory(observer: Callable[[int, int, int, int], None]) -> None:
    """Call ``observer(device_idx, tried_bytes, total_bytes, free_bytes)`` before an out-of-memory error is raised.

    Torch has no way to take an observer back: it must turn itself off.
    """
    attach = find("_cuda_attach_out_of_memory_observer")
    if attach is not None:
        attach(observer)


def workspace_bytes(device_idx: int) -> list[int]:
    """Return the sizes cuBLAS and cuBLASLt workspaces are asked for in this process.

    Source: torch's own rule (aten/src/ATen/cuda/CublasHandlePool.cpp): CUBLAS_WORKSPACE_CONFIG, else 32 MiB on compute
    capability 9 and later, else 8,519,680 bytes; cuBLASLt: CUBLASLT_WORKSPACE_SIZE in KiB, else 1 MiB, or 32 MiB on 9.
    """
    hopper_or_later = torch.cuda.get_device_capability(device_idx)[0] >= 9
    sizes = {_configured_cublas_bytes() or (32 << 20 if hopper_or_later else 8_519_680)}
    configured = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    sizes |= (
        {int(configured) << 10} if configured.isdecimal() else {1 << 20, 32 << 20} if hopper_or_later else {1 << 20}
    )
    return sorted(sizes)


def _configured_cublas_bytes() -> int | None:
    """Return the bytes asked for by ``CUBLAS_WORKSPACE_CONFIG=:KiB:count[:KiB:count…]``."""
    fields = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "").strip(":").split(":")
    if len(fields) < 2 or len(fields) % 2 or not all(field.isdecimal() for field in fields):
        return None
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return sum(int(kib) * int(count) for kib, count in pairs) << 10


def never_compile(code: CodeType) -> None:
    """Have torch.compile run a function's frames as they are, and treat those it calls as any other."""
    frames = _C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def is_compilers_own(module: Any) -> bool:
    """Return whether a module is a graph that torch.compile made: what it holds is the program's, under other names."""
    return "compile_subgraph_reason" in attributes_of(module)


_MODE_FLAGS = (
    "old_dispatch_mode_flags",
    "old_non_infra_dispatch_mode_flags",
    "old_without_ignore_compile_internals_dispatch_mode_flags",
)
"""What a TorchDispatchMode keeps to put back when it is left."""


def has_dispatch_mode() -> bool:
    """Return whether operators of the calling thread pass through any dispatch mode."""
    return bool(_C._len_torch_dispatch_stack())


def bypass_python_without_modes() -> None:
    """Have this thread's operators not pass through Python where no dispatch mode is there for them."""
    if not has_dispatch_mode():
        for key in (_C.DispatchKey.Python, _C.DispatchKey.PythonTLSSnapshot):
            _C._dispatch_tls_set_dispatch_key_included(key, False)


def take_out_dispatch_mode(mode: Any) -> bool:
    """Return whether a TorchDispatchMode was taken from this thread's stack, be there others above it.

    Not while it is at work: torch has it in hand then, and puts it back afterwards. Nor inside backward, after which
    autograd puts back the modes of before.
    """
    if is_in_backward():
        return False
    from torch.utils import _python_dispatch

    stack = _python_dispatch._get_current_dispatch_mode_stack()
    place = next((number for number, one in enumerate(stack) if one is mode), None)
    if place is None:
        return False
    above = stack[place + 1 :]
    if above:  # the one above puts back what ours would have
        for name in _MODE_FLAGS:
            ours, theirs = getattr(mode, name, None), getattr(above[0], name, None)
            if ours and theirs:
                ours[-1], theirs[-1] = theirs[-1], ours[-1]
    taken = [_python_dispatch._pop_mode() for _ in above]
    mode.__exit__(None, None, None)
    for other in reversed(taken):
        _python_dispatch._push_mode(other)
    return True


open_range: Callable[[str], Any] = (
    getattr(_C._profiler, "_RecordFunctionFast", None) or torch.autograd.profiler.record_function
)
"""Makes a context that shows as an event of that name in a profile; the cheapest there is, found once."""


_EVENT_KINDS = {
    "cpu_op": ActivityKind.HOST,
    "kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.COPY,
}
_DRIVER_CALLS = ("cuda", "cu", "hip")


def kind_of_event(event: Any) -> ActivityKind | None:
    """Return what an event of Kineto's is; None for what is neither an operator, a kernel nor a copy.

    torch before 2.13 does not say it: there it follows from the device and the name.
    """
    if hasattr(event, "activity_type"):
        return _EVENT_KINDS.get(event.activity_type())
    name = event.name()
    if event.device_type() == _C._autograd.DeviceType.CPU:
        is_call = name.startswith(_DRIVER_CALLS) and name[-1:].isalnum() and "::" not in name and "." not in name
        return None if is_call else ActivityKind.HOST
    if _is_annotation(event):
        return None
    return ActivityKind.COPY if name.startswith(("Memcpy", "Memset")) else ActivityKind.KERNEL


_LONGEST = 16
"""Numbers of a list that is an argument, at most; longer ones are a step's of all parameters."""


def inputs_of(event: Any) -> list[Any] | None:
    """Return ``[shapes, strides, dtypes, values]`` of an operator's inputs, as JSON holds them; None where not told.

    ``shapes`` has a list of shapes for a list of tensors, where this torch tells them; ``strides`` is None where it
    does not. ``values`` are those of numbers and lists of numbers, None for all else.
    """
    dtypes = event.dtypes() if hasattr(event, "concrete_inputs") else []
    if not dtypes:
        return None
    shapes = getattr(event, "structured_input_shapes", event.shapes)()
    strides = getattr(event, "structured_input_strides", lambda: None)()
    values = [_number(value) for value in event.concrete_inputs()]
    return [list(shapes), strides, list(dtypes), values or [None] * len(dtypes)]


def _number(value: Any) -> Any:
    """Return a bool, a finite number or a short list of them; None for all else."""
    if isinstance(value, (list, tuple)):
        return [_number(one) for one in value] if len(value) <= _LONGEST else None
    return value if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)) else None


def graph_launches(events: list[Any], until_ns: int) -> dict[int, Any]:
    """Return the calls that launched CUDA graphs before a moment, by what the driver's records are joined by.

    No operator tells of them, and so their kernels have no other launch.
    """
    return {
        event.correlation_id(): event
        for event in events
        if event.name() == "cudaGraphLaunch" and event.start_ns() < until_ns
    }


def _is_annotation(event: Any) -> bool:
    """Return whether a device's event is the shadow of a range of the host's, such as ``Optimizer.step#AdamW.step``."""
    asked = getattr(event, "is_user_annotation", None)
    return bool(asked()) if asked is not None else event.name().startswith("Optimizer.")


def is_profiling() -> bool:
    """Return whether a profiler records now. One that waits or warms up is not seen."""
    return bool(_C._autograd._profiler_enabled())
