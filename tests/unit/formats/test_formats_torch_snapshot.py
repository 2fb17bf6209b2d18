from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from imports import check_views, make, read, rows, show
from reader_memory import measure
from snapshots import STATES, dumped, event, segment, snapshot, some_frames

from gpuledger.cli.main import main
from gpuledger.errors import InputError
from gpuledger.formats.readers import find_format
from gpuledger.formats.snapshot.snapshot_tables import UNKNOWN_PHASE, _parse_text
from gpuledger.formats.torch_snapshot import _plain_settings
from gpuledger.model.accounts import PHASES

MIB = 1 << 20
BASE = 1 << 40


def write(path: Path, value: Any, protocol: int = 4) -> Path:
    path.write_bytes(dumped(value, protocol))
    return path


def small_snapshot(**more: Any) -> dict[str, Any]:
    """Two blocks from before the trace, one given back in it; one allocated in it, one that awaits another stream."""
    shown = segment(0, BASE, [(MIB, 1_000_000, 1), (1024, 600, 1), (2048, 2000, 2), (MIB - 3072, 0, 0)])
    trace = [
        event(0, "segment_alloc", BASE + (8 << 30), 20 * MIB, **more),
        event(1, "free_requested", BASE + MIB + 8192, 5000, **more),
        event(2, "free_completed", BASE + MIB + 8192, 5000, **more),
        event(3, "alloc", BASE + MIB, 600, **more),
        event(4, "alloc", BASE + MIB + 1024, 2000, **more),
        event(5, "free_requested", BASE + MIB + 1024, 2000, **more),
        event(6, "segment_free", BASE + (8 << 30), 20 * MIB, **more),
        event(7, "oom", 3 * MIB, 64 * MIB, **more),
        event(8, "snapshot", 0, 0),
    ]
    return snapshot([shown], trace)


# -- what torch writes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_read_whole(protocol: int, tmp_path: Path) -> None:
    path = write(tmp_path / "snap.pickle", small_snapshot(), protocol)
    assert find_format(path) == "torch-snapshot"
    run = make("torch-snapshot", tmp_path, path)
    found = {
        (row["requested_bytes"], row["allocated_bytes"]): (
            row["alloc_index"],
            row["free_requested_index"],
            row["free_index"],
        )
        for row in rows(run.rank())
    }
    assert found == {
        (1_000_000, MIB): (-1, None, None),
        (5000, 5120): (-1, 1, 2),
        (600, 1024): (3, None, None),
        (2000, 2048): (4, 5, None),
    }
    manifest = run.rank().manifest
    assert [check.ok for check in manifest.checks] == [True]
    assert [one.to_json() for one in manifest.oom] == [
        {
            "device_idx": 0,
            "tried_bytes": 64 * MIB,
            "total_bytes": None,
            "free_bytes": 3 * MIB,
            "largest_free_bytes": None,
        }
    ]
    assert manifest.allocator_settings is not None
    assert manifest.allocator_settings["max_split_size"] == -1
    assert [(row["bytes"], row["alloc_index"], row["free_index"]) for row in rows(run.rank(), "segments")] == [
        (2 * MIB, -1, None),
        (20 * MIB, 0, 6),
    ]


def test_what_a_snapshot_cannot_know_is_null_and_said(tmp_path: Path) -> None:
    run = make("torch-snapshot", tmp_path, write(tmp_path / "snap.pickle", small_snapshot()))
    for row in rows(run.rank()):
        assert (row["category"], row["module_id"], row["step"], row["phase"]) == ("other", None, 0, "")
    assert any("only if gpuledger wrote it" in note for note in run.rank().manifest.notes)
    assert any("no stacks" in note for note in run.rank().manifest.notes)


def test_every_view_works_on_the_file_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "snap.pickle", small_snapshot(frames=some_frames(1, 4)[0]))
    check_views(path, tmp_path)
    assert show(path, "--by", "tensor")["peak_allocated_bytes"] == MIB + 5120


