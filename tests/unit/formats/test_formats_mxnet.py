from __future__ import annotations

import json
from pathlib import Path

import pytest
from folders import DATA
from imports import check_views, make, read, rows, show, words
from present import present

from gpuledger.analyze.overview.balance import build_balance
from gpuledger.errors import InputError
from gpuledger.formats.readers import find_format

MIB = 1 << 20
FIVE = DATA / "mxnet" / "gpu_memory_profile-pid_4321.csv"
HEADERLESS = DATA / "mxnet" / "mxnet_gpu_memory_profiler.csv"
SEVEN = DATA / "mxnet" / "mxnet_gpu_memory_profiler_alloc.csv"
TREE = DATA / "mxnet" / "gpu_memory_profile.json"
HEADER = '"Attribute Name","Requested Size","Device","Actual Size","Reuse?"\n'


@pytest.mark.parametrize("path", [FIVE, HEADERLESS, SEVEN, TREE])
def test_every_form_is_told_by_its_content_and_read_by_every_view(path: Path, tmp_path: Path) -> None:
    assert find_format(path) == "mxnet"
    check_views(path, tmp_path)


def test_the_five_columns(tmp_path: Path) -> None:
    run = make("mxnet", tmp_path, FIVE)
    found = {name: (category, module, size) for name, category, module, size in words(run)}
    assert len(found) == 9
    assert sum(size for _, _, size in found.values()) == 68_612_096
    assert found["hybridsequential:dense0:in_arg:weight"] == ("weight", "hybridsequential.dense0", 8192)
    assert found["hybridsequential:dense0:arg_grad:weight"] == ("gradient", "hybridsequential.dense0", 8192)
    assert found["resource:temp_space (sample_op.h +365)"] == ("workspace", "", 4096)
    assert found["<unk>:_head_grad_0"] == ("activation_gradient", "", 16 * MIB)
    assert found["init:_random_uniform"] == ("other", "", 32 * MIB)
    assert {row["requested_bytes"] for row in rows(run.rank()) if "temp_space" in row["name"]} == {8}
    assert {row["alloc_ns"] for row in rows(run.rank())} == {None}
    assert run.rank().manifest.pid == 4321


def test_nvml_amend_is_the_balances_line_and_never_an_entry(tmp_path: Path) -> None:
    run = make("mxnet", tmp_path, FIVE)
    assert not [name for name, *_ in words(run) if "nvml" in name]
    balance = build_balance(run.rank())
    assert balance.unaccounted_bytes == 1_074_790_400
    assert balance.used_bytes == balance.process_bytes == 1_074_790_400 + 68_612_096
    assert sum(line.bytes or 0 for line in balance.lines if line.level == 1) == balance.used_bytes


def test_a_file_per_process_becomes_a_rank_in_the_order_of_the_ids(tmp_path: Path) -> None:
    run = make("mxnet", tmp_path, FIVE, FIVE.with_name("gpu_memory_profile-pid_98.csv"))
    assert [rank.manifest.pid for rank in run.ranks] == [98, 4321]
    assert [build_balance(run.rank(0), device).unaccounted_bytes for device in (0, 1)] == [536_870_912, 536_870_000]


