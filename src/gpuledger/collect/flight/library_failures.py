"""A library that could not allocate GPU memory outside of PyTorch's allocator, from the exception at the end.

NCCL, cuBLAS and others call ``cudaMalloc`` themselves, so the allocator's observer does not see it when that fails.
PyTorch then raises an error of another type, with the library's text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.program_objects import class_name
from gpuledger.collect.attribution.stacks import MAX_FRAMES
from gpuledger.collect.flight.failures import is_of_program

_MOST_LINKED = 8
"""Number of exceptions that are looked at: the last one, and those that it was raised from."""

arguments_of: Callable[[BaseException], tuple[Any, ...]] = BaseException.args.__get__  # type: ignore[attr-defined]
"""Reads an exception's arguments without ``__str__``, which a class of the program can override."""

_STATUS = re.compile(r"\b(CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE|CURAND|NVRTC|CUTENSOR)_[A-Z_]*ALLOC[A-Z]*_FAILED\b")
_NCCL_ALLOCATION = re.compile(r"out of memory|CUDA (calloc|malloc|host ?alloc)|cuMem\w+", re.IGNORECASE)
_CUDA = re.compile(r"\b(CUDA|HIP)\b.*\bout of memory\b|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation", re.DOTALL)
_ON_HOST = "HOST_ALLOC"
_NAMES = {"CUBLAS": "cuBLAS", "CUDNN": "cuDNN", "CUFFT": "cuFFT", "CUSOLVER": "cuSOLVER", "CUSPARSE": "cuSPARSE"}
_NAMES |= {"CURAND": "cuRAND", "CUTENSOR": "cuTENSOR"}


def last_error() -> BaseException | None:
    """Return the exception that leaves a recorded block or ends the program; None if there is none."""
    error = sys.exception()
    if error is not None or hasattr(sys, "ps1"):  # interactive: an error of an earlier line, and the user went on
        return error
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def find_library_failure(error: BaseException | None) -> dict[str, Any] | None:
    """Return the facts of a library's failed allocation; None if ``error`` is something else.

    An out-of-memory error of PyTorch's own allocator is something else: the observer has recorded it. ``frames`` are
    file, line and function of the traceback, innermost first.

    Source: type and text of the exception and of those that it was raised from. Free memory is read now.
    """
    for one in linked(error):
        if issubclass(type(one), torch.OutOfMemoryError) or not torch_private.has_cuda_context():
            return None
        library = library_of(text_of(one), class_name(type(one)))
        if library:
            return {"tried_bytes": None, **_gpu_memory(), "library": library, "frames": frames_of(one)}
    return None


def find_gpu_failure(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error of PyTorch's own allocator that led to ``error``; None if there is none."""
    return next((one for one in linked(error) if issubclass(type(one), torch.OutOfMemoryError)), None)


def library_of(text: str, type_name: str) -> str:
    """Return the library that could not allocate GPU memory, according to an error; "" if the error is another."""
    status = _STATUS.search(text)
    if status is not None:
        return "" if _ON_HOST in status[0] else _NAMES.get(status[1], status[1])
    if ("NCCL" in text or type_name == "DistBackendError") and _NCCL_ALLOCATION.search(text):
        return "NCCL"
    return "a CUDA library" if _CUDA.search(text) else ""


def linked(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it was raised from."""
    for _ in range(_MOST_LINKED):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, without calling its methods."""
    return " ".join(text for text in arguments_of(error) if type(text) is str)


def frames_of(error: BaseException) -> list[list[Any]]:
    """Return the frames of the traceback that are the program's, innermost first."""
    found: list[list[Any]] = []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if is_of_program(entry.tb_frame):
            found.append([code.co_filename, entry.tb_lineno, code.co_name])
        entry = entry.tb_next
    return found[: -MAX_FRAMES - 1 : -1]


def _gpu_memory() -> dict[str, int | None]:
    """Return total and free bytes of the current GPU; None if CUDA does not answer, as after an invalid access."""
    device_idx = torch.cuda.current_device()
    free_bytes: int | None
    total_bytes: int | None
    free_bytes = total_bytes = None
    with suppress(RuntimeError):
        free_bytes, total_bytes = torch.cuda.mem_get_info(device_idx)
    return {
        **{"device_idx": device_idx, "total_bytes": total_bytes, "free_bytes": free_bytes},
        "largest_free_bytes": None,
    }