def test_stacks_name_the_line_outside_torch(tmp_path: Path) -> None:
    stack = [
        {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
        {"filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
        {"filename": "/home/me/train.py", "line": 12, "name": "step"},
        {"filename": "/home/me/train.py", "line": 40, "name": "<module>"},
    ]
    run = make("torch-snapshot", tmp_path, write(tmp_path / "snap.pickle", small_snapshot(frames=stack)))
    named = {row["name"] for row in rows(run.rank()) if row["alloc_index"] >= 0}
    assert named == {"train.py:12 step"}
    kept = [(row["frame_idx"], row["line"], row["function"]) for row in rows(run.rank(), "stacks")]
    assert kept == [(0, 0, "torch::unwind::unwind()"), (1, 125, "forward"), (2, 12, "step"), (3, 40, "<module>")]


def test_a_users_metadata_is_the_name(tmp_path: Path) -> None:
    value = small_snapshot(user_metadata="epoch 3, layer 7")
    run = make("torch-snapshot", tmp_path, write(tmp_path / "snap.pickle", value))
    assert {row["name"] for row in rows(run.rank()) if row["alloc_index"] >= 0} == {"epoch 3, layer 7"}


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0), (7, 7), ((1 << 31) - 1, (1 << 31) - 1), (1 << 31, 0), (-1, 0), ("7", 0), (2.5, 0), (None, 0)],
)
def test_metadata_of_our_export_is_kept_where_it_is_valid(step: object, expected: int) -> None:
    told = {"category": "weight", "module": "0.conv", "scope": 3, "phase": "later", "step": step, "tensor": "w"}
    known = {"category": "weight", "module": "0.conv", "scope": "", "phase": UNKNOWN_PHASE, "name": "w"}
    assert _parse_text(json.dumps(told)) == known | {"step": expected}
    assert _parse_text(json.dumps(told | {"category": "none", "phase": PHASES[1]})) == known | {
        "category": "other", "phase": PHASES[1], "step": expected,
    }  # fmt: skip


def test_settings_of_the_allocator_are_kept_where_they_are_plain_and_short() -> None:
    divisions = {"1": 0, "8": 1 << 20, "9": (1 << 20) + 1, "10": -1, "11": True, "x": 2, "12345678": 2, "²": 2}
    told = {
        "a": "x" * 99,
        "b": "x" * 100,
        "c": True,
        "d": 2.5,
        "e": [1],
        "f": None,
        "roundup_power2_divisions": divisions,
    }
    kept = {"a": "x" * 99, "c": True, "d": 2.5, "roundup_power2_divisions": {"1": 0, "8": 1 << 20}}
    assert _plain_settings(told) == kept
    assert _plain_settings([told]) == {}


def test_several_devices_and_private_pools(tmp_path: Path) -> None:
    segments = [segment(1, BASE, [(2 * MIB, 100, 1)]), segment(3, BASE, [(512, 10, 1), (2 * MIB - 512, 0, 0)])]
    trace = [event(0, "alloc", BASE, 10, pool_id=(0, 7)), event(1, "snapshot", 0, 0)]
    run = make("torch-snapshot", tmp_path, write(tmp_path / "snap.pickle", snapshot(segments, [], [], [], trace)))
    found = {(row["device_idx"], row["allocated_bytes"], row["alloc_index"]) for row in rows(run.rank())}
    assert found == {(1, 2 * MIB, -1), (3, 512, 0)}
    check_views(run.path, tmp_path)


POOLS = [((5, 0), 5), ([0, 3], -3), ((0, 0), 0), (None, None), ((1 << 31, 0), None), ((-1, 0), None), ((True, 0), None)]


@pytest.mark.parametrize(("pair", "expected"), [*POOLS, ((1, 2, 3), None), ("ab", None)], ids=str)
def test_a_blocks_pool_is_that_of_the_segment_around_it(pair: Any, expected: int | None, tmp_path: Path) -> None:
    """What was there before its segment was taken, and what is gone with its own, has none that is known."""
    trace = [
        event(0, "alloc", BASE, 7),
        event(1, "free_requested", BASE, 7),
        event(2, "free_completed", BASE, 7),
        event(3, "segment_free", BASE, 2 * MIB),
        event(4, "segment_alloc", BASE, 2 * MIB),
        event(5, "alloc", BASE, 10),
        event(6, "snapshot", 0, 0),
    ]
    around = segment(0, BASE, [(512, 10, 1), (2 * MIB - 512, 0, 0)]) | {"segment_pool_id": pair}
    if pair is None:
        del around["segment_pool_id"]
    run = make("torch-snapshot", tmp_path, write(tmp_path / "snap.pickle", snapshot([around], trace)))
    found = {row["requested_bytes"]: row["pool_id"] for row in run.table("blocks").to_pylist()}
    assert found == {7: None, 10: expected}


