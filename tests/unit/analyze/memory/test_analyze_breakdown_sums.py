from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_runs import Life, block_rows, to_table, written
from synthetic import HOSTILE, load_run

from gpuledger.analyze.memory.breakdown import break_down, fold_path
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import read_lives
from gpuledger.analyze.memory.timeline import bands, build_timeline
from gpuledger.analyze.memory.tree import OUTSIDE_PATH, ROUNDING_PATH, ModuleNode, module_tree
from gpuledger.errors import InputError, UsageError
from gpuledger.model.run import read_run, write_table
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Rank


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    return load_run(tmp_path_factory.mktemp("runs") / "one.ledger").rank()


def life(**changes: object) -> Life:
    values: dict[str, object] = {
        "requested": 1000, "rounding": 24, "category": "weight", "phase": "setup", "module": 3, "name": 1,
        "device": 0, "before": False, "born": 0, "lasts": None, "waits": None,
    }  # fmt: skip
    return Life(**{**values, **changes})  # type: ignore[arg-type]


def test_accounts_of_a_run_with_known_answers() -> None:
    drawn = [life(), life(module=-1, name=-1, category="activation", phase="forward"), life(before=True, name=-1)]
    with written(block_rows(drawn)) as rank:
        peak = find_peak(rank)
        breakdown = break_down(rank, peak)
        found = [(a.category, a.module, a.phase, a.name, a.bytes, a.blocks) for a in breakdown.accounts]
        assert found == [
            ("weight", "a.b.c", "", "", 2000, 2),
            ("activation", "", "", "", 1000, 1),
            ("rounding", "", "", "", 72, 3),
        ]
        names = {(a.name, a.phase): a.bytes for a in break_down(rank, peak, ("tensor", "phase")).accounts}
        assert names == {("name 1", "setup"): 1000, ("", "setup"): 1000, ("", "forward"): 1000, ("", ""): 72}
        assert {a.module for a in break_down(rank, peak, ("module",), depth=2).accounts} == {"a.b", ""}


def test_folding_keeps_the_first_components() -> None:
    assert [fold_path("a.b.c", depth) for depth in (1, 2, 3, 9, None)] == ["a", "a.b", "a.b.c", "a.b.c", "a.b.c"]


@pytest.mark.parametrize(("by", "depth"), [(("colour",), None), ((), None), (("module",), 0), (("module",), -1)])
def test_unknown_keys_and_depths_are_refused(rank: Rank, by: tuple[str, ...], depth: int | None) -> None:
    with pytest.raises(UsageError, match=r"--by|--depth"):
        break_down(rank, find_peak(rank), by, depth)


def nodes(root: ModuleNode) -> list[ModuleNode]:
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(node.children)
    return found


def test_the_tree_nests_by_parent_and_shows_what_has_no_module() -> None:
    drawn = [life(module=3), life(module=1), life(module=6), life(module=-1, category="input"), life(module=7)]
    with written(block_rows(drawn)) as rank:
        root = module_tree(rank, find_peak(rank))
        assert (root.path, root.total_bytes, root.self_bytes) == ("", 5 * 1024, 0)
        assert {child.path: child.total_bytes for child in root.children} == {
            "Net": 2000,
            "Other": 1000,
            OUTSIDE_PATH: 1000,
            "(module 7)": 1000,
            ROUNDING_PATH: 120,
        }
        paths = {node.path: node for node in nodes(root)}
        assert paths["a"].children == (paths["a.b"],)
        assert paths["a.b.c"].by_category == {"weight": 1000}
        assert paths[OUTSIDE_PATH].by_category == {"input": 1000}
        assert "d" not in paths


@pytest.mark.parametrize("parents", ["chain", "cycle", "itself"])
def test_deep_and_damaged_module_tables_lose_no_byte(parents: str) -> None:
    count = 3_000
    parent_of = {
        "chain": [None, *range(count - 1)],
        "cycle": [*range(1, count), 0],
        "itself": list(range(count)),
    }[parents]
    with written(block_rows([life(module=count - 1), life(module=5)])) as rank:
        rows = [
            {"module_id": n, "parent_id": parent, "path": f"m{n}", "class_name": "M", "root_id": 0, "depth": 0,
             "compiled": False}
            for n, parent in enumerate(parent_of)
        ]  # fmt: skip
        write_table(rank.directory, to_table("modules", rows), "modules")
        root = module_tree(rank, find_peak(rank))
        assert root.total_bytes == 2048
        assert sum(node.self_bytes for node in nodes(root)) == 2048


