"""Places in the program's own code, which no library has."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_STDLIB = f"{sysconfig.get_path('stdlib')}/"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/")
"""Parts of the paths of files that are not the program's own."""


def is_own(file: str) -> bool:
    """Return whether a file is the program's own, not one of a library."""
    is_file = bool(file) and file[0] != "<" and "/gpuledger/" not in file
    return is_file and not file.startswith(_STDLIB) and not any(part in file for part in _LIBRARIES)


def line_now() -> str:
    """Return the innermost line of the program's own code that runs, as FILE:LINE; "" if there is none."""
    return own_place((frame.filename, frame.lineno or 0) for frame in traceback.extract_stack())


def own_place(frames: Iterable[tuple[str, int]]) -> str:
    """Return the innermost line of the program's own code, as FILE:LINE; "" if there is none.

    Args:
        frames: Paths and lines, the outermost first.
    """
    known = [(file, line) for file, line in frames if file and file[0] != "<" and "/gpuledger/" not in file]
    own = [place for place in known if is_own(place[0])]
    found = own or [place for place in known if "/torch/" not in place[0]]
    return f"{Path(found[-1][0]).name}:{found[-1][1]}" if found else ""