def test_expandable_segments(tmp_path: Path) -> None:
    """Mapped in two pieces, one block across both; an end unmapped later, and what lay in it was given back before."""
    mapped = 20 * MIB
    shown = segment(0, BASE, [(30 * MIB, 30 * MIB - 7, 1), (10 * MIB, 0, 0)], expandable=True)
    trace = [
        event(0, "segment_map", BASE, mapped),
        event(1, "segment_map", BASE + mapped, 2 * mapped),
        event(2, "alloc", BASE, 30 * MIB - 7),
        event(3, "alloc", BASE + 30 * MIB, 30 * MIB),
        event(4, "free_requested", BASE + 30 * MIB, 30 * MIB),
        event(5, "free_completed", BASE + 30 * MIB, 30 * MIB),
        event(6, "segment_unmap", BASE + 2 * mapped, mapped),
        event(7, "snapshot", 0, 0),
    ]
    for first in (0, 1, 3, 5, 7):
        value = snapshot([shown], trace[first:], expandable_segments=True)
        rank = read("torch-snapshot", write(tmp_path / "snap.pickle", value)).ranks[0]
        assert [check["ok"] for check in rank.facts["checks"]] == [True]
        assert not [note for note in rank.notes if "do not match the events" in note]
        blocks = rank.tables["blocks"].to_pylist()
        assert (30 * MIB - 7, 30 * MIB) in [(row["requested_bytes"], row["allocated_bytes"]) for row in blocks]
        held = [row["bytes"] for row in rank.tables["segments"].to_pylist() if row["free_index"] is None]
        assert sum(held) == 2 * mapped


def test_a_list_of_segments_alone_shows_one_instant(tmp_path: Path) -> None:
    shown = [segment(0, BASE, [(512, 10, 1), (1024, 1000, 1), (2 * MIB - 1536, 0, 0)])]
    path = write(tmp_path / "segments.pickle", shown)
    assert show(path)["peak_allocated_bytes"] == 1536
    check_views(path, tmp_path)
    assert any("one instant only" in note for note in read("torch-snapshot", path).ranks[0].notes)


def test_snapshots_of_several_ranks_are_one_run(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{number}.pickle", small_snapshot()) for number in range(2)]
    assert [rank.number for rank in make("torch-snapshot", tmp_path, *paths).ranks] == [0, 1]


def test_numbers_beyond_63_bits_are_taken_as_torch_means_them(tmp_path: Path) -> None:
    """Streams and addresses are unsigned in some versions."""
    shown = segment(0, (1 << 64) - 2 * MIB, [(2 * MIB, 100, 1)])
    value = snapshot([shown], [event(0, "alloc", (1 << 64) - 2 * MIB, 100, stream=(1 << 64) - 1)])
    rank = read("torch-snapshot", write(tmp_path / "snap.pickle", value)).ranks[0]
    assert rank.tables["blocks"]["stream"].to_pylist() == [-1]


# -- what must be refused -------------------------------------------------------------------------------------------


class _Runs:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("was-run"),))


class _Builds:
    def __init__(self) -> None:
        self.x = 1


