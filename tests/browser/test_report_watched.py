"""The report on a GPU that was only watched: its curve, its figures, its windows, and nothing of breakdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from folders import DATA
from opened import Opened
from watched_runs import watch_run

from gpuledger.analyze.samples.watched import watched
from gpuledger.model.imported import rows_to_table
from gpuledger.model.run import write_table
from gpuledger.services.runs import import_files
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.browser
USED = [1 << 30, 5 << 30, 9 << 30, 4 << 30]


def test_a_watched_card_has_a_page_of_its_own(open_report: Callable[..., Opened], tmp_path: Path) -> None:
    run = watch_run(tmp_path / "w.ledger", USED, energy_j=1400.0)
    own = [{"t_ns": t * 10**9, "device_idx": 0, "pid": 7, "bytes": used // 2} for t, used in enumerate(USED)]
    write_table(run.ranks[0].directory, rows_to_table("process_samples", own), "process_samples")
    (figures,) = watched(run)
    opened = open_report(ledger=run.path)
    assert opened.value("peak_bytes") == f"{figures.peak_bytes:,} bytes"
    assert opened.text('[data-card="energy_j"] .card-value') == "1.40 kJ"
    assert "whole command" in opened.text("#windows-body")
    for place in ("#instant-section", "#balance-section", "#bars-section", "#axis"):
        assert not opened.page.locator(place).is_visible()
    legend = opened.page.locator("#legend").inner_text().split("\n")
    assert legend[legend.index("used") + 1] == format_bytes(max(USED))
    assert (
        legend[legend.index("program") + 1]
        == legend[legend.index("rest of the GPU") + 1]
        == format_bytes(max(USED) // 2)
    )
    for key in ("p", "e", ",", "/", "Escape"):
        opened.page.keyboard.press(key)
    opened.page.locator("#timeline .u-over").click(position={"x": 20, "y": 60})
    assert format_bytes(USED[0]) in opened.text("#legend")
    assert opened.complaints == []
    assert opened.requests == [opened.address]


def test_events_without_times_are_counted_instead(open_report: Callable[..., Opened], tmp_path: Path) -> None:
    log = DATA / "memory_csv" / "20200405120000.csv"
    opened = open_report(ledger=import_files("memory-csv", [log], tmp_path / "log.ledger", {}).path)
    assert opened.page.locator("#axis").is_disabled()
    assert opened.page.locator("#axis").get_attribute("aria-pressed") == "true"
    assert "0 ns" not in opened.text("main")
    assert opened.page.locator("[data-card=step_time_ns], [data-card=unaccounted_bytes]").count() == 0
    opened.page.locator("#timeline .u-over").hover(position={"x": 1000, "y": 60})
    assert opened.complaints == []
    assert opened.text("#timeline-section h2") == "Memory by event"
    assert "step 4" in opened.text("[data-card=recorded_peak_allocated_bytes]")


def test_reserved_memory_that_a_file_does_not_tell_is_no_number(
    open_report: Callable[..., Opened], tmp_path: Path
) -> None:
    log = DATA / "tbd" / "sockeye.log"
    opened = open_report(ledger=import_files("tbd-log", [log], tmp_path / "log.ledger", {}).path)
    card = opened.text("[data-card=recorded_peak_reserved_bytes]")
    assert "n/a" in card
    assert "not in the file" in card
    assert "reserved" not in opened.text("#legend") + opened.text("#instant-bytes")
    assert opened.complaints == []
