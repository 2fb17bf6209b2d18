"""All ranks of a run as one value: how quantities are spread over the ranks, and which ranks differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.instant import module_paths
from gpuledger.analyze.overview.ranks import LEAST_BYTES, LEAST_FRAC
from gpuledger.analyze.ranks.failures import FailedRank, by_attempt
from gpuledger.analyze.ranks.problems import failures_of, list_problems
from gpuledger.analyze.ranks.reading import RankLine, open_summaries
from gpuledger.analyze.ranks.spreads import RankSpread, RankSums
from gpuledger.analyze.ranks.waits import Waits, find_waits

if TYPE_CHECKING:
    import duckdb

    from gpuledger.model.run import Rank, Run

MOST_MODULES, MOST_OUTLIERS, MOST_WHOLE = 50, 100, 10
WIDTH_TIMES = 4.0
"""An outlier differs from the median by more than this multiple of the quartiles' difference, as well."""
FEWEST_RANKS = 3
"""With fewer ranks there is no majority to differ from."""


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
    """A weight that every rank holds whole although other weights are sharded, or its whole optimizer state.

    It is none if each rank updates a part of the weight, as in stages 1 and 2 of ZeRO, which keep all weights whole.
    """

    module: str
    bytes: int


@dataclass(frozen=True)
class RankSet:
    """All ranks of a run. ``matrix[i][j]`` are the bytes of ``categories[i]`` on ``lines[j]``.

    ``why_highest`` is where the rank with the highest peak exceeds ranks with the same coordinates, largest first.
    ``job`` are the ranks of the job, after a restart those of the last one. ``energy_j`` is the energy of a step on
    them; None unless every one has it. ``failed`` are the ranks that failed, the first one first. ``whole_states`` is
    optimizer state that every rank holds whole although the weights that it belongs to are sharded, and
    ``whole_gradients`` are gradients of such weights in the optimizer. ``devices`` is the number of devices by their
    name, the most frequent first; several ranks can share one.

    Source: summaries of the ranks, from the caching allocator's history at each rank's own peak; waits from the
    profiled steps.
    """

    lines: tuple[RankLine, ...]
    categories: tuple[RankSpread, ...]
    matrix: tuple[tuple[int, ...], ...]
    modules: tuple[RankSpread, ...]
    outliers: tuple[Outlier, ...]
    why_highest: tuple[Outlier, ...]
    whole_weights: tuple[WholeWeight, ...]
    whole_states: tuple[WholeWeight, ...]
    whole_gradients: tuple[WholeWeight, ...]
    energy_j: float | None
    job: tuple[int, ...]
    waits: Waits | None
    problems: tuple[str, ...]
    failed: tuple[FailedRank, ...]
    devices: tuple[tuple[str, int], ...]

    @property
    def highest(self) -> RankLine:
        """Return the line with the highest peak."""
        return max(self.lines, key=lambda line: line.recorded_peak_allocated_bytes)

    @property
    def median_peak_bytes(self) -> int:
        """Return the median of the peaks."""
        return int(median(line.recorded_peak_allocated_bytes for line in self.lines))

    @property
    def comparable_peak_bytes(self) -> int:
        """Return the median of the peaks of ranks with the coordinates of the highest one."""
        group = self.highest.group
        return int(median(line.recorded_peak_allocated_bytes for line in self.lines if line.group == group))


