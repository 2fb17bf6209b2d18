"""What views and findings of a large run leave out because it is known already, or because it cannot matter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from card_recordings import post_recording
from synthetic import load_run, make_run

from gpuledger.analyze.memory.breakdown import accounts_outside_modules, break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import read_numbers
from gpuledger.analyze.overview import peak_facts, what_if
from gpuledger.analyze.overview.peak_facts import PeakFacts
from gpuledger.analyze.overview.step_findings import optimizer_temporaries
from gpuledger.analyze.ranks import summaries
from gpuledger.analyze.view.device_view import DeviceView
from gpuledger.analyze.view.view import build_view
from gpuledger.model import parquet_parts, run
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.first_screen import first_screen
from gpuledger.services.runs import load


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, position: int) -> Counter[Any]:
    """Return the calls of a function from now on, by one of their arguments."""
    calls: Counter[Any] = Counter()
    function = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls[arguments[position]] += 1
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    return calls


def refuse(*arguments: Any) -> None:
    raise AssertionError("nothing needs this")


def test_the_peak_is_described_once(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "run").rank()
    assert find_peak(rank) is find_peak(rank, 0)
    assert find_peak(rank, 0, step=3) is not find_peak(rank)


def test_rows_of_a_device_are_chosen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = load_run(tmp_path / "run").rank()
    first = read_numbers(rank, "blocks", "step", 0)
    columns: list[tuple[str, ...]] = []
    table = run.Rank.table

    def read(self: run.Rank, name: str, wanted: tuple[str, ...]) -> Any:
        columns.append(wanted)
        return table(self, name, wanted)

    monkeypatch.setattr(run.Rank, "table", read)
    assert np.array_equal(read_numbers(rank, "blocks", "step", 0), first)
    assert columns == [("step", "device_idx")]
    assert read_numbers(rank, "blocks", "step", 1).size == 0


def test_memory_outside_modules_is_that_of_the_breakdown(tmp_path: Path) -> None:
    rank = post_recording("gpt2", tmp_path)
    peak, by = find_peak(rank), ("category", "module", "tensor", "line")
    whole = [one for one in break_down(rank, peak, by).accounts if not one.module and one.category != ROUNDING]
    found = accounts_outside_modules(rank, peak, by)
    assert found
    assert Counter(found) == Counter(whole)


def test_the_first_screen_divides_nothing_by_tensors_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceView, "tensors", property(refuse))
    made = load_run(tmp_path / "run", blocks=20_000, modules=200)
    screen = first_screen(build_view(made), Terminal(200))
    assert any(line.startswith("Largest modules     (outside modules)") for line in screen)


def test_no_saving_needs_no_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = PeakFacts(load_run(tmp_path / "run").rank(), 0)
    before = facts.curve.index < facts.peak.index
    assert facts.saving(facts.at_peak) > 0
    assert facts.saving(facts.at_peak, during=~before) > 0
    monkeypatch.setattr(peak_facts, "running_sum", refuse)
    assert facts.saving(~facts.at_peak) == 0
    assert facts.saving(facts.at_peak, during=before) == 0


def test_sizes_are_compared_with_weights_only_if_they_can_be_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = PeakFacts(load_run(tmp_path / "run").rank(), 0)
    assert not (facts.of("temporary") & facts.born_in("between") & (facts.module_id < 0)).any()
    monkeypatch.setattr(what_if, "distinct_numbers", refuse)
    assert facts.held(what_if.grows_with_batch(facts)) > 0


def test_stacks_of_a_small_update_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = PeakFacts(load_run(tmp_path / "run").rank(), 0)
    monkeypatch.setattr(PeakFacts, "of_updates", refuse)
    assert optimizer_temporaries(facts) is None


def test_a_summary_reads_no_table_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = load_run(tmp_path / "run", ranks=2).rank(1)
    reads = counted(monkeypatch, parquet_parts, "read_part", 1)
    monkeypatch.setattr(summaries, "read_labels", refuse)  # it has no shards, so nothing is expected of it
    summaries.summary_tables(rank)
    assert {name: count for name, count in reads.items() if count > 1 and name != "blocks"} == {}
    assert "samples" not in reads  # the size of the GPU is not in it
    assert reads["blocks"] <= 2  # the line of the peak needs stacks, if what allocates there is not running


def test_the_manifest_of_a_rank_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_run(tmp_path / "run.ledger", ranks=3)
    reads = counted(monkeypatch, run, "read_rank_manifest", 0)
    assert len(load(made).ranks) == 3
    assert set(reads.values()) == {1}
