"""What went wrong on some ranks is said in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuledger.analyze.ranks.problems import list_problems
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import KeptRank, Rank
from gpuledger.model.schema.tables import TABLES


def rank(number: int, *, oom_ns: int | None = None, **facts: Any) -> Rank:
    value = {"schema_version": 1, "rank": number, "status": "closed", "steps_seen": 10, **facts}
    counters = TABLES["counters"].arrow_schema().empty_table()
    if oom_ns is not None:
        value["oom"] = [{"tried_bytes": 1}]
        row = {field.name: 0 for field in counters.schema} | {"t_ns": oom_ns, "reason": "oom"}
        counters = pa.Table.from_pylist([row], counters.schema)
    return KeptRank(number, Path(), RankManifest.from_json(value), tables={"counters": counters})


def of_world(size: int, *numbers: int) -> list[Rank]:
    return [rank(number, world={"size": size, "rank": number}) for number in numbers]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0), rank(1)], []),
        (of_world(2, 0, 1), []),
        (of_world(3, 0, 2), ["Rank 1 of 3 has no recording."]),
        (of_world(4, 0), ["Ranks 1, 2 and 3 of 4 have no recording."]),
        ([rank(0), rank(1, status="cut off")], ["Rank 1 was killed."]),
        (
            [rank(0), rank(1), rank(2, steps_seen=7)],
            ["The ranks took different numbers of steps: most took 10, rank 2"],
        ),
        ([rank(0, oom_ns=20), rank(1, oom_ns=10)], ["Rank 1 ran out of memory first, then rank 0."]),
        (
            [rank(0, status="cut off"), rank(1, oom_ns=10)],
            ["Rank 1 ran out of memory first. Rank 0 ended because of it"],
        ),
        (
            [rank(0, oom=[{"t_ns": 20, "step": 812}]), rank(1, oom=[{"t_ns": 10, "step": 1812}])],
            ["Rank 1 ran out of memory first, in step 1,812, then rank 0."],
        ),
        ([rank(0, oom=[{}]), rank(1, oom=[{"t_ns": 10}])], ["Ranks 0 and 1 ran out of memory."]),
        ([rank(0, torch_version="2.11"), rank(1, torch_version="2.13")], ["The ranks ran different versions"]),
    ],
)
def test_each_problem_is_said_once(ranks: list[Rank], expected: list[str]) -> None:
    found = list_problems(ranks)
    assert len(found) == len(expected)
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)
