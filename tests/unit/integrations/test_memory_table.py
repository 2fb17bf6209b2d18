"""The drop-in's table and CSV rows, from made reports: sums as printed, several devices, what is not known."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.overview.iteration import BEYOND, CARD_LINES, Iteration
from gpuledger.integrations.memory_table import MB, CsvFile, MemoryReport, table_lines

SIZES = st.lists(st.integers(0, 300 * MB), min_size=1, max_size=12)
ONE = Iteration(
    device_idx=0,
    peak_cached_bytes=12 * MB,
    current_cached_bytes=11 * MB,
    feature_map_bytes=MB,
    gradient_bytes=2 * MB,
    intermediate_gradient_bytes=3 * MB,
    optimizer_state_bytes=4 * MB,
    buffer_bytes=5,
    temporary_bytes=6,
    allocated_bytes=10 * MB,
    at_peak=(("weight", 9 * MB), ("rounding", MB)),
    beyond=(("fragmented", MB), ("free_segments", 0), ("awaiting_free", 0), ("not_cached_yet", MB)),
    card=tuple((name, MB) for name in CARD_LINES),
)


def report_of(*devices: Iteration) -> MemoryReport:
    return MemoryReport(1, 5, 9 * MB, (("w", 9 * MB),), 2 * MB, (("w", 2 * MB),), devices)


def figures(lines: list[str]) -> list[int]:
    return [int(line.removesuffix(" MB").rpartition(".")[2]) for line in lines]


@given(SIZES)
def test_the_lines_of_the_last_block_sum_as_printed_and_are_off_by_less_than_one(sizes: list[int]) -> None:
    device = replace(ONE, at_peak=tuple((f"kind {n}", size) for n, size in enumerate(sizes)), beyond=())
    lines = table_lines(report_of(device))
    begin = next(number for number, line in enumerate(lines) if line.startswith("At the iteration's peak"))
    total, *parts = figures(lines[begin:])
    assert total == sum(parts) == round(sum(sizes) / MB)
    assert all(abs(part - size / MB) < 1 for part, size in zip(parts, sizes, strict=True))


def test_each_device_has_a_block_of_its_own_and_the_lines_above_hold_all() -> None:
    lines = table_lines(report_of(ONE, replace(ONE, device_idx=1)))
    assert f"{'Peak cached':.<45s}{24:.>5d} MB" in lines
    assert [line.partition("..")[0] for line in lines if line.startswith(("At", "Cached"))] == [
        "At the iteration's peak (cuda:0)",
        "Cached beyond that (cuda:0)",
        "At the iteration's peak (cuda:1)",
        "Cached beyond that (cuda:1)",
    ]
    assert figures(lines[-3:]) == [2, 1, 1]


def test_a_long_name_and_a_large_size_widen_their_line_only() -> None:
    name = "x" * 60
    report = replace(report_of(ONE), weights=((name, 123_456_789 * MB),))
    assert f"  {name}123456789 MB" in table_lines(report)


def test_a_line_of_the_card_that_one_device_lacks_is_empty_in_the_csv(tmp_path: Path) -> None:
    unknown = replace(ONE, device_idx=1, card=(("context", None), *ONE.card[1:]))
    file = CsvFile(tmp_path / "out", ["w"])
    file.add(report_of(ONE, unknown))
    header, row = csv.reader(file.path.read_text(encoding="utf-8").splitlines())
    cells = dict(zip(header, row, strict=True))
    assert cells["context_bytes"] == ""
    assert cells["driver_bytes"] == str(2 * MB)
    assert cells["fragmented_bytes"] == str(2 * MB)
    assert all(f"{name}_bytes" in cells for name in (*BEYOND, *CARD_LINES))
