"""``gpuledger.record`` and ``gpuledger.watch`` in a real Jupyter kernel, cell by cell, on a scripted GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from notebooks import Notebook, open_notebook
from stubbed import is_exact, measured_well, with_stub

from gpuledger.services.runs import load

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def notebook(place: Path) -> Iterator[Notebook]:
    with open_notebook(place, with_stub(place, watts=200)) as opened:
        opened.run("import gpuledger")
        yield opened


MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
optimizer = torch.optim.Adam(model.parameters())
"""

TRAIN = """
with gpuledger.record("training") as recording:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
"""


def test_a_training_is_recorded_and_shown_by_the_next_cell(notebook: Notebook, place: Path) -> None:
    notebook.run(MODEL)
    assert notebook.run(TRAIN).stdout == ""
    cell = notebook.run("recording")
    assert "<svg" in cell.html
    assert "optimizer_state" in cell.html
    assert notebook.run("recording.run()").html == cell.html
    rank = load(place / "training.ledger").rank()
    assert [check for check in rank.manifest.checks if not check.ok] == []
    weights = {row["requested_bytes"] for row in rank.table("blocks").to_pylist() if row["category"] == "weight"}
    assert {64 * 128 * 4, 128 * 8 * 4} <= weights  # made by an earlier cell


def test_a_cell_that_is_run_again_makes_a_run_of_its_own(notebook: Notebook, place: Path) -> None:
    notebook.run(MODEL)
    source = TRAIN.replace('"training"', '"again"')
    notebook.run(source)
    notebook.run(source)
    assert notebook.run("recording.path.name").shown["text/plain"] == "'again-2.ledger'"
    first, second = (load(place / name).rank().manifest for name in ("again.ledger", "again-2.ledger"))
    assert first.steps_seen == second.steps_seen == 3
    assert notebook.run("gpuledger.diff('again.ledger', 'again-2.ledger')").html


def test_a_recording_that_spans_cells(notebook: Notebook, place: Path) -> None:
    notebook.run(MODEL)
    notebook.run("recording = gpuledger.record('open')\nrecording.__enter__()")
    assert notebook.run("recording").html == ""  # nothing to show of it yet
    step = TRAIN.partition("range(3):\n")[2].replace("        ", "")
    for _ in range(2):
        notebook.run(step)
    notebook.run("recording.__exit__(None, None, None)")
    assert load(place / "open.ledger").rank().manifest.steps_seen == 2


def test_a_cell_that_fails_keeps_its_error_and_what_was_recorded(notebook: Notebook, place: Path) -> None:
    notebook.run(MODEL)
    cell = notebook.try_run("with gpuledger.record('failed') as recording:\n    model(torch.randn(16, 63))")
    assert cell.error.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert "<svg" in notebook.run("recording").html
    assert load(place / "failed.ledger").rank().manifest.closed_by == "exception"
    notebook.run(TRAIN.replace('"training"', '"after"'))


WATCH = """
import json, time
with gpuledger.watch("NAME") as watch:
    with watch.window("half"):
        time.sleep(PAUSE_S)
    time.sleep(PAUSE_S / 2)
figures = watch.figures
energy = [figures.energy_j, figures.energy_uncertainty_j, figures.duration_s]
print(json.dumps([watch.path.name, energy, watch.windows, watch.peak_bytes]))
"""


def watched_cell(notebook: Notebook, source: str, run_name: str) -> list[Any]:
    """Return the energy and the windows that a cell has printed of its watch."""
    cell = notebook.run(source)
    found, *figures, peak_bytes = json.loads(cell.stdout)
    assert (found, peak_bytes, cell.stderr) == (run_name, 0, "")
    return figures


def watch_twice(notebook: Notebook, pause_s: float) -> list[Any]:
    """Return what a cell has printed of its watch when it is run again."""
    name = f"cell-of-{pause_s:.0f}-s"
    source = WATCH.replace("NAME", name).replace("PAUSE_S", str(pause_s))
    watched_cell(notebook, source, f"{name}.ledger")
    return watched_cell(notebook, source, f"{name}-2.ledger")


def test_a_cell_is_watched_and_watched_again(notebook: Notebook) -> None:
    (energy_j, uncertainty_j, duration_s), windows = measured_well(
        lambda pause_s: watch_twice(notebook, pause_s),
        lambda found: is_exact(*found[0][:2]) and found[1]["half"] is not None,
    )
    assert energy_j == pytest.approx(200 * duration_s, abs=uncertainty_j)
    assert windows["half"] > 0
    assert "0 B" in notebook.run("watch").html


def test_the_stop_button_ends_the_cell_and_keeps_the_run(notebook: Notebook, place: Path) -> None:
    source = "with gpuledger.watch('stopped') as watch:\n    print('ready', flush=True)\n    time.sleep(60)"
    number = notebook.begin("import time\n" + source)
    notebook.wait_for_output(number, "ready")
    notebook.interrupt()
    assert notebook.wait(number).error == "KeyboardInterrupt: "
    run = load(place / "stopped.ledger")
    assert run.manifest.status == "complete"
    assert run.rank().table("samples").num_rows > 0
