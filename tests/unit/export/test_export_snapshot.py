from __future__ import annotations

import pickle
import pickletools
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from card_recordings import RECORDED, post_recording
from click.testing import CliRunner, Result
from folders import DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from imports import make, read, rows
from random_runs import Life, block_rows, lives, written
from synthetic import HOSTILE, make_run
from torch.cuda import _memory_viz

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import allocated_curve, read_lives
from gpuledger.cli.main import main
from gpuledger.export.snapshot import snapshot_of
from gpuledger.model.imported import rows_to_table
from gpuledger.model.manifest import RankManifest
from gpuledger.model.run import KeptRank, Rank, read_run


def export(run: Path, *words: object) -> Result:
    return CliRunner().invoke(main, ["export", str(run), "--to", "torch-snapshot", *(str(word) for word in words)])


def exported(run: Path, path: Path) -> dict[str, Any]:
    result = export(run, "-o", path)
    assert result.exit_code == 0, result.output
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    return snapshot


def contents(rank: Rank) -> list[tuple[str, str, str, int]]:
    """Return category, module, name and bytes of the accounts at the peak."""
    peak = break_down(rank, find_peak(rank), by=("category", "module", "tensor"))
    return sorted((one.category, one.module, one.name, one.bytes) for one in peak.accounts)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one.ledger", blocks=400)


