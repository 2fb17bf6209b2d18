"""The flame graph: every byte is in one path, and a parent has the bytes of its children."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_runs import Life, block_rows, to_table, written
from synthetic import load_run

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lines.flame import LEAST_SHARE, FlameNode, build_flame
from gpuledger.analyze.memory.lines.source_lines import BEFORE_RECORDING
from gpuledger.model.run import Rank, write_table

STACKS = [
    (0, 0, "/v/site-packages/torch/nn/functional.py", 7, "relu"),
    (0, 1, "/home/u/net.py", 5, "forward"),
    (0, 2, "/v/site-packages/torch/nn/modules/module.py", 9, "_call_impl"),
    (0, 3, "/home/u/train.py", 3, "<module>"),
    (1, 0, "/home/u/train.py", 4, "<module>"),
    (2, 0, "/v/site-packages/torch/utils/data/_utils/pin_memory.py", 80, "pin"),
]


def life(requested: int, category: str = "activation", *, before: bool = False) -> Life:
    return Life(
        requested=requested, rounding=0, category=category, phase="forward", module=-1, name=-1,
        device=0, before=before, born=0, lasts=None, waits=None,
    )  # fmt: skip


def flame_of(lives: list[Life], stack_ids: list[int | None]) -> tuple[FlameNode, ...]:
    rows = block_rows(lives)
    for row, stack_id in zip(rows, stack_ids, strict=True):
        row["stack_id"] = stack_id
    with written(rows) as rank:
        columns = ("stack_id", "frame_idx", "file", "line", "function")
        table = to_table("stacks", [dict(zip(columns, row, strict=True)) for row in STACKS])
        write_table(rank.directory, table, "stacks")
        fresh = Rank(rank.number, rank.directory, rank.manifest)
        return build_flame(fresh, find_peak(fresh))


def test_paths_lead_from_the_program_to_the_line() -> None:
    nodes = flame_of([life(600), life(300, "input"), life(200), life(50, before=True), life(40)], [0, 1, 0, None, 2])
    assert [(node.function, node.place, node.parent, node.bytes, node.category) for node in nodes] == [
        ("", "", -1, 1190, "activation"),
        ("<module>", "train.py:3", 0, 800, "activation"),
        ("<module>", "train.py:4", 0, 300, "input"),
        (BEFORE_RECORDING, "", 0, 50, "activation"),
        ("pin", "torch/utils/data/_utils/pin_memory.py:80", 0, 40, "activation"),
        ("forward", "net.py:5", 1, 800, "activation"),
    ]


def test_small_paths_stay_in_the_nodes_above_them() -> None:
    nodes = flame_of([life(10**6), life(int(LEAST_SHARE * 10**6) - 1)], [1, 0])
    assert [node.place for node in nodes] == ["", "train.py:4"]
    assert nodes[0].bytes > nodes[1].bytes


@pytest.mark.parametrize("seed", range(3))
def test_children_never_have_more_than_their_parent(tmp_path: Path, seed: int) -> None:
    rank = load_run(tmp_path / f"{seed}.ledger", seed=seed).rank()
    peak = find_peak(rank)
    nodes = build_flame(rank, peak)
    assert nodes[0].bytes == break_down(rank, peak).requested_bytes
    below = [0] * len(nodes)
    for place, node in enumerate(nodes[1:], 1):
        assert node.parent < place
        below[node.parent] += node.bytes
    assert all(sum_bytes <= node.bytes for sum_bytes, node in zip(below, nodes, strict=True))
