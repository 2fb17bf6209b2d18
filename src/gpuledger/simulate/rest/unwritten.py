"""Files that a program has saved and that were not written, because they could replace what it needs.

The program finds them, and can rename and copy them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.side_effects import is_temporary

Content = TypeVar("Content")
_EXISTS = ((os.path, "exists"), (os.path, "isfile"), (Path, "exists"), (Path, "is_file"))
"""Functions that say whether a file exists."""
_unlink = os.unlink


def place_of(path: Any) -> str | None:
    """Return the absolute path of a file; None for one that is open."""
    return os.path.abspath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else None


def _nothing(_place: str) -> None:
    return None


class UnwrittenFiles(Generic[Content]):
    """What stands for each file, by its absolute path.

    Args:
        read: Returns what stands for a file that was written for the program; None of any other file.
    """

    def __init__(self, read: Callable[[str], Content | None] = _nothing) -> None:
        self.contents: dict[str, Content] = {}
        self._read = read

    def install(self, patches: Patches) -> None:
        """Replace what asks for, renames or copies files."""
        for place, name in _EXISTS:
            patches.put(place, name, self._knowing(getattr(place, name)))
        for place, name in ((os, "rename"), (os, "replace"), (shutil, "copyfile"), (shutil, "copy"), (shutil, "copy2")):
            patches.put(place, name, self._following(getattr(place, name), renames=place is os))

    def _knowing(self, exists: Callable[..., bool]) -> Callable[..., bool]:
        def knows(path: Any, *args: Any, **kwargs: Any) -> bool:
            return exists(path, *args, **kwargs) or place_of(path) in self.contents

        return knows

    def _following(self, plain: Callable[..., Any], *, renames: bool) -> Callable[..., Any]:
        """Return a function that renames or copies what stands for a file. No other file is replaced by it."""

        def follow(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            source, target = place_of(src), place_of(dst)
            if source is None or target is None:
                return plain(src, dst, *args, **kwargs)
            if not renames and os.path.isdir(target):
                target = os.path.join(target, os.path.basename(source))
            written = self._read(source)
            content = self.contents.get(source, written)
            if content is None and source not in self.contents:
                return plain(src, dst, *args, **kwargs)
            is_there = written is not None or (is_temporary(source) and os.path.lexists(source))
            if renames:
                self.contents.pop(source, None)
            if is_there and (is_temporary(target) or not os.path.lexists(target) or self._read(target) is not None):
                return plain(src, dst, *args, **kwargs)
            if is_there and renames:
                _unlink(source)
            self.contents[target] = content  # type: ignore[assignment]  # None is one of its values then
            return None if renames else dst

        return follow
