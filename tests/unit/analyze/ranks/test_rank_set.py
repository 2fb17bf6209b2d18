"""All ranks together: spreads, outliers among comparable ranks, and what makes a rank the highest."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest
from many_ranks import MIB, make_summaries
from synthetic import load_run

from gpuledger.analyze.memory.instant import find_peak, module_paths
from gpuledger.analyze.ranks import summaries
from gpuledger.analyze.ranks.rank_set import RankSet, WholeWeight, _not_on_purpose, build_rank_set, choose_sample
from gpuledger.analyze.ranks.summaries import write_summary
from gpuledger.errors import InputError
from gpuledger.model.run import KeptRank, read_run, write_table
from gpuledger.model.schema.tables import TABLES
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.ranks_text import rank_set_entries, rank_set_lines

WIDE = Terminal(200)
GIB = 1 << 30
PLANTED = {(5, "activation", "layers.1"): 900 * MIB, (3, "gradient", "layers.2"): 1 * MIB}


def rank_set(path: Path) -> RankSet:
    found = build_rank_set(read_run(path))
    assert found is not None
    return found


def test_planted_outliers_are_found_and_no_others(tmp_path: Path) -> None:
    ranks = rank_set(make_summaries(tmp_path / "run", 16, 30, planted=PLANTED))
    found = {(one.rank, one.category, one.module): one.bytes for one in ranks.outliers}
    assert found == PLANTED
    assert ranks.highest.rank == 5
    assert (ranks.why_highest[0].category, ranks.why_highest[0].module) == ("activation", "layers.1")
    assert ranks.energy_j == 1_600.0


def test_a_device_of_several_ranks_counts_once(tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 4, 30)
    assert [count for _, count in rank_set(path).devices] == [4]
    for number in range(4):
        place = path / f"rank-{number}" / "manifest.json"
        manifest = json.loads(place.read_text())
        manifest["devices"] = [{"device_idx": index, "uuid": f"GPU-{number // 2}"} for index in (-1, 0)]
        place.write_text(json.dumps(manifest))
    ((name, count),) = rank_set(path).devices
    assert count == 2
    assert ("Ranks", (f"4 ranks on 2 × {name}",)) in rank_set_entries(rank_set(path))


def test_outliers_that_differ_equally_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    modules = [f"layers.{number}" for number in range(90)]
    planted = {(rank, "activation", module): (900 if rank == 2 else 8) * MIB for rank in range(5) for module in modules}
    found = rank_set(make_summaries(tmp_path / "run", 5, 90, planted=planted)).outliers
    assert len(found) == 90
    assert [(one.category, one.module) for one in found] == sorted((one.category, one.module) for one in found)


@pytest.mark.parametrize(
    ("energies_j", "texts"),
    [
        (
            (100.0, 140.5, 90.0),
            ("330.50 J per step on all ranks", "100.00 J on rank 0, 140.50 J on rank 1, 90.00 J on rank 2"),
        ),
        ((100.0, None, 90.0), ("known on 2 of 3 ranks", "100.00 J on rank 0, 90.00 J on rank 2")),
        (
            (*(100.0,) * 7, 80.0, 150.0),
            ("930.00 J per step on all ranks", "80.00 J on rank 7 to 150.00 J on rank 8; median 100.00 J"),
        ),
    ],
)
def test_energy_is_shown_on_each_rank(
    energies_j: tuple[float | None, ...], texts: tuple[str, str], tmp_path: Path
) -> None:
    path = make_summaries(tmp_path / "run", len(energies_j), 6, energies_j=energies_j)
    assert dict(rank_set_entries(rank_set(path)))["Energy"] == texts


@pytest.mark.parametrize(
    ("last_j", "total"), [(110.0, "200.00 J per step on ranks 2 and 3"), (None, "known on 1 of 2 ranks")]
)
def test_ranks_before_a_restart_are_none_of_the_job(last_j: float | None, total: str, tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 4, 6, energies_j=(100.0, 120.0, 90.0, last_j))
    for number in range(4):
        place = path / f"rank-{number}" / "manifest.json"
        place.write_text(json.dumps(json.loads(place.read_text()) | {"world": {"size": 2, "rank": number % 2}}))
    ranks = rank_set(path)
    entries = dict(rank_set_entries(ranks))
    assert ranks.job == (2, 3)
    assert entries["Ranks"] == ("4 ranks (2 at a time) on 4 × NVIDIA H200",)
    assert entries["Energy"][0] == total


@pytest.mark.parametrize(("expected_bytes", "is_whole"), [(4 * MIB, True), (0, False)])
def test_gradients_that_are_whole_although_their_weights_are_sharded_are_found(
    expected_bytes: int, is_whole: bool, tmp_path: Path
) -> None:
    path = make_summaries(
        tmp_path / "run", 3, 6, planted={(rank, "gradient", "layers.2"): 8 * MIB for rank in range(3)}
    )
    row = {"device_idx": 0, "category": "sharded_gradient", "module": "layers.2", "bytes": 0}
    rows = [row | {"expected_bytes": expected_bytes, "time_ns": None, "energy_j": None}]
    for rank in range(3):
        table = pa.Table.from_pylist(rows, TABLES["breakdown"].arrow_schema())
        write_table(path / f"rank-{rank}", table, "breakdown", 1)
    ranks = rank_set(path)
    assert [(one.module, one.bytes) for one in ranks.whole_gradients] == [("layers.2", 8 * MIB)] * is_whole
    said = ("gradients of layers.2 are whole on every rank: 8.0 MiB each",)
    assert dict(rank_set_entries(ranks)).get("Not sharded", ()) == (said if is_whole else ())


def test_no_energy_is_shown_if_none_is_known(tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 3, 6, energies_j=(None,) * 3)
    assert "Energy" not in dict(rank_set_entries(rank_set(path)))


def test_a_module_that_one_rank_alone_has_is_an_outlier(tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 4, 6)
    other = make_summaries(tmp_path / "other", 1, 9)
    (other / "rank-0").rename(path / "rank-4")
    extra = {one.module for one in rank_set(path).outliers}
    assert extra == {"layers.6", "layers.7", "layers.8"}


@pytest.mark.parametrize("more_bytes", [0, 100 * MIB])
def test_parts_that_are_whole_modules_differ_only_by_their_sum(
    more_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroRedundancyOptimizer gives the state of whole parameters to each rank, of others than to the next one."""
    monkeypatch.setattr("many_ranks.CATEGORIES", ("sharded_optimizer_state", "activation", "weight"))
    names, kind = ("layers.0", "layers.3", "layers.6", "layers.9", "layers.12"), "sharded_optimizer_state"
    state = {(rank, kind, name): 96 * MIB * (rank == place) for rank in range(5) for place, name in enumerate(names)}
    state[2, kind, "layers.6"] += more_bytes
    ranks = rank_set(make_summaries(tmp_path / "run", 5, 15, planted=state))
    found = {(one.rank, one.module) for one in ranks.outliers}
    assert found == ({(2, "layers.6")} if more_bytes else set())
    assert [one.category for one in ranks.why_highest if one.category == kind] == [kind] * bool(more_bytes)


