"""Files that are written whole or not at all, and only where the user said.

:func:`replaced` is for files below a directory that the user named: it follows no link there, since whoever made the
directory may have put links into it. :func:`output` is for a file that the user named: it writes through a link, and
into a device or a pipe.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from gpuledger.errors import InputError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LINKS = 40
"""As many as Linux follows in one path."""
_STREAMS = (stat.S_ISCHR, stat.S_ISFIFO, stat.S_ISSOCK)

own_open = open
"""Python's ``open`` as this module found it: a recorded program may replace the builtin, and must not see our calls."""


def _descriptors(path: str | Path, flags: int, directory: int | None = None) -> Iterator[int]:
    """Return an iterator that opens a file and yields its descriptor.

    For C code that opens the file and stores the descriptor in one call. A signal handler of the program can raise
    between two bytecodes, and would leave a descriptor open that nothing holds yet.
    """
    return map(partial(os.open, dir_fd=directory), (path,), (flags,), (0o666,))


def open_for_writing(
    path: str | Path, flags: int, mode: str = "wb", *, directory: int | None = None, buffering: int = -1
) -> IO[bytes]:
    """Return a stream to a file that ``os.open`` opens with ``flags``, below ``directory`` if given.

    Raises:
        OSError: it cannot be opened.
    """
    opening: Callable[..., IO[bytes]] = own_open
    return opening(*_descriptors(path, flags, directory), mode=mode, buffering=buffering)


@contextmanager
def replaced(path: Path, *, inside: Path | None = None) -> Iterator[IO[bytes]]:
    """Give a stream to a new file that takes the place of ``path`` when all went well, and is removed when not.

    The new file has a random name, so that nobody can have put a link there, and the permissions of the file that it
    replaces. A link at ``path`` is replaced, not followed.

    Args:
        path: The file.
        inside: A directory above ``path``. The directories between them are made where they are missing, and refused
            where they are links, also when they become links meanwhile. Without it the directory of ``path`` must be
            there.

    Raises:
        InputError: a directory below ``inside`` is a link, or no directory.
        OSError: it cannot be written.
    """
    with _opened_directory(path, inside) as directory:
        beside = f".{os.urandom(8).hex()}.tmp"
        with _new_file(path, beside, directory) as stream:
            try:
                _keep_permissions(stream.fileno(), path.name, directory)
                with _naming_full(path):
                    yield stream
                    stream.close()
                with _naming(path):
                    os.replace(beside, path.name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(beside, dir_fd=directory)
                raise


def _new_file(path: Path, beside: str, directory: int) -> IO[bytes]:
    """Return a stream to a new file, which is no link: it must not be there yet."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with _naming(path):
        return open_for_writing(beside, flags, directory=directory)


def write_whole(path: Path, content: bytes, *, inside: Path | None = None) -> None:
    """Write a file as :func:`replaced` does."""
    with replaced(path, inside=inside) as stream:
        stream.write(content)


@contextmanager
def output(path: Path) -> Iterator[IO[bytes]]:
    """Give a stream for the file that the user named as output.

    A regular file is replaced whole, one behind a link where it is, and the link stays. A device, a pipe or an open
    descriptor (``/dev/stdout``, ``/dev/fd/63``) gets the content when all of it was made.

    Raises:
        OSError: it cannot be written.
    """
    place = _behind_links(path)
    if not is_special(place):
        with replaced(place) as stream:
            yield stream
        return
    import shutil
    import tempfile

    with tempfile.TemporaryFile() as kept:
        with os.fdopen(os.dup(kept.fileno()), "wb") as stream:  # Arrow closes the one that it is given
            yield stream
        kept.seek(0)
        with os.fdopen(_open_special(place), "wb") as special:
            shutil.copyfileobj(kept, special)


def is_special(path: Path) -> bool:
    """Return whether writing goes into what is there: a device, a pipe, a socket, or an open descriptor."""
    place = _behind_links(path)
    if _descriptor(place) is not None:
        return True
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_taken(path: Path) -> bool:
    """Return whether writing to ``path`` loses what is there: a file, a link to nowhere, or a disk."""
    place = _behind_links(path)
    if _descriptor(place) is not None:
        return False
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return path.is_symlink()
    return not any(is_kind(mode) for is_kind in _STREAMS)


def refuse_links(directory: Path) -> None:
    """Do nothing where a directory holds directories and regular files alone, at any depth.

    Raises:
        InputError: something below it is a link, a pipe or a device.
    """
    waiting = [os.fspath(directory)]
    while waiting:
        try:
            entries = os.scandir(waiting.pop())
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed meanwhile: a run may still be written
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_symlink() or _is_odd(entry):
                    raise _refusal(
                        Path(entry.path), directory, "a link" if entry.is_symlink() else "not a regular file"
                    )


def _is_odd(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is neither a regular file nor gone."""
    if entry.is_file(follow_symlinks=False):
        return False
    try:
        entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _refusal(path: Path, directory: Path, what: str) -> InputError:
    return InputError(
        f"{directory}: {path.relative_to(directory)} is {what}, which gpuledger does not follow inside a run",
        hint=f"If you trust the run, copy it with its links resolved: cp -rL {directory} COPY",
    )


@contextmanager
def _opened_directory(path: Path, inside: Path | None) -> Iterator[int]:
    """Open the directory of a file, from ``inside`` on without following links."""
    descriptors: list[int] = []
    closing = map(os.close, descriptors)
    try:
        with _naming(path):
            descriptors += _descriptors(path.parent if inside is None else inside, _DIRECTORY)
        for name in () if inside is None else path.parent.relative_to(inside).parts:
            _open_below(descriptors, name, path, inside)
        yield descriptors[-1]
    finally:
        try:
            any(closing)  # one call of C code closes all: see _descriptors
        finally:
            any(closing)  # if a signal handler of the program has raised before the first call


def _open_below(descriptors: list[int], name: str, path: Path, inside: Path | None) -> None:
    """Open a directory in the last one of ``descriptors``, and append it to them."""
    if name == os.pardir:
        raise InputError(f"{path}: is outside {inside}")
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=descriptors[-1])
    try:
        descriptors += _descriptors(name, _DIRECTORY | os.O_NOFOLLOW, descriptors[-1])
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        assert inside is not None
        raise _refusal(path.parent, inside, "a link, or not a directory") from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an error name the file that was asked for, not one that we made up."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


@contextmanager
def _naming_full(path: Path) -> Iterator[None]:
    """Let an error of a write name the file: that a disk is full, or the largest size of a file is reached."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise


def _keep_permissions(descriptor: int, name: str, directory: int) -> None:
    try:
        before = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISREG(before):
        os.fchmod(descriptor, stat.S_IMODE(before) & 0o777)


def _behind_links(path: Path) -> Path:
    """Return what a path's last part leads to; a link to an open descriptor is not followed.

    Raises:
        OSError: the links form a circle.
    """
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        if _descriptor(path) is not None or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _descriptor(path: Path) -> int | None:
    """Return the number of this process's descriptor that a path such as ``/proc/self/fd/1`` names."""
    own = path.name.isdecimal() and path.parent == Path(os.path.realpath("/proc/self/fd"))
    return int(path.name) if own else None


def _open_special(path: Path) -> int:
    number = _descriptor(path)
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC) if number is None else os.dup(number)
