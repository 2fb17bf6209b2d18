"""Keep pyarrow from loading pandas, which no command needs, in the command line's own process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class PandasAside:
    """An import hook: for pyarrow there is no pandas, for any other that asks there is.

    pyarrow loads it at the first array it makes, to see whether what it was given is pandas' own, and asks only once.
    That is a third of what ``gpuledger show`` takes. Compiled, it asks in the name of whoever called it.
    Source: pyarrow's ``pandas-shim.pxi``.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return None, which lets others look for the module."""
        if name == "pandas" and self._asker().startswith(("pyarrow", "gpuledger")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

    def _asker(self) -> str:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", ""))


def leave_pandas_aside() -> None:
    """Set the hook; only in a process that is ours alone, where no one hands pandas' arrays to pyarrow."""
    sys.meta_path.insert(0, PandasAside())