HOSTILE = {
    "reduce": dumped([_Runs()]),
    "build": dumped({"segments": [_Builds()], "device_traces": []}),
    "proto 0 global": b"cos\nsystem\n(S'touch was-run'\ntR.",
    "global": b"\x80\x02cos\nsystem\nX\x0d\x00\x00\x00touch was-run\x85R.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0dtouch was-run\x85R.",
    "inst": b"\x80\x02(X\x0d\x00\x00\x00touch was-runios\nsystem\n.",
    "newobj": b"\x80\x02\x8c\x02os)\x81.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"\x80\x02K\x01Q.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_pickle_that_tries_to_run_code_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("evil.pickle")
    path.write_bytes(HOSTILE[name])
    result = CliRunner().invoke(main, ["import", "torch-snapshot", str(path)])
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith("gpuledger: error: evil.pickle: ")
    assert "Traceback" not in result.output
    assert not Path("was-run").exists()
    assert [found.name for found in tmp_path.iterdir()] == ["evil.pickle"]
    if not name.startswith("proto 0"):
        assert "would run Python code" in result.stderr


BOMBS = {
    "memo index": b"\x80\x02K\x00r\x00\xc2\xeb\x0b.",
    "long": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "text8": b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b".",
    "frame": b"\x80\x04\x95" + (1 << 62).to_bytes(8, "little") + b"].",
    "bytearray": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "lists": b"\x80\x04" + b"]" * 1_500_000 + b".",
    "kept lists": b"\x80\x04(" + b"]\x94" * 1_500_000 + b"l.",
    "marks": b"\x80\x04" + b"(" * 1_500_000 + b".",
    "tuples": b"\x80\x04)" + b"\x85" * 1_500_000 + b".",
    "doubling": b"\x80\x04]\x94" + b"".join(b"(h\x00h\x00e]\x94" for _ in range(150_000)) + b".",
    "dictionaries": b"\x80\x04" + b"}\x94" * 1_500_000 + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_tries_to_exhaust_memory_is_refused_in_little_of_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle"
    path.write_bytes(BOMBS[name])
    grown_bytes, message = measure("torch-snapshot", path)
    assert "bomb.pickle" in message
    assert grown_bytes < 10 * len(BOMBS[name]) + (24 << 20)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "text",
        [[]],
        {},
        {"segments": 5},
        {"segments": [1]},
        {"segments": [{"device": "x", "blocks": []}]},
        {"segments": [{"device": 1 << 40, "blocks": []}]},
        {"segments": [{"device": 0}]},
        {"segments": [{"device": 0, "blocks": [7]}]},
        {"segments": [], "device_traces": [7]},
        {"segments": [], "device_traces": [[7]]},
        {"segments": [], "device_traces": {"a": 1}},
    ],
    ids=repr,
)
def test_a_pickle_of_something_else_is_one_error(value: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read("torch-snapshot", write(tmp_path / "other.pickle", value))
    assert caught.value.message.count("other.pickle: ") == 1


def test_a_snapshot_of_nothing_is_a_run_of_nothing(tmp_path: Path) -> None:
    rank = read("torch-snapshot", write(tmp_path / "empty.pickle", snapshot([], []))).ranks[0]
    assert rank.tables["blocks"].num_rows == 0


@pytest.mark.parametrize("size", [-1, -(1 << 40), 1 << 45, 1 << 63, 1 << 90])
@pytest.mark.parametrize("place", ["block", "segment", "event"])
def test_negative_and_absurd_sizes_are_refused(size: int, place: str, tmp_path: Path) -> None:
    value = small_snapshot()
    if place == "block":
        value["segments"][0]["blocks"][0]["size"] = size
    elif place == "segment":
        value["segments"][0]["total_size"] = size
    else:
        value["device_traces"][0][3]["size"] = size
    with pytest.raises(InputError, match=r"damaged|bits"):
        read("torch-snapshot", write(tmp_path / "snap.pickle", value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5, "7f00", [1]], ids=repr)
@pytest.mark.parametrize("place", ["segment", "event"])
def test_an_address_that_is_no_whole_number_is_refused(value: object, place: str, tmp_path: Path) -> None:
    content = small_snapshot()
    if place == "segment":
        content["segments"][0]["address"] = value
    else:
        content["device_traces"][0][3]["addr"] = value
    path = write(tmp_path / "snap.pickle", content)
    result = CliRunner().invoke(main, ["import", "torch-snapshot", str(path), "--out", str(tmp_path / "new")])
    assert result.exit_code == 3
    assert f"damaged: addr{'ess' * (place == 'segment')} is " in result.output
    assert "not a whole number" in result.output


def test_a_large_file_of_something_else_is_not_read_at_all(tmp_path: Path) -> None:
    path = tmp_path / "log.pickle"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    grown_bytes, message = measure("torch-snapshot", path)
    assert "expected a pickle of protocol" in message
    assert grown_bytes < 24 << 20


def test_every_cut_of_a_file_is_one_error(tmp_path: Path) -> None:
    whole = dumped(small_snapshot(frames=some_frames(1, 3)[0]))
    for end in range(0, len(whole) - 1, 7):
        (tmp_path / "cut.pickle").write_bytes(whole[:end])
        with pytest.raises(InputError) as caught:
            read("torch-snapshot", tmp_path / "cut.pickle")
        assert caught.value.message.count("cut.pickle") == 1


def test_a_trace_that_does_not_fit_the_state_is_said(tmp_path: Path) -> None:
    value = small_snapshot()
    value["device_traces"][0].insert(3, event(9, "alloc", BASE + MIB, 4096))
    rank = read("torch-snapshot", write(tmp_path / "snap.pickle", value)).ranks[0]
    assert any("do not match the events" in note for note in rank.notes)
    assert any("more than the snapshot shows" in note for note in rank.notes)


def test_a_state_torch_does_not_know_yet_counts_as_in_use(tmp_path: Path) -> None:
    value = snapshot([segment(0, BASE, [(MIB, 100, 1), (MIB, 100, 1)])], [])
    value["segments"][0]["blocks"][0]["state"] = "active_in_a_new_way"
    assert "active_in_a_new_way" not in STATES
    assert show(write(tmp_path / "snap.pickle", value))["peak_allocated_bytes"] == 2 * MIB
