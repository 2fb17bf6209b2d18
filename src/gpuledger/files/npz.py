"""Reading ``.npz`` files: arrays of numbers and texts, within limits that are checked before room is made."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gpuledger.files.reading import MIB, open_regular

UNPACKED_BYTES = 64 * MIB
"""Files that belong together may always unpack to so much, and to :data:`UNPACKED_TIMES` what they take on disk."""
UNPACKED_TIMES = 8
MAX_MEMBERS = 1_000
"""Arrays of one file; a part of a journal has about 130."""


class Unpacked:
    """Adds up what files that belong together unpack to."""

    def __init__(self) -> None:
        self._file_bytes = 0
        self._unpacked_bytes = 0

    def add(self, file_bytes: int, unpacked_bytes: int) -> None:
        """Add one file.

        Raises:
            ValueError: the files so far unpack to more than is read.
        """
        self._file_bytes += file_bytes
        self._unpacked_bytes += unpacked_bytes
        if self._unpacked_bytes > max(UNPACKED_BYTES, UNPACKED_TIMES * self._file_bytes):
            raise ValueError(
                f"it unpacks to {self._unpacked_bytes >> 20:,} MiB, which is too much for its size on disk"
            )


def read_arrays(path: Path, unpacked: Unpacked | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name.

    Call it inside :func:`gpuledger.files.reading.reading`: a damaged file raises whatever zipfile and numpy meet.

    Args:
        path: The file.
        unpacked: What the files that belong to it have unpacked to so far; None where it stands alone.

    Raises:
        InputError: it is not a regular file.
        ValueError: it would unpack to too much, or holds something else than numbers and texts.
    """
    with open_regular(path) as stream, zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise ValueError(f"it has {len(members):,} arrays, the limit is {MAX_MEMBERS:,}")
        (unpacked or Unpacked()).add(os.fstat(stream.fileno()).st_size, sum(member.file_size for member in members))
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
        if is_fortran or dtype.kind not in "biufU":
            raise ValueError(f"{member.filename}: expected an array of numbers or strings")
        count = math.prod(shape)
        wanted_bytes = count * dtype.itemsize
        content = file.read(wanted_bytes) if wanted_bytes <= member.file_size else b""
        if len(content) != wanted_bytes:
            raise ValueError(f"{member.filename}: cut off, expected {count:,} values")
        return np.frombuffer(content, dtype).reshape(shape)
