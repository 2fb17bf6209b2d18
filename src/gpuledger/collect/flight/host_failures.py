"""Host memory that could not be allocated, from the exception at the end: PyTorch's CPU allocator, Python and NumPy."""

from __future__ import annotations

import os
import re
from typing import Any

from gpuledger.collect.flight.failures import OUTSIDE
from gpuledger.collect.flight.host_memory import available_bytes, resident_bytes, usable_bytes
from gpuledger.collect.flight.library_failures import frames_of, linked, text_of

HOST = -1
"""Device number of the host."""
_PYTORCH = re.compile(r"DefaultCPUAllocator: .*?you tried to allocate (\d+) bytes", re.DOTALL)


def find_host_failure(error: BaseException | None) -> dict[str, Any] | None:
    """Return the facts of host memory that could not be allocated; None if ``error`` is something else.

    ``tried_bytes`` is None if the error does not name it. ``frames`` are file, line and function of the traceback,
    innermost first. ``allocated_bytes`` is the resident memory of the process.

    Source: type and text of the exception and of those that it was raised from. Sizes are read now.
    """
    for one in linked(error):
        request = _PYTORCH.search(text_of(one)) if issubclass(type(one), RuntimeError) else None
        if request is None and not issubclass(type(one), MemoryError):
            continue
        return {
            "device_idx": HOST,
            "tried_bytes": None if request is None else int(request[1]),
            "total_bytes": usable_bytes(),
            "free_bytes": available_bytes(),
            "largest_free_bytes": None,
            "allocated_bytes": resident_bytes(os.getpid()),
            "library": "Python" if request is None else "PyTorch",
            "frames": frames_of(one, (*OUTSIDE, "numpy")),
        }
    return None
