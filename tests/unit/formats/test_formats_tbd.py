from __future__ import annotations

from pathlib import Path

import pytest
from folders import DATA
from imports import check_views, make, read, rows, show, words
from present import present

from gpuledger.analyze.overview.balance import build_balance
from gpuledger.errors import InputError
from gpuledger.formats.json_pull import MAX_TOKEN, PIECE, tokens
from gpuledger.formats.readers import find_format

MIB = 1 << 20
SOCKEYE = DATA / "tbd" / "sockeye.log"
RCNN = DATA / "tbd" / "rcnn.log"
ANALYSIS = DATA / "tbd" / "memory_analysis" / "resnet_ANALYSIS"


@pytest.mark.parametrize("path", [SOCKEYE, RCNN, ANALYSIS, ANALYSIS.parent], ids=lambda path: path.name)
def test_logs_are_told_by_their_content_and_read_by_every_view(path: Path, tmp_path: Path) -> None:
    assert find_format(path) == "tbd-log"
    check_views(path, tmp_path)


def test_every_allocation_of_a_log_is_read_however_it_stands(tmp_path: Path) -> None:
    run = make("tbd-log", tmp_path, SOCKEYE)
    assert present(run.manifest.imported).unread == ()
    assert [(name, category, size) for name, category, _, size in words(run)] == [
        ("forward_features:stage1_unit1_bn1", "activation", 4194304),
        ("in_arg:encoder_embed_weight", "weight", 2097152),
        ("arg_grad:encoder_embed_weight", "gradient", 2097152),
        ("aux_state:stage1_unit1_bn1_moving_mean", "buffer", 512),
        ("source", "input", 4096),
        ("_optimizer_weight_update_3", "optimizer_state", 8192),
        ("workspace,linalg_impl", "workspace", 1048576),
        ("warning!,ctx_source_unclear", "other", 100),
        ("untagged", "other", 64),
    ]
    assert show(SOCKEYE)["peak_allocated_bytes"] == 9_450_148


def test_what_a_log_cannot_know_is_null_and_said(tmp_path: Path) -> None:
    run = make("tbd-log", tmp_path, SOCKEYE)
    notes = " ".join(run.rank().manifest.notes)
    assert "1 release has no size in the log" in notes
    assert "372 MiB" in notes
    for row in rows(run.rank()):
        assert row["alloc_ns"] is row["free_index"] is row["module_id"] is None
    assert run.rank().manifest.devices[0].total_bytes == 11172 * MIB


def test_lines_in_megabytes_and_frees_that_name_their_tag(tmp_path: Path) -> None:
    run = make("tbd-log", tmp_path, RCNN)
    found = [(row["name"], row["allocated_bytes"], row["free_index"]) for row in rows(run.rank())]
    assert found == [
        ("data", 1000, None),
        ("proposal_workspace", 12 * MIB, None),
        ("proposal_mask", 3 * MIB, 3),
        ("proposal_mask", 3 * MIB, None),
    ]
    assert show(RCNN)["peak_allocated_bytes"] == 15 * MIB + 1000


def test_the_last_line_of_free_memory_closes_the_balance(tmp_path: Path) -> None:
    balance = build_balance(make("tbd-log", tmp_path, RCNN).rank())
    assert balance.used_bytes == 72 * MIB
    assert balance.unaccounted_bytes == 72 * MIB - 15 * MIB - 1000


def test_a_folder_is_a_rank_for_each_log(tmp_path: Path) -> None:
    run = make("tbd-log", tmp_path, DATA / "tbd")
    assert [len(rows(rank)) for rank in run.ranks] == [4, 9]


def test_the_analysis_keeps_its_sums_by_keyword(tmp_path: Path) -> None:
    assert words(make("tbd-log", tmp_path, ANALYSIS)) == [
        ("forward_features:stage1_unit1_bn1", "activation", "", 4194304),
        ("in_arg", "weight", "", 3145728),
        ("data", "input", "", 19267584),
    ]


def test_interleaved_messages_are_put_together_or_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "[mem] Allocate 100 by[mem] Release GPU memory.\ntes GPU memory (a).\n"
        "[mem] Allocate 7 bytes GPU memory (b)[mem] Allocate 8 bytes GPU memory (c).\n.\n"
        "text [mem] Allocate 9 bytes GPU memory (d).[mem] 1 MB GPU global memory free, total 2 MB.more text\n"
        "[mem] Allocate 10 bytes GPU mem\nsomething else entirely\n"
    )
    imported = read("tbd-log", path)
    table = imported.ranks[0].tables
    sizes = sorted(table["blocks"]["allocated_bytes"].to_pylist())
    assert {8, 9, 100} <= set(sizes)
    assert 10 not in sizes
    assert any("incomplete line" in text for text in imported.unread)


@pytest.mark.parametrize("tag", ["a,b", 'say "hi"', "f(x) (y)", "ünï", "x" * 1_000_000, "", "op:a (b.h +12)"])
def test_hostile_tags_survive(tag: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"[mem] Allocate 5 bytes GPU memory ({tag}).\n", encoding="utf-8")
    run = make("tbd-log", tmp_path, path)
    assert [(name, size) for name, _, _, size in words(run)] == [(tag, 5)]


@pytest.mark.parametrize("size", ["-5", "99999999999999999999"])
def test_sizes_that_cannot_be_are_named(size: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"[mem] Allocate 5 bytes GPU memory (a).\n[mem] Allocate {size} bytes GPU memory (b).\n")
    imported = read("tbd-log", path)
    assert imported.ranks[0].tables["blocks"].num_rows == 1
    assert "line 2" in imported.unread[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[mem] Release GPU memory.\n",
        b"[mem] Allocate",
        b"{}",
        b'{"bn": [12',
        b'{"bn": "x"}',
        b'{"a": [[1]]}',
        b"\x80\x04.",
        b"{" * 50_000,
    ],
)
def test_a_file_without_an_allocation_is_one_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x_ANALYSIS"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read("tbd-log", path)
    assert "x_ANALYSIS" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_line_without_end_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"[mem] Allocate 5 bytes GPU memory (a).\n")
        for _ in range(40):
            file.write(b"[mem] x" + b"y" * (1 << 20))
        file.write(b"\n[mem] Allocate 6 bytes GPU memory (b).\n")
    tracemalloc.start()
    imported = read("tbd-log", path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert imported.ranks[0].tables["blocks"]["allocated_bytes"].to_pylist() == [5, 6]
    assert "longer than" in imported.unread[0]
    assert peak < 24 << 20


def test_a_text_of_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    text = "x" * (MAX_TOKEN - PIECE // 2)
    path.write_text(f'["{text}", 1]')
    assert [token.text for token in tokens(path) if token.kind == "text"] == [text]
    path.write_text(f'["{"x" * (MAX_TOKEN + 2 * PIECE)}"]')
    with pytest.raises(InputError, match="longer than 4,194,304 characters"):
        list(tokens(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1,@wrong and more than 20 characters]", "not JSON near '@wrong and more than'"),
        ('["abc', "cut off near '\"abc'"),
        ('["a long text that does not end', "cut off near '\"a long text that do'"),
        ("[1] @", "not JSON near '@'"),
    ],
)
def test_what_is_no_json_is_shown_from_where_it_begins(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        list(tokens(path))
    assert caught.value.message == f"{path}: {words}"