def test_hostile_names_come_through_unchanged(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "bad.ledger", modules=10_000, hostile_names=True).rank()
    peak = find_peak(rank)
    modules = {account.module for account in break_down(rank, peak, ("module",)).accounts}
    assert modules <= {"", *rank.table("modules")["path"].to_pylist()}
    assert all(any(piece in module for module in modules) for piece in HOSTILE)
    names = {account.name for account in break_down(rank, peak, ("tensor",)).accounts}
    assert names <= {"", *rank.table("names")["name"].to_pylist()}
    assert module_tree(rank, peak).total_bytes == break_down(rank, peak).allocated_bytes


def test_bands_cover_every_recorded_step_with_its_phases(rank: Rank) -> None:
    found = bands(rank, 0)
    steps = [band for band in found if band.kind == "step"]
    phases = [band for band in found if band.kind == "phase"]
    assert [band.label for band in steps] == [f"step {number}" for number in range(1, 9)]
    assert [band.label for band in phases][:6] == ["setup", "between", "forward", "backward", "optimizer", "between"]
    assert all(band.start_ns <= band.end_ns for band in found)
    assert len(phases) == 1 + 3 * 5


def test_neighbouring_pieces_of_one_phase_are_one_band_that_ends_with_its_step() -> None:
    spans = [
        {"device_idx": 0, "kind": kind, "start_ns": start, "end_ns": start + 10, "phase": phase, "step": step}
        for kind, start, phase, step in (
            ("phase", 0, "forward", 1),
            ("phase", 10, "forward", 1),
            ("kernel", 12, "forward", 1),
            ("phase", 20, "forward", 2),
            ("phase", 30, "backward", 2),
        )
    ]
    with written(block_rows([life()])) as rank:
        step = {"step": 2, "device_idx": 0, "kind": "call", "recorded": True, "paused_ns": 0}
        step |= {"start_ns": 18, "end_ns": 36}
        write_table(rank.directory, to_table("spans", spans), "spans")
        write_table(rank.directory, to_table("steps", [step]), "steps")
        assert [(b.label, b.step, b.start_ns, b.end_ns) for b in bands(rank, 0)] == [
            ("step 2", 2, 18, 36),
            ("forward", 1, 0, 20),
            ("forward", 2, 20, 30),
            ("backward", 2, 30, 36),
        ]


def test_a_thinned_timeline_keeps_the_peak_and_the_segments(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "more.ledger", blocks=20_000).rank()
    timeline = build_timeline(rank, points=200)
    counters = rank.table("counters").to_pylist()
    assert timeline.index.size <= 200
    assert timeline.bytes.sum(axis=0).max() == max(row["peak_allocated_bytes"] for row in counters)
    assert timeline.reserved_bytes[-1] == counters[-1]["reserved_bytes"]
    with pytest.raises(UsageError, match="too few"):
        build_timeline(rank, points=3)


def test_cpu_tensors_have_no_segments_and_no_rounding(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "cpu.ledger", cuda=False).rank()
    timeline = build_timeline(rank)
    assert timeline.device_idx == -1
    assert (timeline.reserved_bytes == timeline.bytes.sum(axis=0)).all()
    assert not timeline.bytes[-1].any()
    breakdown = break_down(rank, find_peak(rank))
    assert breakdown.reserved_bytes == breakdown.allocated_bytes == breakdown.requested_bytes
    assert "rounding" not in {account.category for account in breakdown.accounts}


def test_a_truncated_part_and_a_missing_column_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.ledger"
    load_run(path)
    part = path / "rank-0" / "blocks" / "part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut.ledger: rank-0.blocks.part-00000.parquet: damaged part"):
        find_peak(read_run(path).rank())
    pq.write_table(pa.table({"device_idx": [0]}), part)
    with pytest.raises(InputError, match="damaged part"):
        find_peak(read_run(path).rank())


def test_two_parts_are_one_table(tmp_path: Path) -> None:
    path = tmp_path / "two.ledger"
    rank = load_run(path).rank()
    whole = rank.table("blocks")
    expected = break_down(rank, find_peak(rank))
    write_table(rank.directory, whole.slice(0, 700), "blocks", 0)
    write_table(rank.directory, whole.slice(700), "blocks", 1)
    again = read_run(path).rank()
    assert break_down(again, find_peak(again)) == expected
    assert read_lives(again, 0).alloc_index.tolist() == whole["alloc_index"].to_pylist()


def test_asked_columns_come_in_the_order_asked(rank: Rank) -> None:
    assert rank.table("blocks", ("step", "address")).column_names == ["step", "address"]
    assert rank.table("windows", ("energy_j",)).num_rows == 0
    assert rank.table("blocks").column_names == list(TABLES["blocks"].column_names)
