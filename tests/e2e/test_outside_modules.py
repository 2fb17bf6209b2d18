"""The first screen says what memory outside modules is, by name or by source line, if it is among the largest parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import gpuledger
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.view.view import build_view
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.first_screen import first_screen

pytestmark = pytest.mark.torch

LARGE = 1 << 22


def lines_of(path: Path, size: int, *, is_kept: bool) -> list[str]:
    """Return the line of the first screen about memory outside modules, for calls beside a tensor of ``size`` floats.

    No assert is in it: pytest's code for one calls ``locals``, and no variables are read of a function that does.
    """
    with gpuledger.record(out=path, steps=(1, 2), devices="cpu") as recording:
        model = nn.Sequential(nn.Linear(64, LARGE // 64), nn.ReLU())
        cache = torch.zeros(size if is_kept else 1)
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(2, 64))
                if not is_kept:
                    torch.ones(size).sum()
        cache += 1
    screen = first_screen(build_view(recording.run()), Terminal(200))
    return [line for line in screen if line.startswith("Outside modules")]


def test_a_tensor_outside_modules_is_named(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:  # pytest's own functions, outside of this one, hold thousands of objects
        (line,) = pool.submit(lines_of, tmp_path / "run", 2 * LARGE, is_kept=True).result()
    assert line.startswith("Outside modules     cache ")
    assert line.count("%") == 1


def test_one_without_a_name_has_its_source_line(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path / "run", 2 * LARGE, is_kept=False)
    assert line.startswith("Outside modules     test_outside_modules.py:")
    assert "lines_of" in line


def test_little_memory_is_not_mentioned(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "run", LARGE // 4096, is_kept=True) == []


@pytest.mark.parametrize(("step", "phase"), [(0, "setup"), (2, "between")])
def test_a_peak_between_two_calls_is_in_no_module(step: int, phase: str, tmp_path: Path) -> None:
    """The block allocated there is the input of the next call, but its module does not run yet."""
    with gpuledger.record(out=tmp_path / "run", steps=(1, 2), devices="cpu") as recording:
        model = nn.Linear(LARGE // 64, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for rows in (64, 128 if step else 32):
            model(torch.ones(rows, LARGE // 64).neg()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    peak = find_peak(recording.run().rank())
    assert (peak.step, peak.phase, peak.module) == (step, phase, "")


@pytest.mark.parametrize(("at", "step", "phase"), [("built", 0, "setup"), ("prepared", 2, "between")])
def test_a_call_without_a_graph_begins_no_forward(at: str, step: int, phase: str, tmp_path: Path) -> None:
    """A constructor calls an activation to normalize it, and a transform of data is a module: neither is trained."""

    def work(now: str) -> None:
        nn.ReLU()(torch.ones(4))
        torch.ones(LARGE if now == at else 1).sum()

    with gpuledger.record(out=tmp_path / "run", steps=(1, 2), devices="cpu") as recording:
        work("built")
        model = nn.Linear(64, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for now in ("", "prepared"):
            work(now)
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    peak = find_peak(recording.run().rank())
    assert (peak.step, peak.phase, peak.module) == (step, phase, "")


@pytest.mark.parametrize("is_main", [True, False])
def test_what_another_thread_calls_a_model_with_is_an_input(is_main: bool, tmp_path: Path) -> None:
    """A server's thread is seen from its first call of a model on, in whose phase the input is found then."""
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU())
    rows = [torch.ones(64) for _ in range(1024)]

    @torch.inference_mode()
    def answer() -> None:
        model(torch.stack(rows))

    path = tmp_path / "run"
    with ThreadPoolExecutor(1) as pool, gpuledger.record(out=path, steps=(1, 2), devices="cpu") as recording:
        for _ in range(3):
            answer() if is_main else pool.submit(answer).result()
    blocks = recording.run().rank().table("blocks").to_pylist()
    assert {one["category"] for one in blocks if one["requested_bytes"] == 1024 * 64 * 4} == {"input"}
