"""Notes on a device that follow from the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import make_run

from gpuledger.analyze.overview.summary import summarize
from gpuledger.model.manifest import read_json
from gpuledger.model.run import read_run
from gpuledger.model.run_directory import write_json

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
