"""Ranks of programs that start their own processes get their numbers in the process group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import load_run

from gpuledger.model.manifest import RankManifest, write_rank_manifest
from gpuledger.model.run import Run, read_run
from gpuledger.services.rank_numbers import number_ranks


def run_of(path: Path, *worlds: tuple[int, int] | None) -> Run:
    """Return a run with a rank for each pair of rank and size of its process group; the pid is 100 + its place."""
    run = load_run(path, blocks=20, ranks=len(worlds))
    for rank, world in zip(run.ranks, worlds, strict=True):
        value: dict[str, Any] = rank.manifest.to_json()
        value |= {"pid": 100 + rank.number, "world": world and {"rank": world[0], "size": world[1]}}
        write_rank_manifest(rank.directory, RankManifest.from_json(value))
    return read_run(run.path)


def pids(run: Run) -> dict[int, int | None]:
    return {rank.number: rank.manifest.pid for rank in run.ranks}


@pytest.mark.parametrize(
    ("worlds", "expected"),
    [
        ([(1, 2), (0, 2)], {0: 101, 1: 100}),
        ([(2, 4), (0, 4), (3, 4)], {0: 101, 2: 100, 3: 102}),  # one has no recording
        ([(0, 2), (1, 2), (1, 2), (0, 2)], {0: 100, 1: 101, 2: 102, 3: 103}),  # a restart
        ([(1, 2), (0, 3)], {0: 100, 1: 101}),
        ([(1, 2), None], {0: 100, 1: 101}),
    ],
)
def test_ranks_have_their_numbers_in_the_process_group(
    tmp_path: Path, worlds: list[tuple[int, int] | None], expected: dict[int, int]
) -> None:
    run = number_ranks(run_of(tmp_path / "run", *worlds))
    assert pids(run) == expected
    assert pids(read_run(run.path)) == expected
    assert [rank.manifest.rank for rank in run.ranks] == list(expected)
    assert not list(run.path.glob("moved-*"))