def test_ranks_are_compared_with_those_of_the_same_coordinates(tmp_path: Path) -> None:
    stages = {(rank, "activation", "layers.1"): 500 * MIB for rank in range(8) if rank % 2}
    alone = {(3, "gradient", "layers.2"): 700 * MIB}
    by_stage = rank_set(make_summaries(tmp_path / "mesh", 8, 12, planted=stages | alone, mesh={"dp": 4, "pp": 2}))
    assert [(one.rank, one.module) for one in by_stage.outliers] == [(3, "layers.2")]
    assert by_stage.lines[3].group == "pp=1"


def test_spreads_and_matrix_agree(tmp_path: Path) -> None:
    ranks = rank_set(make_summaries(tmp_path / "run", 5, 12, planted=PLANTED | {(4, "x", "layers.0"): 0}))
    for spread, row in zip(ranks.categories, ranks.matrix, strict=True):
        assert (spread.min_bytes, spread.max_bytes) == (min(row), max(row))
        assert row[spread.max_rank] == spread.max_bytes
    assert sum(row[0] for row in ranks.matrix) == ranks.lines[0].recorded_peak_allocated_bytes


def test_the_median_counts_ranks_that_have_nothing(tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 4, 6)
    other = make_summaries(tmp_path / "other", 1, 9)
    (other / "rank-0").rename(path / "rank-4")
    ranks = rank_set(path)
    extra = next(one for one in ranks.modules if one.name == "layers.8")
    assert (extra.ranks, extra.min_bytes, extra.median_bytes, extra.max_rank) == (1, 0, 0, 4)
    for spread, row in zip(ranks.categories, ranks.matrix, strict=True):
        assert spread.median_bytes == int(median(row))


def test_the_median_of_two_ranks_is_in_the_middle(tmp_path: Path) -> None:
    ranks = rank_set(make_summaries(tmp_path / "run", 2, 12, planted={(1, "activation", "layers.1"): 900 * MIB}))
    for spread, row in zip(ranks.categories, ranks.matrix, strict=True):
        assert spread.median_bytes == sum(row) // 2


