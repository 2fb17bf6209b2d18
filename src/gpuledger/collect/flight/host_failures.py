"""Host memory that could not be allocated, from an exception: of PyTorch's CPU allocator, of Python or of NumPy."""

from __future__ import annotations

import math
import os
import re
import sys
from typing import Any

from gpuledger.collect.adapter.program_objects import module_of_class
from gpuledger.collect.flight.host_memory import available_bytes, mapped_bytes, resident_bytes, usable_bytes
from gpuledger.collect.flight.library_failures import arguments_of, frames_of, linked, text_of
from gpuledger.model.flight_facts import HOST

_PYTORCH = re.compile(r"DefaultCPUAllocator: .*?you tried to allocate (\d+) bytes", re.DOTALL)
_WORKER = re.compile(r"^Caught (\w+) in DataLoader worker process (\d+)")
"""Beginning of an error that PyTorch raises again. Its class is another one if it cannot be made from a text."""
_NUMPY = re.compile(r"Unable to allocate ([\d.]+) ([KMGTPE]iB|bytes) for an array")
_UNITS = {name: 1 << 10 * power for power, name in enumerate(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}


def find_host_failure(error: BaseException | None) -> dict[str, Any] | None:
    """Return the facts of host memory that could not be allocated; None if ``error`` is something else.

    ``tried_bytes`` is None if the error does not name it. ``frames`` are file, line and function of the traceback,
    innermost first. ``allocated_bytes`` is the resident memory of the process. What a data worker used is not known.

    Source: type and text of the exception and of those that it was raised from. Sizes are read now.
    """
    return next((facts for one in linked(error) if (facts := facts_of(one)) is not None), None)


def facts_of(error: BaseException) -> dict[str, Any] | None:
    """Return what :func:`find_host_failure` does, of one exception and not of those that it was raised from."""
    text = text_of(error)
    worker, request = _WORKER.match(text), _PYTORCH.search(text) if issubclass(type(error), RuntimeError) else None
    in_worker = worker is not None and worker[1].endswith("MemoryError")
    if request is None and not in_worker and not issubclass(type(error), MemoryError):
        return None
    return {
        "device_idx": HOST,
        "tried_bytes": int(request[1]) if request is not None else _tried_by_numpy(error, text),
        "total_bytes": None if worker else usable_bytes(),
        "free_bytes": available_bytes(),
        "largest_free_bytes": None,
        "allocated_bytes": None if worker else resident_bytes(os.getpid()),
        "mapped_bytes": None if worker else mapped_bytes(),
        "library": f"Data worker {worker[2]}" if worker else _library_of(error, is_pytorch=request is not None),
        "frames": frames_of(error),
    }


def _tried_by_numpy(error: BaseException, text: str) -> int | None:
    """Return the bytes of an array that NumPy could not allocate; None if it was something else."""
    found = _NUMPY.search(text)
    if found is not None:
        return round(float(found[1]) * _UNITS[found[2]])
    numpy: Any = sys.modules.get("numpy")
    arguments = arguments_of(error)
    if numpy is None or len(arguments) != 2 or type(arguments[0]) is not tuple:
        return None
    shape, kind = arguments
    is_array = issubclass(type(kind), numpy.dtype) and all(type(size) is int for size in shape)
    return math.prod(shape) * int(numpy.dtype.itemsize.__get__(kind)) if is_array else None


def _library_of(error: BaseException, *, is_pytorch: bool) -> str:
    if is_pytorch:
        return "PyTorch"
    return "NumPy" if module_of_class(type(error)).partition(".")[0] == "numpy" else "Python"
