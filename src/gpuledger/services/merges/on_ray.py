"""Prepare the ranks of runs as tasks of a Ray cluster, so that one process can merge them by their summaries.

A task builds the tables of one rank if they are missing, and its summary. It works on a copy: the runs do not change. A
node that sees the folder of the new run puts the rank there. Another one sends its files. If a task failed, this
process prepares the rank itself, so that the result is that of a merge without Ray.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuledger._version import __version__
from gpuledger.analyze.ranks.summaries import complete_summary
from gpuledger.errors import GpuLedgerError, InputError, words_of
from gpuledger.files.remote import is_storable, open_folder
from gpuledger.files.scratch import block_directory
from gpuledger.files.writing import refuse_links, write_whole
from gpuledger.model.run import Run, read_rank, read_run
from gpuledger.model.run_directory import MANIFEST, RANK_PREFIX, SAMPLE_JOURNALS, SUFFIX, is_url, rank_directories
from gpuledger.model.run_manifest import read_run_manifest
from gpuledger.processes.ray_cluster import connected
from gpuledger.services.remote_runs import find_runs
from gpuledger.services.runs import open_run, post_missing
from gpuledger.units import counted

TRIES_AGAIN = 2
"""How often Ray starts a task again if its worker process or node was lost."""
_LONGEST = 200
"""Largest number of characters of an unknown error."""
_NODE = re.compile(r"\bip=([^,)\s]+)")
_RANK = re.compile(RANK_PREFIX + r"\d+")


class NodeError(GpuLedgerError):
    """A node of the cluster cannot prepare a rank, but this process may."""


@dataclass(frozen=True)
class RankOrder:
    """One rank to prepare.

    Attributes:
        source: Directory or URL of its run.
        manifest: The run's manifest, as text.
        rank: Name of the rank's directory.
        target: Directory of the prepared run. A node may not see it.
        sizes: Of a run at a URL, the files to download: size in bytes by name.
        version: Version of gpuledger that merges.
    """

    source: str
    manifest: str
    rank: str
    target: str
    sizes: dict[str, int] = field(default_factory=dict)
    version: str = __version__


def prepare_rank(order: RankOrder) -> dict[str, bytes]:
    """Put a rank with its tables and its summary into the prepared run. Runs on any node.

    Returns:
        The rank's files by their names, if this node does not see the prepared run.

    Raises:
        NodeError: this node has another version of gpuledger, or does not see the rank's run.
        InputError: the rank is damaged.
        OSError: it cannot be copied.
    """
    if order.version != __version__:
        raise NodeError(f"gpuledger {__version__} is installed, but the merging process has {order.version}")
    target = Path(order.target)
    is_seen = os.path.isdir(target) and os.access(target, os.W_OK)
    with block_directory(".gpuledger-", target.parent if is_seen else None) as scratch:
        run = scratch / target.name
        _fetch(order, run)
        (run / MANIFEST).write_text(order.manifest, encoding="utf-8")
        post_missing(run)
        _summarize(run / order.rank)
        if is_seen:
            _put(run / order.rank, target / order.rank)
            return {}
        places = sorted(place for place in (run / order.rank).rglob("*") if place.is_file())
        return {place.relative_to(run).as_posix(): place.read_bytes() for place in places}


def _fetch(order: RankOrder, run: Path) -> None:
    """Copy a rank, and the launcher's samples of GPUs if there are any, into the new directory ``run``."""
    if is_url(order.source):
        open_folder(order.source).download(order.sizes, run)
        return
    source = Path(order.source)
    run_id = json.loads(order.manifest).get("run_id")
    if not (source / order.rank).is_dir() or read_run_manifest(source).run_id != run_id:
        raise NodeError(f"the run {source} is not there")
    for name in (order.rank, SAMPLE_JOURNALS):
        if (source / name).is_dir():
            refuse_links(source / name)
            shutil.copytree(source / name, run / name)


def _summarize(directory: Path) -> None:
    """Write the summary of a rank if it has none. A rank without a manifest, or with a damaged one, gets none."""
    if not (directory / MANIFEST).is_file():
        return
    try:
        rank = read_rank(directory)
    except InputError:
        return  # who reads the prepared run names it, and leaves it out
    complete_summary(rank, directory)


def _put(directory: Path, target: Path) -> None:
    """Move a rank to its place. If an earlier attempt of its task has put it there, that one is whole, and stays."""
    try:
        directory.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


@contextmanager
def prepared_runs(
    paths: Sequence[str], out: str | None, address: str, say: Callable[[str], None]
) -> Iterator[tuple[list[Run], Path]]:
    """Give copies of runs with ranks that a Ray cluster has prepared, and the copies' folder, removed at the end.

    A file of another format that stands for a run is not copied.

    Args:
        paths: The runs. Files of another format are read in this process.
        out: Name of the run that is merged from them. The copies are beside it.
        address: Address of the cluster, or ``local``.
        say: Gets a sentence on each reason for which ranks were prepared in this process.

    Raises:
        InputError: one of them is not a run, or damaged.
        UsageError: Ray is not installed, or cannot be reached.
        OSError: a rank cannot be written.
    """
    beside = Path.cwd() if out is None else Path(out).absolute().parent
    beside = next(place for place in (beside, *beside.parents) if place.is_dir())
    with block_directory(".gpuledger-", beside) as scratch, connected(address) as ray:
        sources = [_source_of(path) for path in paths]
        targets = [
            None if source is None else scratch / str(number) / source.rstrip("/").rpartition("/")[2]
            for number, source in enumerate(sources)
        ]
        orders: list[RankOrder] = []
        for source, target in zip(sources, targets, strict=True):
            if source is not None and target is not None:
                orders += _orders_of(source, target)
        _prepare_all(ray, orders, say)
        runs = [
            open_run(path) if source is None or target is None else _prepared(source, target)
            for path, source, target in zip(paths, sources, targets, strict=True)
        ]
        yield runs, scratch


