"""MXNet's files as its writers emit them: trees in a wrapper that is no JSON, and the log beside a CSV."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from folders import DATA
from imports import check_views, make, rows, show, words

from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.unknown import list_unknown
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.cli.main import main
from gpuledger.formats.mxnet.stacks import _size_of
from gpuledger.formats.readers import find_format

MIB = 1 << 20
WRITTEN = DATA / "mxnet_written"
ONE_DEVICE = WRITTEN / "gpu_memory_profile.json"
STACKED = WRITTEN / "mxnet_gpu_memory_profiler_output.csv"
LOG = STACKED.with_suffix(".log")
DEVICE_0 = ONE_DEVICE.read_text("utf-8").strip().removeprefix("{[").removesuffix("]}")
DEVICE_1 = (
    '{"name": "gpu_memory_profile_dev1", "children": [{"name": "net", "children": [{"name": "dense0", "children": '
    '[{"name": "in_arg", "children": [{"name": "weight", "value": 8192}]}, {"name": "fwd", "value": 4096}]}]}, '
    '{"name": "nvml_amend", "value": 536870912}]}'
)


def test_the_json_of_two_devices_in_its_writer_s_wrapper(tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile.json"
    path.write_text(f"{{[{DEVICE_0}, {DEVICE_1}]}}", encoding="utf-8")
    run = make("mxnet", tmp_path, path)
    first, second = (build_balance(run.rank(), device) for device in (0, 1))
    assert [line.bytes for line in first.lines if line.name == "allocated"] == [384 * MIB]
    assert [line.bytes for line in second.lines if line.name == "allocated"] == [12 * 1024]
    assert (first.unaccounted_bytes, second.unaccounted_bytes) == (1_074_790_400, 536_870_912)
    assert ("net:dense0:in_arg:weight", "weight", "net.dense0", 8192) in words(run)
    assert not [name for name, *_ in words(run) if "nvml" in name or "dev0" in name]


@pytest.mark.parametrize("text", [f"{{[{DEVICE_0}]}}", DEVICE_0], ids=["wrapper", "bare"])
def test_the_json_of_one_device_in_its_wrapper_and_bare(text: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile.json"
    path.write_text(text, encoding="utf-8")
    assert show(path)["peak_allocated_bytes"] == 384 * MIB
    check_views(path, tmp_path)


def test_a_prefix_that_the_user_chose_is_told_by_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(f"{{[{DEVICE_0.replace('gpu_memory_profile', 'mine')}]}}", encoding="utf-8")
    assert find_format(path) == "mxnet"
    assert show(path)["device_idx"] == 0


def test_the_log_of_stacks_beside_a_csv_gives_its_entries_their_stacks(tmp_path: Path) -> None:
    run = make("mxnet", tmp_path, STACKED)
    rank = run.rank()
    assert len(run.ranks) == 1
    assert [row["stack_id"] is None for row in rows(rank)] == [True, False, False, False, False]
    unknown = list_unknown(rank, find_peak(rank))
    assert (unknown.blocks, unknown.bytes) == (4, 1_572_864 + 16 + 4096 + 8192)
    first = unknown.items[0].stack
    assert [frame.file for frame in first] == ["/opt/mxnet/lib/libmxnet.so"] * 3
    assert first[1].function.startswith("mxnet::exec::GraphExecutor::InitDataEntryMemory(")
    assert {frame.line for frame in first} == {None}
    assert any("call stacks of 4 allocations" in note for note in rank.manifest.notes)
    check_views(STACKED, tmp_path)


def test_unknown_shows_the_stacks_and_no_line_that_nobody_knows() -> None:
    result = CliRunner().invoke(main, ["show", str(STACKED), "--unknown"])
    assert "libmxnet.so  MXExecutorSimpleBind" in result.stdout
    assert "libmxnet.so:0" not in result.stdout
    document = CliRunner().invoke(main, ["show", str(STACKED), "--unknown", "--json"]).stdout
    assert '"line": 0' not in document


def test_the_log_alone_has_the_unknown_allocations_alone(tmp_path: Path) -> None:
    path = tmp_path / LOG.name
    shutil.copy(LOG, path)
    assert find_format(path) == "mxnet"
    run = make("mxnet", tmp_path, path)
    assert [size for *_, size in words(run)] == [1_572_864, 16, 4096, 8192]
    assert any("only allocations with an unknown tag" in note for note in run.rank().manifest.notes)


@pytest.mark.parametrize("given", ["folder", "both files"])
def test_a_csv_and_its_log_are_one_process(given: str, tmp_path: Path) -> None:
    for file in (STACKED, LOG):
        shutil.copy(file, tmp_path)
    paths = [tmp_path] if given == "folder" else [tmp_path / STACKED.name, tmp_path / LOG.name]
    assert len(make("mxnet", tmp_path / "out", *paths).ranks) == 1


def test_the_first_version_wrote_the_stack_before_its_warning(tmp_path: Path) -> None:
    stacks = [
        f"Stack trace returned 2 entries:\n[bt] (0) /lib/libmxnet.so(Alloc{n}+0x1) [0x7f]\n"
        f"[bt] (1) /lib/libc.so.6 [0x7f]\n"
        f"[memory_profiler::warning] Allocating {size} with unknown Memory Tag unknown:{n}.\n"
        for n, size in (("a", 4096), ("b", 8192))
    ]
    (tmp_path / "mxnet_memory_profiler_output.log").write_text("".join(stacks), encoding="utf-8")
    path = tmp_path / "mxnet_memory_profiler_output.csv"
    path.write_text("in_arg:w,4194304\nunknown:a,4096\nunknown:b,8192\n", encoding="utf-8")
    rank = make("mxnet", tmp_path, path).rank()
    found = {item.tag: item.stack[0].function for item in list_unknown(rank, find_peak(rank)).items}
    assert found == {"unknown:a": "Alloca+0x1", "unknown:b": "Allocb+0x1"}


def test_the_seven_columns_are_grouped_by_the_data_structures_that_they_name(tmp_path: Path) -> None:
    header = '"Time Stamp","Scope","Attribute Name","Data Struct","Requested","Actual","Reuse?"\n'
    structs = (
        "data entry",
        "temp space",
        "param",
        "param grad",
        "optimizer state",
        "aux state",
        "ephemeral",
        "unknown",
    )
    lines = [f'1580774400,"net:","t{n}","{struct}",{1 << n},{1 << n},0\n' for n, struct in enumerate(structs, 10)]
    path = tmp_path / "mxnet_gpu_memory_profiler_alloc.csv"
    path.write_text(header + "".join(lines), encoding="utf-8")
    result = CliRunner().invoke(main, ["group", str(path), "--json"])
    groups = {row["group"]: row["bytes"] for row in json.loads(result.stdout)["data structure"]}
    assert groups == {
        "Data Entries": 1 << 10,
        "Workspace": 1 << 11,
        "Parameters": (1 << 12) + (1 << 13) + (1 << 14),
        "Auxiliary State": 1 << 15,
        "Ephemeral": 1 << 16,
        "Rounding": 0,
        "Others": 1 << 17,
    }


def test_sizes_below_a_ten_thousandth_are_written_with_an_exponent(tmp_path: Path) -> None:
    path = tmp_path / "mxnet_gpu_memory_profiler.csv"
    path.write_text("in_arg:w,1.52588e-05\n", encoding="utf-8")
    assert find_format(path) == "mxnet"
    assert show(path)["peak_allocated_bytes"] == 16


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0.0), ("7.5", 7.5), (f"{(1 << 44) - 1}", (1 << 44) - 1.0), (f"{1 << 44}", None), (f"{1 << 45}", None),
     ("-1", None), ("nan", None), ("inf", None), ("7 MB", None)],
)  # fmt: skip
def test_a_size_is_a_number_below_16_tib(text: str, size: float | None) -> None:
    assert _size_of(text) == size
