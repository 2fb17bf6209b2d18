"""Kernels of a replayed CUDA graph are on the compiled kernels of its capture, by order, or on none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuledger.analyze.posting.graph_replays import match_names, match_replays, replay_notes
from gpuledger.model.journal.journal import ActivityKind

SITES = [(4, "triton_poi_a_0"), (5, "extern_kernels.mm"), (6, "triton_red_b_1"), (7, "aten.x"), (8, "aten.y")]


@pytest.mark.parametrize(
    ("names", "matched"),
    [
        (["triton_poi_a_0", "gemm", "triton_red_b_1", "x", "y"], [4, 5, 6, 7, 8]),
        (["triton_poi_a_0", "gemm", "splitk", "triton_red_b_1", "x", "y"], [4, 5, 5, 6, 7, 8]),
        (["triton_poi_a_0_0d1d", "triton_red_b_1", "x", "x2", "y"], [4, 6, -1, -1, -1]),
        (["triton_poi_a_0", "gemm", "x", "y"], None),
        (["triton_poi_a_0", "gemm", "triton_red_b_1", "triton_poi_a_0"], None),
        (["memset", "triton_poi_a_0", "gemm", "triton_red_b_1"], None),
        (["triton_poi_a_01", "gemm", "triton_red_b_1", "x", "y"], None),
        ([], None),
    ],
)
def test_names_and_order_decide(names: list[str], matched: list[int] | None) -> None:
    assert match_names(names, SITES) == matched


def activities(names: list[int], launch_ids: list[int], lanes: list[int]) -> dict[str, Any]:
    count = len(names)
    return {
        "kind": np.full(count, ActivityKind.KERNEL),
        "name_id": np.array(names),
        "launch_id": np.array(launch_ids),
        "lane": np.array(lanes),
        "start_ns": np.arange(count)[::-1].copy(),
    }


WORDS = ["triton_poi_a_0", "gemm", "other"]
FUSIONS = [
    {"file": "c.py", "function": "partition_0", "line": 9, "kernel": "extern_kernels.mm"},
    {"file": "c.py", "function": "partition_0", "line": 3, "kernel": "triton_poi_a_0"},
    {"file": "c.py", "function": "partition_1", "line": 20, "kernel": "triton_poi_z_0"},
]


def matched(names: list[int], launch_ids: list[int], lanes: list[int], fusions: Any = FUSIONS) -> list[int]:
    table = activities(names, launch_ids, lanes)
    return match_replays(table, np.arange(len(names)), WORDS, fusions).tolist()


def test_each_replay_is_matched_in_order_of_time() -> None:
    assert matched([1, 0, 1, 0], [-7, -7, -5, -5], [3] * 4) == [0, 1, 0, 1]


def test_what_is_not_a_replay_or_does_not_match_is_left() -> None:
    assert matched([1, 0], [7, 7], [3, 3]) == [-1, -1]
    assert matched([0, 1], [-7, -7], [3, 3]) == [-1, -1]
    assert matched([1, 0], [-7, -7], [3, 4]) == [-1, -1]  # two streams have no order
    assert matched([1, 0], [-7, -7], [3, 3], []) == [-1, -1]


def test_two_functions_that_fit_are_not_guessed_between() -> None:
    twice = [*FUSIONS, *({**one, "file": "d.py"} for one in FUSIONS)]
    assert matched([1, 0], [-7, -7], [3, 3], twice) == [-1, -1]


def test_unmatched_kernels_are_said() -> None:
    (note,) = replay_notes(np.array([True, True, False]), np.array([3, -1, -1]))
    assert note.startswith("1 of 2 kernels of replayed CUDA graphs")
    assert replay_notes(np.array([True, False]), np.array([3, -1])) == []
