"""Host memory that could not be allocated: found in the exception that ends a program, and explained."""

from __future__ import annotations

import json
import re
import resource
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flown import forked
from present import present
from programs import GPULEDGER
from quick import quick_gpuledger

from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.flight.host_failures import find_host_failure
from gpuledger.collect.flight.host_memory import usable_bytes
from gpuledger.collect.launch.settings import PASSES, RecordSettings
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


def test_a_limit_of_the_address_space_has_its_size() -> None:
    def facts() -> Any:
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as caught:
            allocate()
        return find_host_failure(caught.value)

    def limited() -> Any:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        return used, facts()

    assert facts()["mapped_bytes"] is None
    used, found = forked(limited)
    assert found["total_bytes"] == used + (1 << 20)
    assert abs(found["mapped_bytes"] - used) <= 1 << 20
    assert found["allocated_bytes"] < found["mapped_bytes"]


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


class Refused(torch.autograd.Function):
    """Asks for too much memory in forward or in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, where: str) -> torch.Tensor:
        ctx.where = where
        return allocate() or value if where == "forward" else value * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.where == "backward":
            allocate()
        return gradient, None


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, value: torch.Tensor, where: str = "") -> torch.Tensor:
        result: torch.Tensor = Refused.apply(self.inner(value), where)
        return result


class Stepping(torch.optim.SGD):
    """Asks for too much memory in a step."""

    asks = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch has overloads
        if self.asks:
            allocate()


def compiled(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
    return graph


def recorded_after_its_steps(
    tmp_path: Path,
    fail: Callable[[torch.nn.Module, Stepping], None],
    end: Callable[[torch.nn.Module], None] = lambda _: None,
) -> Rank:
    """Record a program whose steps from the third on call ``fail``, and that handles what this raises.

    What ``end`` raises ends it.
    """
    rank_directory = tmp_path / "late.ledger" / "rank-0"
    rank_directory.mkdir(parents=True)
    passes = dict.fromkeys(PASSES, 0)
    settings = RecordSettings(rank_directory.parent, devices="cpu", last_step=1, passes=passes, flight_recorder=True)
    session = Session(settings, rank_directory=lambda: rank_directory, from_outside=True, begins_late=False)
    session.start()
    torch.manual_seed(0)
    model = Layer()
    optimizer = Stepping(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.asks = False
        optimizer.step()
        if step >= 2:
            with suppress(RuntimeError):
                fail(model, optimizer)
    observed = torch_entrances.module_call().__code__
    try:
        end(model)
    except RuntimeError:
        session.finish("exit")
    else:
        session.finish("exit")
    assert torch_entrances.module_call().__code__ is not observed
    return Rank(0, rank_directory, post_rank(rank_directory))


def fails_in_forward(model: torch.nn.Module, _: Stepping) -> None:
    model(torch.ones(1, 2), "forward")


def fails_in_backward(model: torch.nn.Module, _: Stepping) -> None:
    model(torch.ones(1, 2), "backward").sum().backward()


def fails_in_gradients(model: torch.nn.Module, _: Stepping) -> None:
    torch.autograd.grad(model(torch.ones(1, 2), "backward").sum(), list(model.parameters()))


def fails_in_the_optimizer(_: torch.nn.Module, optimizer: Stepping) -> None:
    optimizer.asks = True
    optimizer.step()


def fails_inside_blocks(model: torch.nn.Module, _: Stepping) -> None:
    with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
        model(torch.ones(1, 2), "forward")


def fails_in_compiled_code(model: torch.nn.Module, _: Stepping) -> None:
    torch.compile(model, backend=compiled, fullgraph=False)(torch.ones(1, 2), "forward")


@pytest.mark.parametrize(
    "fail",
    [
        *(fails_in_forward, fails_in_backward, fails_in_gradients, fails_in_the_optimizer, fails_inside_blocks),
        fails_in_compiled_code,
    ],
)
def test_an_error_that_the_program_handles_after_the_recorded_steps_is_recorded_once(
    fail: Callable[[torch.nn.Module, Stepping], None], tmp_path: Path
) -> None:
    (failure,) = explain_oom(recorded_after_its_steps(tmp_path, fail))
    assert (failure.step, failure.times, failure.tried_bytes) == (4, 2, TOO_MUCH_BYTES)
    assert failure.line.endswith("in forward" if fail is fails_in_compiled_code else "in allocate")
    assert (failure.module == "Layer") == (fail in (fails_in_forward, fails_inside_blocks, fails_in_compiled_code))


def test_an_error_that_ends_the_program_is_explained_beside_those_that_it_handles(tmp_path: Path) -> None:
    def fail(model: torch.nn.Module, _: Stepping) -> None:
        with suppress(RuntimeError):
            model(torch.ones(1, 2), "forward")

    def end(model: torch.nn.Module) -> None:
        model(torch.ones(1, 2), "backward").sum().backward()

    handled, last = explain_oom(recorded_after_its_steps(tmp_path, fail, end))
    assert (handled.step, handled.times, handled.module) == (4, 2, "Layer")
    assert (last.step, last.times, last.line.partition(" ")[2]) == (5, 1, "in allocate")


def test_memory_that_is_asked_for_again_and_again_has_few_files(tmp_path: Path) -> None:
    def fail(model: torch.nn.Module, _optimizer: Stepping) -> None:
        for _ in range(50):
            with suppress(RuntimeError):
                model(torch.ones(1, 2), "forward")

    rank = recorded_after_its_steps(tmp_path, fail)
    (failure,) = explain_oom(rank)
    assert (failure.step, failure.times) == (4, 100)
    assert len(list((rank.directory / "journal").iterdir())) < 30


def test_a_program_with_its_own_end_of_timed_blocks_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_entrances, "_END_OF_TIMED", len)
    (failure,) = explain_oom(recorded_after_its_steps(tmp_path, fails_in_forward))
    assert (failure.step, failure.times) == (4, 2)


def test_other_errors_that_leave_modules_are_not_recorded(tmp_path: Path) -> None:
    def fail(model: torch.nn.Module, _: Stepping) -> None:
        model(torch.ones(3, 3))

    assert not explain_oom(recorded_after_its_steps(tmp_path, fail))


def run(*words: str, at: Path, by: Sequence[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*(by or quick_gpuledger()), *words]
    return subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=600, check=False)


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
