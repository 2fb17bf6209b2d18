"""The spread of a category over the ranks, from sums whose answer is known."""

from __future__ import annotations

import duckdb
import pytest

from gpuledger.analyze.ranks.spreads import RankSums


@pytest.mark.parametrize(
    ("held", "median_bytes"),
    [([18, 33], 25), ([18, 33, 40], 33), ([7], 7), ([10, 20, 40, 80], 30)],
)
def test_what_stages_of_a_pipeline_expect_is_the_median_as_that_of_what_they_hold(
    held: list[int], median_bytes: int
) -> None:
    """Each stage has weights of its own. A median of another kind would differ without a cause."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE places AS SELECT range::INTEGER AS rank FROM range(?)", [len(held)])
        connection.execute(
            "CREATE TABLE keys AS SELECT 1 AS key, 'weight' AS category, 'net' AS module, "
            "1 AS category_no, 1 AS module_no"
        )
        connection.execute("CREATE TABLE sums (rank INTEGER, key INTEGER, bytes BIGINT, expected_bytes BIGINT)")
        connection.executemany("INSERT INTO sums VALUES (?, 1, ?, ?)", [[r, n, n] for r, n in enumerate(held)])
        ((spread,), _) = RankSums(connection).spreads("category")
    assert (spread.median_bytes, spread.expected_bytes) == (median_bytes, median_bytes)
