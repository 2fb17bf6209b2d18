"""Open, import and compare runs, after building missing tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import UsageError
from gpuledger.files.scratch import process_directory
from gpuledger.files.writing import refuse_links
from gpuledger.model.journal.extent import has_new_journal
from gpuledger.model.manifest import RankManifest, read_json, read_rank_manifest, with_notes, write_rank_manifest
from gpuledger.model.run import Rank, Run, read_rank, read_ranks, read_run
from gpuledger.model.run_directory import MANIFEST, SAMPLE_JOURNALS, SUFFIX, choose_directory, is_url, rank_directories

if TYPE_CHECKING:
    from gpuledger.analyze.compare.diff import Diff
    from gpuledger.collect.sampling.calibrate import Calibration, CardKey


def load(path: str | Path) -> Run:
    """Return the run in ``path``. First builds the tables of ranks without them (killed or still running processes).

    A run in object storage (``s3://bucket/train``) is downloaded into a temporary directory of this process.

    Raises:
        InputError: not a run, damaged, of a newer schema, or with a link, a pipe or a device in it.
        UsageError: a URL that cannot be opened, or one rank of a run.

    Example:
        >>> import gpuledger
        >>> gpuledger.load("train.ledger").table("blocks").num_rows  # doctest: +SKIP
    """
    if is_url(path):
        return _load_remote(path)
    place = Path(path)
    if _rank_in(place) is not None:
        raise UsageError(f"{place}: one rank of a run", hint=f"Name its run: {place.parent}")
    if os.path.lexists(place / MANIFEST):
        refuse_links(place)
        read_json(place / MANIFEST)
        if _has_new_journals(place):
            _post(place)
            return read_run(place)
    run = read_run(place)
    if any(_lacks_energy(rank.manifest) for rank in run.ranks):
        _post(place)
        run = read_run(place)
    return run


def _rank_in(path: Path) -> int | None:
    """Return a rank's number from its directory in a run; None for any other path."""
    if not (path.parent / MANIFEST).is_file():
        return None
    return next((number for number, directory in rank_directories(path.parent) if directory.name == path.name), None)


def _load_remote(url: str) -> Run:
    from gpuledger.services.remote_runs import download_run

    return replace(load(download_run(url, process_directory())), url=url)


def load_foreign(path: Path) -> Run:
    """Return the run from a file or folder of another format, imported into a temporary directory of this process.

    Raises:
        InputError: the format is unknown, or nothing in it could be read.
        UsageError: each of several files in the folder is a run.
    """
    from gpuledger.formats.readers import find_format, read_files, single_paths
    from gpuledger.model.imported import write_imported

    format_name = find_format(path)
    if format_name is None:
        return read_run(path)
    single, unread = single_paths([path], format_name)
    paths = single or (path,)
    _refuse_several(path, paths)
    stem = paths[0].stem
    imported = read_files(format_name, paths, stem, {})
    imported = replace(imported, unread=(*unread, *imported.unread))
    return write_imported(imported, process_directory() / f"{stem}{SUFFIX}")


def diff(
    before: str | Path | Run,
    after: str | Path | Run,
    by: str = "module",
    *,
    depth: int | None = None,
    at: str = "peak",
    step: int | None = None,
    rank: int | None = None,
    device_idx: int | None = None,
) -> Diff:
    """Return how ``after`` differs from ``before``: metrics, and memory, time and energy by module.

    Args:
        before: A run or its path, the directory of one rank in it, or a file of another format.
        after: The same, compared with ``before``.
        by: What to break down by in addition to category and module: ``category`` and ``module`` add nothing,
            ``phase``, ``tensor`` and ``scope`` do.
        depth: Truncate module paths to their first ``depth`` components.
        at: ``peak``, ``end``, or a time such as ``1.5s``, in each run.
        step: Use the peak or the end of this step.
        rank: Compare only this rank; None compares those that both runs have.
        device_idx: Compare only this device, by torch's index; None compares those that both runs have.

    Raises:
        EmptyRunError: a run has nothing to compare.
        InputError: one is not a run.
        UsageError: a run has no such rank, device, instant or step.

    Source: caching allocator's history, exact; time and energy as measured in each :class:`Run`.

    Example:
        >>> import gpuledger
        >>> for change in gpuledger.diff("before.ledger", "after.ledger").main.changes():  # doctest: +SKIP
        ...     print(change)
    """
    from gpuledger.analyze.compare.diff import diff_runs

    words = tuple(dict.fromkeys(("category", "module", by)))
    old, new = (open_run(one, may_be_rank=True) for one in (before, after))
    return diff_runs(old, new, words, depth, at, step, rank, device_idx)


def open_run(run: str | Path | Run, *, may_be_rank: bool = False) -> Run:
    """Return the run: from a directory or URL (the suffix can be omitted), or from files of another format.

    A folder with one run stands for it. With ``may_be_rank``, the directory of a rank (``train.ledger/rank-1``) is the
    run with this rank alone.

    Raises:
        InputError: it is not a run, damaged, of a newer schema, or of an unknown format.
        UsageError: a folder of several runs, or one rank of a run.
    """
    if isinstance(run, Run):
        return run
    if is_url(run):
        return load(run)
    path = Path(run)
    number = _rank_in(path) if may_be_rank else None
    if number is not None:
        whole = load(path.parent)
        return replace(whole, ranks=(whole.rank(number),), damaged={})
    with_suffix = path.with_name(path.name + SUFFIX) if path.name else path
    if not path.exists() and with_suffix.exists():
        return load(with_suffix)
    if path.exists() and not (path / MANIFEST).is_file():
        inside = [Path(one) for one in runs_inside(str(path))]
        _refuse_several(path, inside)
        return load_foreign(path) if inside == [path] else load(inside[0])
    return load(path)


def _refuse_several(folder: Path, runs: Sequence[Path]) -> None:
    """Raise a usage error if a folder with several runs is given where one run is expected."""
    if len(runs) > 1:
        raise UsageError(
            f"{folder}: a folder of {len(runs)} runs, but one run is expected",
            hint=f"Name one of them, for example {runs[0]}",
        )


def runs_inside(path: str, unread: list[str] | None = None) -> list[str]:
    """Return the runs in a folder, or its files that are one run each. For any other path, return the path.

    ``unread`` gets a sentence for each file in the folder that looks like a run and cannot be read.

    Raises:
        InputError: a URL without a run, or of object storage that cannot be read.
        UsageError: a URL that cannot be opened.
    """
    if is_url(path):
        from gpuledger.services.remote_runs import find_runs

        return find_runs(path, unread)
    place = Path(path)
    if not place.is_dir() or (place / MANIFEST).is_file():
        return [path]
    runs = sorted(place.glob(f"*{SUFFIX}/{MANIFEST}"))
    if runs:
        return [str(manifest.parent) for manifest in runs]
    from gpuledger.formats.readers import logs_inside

    single, problems = logs_inside(place)
    if len(single) < 2:
        return [path]
    if unread is not None:
        unread += problems
    return [str(one) for one in single]


def import_files(
    format_name: str, paths: Sequence[Path], out: Path, options: Mapping[str, Any], *, force: bool = False
) -> Run:
    """Return the run imported from files of another format into ``out``. ``force`` replaces an existing run.

    Raises:
        UsageError: no such format, the format does not have the option, or ``out`` exists.
        InputError: nothing could be read. An existing run is not changed.
        OSError: it cannot be written.
    """
    from gpuledger.formats.readers import read_files
    from gpuledger.model.imported import write_imported

    imported = read_files(format_name, paths, out.name.removesuffix(SUFFIX), options)
    return write_imported(imported, choose_directory(str(out), force=force, stem=out.stem), replace=force)


def post_missing(run_directory: Path) -> None:
    """Build the tables of every rank with journal entries that are not in its tables."""
    if _has_new_journals(run_directory) or any(_lacks_energy(manifest) for _, _, manifest in read_ranks(run_directory)):
        _post(run_directory)


def _post(run_directory: Path) -> None:
    from gpuledger.analyze.posting.card_samples import post_card_samples  # most commands read a run that has its tables
    from gpuledger.analyze.posting.energy_posting import post_energy
    from gpuledger.analyze.posting.posting import post_ranks
    from gpuledger.analyze.ranks.summaries import write_summary

    changed: set[Path] = set()

    def posted(rank: Rank) -> None:
        changed.add(rank.directory)
        _add_libraries(rank, _kept_profile)

    post_ranks(run_directory, posted)
    post_card_samples(run_directory)
    for directory in post_energy(run_directory):
        changed.add(directory)
        _add_watts(directory)
    for directory in sorted(changed):
        write_summary(read_rank(directory))


def _has_new_journals(run_directory: Path) -> bool:
    """Return whether a journal is newer than the tables, or the launcher has sampled the GPUs."""
    return (run_directory / SAMPLE_JOURNALS).is_dir() or any(
        has_new_journal(directory) for _, directory in rank_directories(run_directory)
    )


def _lacks_energy(manifest: RankManifest) -> bool:
    """Return whether the launcher has measured energy that is not in the tables."""
    return manifest.energy_pass is not None and manifest.energy is None


def settle(run_directory: Path) -> Run:
    """Return a finished run after building its tables.

    If the recorded process could not read the bytes of its CUDA context, they are measured in a separate process.
    """
    from gpuledger.analyze.overview.process_bytes import has_context_reading
    from gpuledger.collect.sampling.calibrate import lookup_or_measure

    post_missing(run_directory)
    for rank in read_run(run_directory).ranks:
        if rank.manifest.libraries is None and not has_context_reading(rank):
            _add_libraries(rank, lookup_or_measure)
    return read_run(run_directory)


def _add_libraries(rank: Rank, lookup: Callable[[CardKey, str], Calibration]) -> None:
    """Write the bytes of CUDA context and libraries on the rank's GPU into its manifest."""
    from gpuledger.collect.sampling.calibrate import libraries_for

    trained = "backward" in rank.table("spans", ("phase",)).column("phase").to_pylist()
    libraries, notes = libraries_for(rank.manifest, trained=trained, lookup=lookup)
    if libraries is not None or notes:
        manifest = replace(with_notes(rank.manifest, *notes), libraries=libraries or rank.manifest.libraries)
        write_rank_manifest(rank.directory, manifest)


def _add_watts(rank_directory: Path) -> None:
    """Write the known power of operators on the rank's GPU into its manifest, to attribute energy by it."""
    from gpuledger.analyze.operator_work.power_model import model_to_json
    from gpuledger.ops.predict.power import find_power_model
    from gpuledger.ops.predict.watts import find_watts

    manifest = read_rank_manifest(rank_directory)
    cards = {str(device.name) for device in manifest.devices if device.device_idx >= 0}
    if len(cards) != 1:
        return
    card = cards.pop()
    table, model = find_watts(card, os.environ), find_power_model(card)
    if table is not None:
        manifest = replace(manifest, measured_watts=table.to_json())
    if model is not None:
        manifest = replace(manifest, power_model=model_to_json(model))
    if table is not None or model is not None:
        write_rank_manifest(rank_directory, manifest)


def _kept_profile(key: CardKey, _uuid: str) -> Calibration:
    from gpuledger.collect.sampling.calibrate import cache_path, load_profile

    return load_profile(key, cache_path())