def test_a_highest_rank_that_equals_its_comparable_ranks_needs_no_reason(tmp_path: Path) -> None:
    # as whole parameters that ZeroRedundancyOptimizer gives to one rank or another
    swapped = {(0, "activation", "layers.1"): 40 * MIB, (1, "gradient", "layers.2"): 48 * MIB}
    same = rank_set(make_summaries(tmp_path / "same", 2, 12, planted=swapped))
    assert same.why_highest[0].excess_bytes > 8 * MIB
    assert not any("more than on" in line for line in rank_set_lines(same, WIDE))
    different = rank_set(make_summaries(tmp_path / "more", 2, 12, planted=PLANTED | {(1, "gradient", "layers.2"): GIB}))
    assert any(
        "more than on comparable ranks: gradient of layers.2" in line for line in rank_set_lines(different, WIDE)
    )


def test_a_sample_has_the_highest_the_different_and_one_of_each_group(tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 40, 12, planted=PLANTED, mesh={"dp": 20, "tp": 2})
    chosen = [rank for rank, _ in choose_sample(rank_set(path), 8)]
    assert chosen == [0, 1, 3, 5]


@pytest.mark.parametrize("written", [True, False])
def test_summaries_are_those_of_each_ranks_own_peak(tmp_path: Path, written: bool) -> None:
    run = load_run(tmp_path / "run", blocks=200, ranks=3)
    if written:
        for rank in run.ranks:
            write_summary(rank)
    ranks = build_rank_set(run)
    assert ranks is not None
    for line, rank in zip(ranks.lines, run.ranks, strict=True):
        peak = find_peak(rank)
        assert (line.peak_step, line.peak_phase, line.peak_module) == (peak.step, peak.phase, peak.module)
        column = sum(row[line.rank] for row in ranks.matrix)
        assert column == line.recorded_peak_allocated_bytes


def test_a_module_that_was_made_after_the_peak_is_not_expected_there(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "run", blocks=200).rank()
    blocks = [row for row in rank.table("blocks").to_pylist() if row["category"] == "weight" and row["module_id"]]
    module_id = blocks[0]["module_id"]
    made = min(row["alloc_index"] for row in blocks if row["module_id"] == module_id)
    sizes = {"whole_bytes": 8, "shard_bytes": 8, "parts": 1, "gradient_bytes": 8, "device_idx": blocks[0]["device_idx"]}
    rows = [{"name_id": None, "module_id": module_id, "state_bytes": 0, "state_parts": 1, **sizes}]
    write_table(rank.directory, pa.Table.from_pylist(rows, TABLES["shards"].arrow_schema()), "shards")
    rank = read_run(tmp_path / "run").rank()
    peak = replace(find_peak(rank), device_idx=blocks[0]["device_idx"], phase="backward")
    key = "weight", module_paths(rank)[module_id]
    assert summaries._expected(rank, replace(peak, index=made), set()) == {key: 8}
    assert not summaries._expected(rank, replace(peak, index=made - 1), set())


def test_weights_that_are_divided_after_a_peak_in_the_setup_are_not_whole(tmp_path: Path) -> None:
    """Those of module 1 are divided, those of module 2 in part, and nothing divides those of module 3."""
    rank = load_run(tmp_path / "run").rank(0)
    names = TABLES["shards"].arrow_schema().names
    shards = [
        dict.fromkeys(names) | {"module_id": module, "parts": parts} for module, parts in ((1, 2), (2, 2), (2, 1))
    ]
    kept = KeptRank(
        rank.number,
        rank.directory,
        rank.manifest,
        tables={"modules": rank.table("modules"), "shards": pa.Table.from_pylist(shards)},
    )
    paths = module_paths(rank)
    found = tuple(WholeWeight(paths[module], MIB) for module in (1, 2, 3))
    assert _not_on_purpose(found, kept) == found[1:]


def test_one_rank_is_no_set(tmp_path: Path) -> None:
    assert build_rank_set(load_run(tmp_path / "run", blocks=50)) is None


def test_a_damaged_summary_is_an_input_error(tmp_path: Path) -> None:
    path = make_summaries(tmp_path / "run", 2, 6)
    (path / "rank-1" / "breakdown" / "part-00000.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(InputError, match="damaged"):
        build_rank_set(read_run(path))


def test_no_progress_is_printed_in_interactive_python(tmp_path: Path) -> None:
    make_summaries(tmp_path / "run", 2, 3)
    code = """
import sys
from pathlib import Path
from gpuledger.analyze.ranks.reading import open_summaries
from gpuledger.model.run import read_run
with open_summaries(read_run(Path(sys.argv[1])).ranks) as (connection, _):
    print(connection.execute("SELECT current_setting('enable_progress_bar')").fetchall())
"""
    shown = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert shown.stdout == "[(False,)]\n", shown.stderr
