"""Readers on files that nobody wrote: no crash but an error of ours, and no memory past ten times the file."""

from __future__ import annotations

import contextlib
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import DATA
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_memory import measure
from snapshots import dumped, event, segment, snapshot, some_frames

from gpuledger.errors import GpuLedgerError
from gpuledger.formats.readers import FORMATS, find_format, read_files
from gpuledger.model.imported import ImportedRun, write_imported

OURS = ("torch-snapshot", "mxnet", "tbd-log", "memory-csv")
FLOOR_BYTES = 24 << 20
"""Memory a reader may take whatever the file: pieces of lines, tables of fixed size, modules imported on first use."""


def seeds() -> dict[str, list[bytes]]:
    """Return good files by format, to be damaged."""
    stacks = some_frames(3, 4)
    trace = [event(n, "alloc", (1 << 40) + 512 * n, 100 + n, frames=stacks[n % 3]) for n in range(120)]
    shown = snapshot([segment(0, 1 << 40, [(512, 100, 1)] * 130)], [*trace, event(121, "snapshot", 0, 0)])
    files = {name: sorted((DATA / name).rglob("*")) for name in ("mxnet", "tbd", "memory_csv")}
    return {
        "torch-snapshot": [dumped(shown), dumped(shown, 2), dumped(snapshot([], []))],
        "mxnet": [path.read_bytes() for path in files["mxnet"]],
        "tbd-log": [path.read_bytes() for path in files["tbd"] if path.is_file()],
        "memory-csv": [path.read_bytes() for path in files["memory_csv"]],
    }


SEEDS = seeds()


@st.composite
def damaged(draw: st.DrawFn, format_name: str) -> bytes:
    """Return a good file with pieces changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS[format_name])))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        what = draw(st.sampled_from(("change", "cut", "double", "insert", "end")))
        if what == "change":
            data[place : place + length] = draw(st.binary(max_size=length))
        elif what == "cut":
            del data[place : place + length]
        elif what == "double":
            data[place:place] = data[place : place + 50 * length]
        elif what == "insert":
            data[place:place] = draw(st.sampled_from(PIECES))
        else:
            del data[place:]
    return bytes(data)


PIECES = [
    *(b"]", b"}\x94(", b"e(", b"\x94", b"h\x00", b"j\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"u", b"s", b"a", b"("),
    *(b"cos\nsystem\n", b"\x93", b"R", b"b", b"\x8a\xff", b"\x8d" + b"\xff" * 8, b"\x95" + b"\xff" * 8, b"\x86", b"."),
    *(
        b",",
        b'"',
        b"\n",
        b"\x00",
        b"\r",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"[mem] Allocate ",
        b" bytes GPU memory (",
        b").",
    ),
    *(b"{", b'{"name":', b'"children":[', b"-1", b"1e999", b"9" * 400, b"nan", b"\\u0000", b"nvml_amend,1,0,1,0\n"),
    *(b"x" * 70_000, b"," * 5_000, b"(" * 5_000, b"[" * 5_000, b"]" * 5_000, b"\n" * 5_000),
]


def read(format_name: str, data: bytes) -> ImportedRun | None:
    """Return what a reader makes of a file, written as a run too; None where it says that it cannot."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        path.write_bytes(data)
        find_format(path)
        with contextlib.suppress(GpuLedgerError):
            imported = read_files(format_name, (path,), "x", {})
            write_imported(imported, Path(directory) / "x.ledger")
            return imported
    return None


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Load what a reader imports on first use (pyarrow brings pandas, where there is one): no memory of the file's."""
    read("torch-snapshot", seeds()["torch-snapshot"][0])


@pytest.mark.parametrize("format_name", OURS)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_damaged_files_raise_nothing_but_our_errors(format_name: str, data: Any) -> None:
    content = data.draw(damaged(format_name))
    tracemalloc.start()
    try:
        imported = read(format_name, content)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * len(content) + FLOOR_BYTES
    for rank in imported.ranks if imported else ():
        blocks = rank.tables["blocks"]
        assert all(0 <= size < 1 << 45 for size in blocks["allocated_bytes"].to_pylist())


@settings(max_examples=40)
@given(content=st.binary(max_size=3_000))
def test_bytes_of_any_kind_raise_nothing_but_our_errors(content: bytes) -> None:
    for format_name in OURS:
        read(format_name, content)
        if format_name == "torch-snapshot":
            read(format_name, b"\x80\x04" + content)


@settings(max_examples=40)
@given(content=st.text(st.sampled_from('[mem] Allocate 12bytes GPU memory().,"\n{}:-in_arg'), max_size=400))
def test_texts_of_the_formats_own_words_raise_nothing_but_our_errors(content: str) -> None:
    for format_name in OURS[1:]:
        read(format_name, content.encode())


FIVE = b'"Attribute Name","Requested Size","Device","Actual Size","Reuse?"\n'
LARGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "mxnet, a name each": ("mxnet", lambda: b"".join(b"in_arg:%d,1.5\n" % n for n in range(150_000))),
    "mxnet, a module each": ("mxnet", lambda: FIVE + b"".join(b"m%d:w,5,0,512,0\n" % n for n in range(100_000))),
    "mxnet, a deep module": ("mxnet", lambda: FIVE + b"a:" * 1_500_000 + b"w,5,0,512,0\n"),
    "tbd, one line of heads": ("tbd-log", lambda: b"[mem] Allocate 5 bytes GPU memory (" * 100_000),
    "csv, all change": (
        "memory-csv",
        lambda: (
            SEEDS["memory-csv"][0].splitlines()[0]
            + b"".join(b"\n1,%d,9,9,%d,8,%d,1,%d,1,9,2,2,2,2,%d" % (n, n, n % 7, n % 5, n % 3) for n in range(25_000))
        ),
    ),
    "json, deep": ("mxnet", lambda: b'{"name":"gpu_memory_profile_dev0","children":[' + b"[" * 4_000_000),
    "json, empty nodes": ("mxnet", lambda: b'{"name":"gpu_memory_profile_dev0","children":[' + b"{}," * 200_000),
    "json, one text": ("mxnet", lambda: b'{"name":"gpu_memory_profile_dev0' + b"x" * (12 << 20)),
    "snapshot, many stacks": (
        "torch-snapshot",
        lambda: dumped(
            snapshot(
                [],
                [
                    event(n, "alloc", (1 << 40) + 512 * n, 9, frames=list(stack))
                    for n, stack in enumerate(some_frames(2_000, 8) * 10)
                ],
            )
        ),
    ),
    "snapshot, no stacks": (
        "torch-snapshot",
        lambda: dumped(
            snapshot(
                [], [event(n, ("alloc", "free_requested", "free_completed")[n % 3], n // 3, 9) for n in range(90_000)]
            )
        ),
    ),
}
"""Made by the test that reads it: each worker collects all tests, and a tenth of that time was these."""


@pytest.mark.parametrize("name", LARGE)
def test_large_files_take_at_most_ten_times_their_size(name: str, tmp_path: Path) -> None:
    format_name, make = LARGE[name]
    content = make()
    path = tmp_path / "file"
    path.write_bytes(content)
    grown_bytes, _ = measure(format_name, path)
    assert grown_bytes < 10 * len(content) + FLOOR_BYTES


def test_every_format_here_is_known() -> None:
    assert set(OURS) <= set(FORMATS)
