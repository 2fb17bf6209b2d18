from __future__ import annotations

from pathlib import Path

import pytest
from folders import DATA
from imports import check_views, make, read, rows, show, words

from gpuledger.analyze.overview.balance import build_balance
from gpuledger.errors import InputError
from gpuledger.formats.readers import find_format
from gpuledger.model.run import Run

MB = 1_000_000
PLAIN = DATA / "memory_csv" / "20200405120000.csv"
CACHED = DATA / "memory_csv" / "20200406080000.csv"
HEADER = (
    "epoch,iteration,peak_cached,current_cached,total_feature_map_usage,total_weight_usage,a.weight,"
    "total_layer_weight_gradient_usage,a.weight_grad,intermediate_gradients"
)


def write(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return path


def held_at_step(run: Run, step: int) -> dict[str, int]:
    """Return name and bytes of what is alive after the last event of a row."""
    counters = {row["step"]: row["event_index"] for row in rows(run.rank(), "counters")}
    at = counters[step]
    return {
        row["name"]: row["allocated_bytes"]
        for row in rows(run.rank())
        if row["alloc_index"] <= at and (row["free_index"] is None or row["free_index"] > at)
    }


@pytest.mark.parametrize("path", [PLAIN, CACHED], ids=lambda path: path.name)
def test_files_are_told_by_their_columns_and_read_by_every_view(path: Path, tmp_path: Path) -> None:
    assert find_format(path) == "memory-csv"
    check_views(path, tmp_path)


def test_every_row_holds_its_stated_quantities(tmp_path: Path) -> None:
    run = make("memory-csv", tmp_path, PLAIN)
    assert held_at_step(run, 1) == {
        "feature maps": 1 * MB,
        "0.weight": 4 * MB,
        "2.weight": 4 * MB,
        "intermediate gradients": 4 * MB,
    }
    assert held_at_step(run, 4) == {
        "feature maps": 3 * MB,
        "0.weight": 4 * MB,
        "2.weight": 4 * MB,
        "0.weight_grad": 4 * MB,
        "intermediate gradients": 17 * MB,
    }
    assert show(PLAIN)["peak_allocated_bytes"] == 32 * MB


def test_a_quantity_that_stays_is_one_block(tmp_path: Path) -> None:
    found = words(make("memory-csv", tmp_path, PLAIN))
    assert found.count(("0.weight", "weight", "0", 4 * MB)) == 1
    assert [size for name, _, _, size in found if name == "intermediate gradients"] == [
        4 * MB,
        8 * MB,
        13 * MB,
        17 * MB,
    ]


def test_the_cache_is_reserved_and_its_unexplained_part_stays_visible(tmp_path: Path) -> None:
    run = make("memory-csv", tmp_path, CACHED)
    shown = show(CACHED)
    assert shown["peak_allocated_bytes"] == (301 + 127 + 127 + 34) * MB
    assert shown["peak_reserved_bytes"] == 857 * MB
    assert shown["peak_reserved_bytes"] - shown["peak_allocated_bytes"] == 268 * MB
    counters = rows(run.rank(), "counters")
    assert [(row["reserved_bytes"], row["peak_reserved_bytes"]) for row in counters] == [
        (850 * MB, 857 * MB),
        (857 * MB, 857 * MB),
    ]


@pytest.mark.parametrize(
    ("file", "size", "note"),
    [(CACHED, (850 - 589) * MB, "cached memory without entries"), (PLAIN, None, "not in the file")],
)
def test_the_balance_has_cached_memory_where_the_file_has_it(
    file: Path, size: int | None, note: str, tmp_path: Path
) -> None:
    balance = build_balance(make("memory-csv", tmp_path, file).rank(), at="peak")
    assert [(line.bytes, line.note) for line in balance.lines if line.name == "fragmented"] == [(size, note)]


def test_a_cache_that_changes_alone_is_followed(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1,1,50,50,1,4,4,0,0,0", "1,2,90,90,1,4,4,0,0,0", "1,3,90,20,1,4,4,0,0,0")
    run = make("memory-csv", tmp_path, path)
    ends = {row["step"]: row["event_index"] for row in rows(run.rank(), "counters")}
    for step, cached in ((1, 50), (2, 90), (3, 20)):
        at = ends[step]
        live = [
            row["bytes"]
            for row in rows(run.rank(), "segments")
            if row["alloc_index"] <= at and (row["free_index"] is None or row["free_index"] > at)
        ]
        assert live == [cached * MB]


def test_a_cache_smaller_than_its_parts_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1,1,3,3,9,4,4,0,0,0")
    run = make("memory-csv", tmp_path, path)
    assert rows(run.rank(), "segments") == []
    assert any("is smaller than the sum" in note for note in run.rank().manifest.notes)


def test_totals_equal_the_stated_ones_though_lines_are_rounded(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1,1,0,0,0,7,4,9,4,1")
    found = words(make("memory-csv", tmp_path, path))
    by_category: dict[str, int] = {}
    for _, category, _, size in found:
        by_category[category] = by_category.get(category, 0) + size
    assert by_category == {"weight": 7 * MB, "gradient": 9 * MB, "activation_gradient": 1 * MB}


def test_the_drop_ins_exact_columns_are_used(tmp_path: Path) -> None:
    more = ",optimizer_state_bytes,buffer_bytes,temporary_bytes,allocated_bytes,unaccounted_bytes"
    more += ",a.weight_bytes,a.weight_grad_bytes"
    path = write(
        tmp_path / "x.csv", "1,1,9,9,0,4,4,4,4,0,8008000,1200,0,16020200,,4004000,4004001", header=HEADER + more
    )
    found = {(name, category): size for name, category, _, size in words(make("memory-csv", tmp_path, path))}
    assert found == {
        ("a.weight", "weight"): 4_004_000,
        ("a.weight_grad", "gradient"): 4_004_001,
        ("optimizer state", "optimizer_state"): 8_008_000,
        ("buffer", "buffer"): 1_200,
        ("feature maps, gradients and others: the file does not divide them at the peak", "other"): 4_007_000,
    }
    assert show(path)["peak_allocated_bytes"] == 16_020_200


def test_a_parameter_may_have_the_name_of_a_column_of_the_drop_ins(tmp_path: Path) -> None:
    """Columns of parameters are known by their place, not by their name."""
    header = HEADER.replace(",a.weight,", ",buffer,") + ",allocated_bytes,buffer_bytes,buffer_grad_bytes"
    path = write(tmp_path / "x.csv", "1,1,9,9,0,4,4,0,0,0,4005000,4004000,0", header=header)
    found = {category: size for _, category, _, size in words(make("memory-csv", tmp_path, path))}
    assert found == {"weight": 4_004_000, "other": 1_000}


@pytest.mark.parametrize(
    "row",
    [
        "1,2,0,0,-1,4,4,0,0,0",
        "1,2,0,0,1",
        "1,2,0,0,x,4,4,0,0,0",
        "1,2,0,0,99999999999,4,4,0,0,0",
        "1,2,0,0,1.5,4,4,0,0,0",
    ],
)
def test_rows_that_cannot_be_are_named_and_the_rest_is_kept(row: str, tmp_path: Path) -> None:
    imported = read("memory-csv", write(tmp_path / "x.csv", "1,1,0,0,1,4,4,0,0,0", row))
    assert "line 3" in imported.unread[0]
    assert imported.ranks[0].tables["blocks"].num_rows == 2


@pytest.mark.parametrize("name", ['"a,b.weight"', '"say ""hi"".weight"', "ü🔥.weight", "w" * 1_000_000])
def test_hostile_parameter_names_survive(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "1,1,0,0,0,4,4,0,0,0", header=HEADER.replace(",a.weight,", f",{name},"))
    plain = name.strip('"').replace('""', '"')
    assert (plain, 4 * MB) in [(found, size) for found, _, _, size in words(make("memory-csv", tmp_path, path))]


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", HEADER.encode(), b"\x80\x04.", b"\xff\xfe", b'"' * 300_000], ids=repr
)
def test_a_file_without_an_iteration_is_one_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read("memory-csv", path)
    assert "x.csv" in caught.value.message
    assert "\n" not in caught.value.message
