"""A watched run is shown by every view that speaks of GPUs: show, report, compare and plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from watched_runs import watch_run

from gpuledger.cli.main import main


@pytest.mark.parametrize("command", ["show", "compare"])
def test_a_watched_run_has_its_figures(command: str, tmp_path: Path) -> None:
    run = watch_run(tmp_path / "w.ledger", [1 << 30, 3 << 30, 2 << 30, 1 << 30], energy_j=100.0)
    (row,) = json.loads(CliRunner().invoke(main, [command, str(run.path), "--json"]).stdout)
    assert (row["peak_bytes"], row["baseline_bytes"], row["energy_j"]) == (2 << 30, 1 << 30, 100.0)
    text = CliRunner().invoke(main, [command, str(run.path)])
    assert "100.00 ± 2.00 J" in text.stdout


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_watched_run_is_a_page_and_a_picture(command: str, tmp_path: Path) -> None:
    run = watch_run(tmp_path / "w.ledger", [1 << 30, 3 << 30, 2 << 30, 1 << 30], energy_j=100.0)
    place = tmp_path / ("page.html" if command == "report" else "picture.png")
    result = CliRunner().invoke(main, [command, str(run.path), "-o", str(place)])
    assert (result.exit_code, result.stdout) == (0, f"{place}\n")
    assert place.stat().st_size > 10_000
