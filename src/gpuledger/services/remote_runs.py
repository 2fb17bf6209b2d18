"""Runs in object storage: download a run to read it, and upload a run that was recorded.

A run's manifest is uploaded last, and removed first. So a run without a manifest was not uploaded completely.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuledger.errors import GpuLedgerError, InputError, UsageError, words_of
from gpuledger.files.remote import ON_FAILURE, RemoteFolder, is_storable, open_folder
from gpuledger.files.scratch import block_directory
from gpuledger.files.writing import refuse_links
from gpuledger.model.run_directory import MANIFEST, RANK_PREFIX, SUFFIX
from gpuledger.processes.child_job import run_child_job, serve_job
from gpuledger.redact import hide_credentials
from gpuledger.units import counted, format_bytes

CHECK_S = 30
"""Time limit of the check that is made before a program starts."""


def find_runs(url: str, unread: list[str] | None = None) -> list[str]:
    """Return the URLs of the runs that a URL means: itself (the suffix can be omitted), or the runs in a folder.

    ``unread`` gets a sentence for each run in the folder that was not uploaded completely.

    Raises:
        InputError: there is no run, or the storage cannot be read.
        UsageError: the URL cannot be opened.
    """
    folder = open_folder(url)
    for place in (folder, _with_suffix(folder)):
        if place.has(MANIFEST):
            return [place.url]
    names = folder.folders()
    inside = [folder / name for name in names if name.endswith(SUFFIX)]
    complete = [place.url for place in inside if place.has(MANIFEST)]
    if unread is not None:
        unread += [_incomplete(place).message for place in inside if place.url not in complete]
    if complete:
        return complete
    for place in inside:
        raise _incomplete(place)
    for place, found in ((folder, names), (_with_suffix(folder), _with_suffix(folder).folders())):
        if any(name.startswith(RANK_PREFIX) for name in found):
            raise _incomplete(place)
    raise InputError(f"{folder.url}: no such run", hint=ON_FAILURE)


def _with_suffix(folder: RemoteFolder) -> RemoteFolder:
    if folder.url.endswith(SUFFIX):
        return folder
    return RemoteFolder(folder.url + SUFFIX, folder.filesystem, folder.root + SUFFIX)


def _incomplete(place: RemoteFolder) -> InputError:
    return InputError(
        f"{place.url}: {MANIFEST} is missing, so the run was not uploaded completely",
        hint=f"Upload it from the host that recorded it: gpuledger merge NAME.ledger --out {place.url}",
    )


def download_run(url: str, directory: Path) -> Path:
    """Return the local copy of the run that a URL means, below ``directory``.

    Raises:
        InputError: it is no run, has files that no run has, or cannot be read.
        UsageError: the URL cannot be opened, or is a folder of several runs.
    """
    runs = find_runs(url)
    if len(runs) > 1:
        raise UsageError(
            f"{url}: a folder of {len(runs)} runs, but one run is expected",
            hint=f"Name one of them, for example {runs[0]}",
        )
    folder = open_folder(runs[0])
    place = directory / folder.url.rpartition("/")[2]
    folder.download(folder.files(), place)
    return place


def upload_run(path: Path, url: str) -> str:
    """Return the size of a run as text after copying it to a URL, in place of a run that is there.

    What an upload that did not end has left is replaced, too. Files that are no part of a run are not removed.

    Raises:
        GpuLedgerError: the storage cannot be read or written.
        InputError: the run has a link in it.
    """
    refuse_links(path)
    sizes = {place.relative_to(path).as_posix(): place.stat().st_size for place in path.rglob("*") if place.is_file()}
    names = sorted(name for name in sizes if is_storable(name) and name != MANIFEST)
    folder = open_folder(url)
    old = folder.files()
    was_run = MANIFEST in old
    folder.remove([MANIFEST] if was_run else [])
    folder.remove(sorted(name for name in old.keys() - {MANIFEST} if was_run or name.startswith(RANK_PREFIX)))
    folder.upload(path, names)
    folder.upload(path, [MANIFEST])
    total = sum(sizes[name] for name in (*names, MANIFEST))
    return f"{counted(len(names) + 1, 'file')}, {format_bytes(total)}"


def refuse_existing(url: str, *, force: bool) -> None:
    """Raise an error if a URL cannot be opened, or has a run and ``force`` is False.

    Raises:
        InputError: the storage cannot be read.
        UsageError: the URL cannot be opened, or has a run.
    """
    folder = open_folder(url)
    if folder.has(MANIFEST) and not force:
        raise UsageError(
            f"{folder.url}: already exists", hint="Choose another name with --out, or overwrite it with --force"
        )


@contextmanager
def uploaded_to(url: str, *, force: bool) -> Iterator[str]:
    """Give the path of a run to write, and upload that run at the end of the block.

    Raises:
        GpuLedgerError: the storage cannot be written.
        InputError: the storage cannot be read.
        UsageError: the URL cannot be opened, or has a run and ``force`` is False.
    """
    target = later_upload(url)
    refuse_existing(target.url, force=force)
    with block_directory() as scratch:
        place = scratch / f"{target.name}{SUFFIX}"
        yield str(place)
        upload_run(place, target.url)


@dataclass(frozen=True)
class LaterUpload:
    """Recordings that are uploaded when their programs have ended.

    ``name`` is the name of the local run, ``url`` that of the run in the storage. ``force`` replaces a run there.
    ``finished`` gets the runs.
    """

    url: str
    name: str
    force: bool = False
    finished: list[Path] = field(default_factory=list)

    def check(self, repeat: int, say: Callable[[str], None]) -> None:
        """Check the URL before the program starts. Storage that does not answer is reported, and stops nothing.

        Raises:
            UsageError: what reads the URL is not installed, or it has a run that is not to be replaced.
        """
        names = [f"{self.name}-{number}" for number in range(1, repeat + 1)] if repeat > 1 else [self.name]
        problem = _check([_sibling(self.url, name) for name in names], force=self.force)
        if problem is not None:
            say(hide_credentials(f"gpuledger: {problem}"))
            say("gpuledger: the program runs, and the upload is tried when it has ended")

    def run(self, say: Callable[[str], None], note: Callable[[str], None] | None) -> None:
        """Upload the finished runs. A failure is reported, and the local run stays."""
        for path in self.finished:
            url = _sibling(self.url, path.name.removesuffix(SUFFIX))
            try:
                refuse_existing(url, force=self.force)  # another host can have uploaded it meanwhile
                size = upload_run(path, url)
            except KeyboardInterrupt:
                problem = f"{url}: the upload was interrupted"
            except Exception as error:  # the program has ended, so no error must change its exit status
                problem = words_of(error)
            else:
                if note is not None:
                    note(hide_credentials(f"gpuledger: uploaded {path} to {url} ({size})"))
                continue
            say(hide_credentials(f"gpuledger: error: {problem}"))
            command = f"gpuledger merge {shlex.quote(str(path))} --out {shlex.quote(url)}"
            say(hide_credentials(f"  hint: The run is in {path}. Upload it with: {command}"))


def later_upload(url: str, *, force: bool = False) -> LaterUpload:
    """Return the upload of a recording that is made with ``--out URL``.

    Raises:
        UsageError: the URL has no name after its bucket or host.
    """
    _, _, path = url.partition("://")[2].rstrip("/").partition("/")
    name = path.rpartition("/")[2].removesuffix(SUFFIX)
    if not is_storable(name):
        raise UsageError(f"{url}: not the URL of a run", hint="Use a URL such as s3://bucket/train")
    return LaterUpload(_sibling(url, name), name, force)


def _sibling(url: str, name: str) -> str:
    """Return the URL of the run ``name`` in the folder of another URL."""
    return f"{url.rstrip('/').rpartition('/')[0]}/{name}{SUFFIX}"


def _check(urls: Sequence[str], *, force: bool) -> str | None:
    """Return why URLs cannot be checked now, else None.

    A process of its own asks the storage: it can be stopped at a time limit, and it leaves no thread in this process,
    which passes signals on to the program.

    Raises:
        UsageError: what reads a URL is not installed, or a URL has a run and ``force`` is False.
    """
    try:
        run_child_job(__name__, {"urls": list(urls), "force": force}, name=urls[0], limit_s=CHECK_S)
    except UsageError:
        raise
    except (GpuLedgerError, OSError) as error:
        return words_of(error)
    return None


def _refuse_any(order: dict[str, Any], _words: list[str]) -> dict[str, Any]:
    """Check each URL of an order of :func:`_check`."""
    for url in order["urls"]:
        refuse_existing(url, force=order["force"])
    return {}


if __name__ == "__main__":
    sys.exit(serve_job(_refuse_any))