def build_rank_set(run: Run, ranks: Sequence[Rank] | None = None) -> RankSet | None:
    """Return all ranks of a run together; None with fewer than two ranks that have a block.

    Raises:
        InputError: a summary is damaged.
    """
    chosen = tuple(run.ranks if ranks is None else ranks)
    problems = list_problems(chosen, run.damaged)
    with open_summaries(chosen) as (connection, lines):
        if len({line.rank for line in lines}) < 2:
            return None
        sums = RankSums(connection)
        categories, matrix = sums.spreads("category")
        _find_medians(connection)
        _find_uneven(connection)
        shared = any(one.name == "sharded_weight" for one in categories)
        highest = max(lines, key=lambda line: line.recorded_peak_allocated_bytes)
        job = _last_job(chosen, lines)
        energies = [line.step_energy_j for line in lines if line.rank in job]
        return RankSet(
            lines=lines,
            categories=categories,
            matrix=_of_lines(matrix, sums.ranks, lines),
            modules=sums.spreads("module", MOST_MODULES)[0],
            outliers=_outliers(connection),
            why_highest=_why(connection, highest),
            whole_weights=_not_on_purpose(_whole(connection, "weight"), chosen[0])[:MOST_WHOLE] if shared else (),
            whole_states=_whole(connection, "optimizer_state", _EXPECTS_PARTS)[:MOST_WHOLE] if shared else (),
            whole_gradients=_whole(connection, "gradient", _EXPECTS_PARTS)[:MOST_WHOLE] if shared else (),
            energy_j=None if None in energies else sum(one for one in energies if one is not None),
            job=job,
            waits=find_waits(chosen, lines),
            problems=problems,
            failed=failures_of(chosen),
            devices=_devices(chosen, lines),
        )


def _last_job(ranks: Sequence[Rank], lines: Sequence[RankLine]) -> tuple[int, ...]:
    """Return the ranks with a line; after a restart, only those of the last attempt that has some."""
    have = {line.rank for line in lines}
    attempts = [[rank.number for rank in members if rank.number in have] for members in by_attempt(ranks).values()]
    return tuple([members for members in attempts if members][-1])


def _devices(ranks: Sequence[Rank], lines: Sequence[RankLine]) -> tuple[tuple[str, int], ...]:
    """Return the number of devices by name. A device without an identifier counts once per rank."""
    identifiers = {(rank.number, one.device_idx): one.uuid for rank in ranks for one in rank.manifest.devices}
    places = ((line.rank, line.device_idx) for line in lines)
    different = {identifiers.get(place) or place: line.device_name for place, line in zip(places, lines, strict=True)}
    return tuple(Counter(different.values()).most_common())


def choose_sample(ranks: RankSet, count: int) -> list[tuple[int, int]]:
    """Return rank and device of the highest rank, of ranks that differ, and of the first rank of each group.

    At most ``count`` in total, in the order of the ranks.
    """
    first_of_group = {line.group: line.rank for line in reversed(ranks.lines)}
    straggler = None if ranks.waits is None else ranks.waits.straggler
    wanted = [ranks.highest.rank, *(one.rank for one in ranks.outliers), *([straggler.rank] if straggler else [])]
    chosen = set(list(dict.fromkeys([*wanted, *first_of_group.values()]))[:count])
    return [(line.rank, line.device_idx) for line in ranks.lines if line.rank in chosen]


def _rows(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: Sequence[Any] | dict[str, Any] = ()
) -> list[tuple[Any, ...]]:
    return connection.execute(query, parameters).fetchall()


