"""All ranks of a run as one value: how quantities are spread over the ranks, and which ranks differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.ranks.problems import list_problems
from gpuledger.analyze.ranks.reading import RankLine, open_summaries
from gpuledger.analyze.ranks.waits import Waits, find_waits
from gpuledger.files.reading import MIB

if TYPE_CHECKING:
    import duckdb

    from gpuledger.model.run import Rank, Run

MOST_MODULES, MOST_OUTLIERS, MOST_WHOLE = 50, 100, 10
LEAST_BYTES = MIB
"""Smaller differences are not reported."""
LEAST_FRAC, MAD_TIMES = 0.02, 8.0
"""An outlier differs from the median by more than this share of it, and by this multiple of the median deviation."""
FEWEST_RANKS = 3
"""With fewer ranks there is no majority to differ from."""


@dataclass(frozen=True)
class Spread:
    """How the bytes of one category or module at the ranks' peaks are spread over the ranks.

    ``expected_bytes`` is the median of what the device mesh says that a rank has to hold; None if it says nothing.
    """

    name: str
    ranks: int
    min_bytes: int
    median_bytes: int
    max_bytes: int
    max_rank: int
    expected_bytes: int | None = None


@dataclass(frozen=True)
class Outlier:
    """One category of one module that differs on one rank from ranks with the same coordinates."""

    rank: int
    category: str
    module: str
    bytes: int
    median_bytes: int

    @property
    def excess_bytes(self) -> int:
        """Return by how much it exceeds the median; negative if it is below."""
        return self.bytes - self.median_bytes


@dataclass(frozen=True)
class WholeWeight:
    """A weight that every rank holds whole although other weights are sharded."""

    module: str
    bytes: int


@dataclass(frozen=True)
class RankSet:
    """All ranks of a run. ``matrix[i][j]`` are the bytes of ``categories[i]`` on ``lines[j]``.

    ``why_highest`` are the breakdown in which the rank with the highest peak exceeds ranks with the same coordinates,
    largest first. ``energy_j`` is the energy of a step on all ranks; None unless every rank has one.

    Source: summaries of the ranks, from the caching allocator's history at each rank's own peak; waits from the
    profiled steps.
    """

    lines: tuple[RankLine, ...]
    categories: tuple[Spread, ...]
    matrix: tuple[tuple[int, ...], ...]
    modules: tuple[Spread, ...]
    outliers: tuple[Outlier, ...]
    why_highest: tuple[Outlier, ...]
    whole_weights: tuple[WholeWeight, ...]
    energy_j: float | None
    waits: Waits | None
    problems: tuple[str, ...]

    @property
    def highest(self) -> RankLine:
        """Return the line with the highest peak."""
        return max(self.lines, key=lambda line: line.recorded_peak_allocated_bytes)

    @property
    def median_peak_bytes(self) -> int:
        """Return the median of the peaks."""
        return int(median(line.recorded_peak_allocated_bytes for line in self.lines))


def build_rank_set(run: Run, ranks: Sequence[Rank] | None = None) -> RankSet | None:
    """Return all ranks of a run together; None with fewer than two ranks that have a block.

    Raises:
        InputError: a summary is damaged.
    """
    chosen = tuple(run.ranks if ranks is None else ranks)
    problems = list_problems(chosen)
    with open_summaries(chosen) as (connection, lines):
        if len({line.rank for line in lines}) < 2:
            return None
        categories = _spreads(connection, "category")
        shared = any(one.name == "sharded_weight" for one in categories)
        highest = max(lines, key=lambda line: line.recorded_peak_allocated_bytes)
        energies = [line.step_energy_j for line in lines]
        return RankSet(
            lines=lines,
            categories=categories,
            matrix=_matrix(connection, lines, categories),
            modules=_spreads(connection, "module")[:MOST_MODULES],
            outliers=_outliers(connection),
            why_highest=_why(connection, highest),
            whole_weights=_whole_weights(connection) if shared else (),
            energy_j=None if None in energies else sum(one for one in energies if one is not None),
            waits=find_waits(chosen, lines),
            problems=problems,
        )


def choose_sample(ranks: RankSet, count: int) -> list[tuple[int, int]]:
    """Return rank and device of the highest rank, of ranks that differ, and of the first rank of each group.

    At most ``count`` in total, in the order of the ranks.
    """
    first_of_group = {line.group: line.rank for line in reversed(ranks.lines)}
    straggler = None if ranks.waits is None else ranks.waits.straggler
    wanted = [ranks.highest.rank, *(one.rank for one in ranks.outliers), *([straggler.rank] if straggler else [])]
    chosen = set(list(dict.fromkeys([*wanted, *first_of_group.values()]))[:count])
    return [(line.rank, line.device_idx) for line in ranks.lines if line.rank in chosen]


def _rows(connection: duckdb.DuckDBPyConnection, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    return connection.execute(query, list(parameters)).fetchall()


def _spreads(connection: duckdb.DuckDBPyConnection, word: str) -> tuple[Spread, ...]:
    """Return the spread of each category, largest first, or of each module, widest first."""
    order = "max(bytes)" if word == "category" else "max(bytes) - min(bytes)"
    rows = _rows(
        connection,
        f"""WITH sums AS (
            SELECT {word} AS name, rank, sum(bytes) AS bytes, sum(expected_bytes) AS expected
            FROM breakdown WHERE category <> '' GROUP BY ALL
        ), ranks AS (SELECT count(DISTINCT rank) AS ranks FROM lines)
        SELECT name, count(*), if(count(*) < any_value(ranks), 0, min(bytes)), quantile_disc(bytes, 0.5), max(bytes),
            arg_max(rank, bytes), quantile_disc(expected, 0.5)
        FROM sums, ranks GROUP BY name HAVING max(bytes) > 0 ORDER BY {order} DESC, name LIMIT 1000""",
    )
    return tuple(Spread(*row) for row in rows)


def _matrix(
    connection: duckdb.DuckDBPyConnection, lines: tuple[RankLine, ...], categories: tuple[Spread, ...]
) -> tuple[tuple[int, ...], ...]:
    rows = _rows(connection, "SELECT category, rank, device_idx, sum(bytes) FROM breakdown GROUP BY ALL")
    found = {(category, rank, device_idx): int(size) for category, rank, device_idx, size in rows}
    return tuple(tuple(found.get((one.name, line.rank, line.device_idx), 0) for line in lines) for one in categories)


_MEDIANS = """
    groups AS (SELECT "group", count(DISTINCT rank) AS ranks FROM lines GROUP BY "group"),
    sums AS (
        SELECT rank, "group", category, module, sum(bytes) AS bytes
        FROM breakdown WHERE category <> '' GROUP BY ALL
    ),
    medians AS (
        SELECT "group", category, module, if(2 * count(*) <= any_value(ranks), 0, median(bytes)) AS mid,
            if(2 * count(*) <= any_value(ranks), 0, mad(bytes)) AS mad, any_value(ranks) AS ranks
        FROM sums JOIN groups USING ("group") GROUP BY "group", category, module
    )"""
"""Medians of ranks with the same coordinates. An account that most of them do not have has the median 0."""


def _outliers(connection: duckdb.DuckDBPyConnection) -> tuple[Outlier, ...]:
    rows = _rows(
        connection,
        f"""WITH {_MEDIANS}
        SELECT rank, category, module, bytes, mid::BIGINT FROM sums JOIN medians USING ("group", category, module)
        WHERE ranks >= ? AND abs(bytes - mid) > greatest(? * mad, ? * mid, ?)
        ORDER BY abs(bytes - mid) DESC, rank LIMIT ?""",
        (FEWEST_RANKS, MAD_TIMES, LEAST_FRAC, LEAST_BYTES, MOST_OUTLIERS),
    )
    return tuple(Outlier(*row) for row in rows)


def _why(connection: duckdb.DuckDBPyConnection, highest: RankLine) -> tuple[Outlier, ...]:
    """Return the breakdown in which a rank exceeds the median of ranks with the same coordinates."""
    rows = _rows(
        connection,
        f"""WITH {_MEDIANS}
        SELECT rank, category, module, bytes, mid::BIGINT FROM sums JOIN medians USING ("group", category, module)
        WHERE rank = ? AND bytes - mid > 0 ORDER BY bytes - mid DESC, category, module LIMIT 3""",
        (highest.rank,),
    )
    return tuple(Outlier(*row) for row in rows)


def _whole_weights(connection: duckdb.DuckDBPyConnection) -> tuple[WholeWeight, ...]:
    rows = _rows(
        connection,
        """SELECT module, max(bytes) FROM (
            SELECT rank, module, sum(bytes) AS bytes FROM breakdown WHERE category = 'weight' GROUP BY ALL
        ) GROUP BY module
        HAVING count(*) = (SELECT count(DISTINCT rank) FROM lines) AND min(bytes) = max(bytes) AND max(bytes) >= ?
        ORDER BY max(bytes) DESC, module LIMIT ?""",
        (LEAST_BYTES, MOST_WHOLE),
    )
    return tuple(WholeWeight(*row) for row in rows)