@pytest.mark.parametrize(
    ("amends", "used", "is_ignored"),
    [
        ({}, {}, False),
        ({0: 0}, {0: 512}, False),
        ({0: 7, 1: 9}, {0: 519, 1: 9}, False),  # a GPU without an entry
        ({0: 2**62 - 1}, {0: 512 + 2**62 - 1}, False),
        ({0: 2**62}, {}, True),
        ({0: 2**64 - 5, 1: 9}, {1: 9}, True),
    ],
)
@pytest.mark.parametrize(("name", "pid"), [("gpu_memory_profile-pid_0.csv", 0), ("profile.csv", None)])
def test_memory_beyond_the_entries_is_the_drivers_on_each_gpu_and_what_is_said_of_it(
    name: str, pid: int | None, amends: dict[int, int], used: dict[int, int], is_ignored: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(
        HEADER
        + "a:in_arg:w,10,0,512,0\n"
        + "".join(f"nvml_amend,{size},{device},{size},0\n" for device, size in amends.items())
    )
    (rank,) = read("mxnet", tmp_path / name).ranks
    devices = sorted({0, *used})
    assert rank.facts == {
        "devices": [{"device_idx": device, "name": "", "total_bytes": None} for device in devices],
        **({} if pid is None else {"pid": pid}),
    }
    found = {
        table: [
            (row["device_idx"], row.get("used_bytes", row.get("bytes")), row.get("pid"))
            for row in rank.tables[table].to_pylist()
        ]
        for table in ("samples", "process_samples")
        if table in rank.tables
    }
    assert found.get("samples", []) == [(device, size, None) for device, size in used.items()]
    assert found.get("process_samples", []) == [(device, size, 0) for device, size in used.items()]
    assert rank.notes == (
        "The file shows the memory in use when it was written, which may not be the peak.",
        "The file has no times, steps or phases.",
        *["The GPU's memory is what the driver reported for this process. nvml_amend is the unaccounted memory."]
        * bool(used),
        *["nvml_amend is negative and ignored: the driver reported less memory than the sum of the entries."]
        * is_ignored,
    )


def test_an_amend_that_wrapped_around_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile-pid_1.csv"
    path.write_text(HEADER + "a:in_arg:w,10,0,512,0\n" + f'"nvml_amend","{2**64 - 5}","0","{2**64 - 5}","0"\n')
    run = make("mxnet", tmp_path, path)
    assert build_balance(run.rank()).used_bytes is None
    assert any("nvml_amend is negative" in note for note in run.rank().manifest.notes)


def test_the_headerless_form_is_in_mebibytes(tmp_path: Path) -> None:
    found = {name: (category, size) for name, category, _, size in words(make("mxnet", tmp_path, HEADERLESS))}
    assert found["data_entry:encoder_rnn_l0_oedge0"] == ("activation", round(512.5 * MIB))
    assert found["aux_state:stage1_unit1_bn1_moving_mean"] == ("buffer", round(0.000244 * MIB))
    assert found["optimizer_state:encoder_rnn_l0_i2h_weight"] == ("optimizer_state", 32 * MIB)
    assert {category for category, _ in found.values()} >= {"weight", "gradient", "workspace", "activation_gradient"}
    assert show(HEADERLESS)["peak_allocated_bytes"] == sum(size for _, size in found.values())


def test_the_earliest_headerless_files_hold_bytes(tmp_path: Path) -> None:
    path = tmp_path / "mxnet_memory_profiler_output.csv"
    path.write_text("in_arg:a,4194304\nworkspace:b,2048\n")
    run = make("mxnet", tmp_path, path)
    assert [size for *_, size in words(run)] == [4194304, 2048]
    assert any("read as bytes" in note for note in run.rank().manifest.notes)


def test_the_seven_columns_have_times_and_count_reused_memory_once(tmp_path: Path) -> None:
    run = make("mxnet", tmp_path, SEVEN)
    assert [(category, size) for _, category, _, size in words(run)] == [
        ("weight", 8192),
        ("gradient", 8192),
        ("activation", 8192),
        ("workspace", 4096),
        ("optimizer_state", 8192),
    ]
    assert [row["alloc_ns"] for row in rows(run.rank())][:3] == [1580774400 * 10**9] * 2 + [1580774401 * 10**9]
    assert {row["module"] for row in rows(run.rank())} == {"hybridsequential.dense0", ""}
    assert any("1 row (8,192 bytes)" in note for note in run.rank().manifest.notes)


def test_rows_of_reused_memory_are_counted_with_their_sizes(tmp_path: Path) -> None:
    """A size that is not known is written as -1 and adds nothing."""
    text = SEVEN.read_text(encoding="utf-8")
    (reused,) = [line for line in text.splitlines() if line.endswith(",1")]
    head = reused.rsplit(",", 3)[0]
    place = tmp_path / SEVEN.name
    place.write_text(text + "".join(f"{head},{size},{size},1\n" for size in (100, 20, -1)), encoding="utf-8")
    run = make("mxnet", tmp_path, place)
    assert any("4 rows (8,312 bytes)" in note for note in run.rank().manifest.notes)


def test_the_tree_gives_the_tags_back(tmp_path: Path) -> None:
    assert words(make("mxnet", tmp_path, TREE)) == [
        ("hybridsequential:dense0:in_arg:weight", "weight", "hybridsequential.dense0", 5120),
        ("hybridsequential:dense0:arg_grad:weight", "gradient", "hybridsequential.dense0", 5120),
        ("init:_random_uniform", "other", "", 33554432),
    ]


HOSTILE_TAGS = {
    "net:dense:in_arg:with,comma,and,12,0,5,0": "net:dense:in_arg:with,comma,and,12,0,5,0",
    '"quoted:in_arg:a,b"': "quoted:in_arg:a,b",
    '"say ""hi"":in_arg:w"': 'say "hi":in_arg:w',
    '"raw "quote":in_arg:w"': 'raw "quote":in_arg:w',
    "net:" + "x" * 1_000_000: "net:" + "x" * 1_000_000,
    "ünï:in_arg:🔥": "ünï:in_arg:🔥",
}


@pytest.mark.parametrize("form", ["five", "headerless"])
def test_hostile_tags_survive(form: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    five = form == "five"
    lines = [f"{tag},{'100,0,512,0' if five else '0.5'}\n" for tag in HOSTILE_TAGS]
    path.write_text((HEADER if five else "in_arg:first,1\n") + "".join(lines), encoding="utf-8")
    run = make("mxnet", tmp_path, path)
    assert {name for name, *_ in words(run)} >= set(HOSTILE_TAGS.values())
    assert present(run.manifest.imported).unread == ()
    check_views(run.path, tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        "a:in_arg:w,-5,0,512,0",
        "a:in_arg:w,5,0,-512,0",
        "a:in_arg:w,5,0,99999999999999999,0",
        "a:in_arg:w,5,0,999999999999999999999999999999,0",
        "a:in_arg:w,600,0,512,0",
        "a:in_arg:w,5,-1,512,0",
        "a:in_arg:w,five,0,512,0",
        "a:in_arg:w,512",
        ",5,0,512,0",
        "\x00\x01garbage",
    ],
)
def test_rows_that_cannot_be_are_named_and_the_rest_is_kept(row: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + "good:in_arg:w,5,0,512,0\n" + row + "\n")
    imported = read("mxnet", path)
    assert [text for text in imported.unread if "line 3" in text]
    assert imported.ranks[0].tables["blocks"].num_rows == 1


@pytest.mark.parametrize("size", ["-1", "nan", "inf", "1e300", "", "1,5"])
def test_headerless_sizes_that_cannot_be(size: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(f"in_arg:good,1.5\nin_arg:bad,{size}\n")
    imported = read("mxnet", path)
    good = imported.ranks[0].tables["blocks"].num_rows
    assert (good, len(imported.unread)) in ((1, 1), (2, 0))
    assert (good == 2) == (size == "1,5")  # the tag is then in_arg:bad,1


def test_many_bad_lines_are_counted_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + "good:in_arg:w,5,0,512,0\n" + "bad\n" * 5_000)
    unread = read("mxnet", path).unread
    assert len(unread) == 21
    assert unread[-1] == "and 4,980 more"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", HEADER.encode(), b"\x80\x04.", b"{", b'{"name":"gpu_memory_profile_dev0","children":[', b"[" * 9999],
    ids=["empty", "blank", "header", "pickle", "brace", "cut tree", "deep"],
)
def test_a_file_without_an_entry_is_one_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read("mxnet", path)
    assert "profile.csv" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_tree_that_is_cut_off_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile.json"
    path.write_text(TREE.read_text()[:190])
    imported = read("mxnet", path)
    assert imported.ranks[0].tables["blocks"].num_rows == 1
    assert "cut off" in imported.unread[0]


def test_a_tree_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile.json"
    path.write_text('{"name":"gpu_memory_profile_dev0","children":[' * 100_000)
    with pytest.raises(InputError, match="nested more than"):
        read("mxnet", path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_files_of_other_encodings(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + "ü:in_arg:w,5,0,512,0\r\n", encoding=encoding)
    assert find_format(path) == "mxnet"
    assert [name for name, *_ in words(make("mxnet", tmp_path, path))] == ["ü:in_arg:w"]


def test_mixed_encodings_lose_letters_but_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_bytes(HEADER.encode() + "ü:in_arg:a,5,0,512,0\n".encode() + "ü:in_arg:b,5,0,512,0\n".encode("latin-1"))
    assert [name for name, *_ in words(make("mxnet", tmp_path, path))] == ["ü:in_arg:a", "�:in_arg:b"]


def test_a_folder_without_such_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(InputError, match="no file of MXNet"):
        read("mxnet", tmp_path)


def test_wholes_of_a_folder_beside_others(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing, 3\n")
    (tmp_path / "gpu_memory_profile-pid_7.csv").write_text(FIVE.read_text())
    (tmp_path / "gpu_memory_profile-pid_5.csv").write_text(FIVE.read_text())
    imported = read("mxnet", tmp_path)
    assert [rank.facts["pid"] for rank in imported.ranks] == [5, 7]
    assert imported.unread == ()
    assert find_format(tmp_path) == "mxnet"


def test_tree_values_that_are_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile.json"
    leaves = [{"name": f"n{at}", "value": value} for at, value in enumerate((5, -5, 1.5, 1e40))]
    path.write_text(json.dumps({"name": "gpu_memory_profile_dev3", "children": leaves}))
    imported = read("mxnet", path)
    assert imported.ranks[0].tables["blocks"]["device_idx"].to_pylist() == [3]
    assert len(imported.unread) == 3
