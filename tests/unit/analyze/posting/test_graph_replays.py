"""Kernels of a replayed CUDA graph are on the compiled kernels of its capture, by order, or on none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuledger.analyze.posting.graph_replays import (
    match_names,
    match_replays,
    match_several,
    match_unordered,
    replay_notes,
)
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
    assert matched([1, 0], [-7, -7], [3, 4]) == [-1, 1]  # two streams have no order, but names
    assert matched([1, 0], [-7, -7], [3, 3], []) == [-1, -1]


def test_two_functions_that_fit_are_not_guessed_between() -> None:
    twice = [*FUSIONS, *({**one, "file": "d.py"} for one in FUSIONS)]
    assert matched([1, 0], [-7, -7], [3, 3], twice) == [-1, -1]


def test_unmatched_kernels_are_said() -> None:
    (note,) = replay_notes(np.array([True, True, False]), np.array([True, False, False]))
    assert note.startswith("1 of 2 kernels of replayed CUDA graphs")
    assert replay_notes(np.array([True, False]), np.array([True, False])) == []


FORWARD = [(0, "extern_kernels.mm"), (1, "triton_poi_a_0"), (2, "extern_kernels.addmm"), (3, "triton_red_b_1")]
BACKWARD = [(4, "triton_poi_c_0"), (5, "extern_kernels.mm"), (6, "triton_poi_d_1"), (7, "aten.x")]
BOTH = [FORWARD, BACKWARD]
A, B, C, D = "triton_poi_a_0", "triton_red_b_1", "triton_poi_c_0", "triton_poi_d_1"


@pytest.mark.parametrize(
    ("names", "matched"),
    [
        (["gemm", A, "gemm", B, C, "gemm", D, "x"], [0, 1, 2, 3, 4, 5, 6, -1]),
        (["gemm", A, "gemm", "splitk", B, C, "gemm", D, "x"], [0, 1, 2, 2, 3, 4, 5, 6, -1]),
        (["eager", "gemm", A, "gemm", B, "loss", C, "gemm", D, "x", "adam"], [-1, -1, 1, 2, 3, -1, 4, 5, 6, -1, -1]),
        ([C, "gemm", D, "x"], [4, 5, 6, -1]),
        (["gemm", A, "gemm", B, C], None),  # half of a function
        (["gemm", A, "gemm", B, "gemm", A, "gemm", B], None),  # equal blocks that share code
        ([A, "gemm", B, C, "gemm", D], None),  # the first library call has no kernel
        (["gemm", A, "gemm", B, "triton_poi_other_0"], None),
        (["gemm", "loss"], None),
        ([], None),
    ],
)
def test_functions_are_matched_if_there_is_one_way(names: list[str], matched: list[int] | None) -> None:
    found = match_several(names, BOTH)
    assert found == matched


def test_two_ways_to_divide_are_not_guessed_between() -> None:
    whole, parts = [(0, A), (1, B)], ([(2, A)], [(3, B)])
    assert match_several([A, B], [whole]) == [0, 1]
    assert match_several([A, B], [whole, *parts]) is None
    assert match_several([A, B], parts) == [2, 3]


def test_of_several_streams_only_names_that_occur_once_are_matched() -> None:
    assert match_unordered([C, "gemm", A, B], BOTH) == [4, -1, 1, 3]
    assert match_unordered([A, A, B], BOTH) == [-1, -1, 3]
    assert match_unordered([A], [FORWARD, [(9, A)]]) == [-1]


def test_replays_of_several_functions_and_on_several_streams_are_matched() -> None:
    words = [A, "gemm", B, C, D, "adam"]
    names = [1, 0, 1, 2, 3, 1, 4, 5]  # as they run; the table has them the other way round
    fusions = [
        {"file": file, "function": "call", "line": line, "kernel": kernel}
        for file, sites in (("forward.py", FORWARD), ("backward.py", BACKWARD[:-1]))
        for line, kernel in sites
    ]

    def found(lanes: list[int]) -> list[int]:
        table = activities(names[::-1], [-7] * len(names), lanes)
        return match_replays(table, np.arange(len(names)), words, fusions).tolist()[::-1]

    assert found([3] * 8) == [0, 1, 2, 3, 4, 5, 6, -1]
    assert found([3] * 7 + [4]) == [-1, 1, -1, 3, 4, -1, 6, -1]
