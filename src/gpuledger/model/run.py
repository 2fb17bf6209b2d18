"""A run: the directory ``NAME.ledger/``, written once and read by every command.

``manifest.json`` describes the whole run, ``rank-N/manifest.json`` one process. ``rank-N/journal/`` has the raw events
that the process wrote while it ran, ``rank-N/<table>/part-*.parquet`` the tables built from them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuledger.errors import InputError, UsageError
from gpuledger.files.reading import storable
from gpuledger.files.writing import refuse_links, replaced
from gpuledger.model.manifest import RankManifest, read_rank_manifest
from gpuledger.model.run_directory import MANIFEST, RANK_PREFIX, SUFFIX, rank_directories
from gpuledger.model.run_manifest import RunManifest, read_run_manifest
from gpuledger.model.schema.tables import TABLES
from gpuledger.model.shown import Shown
from gpuledger.model.simulated import without_times
from gpuledger.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = "part-*.parquet"
MOST_NAMES_SHOWN = 5
_UNPACKED = ("", "unpacked")
"""Cache key for the unpacked size of the parts of a rank's tables that were read."""
_COMPUTED = " computed"
"""Takes the place of a table's name in the cache keys of computed results."""
Computed = TypeVar("Computed")


def write_table(rank_directory: Path, table: pa.Table, name: str, part: int = 0) -> None:
    """Write one part of table ``name`` into the run's own directory. Follows no link.

    Raises:
        InputError: the directory of the rank or of the table is a link.
        ValueError: the columns are not those of :data:`gpuledger.model.schema.tables.TABLES`.
    """
    import pyarrow.parquet as pq

    wanted = TABLES[name].arrow_schema()
    if table.schema.names != wanted.names:
        raise ValueError(f"{name}: columns {table.schema.names}, expected {wanted.names}")
    rank_directory.parent.mkdir(parents=True, exist_ok=True)
    place = rank_directory / name / f"part-{part:05d}.parquet"
    with replaced(place, inside=rank_directory.parent) as stream:
        pq.write_table(table.cast(wanted), stream, compression="zstd")


@dataclass(frozen=True)
class Rank:
    """One process of a run: its manifest, and its tables, which are read on demand."""

    number: int
    directory: Path
    manifest: RankManifest
    _kept: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Rank {self.number}: {', '.join(_facts(self.manifest))}>"

    @property
    def number_of_several(self) -> int | None:
        """Return its number if the program has several ranks, or the run; None for a program of one process."""
        world, launched = self.manifest.world, self.manifest.launched_ranks
        ranks = (launched or 0) if world is None else world.size
        is_one_of_several = ranks > 1 or len(rank_directories(self.directory.parent)) > 1
        return self.number if is_one_of_several else None

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return table ``name`` with every column of its schema, or with ``columns``. An absent table has no rows.

        Columns requested by name are cached, so that analyses that share them do not read them again.

        Raises:
            InputError: a part is damaged or lacks a column.
        """
        import pyarrow as pa

        schema = TABLES[name].arrow_schema()
        if columns is None:
            return self._read(name, schema)
        lacking = [column for column in columns if (name, column) not in self._kept]
        if lacking:
            table = self._read(name, pa.schema([schema.field(column) for column in lacking]))
            self._kept.update({(name, column): table.column(column) for column in lacking})
        return pa.table([self._kept[name, column] for column in columns], names=list(columns))

    def _read(self, name: str, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        from gpuledger.model.parquet_parts import UnpackedSizes, read_part

        sizes: UnpackedSizes = self._kept.setdefault(_UNPACKED, UnpackedSizes())
        parts = sorted((self.directory / name).glob(PARTS))
        if not parts:
            return schema.empty_table()
        tables = [read_part(part, name, schema, self._place_of(part), sizes) for part in parts]
        table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
        return table if self.manifest.recorder.has_measured_times else without_times(table, name)

    def computed(self, name: str, compute: Callable[[], Computed]) -> Computed:
        """Return the result of ``compute``, which is called once for each ``name`` until :meth:`forget_columns`."""
        if (_COMPUTED, name) not in self._kept:
            self._kept[_COMPUTED, name] = compute()
        result: Computed = self._kept[_COMPUTED, name]
        return result

    def forget_columns(self) -> None:
        """Clear the cache of columns and of what was computed from them."""
        for key in [key for key in self._kept if key != _UNPACKED]:
            del self._kept[key]

    def check_unpacked(self) -> None:
        """Check the unpacked size of all tables. :meth:`table` checks that of the tables that it has read.

        Raises:
            InputError: it is too large for files of their size, or one is damaged.
        """
        from gpuledger.model.parquet_parts import check_unpacked

        parts = [part for name in TABLES for part in sorted((self.directory / name).glob(PARTS))]
        check_unpacked(parts, self._place_of)

    def _place_of(self, path: Path) -> str:
        return f"{self.directory.parent.name}: {path.relative_to(self.directory.parent)}"


@dataclass(frozen=True, repr=False)
class KeptRank(Rank):
    """One process with tables in memory; ``tables`` maps names to tables."""

    tables: dict[str, pa.Table] = field(default_factory=dict)

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Return table ``name``, or some of its columns; an absent table has no rows."""
        table = self.tables.get(name)
        if table is None:
            table = TABLES[name].arrow_schema().empty_table()
        return table if columns is None else table.select(list(columns))


