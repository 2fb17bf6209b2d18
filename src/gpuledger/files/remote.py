"""Folders in object storage, through fsspec. It is imported when a URL is opened.

The names in a listing are untrusted: whoever writes to a bucket chooses them. A name that no run has is refused before
anything is downloaded, so that every file is written below the directory that was asked for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.files.reading import reason_of

MOST_FILES = 200_000
MOST_DEPTH = 8
"""Largest number of files of a run, and of parts in the name of one."""
ON_FAILURE = "Check the URL, the credentials and the connection, then repeat the command"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_INSTALL = "pip install 'gpuledger[remote]'"
_INSTALL_ALSO = {"gs": " gcsfs", "gcs": " gcsfs"}
_LOCAL = ("file", "local")


def is_storable(name: str) -> bool:
    """Return whether a file of a run can have this name, relative to the run and with ``/`` between its parts."""
    parts = name.split("/")
    return len(parts) <= MOST_DEPTH and all(_PART.fullmatch(part) for part in parts)


@dataclass(frozen=True)
class RemoteFolder:
    """A folder in object storage: its URL, fsspec's file system, and its path there."""

    url: str
    filesystem: Any
    root: str

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.url}/{name}", self.filesystem, f"{self.root}/{name}")

    def has(self, name: str) -> bool:
        """Return whether the folder has a file ``name``.

        Raises:
            InputError: the storage cannot be read.
        """
        with self._asking():
            try:
                self.filesystem.info(f"{self.root}/{name}")
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def folders(self) -> list[str]:
        """Return the names of the folders in it, in order; none if it does not exist.

        Raises:
            InputError: the storage cannot be read.
        """
        with self._asking():
            try:
                entries = self.filesystem.ls(self.root, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(str(entry["name"]).rpartition("/")[2] for entry in entries if entry["type"] == "directory")

    def files(self) -> dict[str, int]:
        """Return the size in bytes of each file, by its name relative to the folder; none if it does not exist.

        Raises:
            InputError: the storage cannot be read, or has a file that no run has.
        """
        with self._asking():
            try:
                found = self.filesystem.find(self.root, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        if len(found) > MOST_FILES:
            raise InputError(f"{self.url}: {len(found):,} files, but a run has at most {MOST_FILES:,}")
        sizes = {self._relative(str(path), entry): int(entry["size"] or 0) for path, entry in found.items()}
        folders = {"/".join(name.split("/")[:depth]) for name in sizes for depth in range(1, name.count("/") + 1)}
        for name in folders & sizes.keys():
            raise InputError(f"{self.url}: {name!r} is both a file and a folder")
        return sizes

    def _relative(self, path: str, entry: dict[str, Any]) -> str:
        """Return the name of a listed file relative to the folder.

        Raises:
            InputError: no file of a run has this name or kind.
        """
        name = path.removeprefix(f"{self.root}/")
        if name == path or not is_storable(name):
            raise InputError(f"{self.url}: {path!r} is not the name of a file of a run")
        if entry.get("type") != "file" or entry.get("islink"):
            raise InputError(f"{self.url}: {name!r} is not a regular file")
        return name

    def download(self, sizes: dict[str, int], directory: Path) -> None:
        """Copy files below a local directory.

        Args:
            sizes: The files, as :meth:`files` returns them.
            directory: Gets the files. It must be new.

        Raises:
            InputError: the storage cannot be read, or a file does not have its size. Some files may be left.
        """
        places = {name: directory / name for name in sizes}
        for parent in {place.parent for place in places.values()}:
            parent.mkdir(parents=True, exist_ok=True)
        with self._asking():
            self.filesystem.get([f"{self.root}/{name}" for name in sizes], [str(place) for place in places.values()])
        for name, place in places.items():
            if not place.is_file() or place.stat().st_size != sizes[name]:
                raise InputError(f"{self.url}: {name} was not downloaded completely", hint=ON_FAILURE)

    def upload(self, directory: Path, names: Sequence[str]) -> None:
        """Copy files of a local directory into the folder.

        Raises:
            GpuLedgerError: the storage cannot be written. Some files may be there.
        """
        with self._asking(GpuLedgerError):
            self.filesystem.put([str(directory / name) for name in names], [f"{self.root}/{name}" for name in names])

    def remove(self, names: Sequence[str]) -> None:
        """Remove files.

        Raises:
            GpuLedgerError: the storage cannot be written.
        """
        with self._asking(GpuLedgerError):
            if names:
                self.filesystem.rm([f"{self.root}/{name}" for name in names])

    @contextmanager
    def _asking(self, kind: type[GpuLedgerError] = InputError) -> Iterator[None]:
        """Turn an error of the storage, which can be of any class, into one that names the URL."""
        try:
            yield
        except Exception as error:
            raise kind(f"{self.url}: {reason_of(error)}", hint=ON_FAILURE) from error


def open_folder(url: str) -> RemoteFolder:
    """Return the folder that a URL names. It does not have to exist.

    Raises:
        UsageError: fsspec, or what it needs for this URL, is not installed; or the URL is wrong.
    """
    scheme = url.partition("://")[0]
    install = _INSTALL + _INSTALL_ALSO.get(scheme, "")
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{url}: fsspec is not installed", hint=install) from error
    options = {"auto_mkdir": True} if scheme in _LOCAL else {}
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise UsageError(f"{url}: {reason_of(error)}", hint=install) from error
    except Exception as error:  # of the library that fsspec loads for this URL
        raise UsageError(f"{url}: {reason_of(error)}", hint="Use a URL such as s3://bucket/train") from error
    _keep_from_terminal(type(filesystem))
    filesystem.invalidate_cache()
    return RemoteFolder(url.rstrip("/"), filesystem, str(root).rstrip("/"))


def _keep_from_terminal(kind: type) -> None:
    """Keep the log of a file system's library from the terminal, unless the program has a handler for it.

    gcsfs logs the stack of each error that it also raises. Python prints such messages if there is no handler at all.
    """
    log = logging.getLogger(kind.__module__.partition(".")[0])
    if not log.handlers:
        log.addHandler(logging.NullHandler())
