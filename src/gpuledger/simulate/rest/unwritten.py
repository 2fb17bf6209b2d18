"""Files that a program has saved and that were not written, because they could replace what it needs.

The program finds them, can ask for their size, can read them, and can rename and copy them.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

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


class _Entry:
    """An unwritten file, as a program gets it from ``os.scandir``."""

    def __init__(self, directory: Any, name: str) -> None:
        self.name = name
        self.path = os.path.join(directory, name)

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return True."""
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return False."""
        return False

    def is_symlink(self) -> bool:
        """Return False."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return what ``os.stat`` returns."""
        return os.stat(self.path)


class _Scanned:
    """The entries of a directory, and after them its unwritten files."""

    def __init__(self, plain: Any, directory: Any, inside: list[str]) -> None:
        self._plain = plain
        self._directory = directory
        self._inside = inside

    def __iter__(self) -> Iterator[Any]:
        for entry in self._plain:
            if entry.name not in self._inside:
                yield entry
        for name in self._inside:
            yield _Entry(self._directory, name)

    def __enter__(self) -> _Scanned:
        return self

    def __exit__(self, *_error: object) -> None:
        self._plain.close()

    close = __exit__


class UnwrittenFiles(Generic[Content]):
    """What stands for each file, by its absolute path.

    Args:
        opened: Returns what stands for a file as one that is open for reading.
        read: Returns what stands for a file that was written for the program; None of any other file.
    """

    def __init__(self, opened: Callable[[Content], BinaryIO], read: Callable[[str], Content | None] = _nothing) -> None:
        self.contents: dict[str, Content] = {}
        self._opened = opened
        self._read = read

    def install(self, patches: Patches) -> None:
        """Replace what asks for, lists, reads, renames or copies files."""
        for place, name in _EXISTS:
            patches.put(place, name, self._knowing(getattr(place, name)))
        for place, name in ((os, "rename"), (os, "replace"), (shutil, "copyfile"), (shutil, "copy"), (shutil, "copy2")):
            patches.put(place, name, self._following(getattr(place, name), renames=place is os))
        patches.put(os, "stat", self._measuring(os.stat))
        patches.put(os, "listdir", self._listing(os.listdir))
        patches.put(os, "scandir", self._scanning(os.scandir))
        for place in (builtins, io):
            patches.put(place, "open", self._opening(place.open))

    def _knowing(self, exists: Callable[..., bool]) -> Callable[..., bool]:
        def knows(path: Any, *args: Any, **kwargs: Any) -> bool:
            return exists(path, *args, **kwargs) or place_of(path) in self.contents

        return knows

    def _measuring(self, plain: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def measure(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            place = place_of(path) if self.contents else None
            if place not in self.contents:
                return plain(path, *args, **kwargs)
            with self._opened(self.contents[place]) as file:
                size_bytes, now_s = file.seek(0, io.SEEK_END), int(time.time())
            mode = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR
            return os.stat_result((mode, 0, 0, 1, os.getuid(), os.getgid(), size_bytes, now_s, now_s, now_s))

        return measure

    def _listing(self, plain: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def list_names(path: Any = ".") -> list[Any]:
            listed = plain(path)
            return listed + [name for name in self._inside(path) if name not in listed]

        return list_names

    def _scanning(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def scan(path: Any = ".") -> Any:
            inside = self._inside(path)
            return _Scanned(plain(path), path, inside) if inside else plain(path)

        return scan

    def _inside(self, path: Any) -> list[str]:
        """Return the names of unwritten files in a directory. One that is given as bytes has none."""
        directory = None if isinstance(path, bytes) or not self.contents else place_of(path)
        return [os.path.basename(one) for one in self.contents if os.path.dirname(one) == directory]

    def _opening(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            place = place_of(file) if self.contents else None
            if place not in self.contents:
                return plain(file, mode, *args, **kwargs)
            if mode == "rb":
                return self._opened(self.contents[place])
            opened = plain(file, mode, *args, **kwargs)
            if mode[0] in "wx":  # the program writes the file by itself
                self.contents.pop(place, None)
            return opened

        return open_file

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
