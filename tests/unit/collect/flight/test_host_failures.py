"""Host memory that could not be allocated: found in the exception that ends a program, and explained."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from present import present
from programs import GPULEDGER
from quick import quick_gpuledger

from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.flight.host_failures import find_host_failure
from gpuledger.collect.flight.host_memory import usable_bytes
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.flight_facts import HOST
from gpuledger.model.run import Rank
from gpuledger.units import format_bytes

TOO_MUCH_BYTES = 1 << 60
LEAK = """
import resource
import torch

model, kept = torch.nn.Linear(64, 64), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    if step == 10:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
    kept.append(torch.ones(8 << 18))
"""


def allocate() -> None:
    torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8)


def test_the_request_of_torchs_allocator_is_in_its_text() -> None:
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as caught:
        allocate()
    found = find_host_failure(caught.value)
    assert found is not None
    assert (found["device_idx"], found["tried_bytes"], found["library"]) == (HOST, TOO_MUCH_BYTES, "PyTorch")
    assert found["frames"][0][2] == "allocate"
    assert 0 < found["allocated_bytes"] < found["total_bytes"] == usable_bytes()
    assert found["free_bytes"] > 0


def test_an_error_that_was_raised_from_it_is_the_same() -> None:
    def train() -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("training failed") from error

    with pytest.raises(ValueError, match="training failed") as caught:
        train()
    found = find_host_failure(caught.value)
    assert found is not None
    assert (found["tried_bytes"], found["library"]) == (None, "Python")


def test_an_array_of_numpy_has_its_size() -> None:
    with pytest.raises(MemoryError) as caught:
        np.zeros((1 << 40, 1 << 10), np.float64)
    found = find_host_failure(caught.value)
    assert found is not None
    assert (found["tried_bytes"], found["library"]) == (8 << 50, "NumPy")


class Failing(torch.utils.data.Dataset[Any]):
    """A data set whose items cannot be allocated."""

    def __init__(self, fail: Callable[[], object]) -> None:
        self.fail = fail

    def __getitem__(self, index: int) -> object:
        return self.fail()

    def __len__(self) -> int:
        return 1


def text_in_python() -> object:
    raise MemoryError("no memory for this text")


@pytest.mark.parametrize(
    ("fail", "tried_bytes"),
    [
        (lambda: np.zeros((1 << 40, 1 << 10), np.float64), 8 << 50),
        (lambda: torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8), TOO_MUCH_BYTES),
        (text_in_python, None),
    ],
    ids=["NumPy", "PyTorch", "Python"],
)
def test_a_data_worker_without_memory_is_named(fail: Callable[[], object], tried_bytes: int | None) -> None:
    loader = torch.utils.data.DataLoader(Failing(fail), num_workers=1, multiprocessing_context="fork")
    with pytest.raises((RuntimeError, MemoryError), match="in DataLoader worker process 0") as caught:
        next(iter(loader))
    found = find_host_failure(caught.value)
    assert found is not None
    assert (found["tried_bytes"], found["library"], found["allocated_bytes"]) == (tried_bytes, "Data worker 0", None)


@pytest.mark.parametrize(
    "error",
    [
        *(None, ValueError("a shape"), RuntimeError("CUDA error: out of memory"), torch.OutOfMemoryError("CUDA")),
        RuntimeError("Caught ValueError in DataLoader worker process 0."),
    ],
)
def test_other_errors_are_not_those_of_the_host(error: BaseException | None) -> None:
    assert find_host_failure(error) is None


@pytest.mark.parametrize("flight_recorder", [True, False])
def test_the_first_sentence_names_the_request_and_the_host(tmp_path: Path, flight_recorder: bool) -> None:
    rank_directory = tmp_path / "oom.ledger" / "rank-0"
    rank_directory.mkdir(parents=True)
    settings = RecordSettings(rank_directory.parent, devices="cpu", flight_recorder=flight_recorder)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    try:
        allocate()
    except RuntimeError:
        session.finish("exit")
    (failure,) = explain_oom(Rank(0, rank_directory, post_rank(rank_directory)))
    assert failure.cause is not None
    assert failure.cause.kind == "host"
    request = f"PyTorch could not allocate {format_bytes(TOO_MUCH_BYTES)} of host memory: the process uses "
    assert failure.cause.sentence.startswith(request)
    assert failure.line.endswith("in allocate")
    assert failure.remedies == ()


def test_an_error_that_the_program_handles_is_recorded_with_the_number_of_them(tmp_path: Path) -> None:
    rank_directory = tmp_path / "handled.ledger" / "rank-0"
    rank_directory.mkdir(parents=True)
    settings = RecordSettings(rank_directory.parent, devices="cpu", flight_recorder=True)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            with suppress(RuntimeError):
                allocate()
        try:
            raise MemoryError  # not of an operator
        except MemoryError:
            with suppress(RuntimeError):
                torch.ones(2) @ torch.ones(3)  # an error of an operator, raised while the other is handled
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    session.finish("exit")
    (failure,) = explain_oom(Rank(0, rank_directory, post_rank(rank_directory)))
    assert (failure.step, failure.times, failure.tried_bytes) == (1, 6, TOO_MUCH_BYTES)
    assert failure.line.endswith("in allocate")


def run(*words: str, at: Path, by: Sequence[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*(by or quick_gpuledger()), *words]
    return subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=240, check=False)


def test_a_leak_that_reaches_a_limit_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "leak.py").write_text(LEAK)
    done = run("run", "-q", "--out", "leak", "leak.py", at=tmp_path, by=GPULEDGER)
    assert done.returncode == 1
    assert "DefaultCPUAllocator" in done.stderr
    document: dict[str, Any] = json.loads(run("show", "leak", "--json", at=tmp_path).stdout)
    (failure,) = document["out_of_memory"]
    rate = r"The host ran out of memory\. Memory has grown by ([\d.]+) MiB per step"
    grown = re.match(rate, failure["cause"]["sentence"])
    assert float(present(grown)[1]) == pytest.approx(8.2, abs=0.5)
    assert "held by list kept" in failure["cause"]["sentence"]
    assert failure["line"].startswith("leak.py:14")
    assert failure["remedies"][0]["action"] == "free what grows step after step"
    shown = run("show", "leak", at=tmp_path).stdout
    assert f"in step {failure['step']}, asked for at leak.py:14" in " ".join(shown.split())
    assert run("report", "leak", "-o", "leak.html", at=tmp_path).returncode == 0
