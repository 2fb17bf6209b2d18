"""gpuledger: every byte, millisecond and joule of a GPU run, on the account of the layer that spent it."""

from __future__ import annotations

import importlib
from typing import Any

from gpuledger._version import __version__

_PUBLIC = {
    "diff": "gpuledger.api",
    "load": "gpuledger.api",
    "record": "gpuledger.api",
    "scope": "gpuledger.collect.scopes",
}

__all__ = ["__version__", "diff", "load", "record", "scope"]


def __getattr__(name: str) -> Any:
    """Return a public name, imported when first asked for: ``import gpuledger`` loads neither torch nor numpy."""
    if name in _PUBLIC:
        value = globals()[name] = getattr(importlib.import_module(_PUBLIC[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