def _source_of(path: str) -> str | None:
    """Return the directory or URL of the run that a path means; None if it is not one run of our own."""
    if is_url(path):
        found = find_runs(path)
        return found[0] if len(found) == 1 else None
    place = Path(path).absolute()
    for directory in (place, place.with_name(place.name + SUFFIX)):
        if (directory / MANIFEST).is_file():
            return str(directory)
    return None


def _orders_of(source: str, target: Path) -> list[RankOrder]:
    """Return an order for each rank of a run, after creating the prepared run without its ranks."""
    target.mkdir(parents=True)
    if not is_url(source):
        manifest = (Path(source) / MANIFEST).read_text(encoding="utf-8")
        read_run_manifest(Path(source))
        (target / MANIFEST).write_text(manifest, encoding="utf-8")
        ranks = [directory.name for _, directory in rank_directories(Path(source))]
        return [RankOrder(source, manifest, rank, str(target)) for rank in ranks]
    folder = open_folder(source)
    sizes = folder.files()
    folder.download({MANIFEST: sizes[MANIFEST]}, target)
    read_run_manifest(target)
    of_rank: defaultdict[str, dict[str, int]] = defaultdict(dict)
    shared = {name: size for name, size in sizes.items() if name.startswith(f"{SAMPLE_JOURNALS}/")}
    for name, size in sizes.items():
        if _RANK.fullmatch(name.partition("/")[0]):
            of_rank[name.partition("/")[0]][name] = size
    manifest = (target / MANIFEST).read_text(encoding="utf-8")
    return [RankOrder(source, manifest, rank, str(target), own | shared) for rank, own in of_rank.items()]


def _prepared(source: str, target: Path) -> Run:
    """Return a prepared run with the place of its source, for messages."""
    run = read_run(target)
    run = replace(run, damaged={rank: why.replace(str(target), source) for rank, why in run.damaged.items()})
    return replace(run, url=source) if is_url(source) else replace(run, path=Path(source))


def _prepare_all(ray: Any, orders: Sequence[RankOrder], say: Callable[[str], None]) -> None:
    """Prepare ranks on the cluster, then in this process those that failed there."""
    if ray.cluster_resources().get("CPU", 0) < 1:
        say("The Ray cluster has no CPU now. The tasks wait until it has one.")
    task = ray.remote(prepare_rank).options(num_cpus=1, max_retries=TRIES_AGAIN, scheduling_strategy="SPREAD")
    waiting = {task.remote(order): order for order in orders}
    failed: defaultdict[str, list[RankOrder]] = defaultdict(list)
    try:
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            order = waiting.pop(ready)
            try:
                files = ray.get(ready)
            except ray.exceptions.RayError as error:
                failed[_reason_of(error)].append(order)
                continue
            del ready
            _receive(order, files)
            if not (Path(order.target) / order.rank).is_dir():
                failed["what the task wrote is not visible here"].append(order)
    finally:
        for reference in waiting:  # an error or an interrupt: a connection that stays would run them to their end
            ray.cancel(reference)
    if failed:
        done = len(orders) - sum(len(some) for some in failed.values())
        say(f"Ray prepared {done:,} of {counted(len(orders), 'rank')}.")
    for reason, some in failed.items():
        names = ", ".join(f"{order.rank} of {Path(order.target).name}" for order in some)
        say(f"Prepared in this process, because the tasks on Ray failed: {names}. Reason: {reason}.")
        for order in some:
            prepare_rank(order)


def _receive(order: RankOrder, files: dict[str, bytes]) -> None:
    """Write the files of a rank that a node has sent.

    Raises:
        InputError: a file has a name that no file of the rank has.
    """
    for name, content in files.items():
        if not is_storable(name) or name.partition("/")[0] != order.rank:
            raise InputError(f"{order.source}: {name!r} is not the name of a file of {order.rank}")
        place = Path(order.target) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)


def _reason_of(error: Exception) -> str:
    """Return why a task failed, in one line, with the address of the node if Ray's text has it."""
    cause = getattr(error, "cause", None)
    text = " ".join(str(error).split())
    node = _NODE.search(text)
    if isinstance(cause, GpuLedgerError | OSError):
        words = words_of(cause)
    elif "No module named 'gpuledger'" in text:
        words = "gpuledger is not installed"
    else:
        words = f"{type(cause or error).__name__}: {' '.join(str(cause or error).split())[:_LONGEST]}"
    return f"{words} (node {node[1]})" if node else words
