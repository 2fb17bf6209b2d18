"""Notes on a device that follow from the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synthetic import make_run
from synthetic_work import load_timed

from gpuledger.analyze.overview.summary import summarize
from gpuledger.cli.main import main
from gpuledger.model.imported import rows_to_table
from gpuledger.model.manifest import read_json
from gpuledger.model.run import read_run, write_table
from gpuledger.model.run_directory import write_json
from gpuledger.units import format_bytes

MIB = 1 << 20
WINDOW = {"first_step": 1, "last_step": 3, "asked": [1, 3]}


@pytest.mark.parametrize(
    ("cuda", "facts", "words"),
    [
        (False, {"window": WINDOW, "steps_seen": 20}, "in steps 1 to 3 only"),
        (False, {"window": WINDOW | {"first_step": 3}, "steps_seen": 20}, "in step 3 only"),
        (False, {"window": WINDOW, "steps_seen": 3}, None),
        (False, {"window": WINDOW | {"first_step": None, "last_step": None}, "steps_seen": 20}, None),
        (False, {"window": None, "steps_seen": 20}, None),
        (True, {"window": WINDOW, "steps_seen": 20}, None),  # PyTorch counts the peak of later steps
    ],
)
def test_later_steps_of_cpu_tensors_are_unknown(
    tmp_path: Path, *, cuda: bool, facts: dict[str, Any], words: str | None
) -> None:
    run = make_run(tmp_path / "run", blocks=50, cuda=cuda)
    manifest = read_json(run / "rank-0" / "manifest.json")
    write_json(run / "rank-0" / "manifest.json", manifest | facts)
    rank = read_run(run).rank()
    found = [note for note in summarize(rank, 0 if cuda else -1).notes if "peak of the whole program" in note]
    assert len(found) == (words is not None)
    assert all(f"were recorded {words}" in note for note in found)


def test_memory_outside_the_recorded_steps_is_told_with_the_difference(tmp_path: Path) -> None:
    """Two peaks can have the same digits."""
    rank = load_timed(tmp_path / "one.ledger").rank()
    recorded_bytes = summarize(rank, 0).recorded_peak_allocated_bytes
    rows = rank.table("counters").to_pylist()
    higher = rows[-1] | {"peak_allocated_bytes": recorded_bytes + 3 * MIB}
    write_table(rank.directory, rows_to_table("counters", [*rows[:-1], higher]), "counters")
    notes = summarize(read_run(tmp_path / "one.ledger").rank(), 0).outside_notes
    assert [note for note in notes if note.endswith("were allocated, 3.0 MiB more than in them.")]
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "one.ledger")])
    size = format_bytes(recorded_bytes + 3 * MIB)
    first, second = shown.stdout.splitlines()[:2]
    assert first.startswith("Peak memory")
    assert second.strip().startswith(f"outside the recorded steps: up to {size} allocated (3.0 MiB more)")
    assert "Outside the recorded steps" not in shown.output
    document = json.loads(CliRunner().invoke(main, ["show", str(tmp_path / "one.ledger"), "--json"]).stdout)
    assert set(notes) <= set(document["notes"])


@pytest.mark.parametrize(("frac", "is_told"), [(1.02, False), (2, True)])
def test_segments_that_came_after_the_recorded_steps_are_told(tmp_path: Path, frac: float, *, is_told: bool) -> None:
    rank = load_timed(tmp_path / "one.ledger").rank()
    recorded_bytes = summarize(rank, 0).recorded_peak_reserved_bytes
    assert recorded_bytes
    rows = rank.table("counters").to_pylist()
    higher = rows[-1] | {"peak_reserved_bytes": int(frac * recorded_bytes)}
    write_table(rank.directory, rows_to_table("counters", [*rows[:-1], higher]), "counters")
    notes = summarize(read_run(tmp_path / "one.ledger").rank(), 0).outside_notes
    assert any("were reserved, " in note for note in notes) == is_told