@pytest.fixture(scope="module")
def snapshot(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return exported(run, tmp_path_factory.mktemp("snapshots") / "one.pickle")


def flame_lines(lines: str) -> str:
    return lines


def test_every_function_of_pytorchs_viewer_takes_it(snapshot: dict[str, Any]) -> None:
    held = sum(segment["total_size"] for segment in snapshot["segments"])
    for draw in (_memory_viz.segments, _memory_viz.memory):
        lines = draw(snapshot, format_flamegraph=flame_lines).splitlines()
        assert sum(int(line.rpartition(" ")[2]) for line in lines) == held
    assert f"segments: {len(snapshot['segments'])}" in _memory_viz.segsum(snapshot)
    assert "TOTAL MEM" in _memory_viz.trace(snapshot)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
        assert "Allocator State History" in _memory_viz.segment_plot(snapshot)


VIEWERS_OPCODES = (
    "PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET APPEND APPENDS SETITEM SETITEMS EMPTY_DICT "
    "EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 "
    "BINFLOAT SHORT_BINUNICODE BINUNICODE"
)
"""What the unpickler of MemoryViz.js knows; it takes protocols 2 to 4."""


@pytest.mark.parametrize("hostile", [False, True])
def test_the_viewers_own_unpickler_knows_every_opcode(hostile: bool, tmp_path: Path) -> None:
    exported(make_run(tmp_path / "run.ledger", blocks=500, hostile_names=hostile), tmp_path / "x.pickle")
    used = [(code.name, argument) for code, argument, _ in pickletools.genops((tmp_path / "x.pickle").read_bytes())]
    assert {name for name, _ in used} <= set(VIEWERS_OPCODES.split())
    assert used[0] == ("PROTO", 4)


def test_categories_and_modules_are_its_metadata(run: Path, snapshot: dict[str, Any]) -> None:
    allocs = [entry for trace in snapshot["device_traces"] for entry in trace if entry["action"] == "alloc"]
    blocks = rows(read_run(run).rank())
    assert len(allocs) == len(blocks)
    told = sorted((entry["user_metadata"]["category"], entry["user_metadata"].get("module", "")) for entry in allocs)
    assert told == sorted((row["category"], row["module"]) for row in blocks)
    assert all(entry["category"] == entry["user_metadata"]["category"] for entry in allocs)


def test_a_category_unknown_is_the_first_that_the_viewer_meets(snapshot: dict[str, Any]) -> None:
    """MemoryViz.js adds it itself by a misspelt name, which throws, and gives segments its colour."""
    assert next(iter(as_met(snapshot))) == "unknown"


def as_met(snapshot: dict[str, Any]) -> dict[str, int]:
    """Return the categories in the viewer's order, with the bytes allocated in them."""
    found: dict[str, int] = {}
    for entry in (entry for trace in snapshot["device_traces"] for entry in trace if "category" in entry):
        found[entry["category"]] = found.get(entry["category"], 0) + entry["size"]
    return found


def test_a_colour_that_two_categories_share_is_of_the_smallest(tmp_path: Path) -> None:
    """Ten colours: the eleventh and twelfth that are met have those of the first two."""
    found = as_met(exported(make_run(tmp_path / "run.ledger", blocks=3000), tmp_path / "x.pickle"))
    assert len(found) == 12
    (unknown, second, *_), sizes = found, sorted(found.values())
    assert (unknown, found[second]) == ("unknown", sizes[1])


def test_a_block_is_told_where_it_is_freed_too(snapshot: dict[str, Any]) -> None:
    """The viewer's state history goes back in time from there."""
    told: dict[int, dict[str, Any]] = {}
    frees = 0
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            told[entry["addr"]] = entry["user_metadata"]
        elif entry["action"].startswith("free"):
            assert entry["user_metadata"] == told[entry["addr"]]
            frees += 1
    assert frees


def test_scopes_are_its_metadata_and_come_back(tmp_path: Path) -> None:
    out = tmp_path / "scoped.ledger"
    with gpuledger.record(out=out, devices="cpu"), gpuledger.scope("outer"), gpuledger.scope("in ner"):
        kept = torch.ones(1001)
    del kept
    snapshot = exported(out, tmp_path / "x.pickle")
    allocs = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert [entry["user_metadata"]["scope"] for entry in allocs if entry["size"] == 4004] == ["outer/in ner"]
    back = make("torch-snapshot", tmp_path, tmp_path / "x.pickle").rank()
    (account,) = (one for one in break_down(back, find_peak(back), by=("scope",)).accounts if one.bytes == 4004)
    assert account.scope == "outer/in ner"


def test_a_trace_begins_with_what_was_alive_and_never_frees_what_it_has_not(snapshot: dict[str, Any]) -> None:
    live: set[int] = set()
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live.add(entry["addr"])
        elif entry["action"] == "free_completed":
            live.remove(entry["addr"])
    shown = {
        block["address"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] != "inactive"
    }
    assert live == shown


@pytest.mark.parametrize("name", RECORDED)
def test_a_real_recording_comes_back_with_the_same_blocks(name: str, tmp_path: Path) -> None:
    rank = post_recording(name, tmp_path)
    directory = rank.directory.parent
    (directory / "manifest.json").write_text('{"schema_version": 1, "notes": [], "settings": {}, "command": []}')
    exported(directory, tmp_path / "x.pickle")
    back = make("torch-snapshot", tmp_path, tmp_path / "x.pickle")
    assert contents(back.rank()) == contents(rank)
    assert [check.ok for check in back.rank().manifest.checks] == [True]
    ours, theirs = (allocated_curve(read_lives(one, 0)).bytes for one in (rank, back.rank()))
    assert ours.max() == theirs.max()
    assert ours[-1] == theirs[-1]


def in_segments_at_every_event(snapshot: dict[str, Any], device: int) -> bool:
    """Return whether every block lies in a segment whenever it is there: the viewer's state history needs it."""
    held: dict[int, int] = {}
    live: dict[int, int] = {}
    for entry in snapshot["device_traces"][device]:
        action, address = entry["action"], entry["addr"]
        if action in ("segment_alloc", "segment_map"):
            held[address] = address + entry["size"]
        elif action in ("segment_free", "segment_unmap"):
            del held[address]
        elif action == "alloc":
            live[address] = address + entry["size"]
        elif action == "free_completed":
            del live[address]
        if action in ("alloc", "segment_free") and not all(
            any(low <= start and end <= high for low, high in held.items()) for start, end in live.items()
        ):
            return False
    return True


@pytest.mark.parametrize("cuda", [True, False])
def test_every_block_lies_in_a_segment_at_every_event(cuda: bool, tmp_path: Path) -> None:
    snapshot = exported(make_run(tmp_path / "run.ledger", blocks=120, cuda=cuda), tmp_path / "x.pickle")
    assert in_segments_at_every_event(snapshot, 0)


def test_pools_of_graphs_and_of_the_program_are_their_segments() -> None:
    """The viewer draws what they hold apart."""
    life = Life(100, 0, "weight", "setup", -1, -1, 0, before=True, born=0, lasts=None, waits=None)
    blocks = block_rows([life] * 4)
    for block, pool in zip(blocks, (0, 3, -2, None), strict=True):
        block["pool_id"] = pool
    with written(blocks) as rank:
        assert [one["segment_pool_id"] for one in snapshot_of(rank)["segments"]] == [(0, 0), (3, 0), (0, 2), (0, 0)]


@given(lives, st.lists(st.none() | st.integers(-(1 << 31) + 1, (1 << 31) - 1), min_size=25, max_size=25))
@settings(max_examples=15)
def test_pools_survive_the_way_there_back_and_there_again(drawn: list[Life], pools: list[int | None]) -> None:
    blocks = block_rows(drawn)
    for block, pool in zip(blocks, pools, strict=False):
        block["pool_id"] = pool if block["device_idx"] >= 0 else None
    with written(blocks) as rank:
        once = snapshot_of(rank)
    imported = rank_of(once)
    assert pools_by_place(snapshot_of(imported)) == pools_by_place(once)
    back = {block["address"]: block["pool_id"] for block in imported.table("blocks").to_pylist()}
    for block in blocks:
        if block["device_idx"] >= 0:  # CPU tensors have no address of their own
            assert back[block["address"]] == (block["pool_id"] or 0)


def rank_of(snapshot: dict[str, Any]) -> Rank:
    """Return a snapshot as the import has it."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "x.pickle"
        place.write_bytes(pickle.dumps(snapshot, protocol=4))
        (imported,) = read("torch-snapshot", place).ranks
    return KeptRank(0, Path(), RankManifest.from_json({"schema_version": 1, **imported.facts}), dict(imported.tables))


def pools_by_place(snapshot: dict[str, Any]) -> dict[tuple[int, int], tuple[int, int]]:
    return {(one["device"], one["address"]): one["segment_pool_id"] for one in snapshot["segments"]}


@given(lives)
@settings(max_examples=15)
def test_any_run_is_a_snapshot_that_the_viewer_can_go_through(drawn: list[Life]) -> None:
    with written(block_rows(drawn)) as rank:
        snapshot = snapshot_of(rank)
    assert next(iter(as_met(snapshot))) == "unknown"
    for device in range(len(snapshot["device_traces"])):
        assert in_segments_at_every_event(snapshot, device)


def test_cpu_tensors_are_the_device_after_the_cards(tmp_path: Path) -> None:
    run = make_run(tmp_path / "cpu.ledger", blocks=100, cuda=False)
    snapshot = exported(run, tmp_path / "x.pickle")
    assert {segment["device"] for segment in snapshot["segments"]} == {0}
    assert "TOTAL MEM" in _memory_viz.trace(snapshot)
    _memory_viz.segsum(snapshot)


@pytest.mark.parametrize("sizes", [(40, 512, 20_480), (512, 40, 512)])
def test_cpu_tensors_come_back_to_the_event(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Blocks of any size, and an address that the CPU's allocator gave again before the free was seen."""
    blocks = [
        {"device_idx": -1, "stream": 0, "address": 4096, "requested_bytes": size, "allocated_bytes": size}
        | {"alloc_index": place, "free_requested_index": 10 + 2 * place, "free_index": 11 + 2 * place}
        | {
            "alloc_ns": place,
            "free_requested_ns": 20,
            "free_ns": 21,
            "step": 1,
            "phase": "forward",
            "category": "other",
        }
        for place, size in enumerate(sizes)
    ]
    rank = KeptRank(0, tmp_path, RankManifest(schema_version=1), tables={"blocks": rows_to_table("blocks", blocks)})
    (tmp_path / "cpu.pickle").write_bytes(pickle.dumps(snapshot_of(rank)))
    back = make("torch-snapshot", tmp_path, tmp_path / "cpu.pickle").rank()
    assert [note for note in back.manifest.notes if "do not match" in note or "replaying" in note] == []
    assert all(check.ok for check in back.manifest.checks)
    assert sorted(row["requested_bytes"] for row in back.table("blocks").to_pylist()) == sorted(sizes)


def test_hostile_names_survive_the_way_there_and_back(tmp_path: Path) -> None:
    run = make_run(tmp_path / "hostile.ledger", blocks=300, hostile_names=True)
    exported(run, tmp_path / "x.pickle")
    back = make("torch-snapshot", tmp_path, tmp_path / "x.pickle")
    paths = {row["path"] for row in rows(back.rank(), "modules")}
    used = {row["module"] for row in rows(read_run(run).rank())}
    assert used & set(HOSTILE)
    assert used - {""} <= paths


def test_several_ranks_are_a_file_each(tmp_path: Path) -> None:
    run = make_run(tmp_path / "two.ledger", blocks=60, ranks=2)
    result = export(run, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank-0.pickle", "rank-1.pickle"]


def test_imported_files_open_in_the_viewer_too(tmp_path: Path) -> None:
    snapshot = exported(DATA / "mxnet" / "gpu_memory_profile-pid_98.csv", tmp_path / "x.pickle")
    assert [len(trace) for trace in snapshot["device_traces"]] == [4, 4]
    assert "TOTAL MEM" in _memory_viz.trace(snapshot)


def test_wrong_calls_and_files_that_exist(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pickle").write_text("mine")
    for words in (["-o", "-"], ["--table", "blocks"], ["-o", tmp_path / "x.pickle"]):
        assert export(run, *words).exit_code == 2
    assert (tmp_path / "x.pickle").read_text() == "mine"


def test_without_a_path_it_is_named_after_the_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(run).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.pickle"]
