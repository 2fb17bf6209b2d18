"""gpuledger: every byte, millisecond and joule of a GPU run, on the account of the layer that spent it."""

from __future__ import annotations

import importlib
from typing import Any

from gpuledger._version import __version__

_PUBLIC = {
    "MemoryProfiler": "gpuledger.integrations.memory_profiler",
    "diff": "gpuledger.services.api",
    "estimate": "gpuledger.simulate.estimate.api",
    "fake_output": "gpuledger.simulate.gpu.hints",
    "find_batch": "gpuledger.simulate.estimate.api",
    "load": "gpuledger.services.api",
    "memory_profiler": "gpuledger.integrations.memory_profiler",
    "record": "gpuledger.services.api",
    "scope": "gpuledger.collect.attribution.scopes",
    "watch": "gpuledger.services.watching",
}

__all__ = [
    "MemoryProfiler",
    "__version__",
    "diff",
    "estimate",
    "fake_output",
    "find_batch",
    "load",
    "memory_profiler",
    "record",
    "scope",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Return a public name, imported when first asked for: ``import gpuledger`` loads neither torch nor numpy."""
    if name in _PUBLIC:
        value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