@dataclass(frozen=True)
class Run(Shown):
    """One recording: its directory, its manifest and its ranks in order.

    ``url`` is where the run was downloaded from; None for a local run. ``damaged`` are the ranks with a manifest that
    cannot be read, by number, with the reason. They are not among ``ranks``.
    """

    path: Path
    manifest: RunManifest
    ranks: tuple[Rank, ...]
    url: str | None = None
    damaged: Mapping[int, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        first = _facts(self.ranks[0].manifest) if self.ranks else []
        facts = [self.manifest.status, counted(len(self.ranks), "rank"), *first[1:]]
        return f"<Run {self.name!r}: {', '.join(str(fact) for fact in facts if fact)}>"

    @property
    def name(self) -> str:
        """Return the run's name, without the suffix."""
        return storable(self.path.name.removesuffix(SUFFIX))

    @property
    def has_measured_times(self) -> bool:
        """Return whether the program ran, so that times can be compared. On a simulated GPU, it did not."""
        return all(rank.manifest.recorder.has_measured_times for rank in self.ranks)

    @property
    def has_only_card_readings(self) -> bool:
        """Return whether no rank has more than samples of GPUs."""
        return all(rank.manifest.recorder.has_only_card_readings for rank in self.ranks)

    def rank(self, number: int = 0) -> Rank:
        """Return rank ``number``.

        Raises:
            InputError: the rank is damaged.
            UsageError: the run has no such rank.
        """
        for rank in self.ranks:
            if rank.number == number:
                return rank
        if number in self.damaged:
            raise InputError(self.damaged[number])
        have = ", ".join(str(rank.number) for rank in self.ranks) or "none"
        raise UsageError(f"{self.path.name}: the run has no rank {number}", hint=f"Choose one of: {have}")

    def table(self, name: str, rank: int = 0) -> pa.Table:
        """Return table ``name`` of one rank."""
        return self.rank(rank).table(name)


def _facts(manifest: RankManifest) -> list[str]:
    """Return a rank's status, GPUs and steps as text, as far as its manifest has them."""
    cards = Counter(device.name or "a device" for device in manifest.devices)
    named = [name if number == 1 else f"{number} × {name}" for name, number in cards.items()]
    steps = manifest.steps_seen
    return [manifest.status or "no status", *named, *([counted(steps, "step")] if steps else [])]


def _hint_for(path: Path) -> str:
    """Return a hint for a missing run: the run with a similar name, the existing runs, or how to record one."""
    from difflib import get_close_matches

    runs = (place for place in path.parent.glob(f"*{SUFFIX}") if (place / MANIFEST).is_file())
    names = sorted(place.name.removesuffix(SUFFIX) for place in runs)
    near = get_close_matches(path.name.removesuffix(SUFFIX), names, 1)
    if near:
        return f"Did you mean {near[0]}{SUFFIX}?"
    if not names:
        return "Record a run with: gpuledger run train.py"
    shown = ", ".join(f"{name}{SUFFIX}" for name in names[:MOST_NAMES_SHOWN])
    more = f" and {len(names) - MOST_NAMES_SHOWN:,} more" if len(names) > MOST_NAMES_SHOWN else ""
    return f"Open one of the runs in {path.parent.absolute().name or path.parent}: {shown}{more}"


def read_rank(directory: Path) -> Rank:
    """Return the rank in ``rank-N``; raises as :func:`read_rank_manifest`."""
    return Rank(int(directory.name.removeprefix(RANK_PREFIX)), directory, read_rank_manifest(directory))


def read_run(path: Path) -> Run:
    """Return the run in ``path``, without ranks that have no manifest yet, or a damaged one.

    Raises:
        InputError: ``path`` is not a run, its schema is newer, it contains a link, a pipe or a device, or every rank is
            damaged.
    """
    if os.path.lexists(path / MANIFEST):  # otherwise it is no run, and what else is there says nothing
        refuse_links(path)
    if not (path / MANIFEST).is_file():
        what = f"not a run: {MANIFEST} is missing" if path.is_dir() else "a file, not a run"
        what = "an empty folder" if path.is_dir() and not any(path.iterdir()) else what
        raise InputError(f"{path}: {what if path.exists() else 'no such run'}", hint=_hint_for(path))
    manifest = read_run_manifest(path)
    _refuse_export(path, manifest)
    damaged: dict[int, InputError] = {}
    ranks = tuple(
        Rank(number, directory, rank_manifest) for number, directory, rank_manifest in read_ranks(path, damaged)
    )
    if damaged and not ranks:
        raise next(iter(damaged.values()))
    return Run(path, manifest, ranks, damaged={number: error.message for number, error in damaged.items()})


def _refuse_export(path: Path, manifest: RunManifest) -> None:
    """Refuse the folder of ``gpuledger export``, which has a manifest with those of the run and its ranks inside.

    Raises:
        InputError: it is one.
    """
    own = manifest.as_read.get("run")
    if isinstance(own, dict) and "ranks" in manifest.as_read:
        name = own.get("name")
        hint = f"Use the run that was exported{f', {name}' if isinstance(name, str) else ''}"
        raise InputError(f"{path}: tables that gpuledger export wrote, not a run", hint=hint)


def read_ranks(path: Path, damaged: dict[int, InputError] | None = None) -> Iterator[tuple[int, Path, RankManifest]]:
    """Yield number, directory and manifest of each rank below a run's directory that has a manifest.

    ``damaged`` gets the ranks with a manifest that cannot be read. They are left out.
    """
    for number, directory in rank_directories(path):
        if not (directory / MANIFEST).is_file():
            continue
        try:
            manifest = read_rank_manifest(directory)
        except InputError as error:
            if damaged is not None:
                damaged[number] = error
            continue
        yield number, directory, manifest
