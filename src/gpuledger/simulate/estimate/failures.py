"""Describe why a program failed on a simulated GPU, and where in its own code."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

_WITHOUT_BYTES = re.compile(r"data is not allocated|data pointer|doesn't have storage|without storage", re.IGNORECASE)
DISTRIBUTED = ("FSDP", "torch.distributed")
"""Parts that need several ranks."""
_FOREIGN = (
    ("/torch/distributed/fsdp/", DISTRIBUTED[0]),
    ("/torch/distributed/_composable/", DISTRIBUTED[0]),
    ("/torch/distributed/", DISTRIBUTED[1]),
    ("/torch/cuda/graphs.py", "a CUDA graph"),
    ("/triton/", "a Triton kernel"),
)


def describe_failure(error: BaseException, *, with_ranks: bool = False) -> dict[str, Any]:
    """Return the error's message, with the file and line of the program's own code.

    Args:
        error: What the program raised.
        with_ranks: Whether the program ran as one of several ranks, so that it could use ``torch.distributed``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in frames if "/torch/" not in f.filename and "/gpuledger/" not in f.filename and f.filename[0] != "<"
    ]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "place": place,
        "unmodelled": _unmodelled(error, frames, with_ranks),
    }


def _unmodelled(error: BaseException, frames: traceback.StackSummary, with_ranks: bool) -> str:
    """Return the part of the simulation that an error comes from; "" if it is an error of the program."""
    for part, name in _FOREIGN:
        if not (with_ranks and name in DISTRIBUTED) and any(part in frame.filename for frame in frames):
            return f"{name} is not supported on a simulated GPU"
    if isinstance(error, RuntimeError) and _WITHOUT_BYTES.search(str(error)):
        return "C++ code reads the values of a tensor, and an estimate computes none"
    return ""
