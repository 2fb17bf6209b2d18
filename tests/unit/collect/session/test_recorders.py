"""What records a process, and when that begins; the CUDA side without a GPU, by what it would be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.adapter import dispatch_modes, torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.memory import out_of_memory
from gpuledger.collect.memory.dispatch import DispatchRecorder
from gpuledger.collect.session import recorders
from gpuledger.collect.session.session import Session
from gpuledger.model.journal.journal import REASONS, Part

pytestmark = pytest.mark.torch


class History(DispatchRecorder):
    """Stands for the allocator's history of one GPU."""

    kind = "cuda-history"

    def __init__(self, stacks: Any, tags: Any, *, reads_programs: bool = False) -> None:
        super().__init__(stacks, tags, Guard(lambda error: pytest.fail(str(error))))
        self.reads_programs = reads_programs

    def devices(self) -> list[int]:
        return [0]


class Reader:
    """Stands for what reads a GPU beside its allocator."""

    def describe(self, device_indices: list[int]) -> list[dict[str, Any]]:
        return [{"device_idx": index, "name": "a GPU", "total_bytes": 8} for index in device_indices]

    def read(self, part: Part, t_ns: int) -> None:
        """Read nothing."""


@pytest.fixture
def initialise_cuda(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Have sessions wait for CUDA; return what is to be called when it is initialised."""
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(recorders, "_wants_cuda", lambda _settings: True)
    monkeypatch.setattr(torch.cuda, "_lazy_call", waiting.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch_private, "keeps_cuda_history", lambda: None)
    monkeypatch.setattr(torch_private, "history_enabled", lambda: False)
    monkeypatch.setattr(torch_private, "workspace_bytes", lambda _device: [4096])
    monkeypatch.setattr(torch_private, "watch_out_of_memory", lambda _observe: None)
    monkeypatch.setattr(recorders, "CudaRecorder", History)
    monkeypatch.setattr(recorders, "CardReader", Reader)
    return waiting


@pytest.fixture
def session(tmp_path: Path, initialise_cuda: list[Callable[[], None]]) -> Iterator[Session]:
    made = Session(RecordSettings(tmp_path, 1, 3), rank_directory=lambda: tmp_path / "rank-0")
    made.start()
    yield made
    made.finish("end of test")
    assert made.ended


def is_begun(session: Session) -> bool:
    return session.window is not None


def facts(session: Session) -> dict[str, Any]:
    return session.journal.part.facts


def test_the_allocators_history_is_recorded_once_cuda_is_initialised(
    session: Session, initialise_cuda: list[Callable[[], None]]
) -> None:
    assert not is_begun(session)
    initialise_cuda[0]()
    assert session.window is not None
    assert isinstance(session.window.recorder, History)
    found = facts(session)
    assert (found["recorder"], found["workspace_bytes"]) == ("cuda-history", [4096])
    assert [device["name"] for device in found["devices"]] == ["a GPU"]
    first = session.window
    initialise_cuda[0]()
    assert session.window is first


@pytest.mark.parametrize("flies", [True, False])
def test_blocks_at_an_out_of_memory_error_are_read_by_the_flight_recorder_or_else_by_the_observer(
    flies: bool, tmp_path: Path, initialise_cuda: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(out_of_memory, "watch", lambda *_given, reads_blocks: asked.append(reads_blocks))
    settings = RecordSettings(tmp_path, 1, 3, flight_recorder=flies)
    session = Session(settings, rank_directory=lambda: tmp_path / "rank-0")
    session.start()
    initialise_cuda[0]()
    session.finish("end of test")
    assert asked == [not flies]


def test_where_the_allocator_keeps_no_history_the_dispatcher_records_both(
    session: Session, initialise_cuda: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_private, "keeps_cuda_history", lambda: "another allocator")
    initialise_cuda[0]()
    assert session.window is not None
    assert facts(session)["recorder"] == "dispatch"
    assert session.journal.part.notes == [
        "Tensors were recorded at PyTorch's dispatcher, not in the CUDA allocator: another allocator."
    ]


def test_a_history_of_the_programs_own_is_read(
    session: Session, initialise_cuda: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_private, "history_enabled", lambda: True)
    initialise_cuda[0]()
    assert session.window is not None
    assert isinstance(session.window.recorder, History)
    assert session.window.recorder.reads_programs
    assert session.journal.part.notes == []


def test_a_program_that_trains_without_its_gpu_is_recorded_by_the_dispatcher(session: Session) -> None:
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(1, 4)).sum().backward()
    assert not is_begun(session)
    optimizer.step()
    assert session.window is not None
    assert type(session.window.recorder) is DispatchRecorder


def test_what_watches_the_program_is_taken_out(session: Session, initialise_cuda: list[Callable[[], None]]) -> None:
    before = torch.cuda.memory._record_memory_history.__code__
    initialise_cuda[0]()
    assert torch.cuda.memory._record_memory_history.__code__ is not before
    session.finish("end of record")
    assert torch.cuda.memory._record_memory_history.__code__ is before


@pytest.mark.parametrize("begins_late", [False, True])
def test_the_process_is_sampled_before_its_first_module_call_on_the_gpu(
    begins_late: bool, tmp_path: Path, initialise_cuda: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[str] = []

    def read(_self: Reader, part: Part, _t_ns: int) -> None:
        counted = part.rows.get("counters")
        sampled.append(REASONS[counted[-1]["reason"]] if counted else "open")

    monkeypatch.setattr(Reader, "read", read)
    model, batch = nn.Linear(4, 4), torch.ones(1, 4)
    directory = lambda: tmp_path / "rank-0"  # noqa: E731
    session = Session(RecordSettings(tmp_path, 1, 2), rank_directory=directory, begins_late=begins_late)
    session.start()
    initialise_cuda[0]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = batch + 1
    for _ in range(2):
        model(batch).sum().backward()
        optimizer.step()
    session.finish("end of test")
    first = [] if begins_late else ["call"]  # libraries can be loaded already
    assert sampled == ["open", *first, "step_end", "step_end", "close"]


class Mode(TorchDispatchMode):
    """A mode of the program's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("inside", "opened_at"), [(range(0), 1), (range(2), 3), (range(3), 4), (range(40), None)])
@pytest.mark.usefixtures("initialise_cuda")
def test_recording_starts_outside_the_programs_own_modes(inside: range, opened_at: int | None, tmp_path: Path) -> None:
    """A mode that starts inside another is removed in its place when that one ends."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    session = Session(RecordSettings(tmp_path, 1, 3), rank_directory=lambda: tmp_path / "rank-0")
    session.start()
    for number in range(30):
        with Mode() if number in inside else nullcontext():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        if number + 1 == opened_at:
            assert dispatch_modes.has_dispatch_mode()
        elif opened_at is None:
            assert not dispatch_modes.has_dispatch_mode()
    assert session.ended
    assert not dispatch_modes.has_dispatch_mode()
    manifest = post_rank(tmp_path / "rank-0")
    notes = [note for note in manifest.notes if note.startswith("Memory was not recorded")]
    assert bool(notes) == (opened_at is None)