def _of_lines(
    matrix: tuple[tuple[int, ...], ...], ranks: Sequence[int], lines: tuple[RankLine, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the columns of the lines' ranks."""
    places = {rank: place for place, rank in enumerate(ranks)}
    return tuple(tuple(row[places[line.rank]] for line in lines) for row in matrix)


def _find_medians(connection: duckdb.DuckDBPyConnection) -> None:
    """Create ``medians``: of ranks with the same coordinates. What most of them do not have has the median 0."""
    connection.execute(
        """CREATE TABLE medians AS
        WITH groups AS (SELECT grp, count(DISTINCT rank) AS ranks FROM places GROUP BY grp),
        quartiles AS (
            SELECT grp, key, count(*) AS have, quantile_disc(bytes, [0.25, 0.5, 0.75]) AS q FROM sums GROUP BY grp, key
        )
        SELECT grp, key, ranks, if(2 * have <= ranks, 0, q[2]) AS mid, if(2 * have <= ranks, 0, q[3] - q[1]) AS width
        FROM quartiles JOIN groups USING (grp)"""
    )


def _find_uneven(connection: duckdb.DuckDBPyConnection) -> None:
    """Create ``uneven``: ranks that differ from comparable ones in the sum of a category, over all modules."""
    connection.execute(
        """CREATE TABLE uneven AS
        WITH totals AS (
            SELECT grp, rank, category, sum(bytes) AS bytes FROM sums JOIN keys USING (key) GROUP BY grp, rank, category
        ),
        middles AS (SELECT grp, category, quantile_cont(bytes, 0.5) AS mid FROM totals GROUP BY grp, category)
        SELECT rank, category FROM totals JOIN middles USING (grp, category)
        WHERE abs(bytes - mid) > greatest(? * mid, ?)""",
        (LEAST_FRAC, LEAST_BYTES),
    )


_COMPARED = """SELECT rank, category, module, bytes, mid
FROM (
    SELECT * FROM sums JOIN medians USING (grp, key) JOIN keys USING (key)
    WHERE NOT starts_with(category, 'sharded_') OR (rank, category) IN (SELECT (rank, category) FROM uneven)
)"""
"""Each category of each module beside the median. A part can be of whole modules, so that ranks have those of different
ones. Categories with parts count only on ranks that differ in their sum."""


def _outliers(connection: duckdb.DuckDBPyConnection) -> tuple[Outlier, ...]:
    rows = _rows(
        connection,
        f"""{_COMPARED} WHERE ranks >= ? AND abs(bytes - mid) > greatest(? * width, ? * mid, ?)
        ORDER BY abs(bytes - mid) DESC, rank, category, module LIMIT ?""",
        (FEWEST_RANKS, WIDTH_TIMES, LEAST_FRAC, LEAST_BYTES, MOST_OUTLIERS),
    )
    return tuple(Outlier(*row) for row in rows)


def _why(connection: duckdb.DuckDBPyConnection, highest: RankLine) -> tuple[Outlier, ...]:
    """Return where a rank exceeds the median of ranks with the same coordinates, largest first."""
    query = f"{_COMPARED} WHERE rank = ? AND bytes > mid ORDER BY bytes - mid DESC, category, module LIMIT 3"
    return tuple(Outlier(*row) for row in _rows(connection, query, (highest.rank,)))


_EXPECTS_PARTS = """AND module IN (
    SELECT module FROM sums JOIN keys USING (key) WHERE category = 'sharded_' || $category AND expected_bytes > 0
)"""


def _whole(connection: duckdb.DuckDBPyConnection, category: str, also: str = "") -> tuple[WholeWeight, ...]:
    """Return the modules that have equal bytes of a category on every rank, largest first."""
    rows = _rows(
        connection,
        f"""SELECT module, max(bytes) FROM (
            SELECT rank, module, bytes FROM sums JOIN keys USING (key) WHERE category = $category {also}
        ) GROUP BY module
        HAVING count(*) = (SELECT count(DISTINCT rank) FROM places) AND min(bytes) = max(bytes) AND max(bytes) >= $least
        ORDER BY max(bytes) DESC, module""",
        {"category": category, "least": LEAST_BYTES},
    )
    return tuple(WholeWeight(*row) for row in rows)


def _not_on_purpose(found: tuple[WholeWeight, ...], rank: Rank) -> tuple[WholeWeight, ...]:
    """Return the weights without those that are updated in parts: of a module, or of modules inside it.

    At a peak in the setup, weights are whole that the program divides after it. These are left out, too.
    """
    if not found:
        return ()
    shards = rank.table("shards", ("module_id", "parts", "state_parts")).to_pylist()
    updated = {row["module_id"] for row in shards if row["parts"] == 1 and (row["state_parts"] or 1) > 1}
    paths = module_paths(rank)
    whole = {row["module_id"] for row in shards if row["parts"] == 1}
    divided = {paths.get(row["module_id"], "") for row in shards if row["module_id"] not in whole}
    on_purpose = {paths.get(module_id, "") for module_id in updated}
    found = tuple(one for one in found if one.module not in divided)
    return tuple(one for one in found if not any(f"{path}.".startswith(f"{one.module}.") for path in on_purpose))
