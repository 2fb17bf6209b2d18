"""The session: an error of ours never reaches the program, and nothing of ours stays behind."""

from __future__ import annotations

import gc
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from present import present
from recorded import record_own
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gpuledger import record
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.node_claims import NodeClaims
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.memory.dispatch import DispatchRecorder
from gpuledger.collect.memory.storage_events import StorageEvents
from gpuledger.collect.memory.window import MemoryWindow
from gpuledger.collect.session import active
from gpuledger.collect.session import session as sessions
from gpuledger.collect.session.exit_facts import can_stand_by
from gpuledger.errors import UsageError
from gpuledger.simulate.estimate.session import SimulatedSession

pytestmark = pytest.mark.torch


def train(_: Any = None) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 8)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        model(torch.randn(2, 8))
    return losses


def installed() -> tuple[object, ...]:
    return (
        nn.Module.__call__.__code__,
        torch.autograd.backward.__code__,
        torch.autograd.grad.__code__,
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
        tuple(_get_current_dispatch_mode_stack()),
        torch.cuda.memory._record_memory_history.__code__,
    )


PLACES = [
    (TensorObservations, "see_new_weights"),
    (TensorObservations, "see_inputs"),
    (TensorObservations, "see_gradients"),
    (TensorObservations, "see_optimizer"),
    (TensorObservations, "knows"),
    (TensorObservations, "see_weights"),
    (ModuleRegistry, "register"),
    (ModuleRegistry, "register_alive"),
    (ModuleRegistry, "note_called"),
    (Phases, "change"),
    (Phases, "enter_optimizer"),
    (Phases, "leave_optimizer"),
    (Phases, "after_backward"),
    (NodeClaims, "claim_inputs"),
    (NodeClaims, "claim_outputs"),
    (StorageEvents, "begin"),
    (StorageEvents, "operator_id"),
    (DispatchRecorder, "read_counters"),
    (DispatchRecorder, "drain"),
    (MemoryWindow, "end_step"),
    (RankJournal, "append"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda value: getattr(value, "__name__", value))
def test_an_error_of_ours_never_reaches_the_program(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    before, expected = installed(), train()
    losses: list[float] = []
    real = getattr(owner, name)
    during: list[tuple[object, ...]] = []

    def program(_: Any) -> None:
        def breaks(*_: Any, **__: Any) -> None:
            monkeypatch.setattr(owner, name, real)
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(owner, name, breaks)
        losses.extend(train())
        during.append(installed())

    run = record_own(program)
    assert losses == expected
    assert installed() == before
    notes = [note for note in run.manifest.notes if "an internal error of gpuledger" in note]
    assert len(notes) == 1
    assert "ZeroDivisionError: ours (test_session.py" in notes[0]
    assert run.manifest.status == "cut off"
    if owner not in (DispatchRecorder, StorageEvents):  # a dispatch mode at work can only be taken out afterwards
        assert during == [before]


def test_an_error_of_ours_in_every_callback_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before, expected = installed(), train()
    for owner, name in PLACES:
        if (owner, name) not in (
            (StorageEvents, "begin"),
            (DispatchRecorder, "read_counters"),
            (RankJournal, "append"),
        ):
            monkeypatch.setattr(owner, name, lambda *_, **__: 1 / 0)
    losses: list[float] = []
    run = record_own(lambda _: losses.extend(train()))
    assert losses == expected
    assert installed() == before
    assert any("ZeroDivisionError" in note for note in run.manifest.notes)


@pytest.mark.parametrize("steps", [None, (1, 2), (2, 3), (9, 9)])
def test_nothing_stays_installed(steps: tuple[int, int] | None) -> None:
    before = installed()
    during: list[tuple[object, ...]] = []
    expected = train()

    def program(_: Any) -> None:
        assert train() == expected
        during.append(installed())

    record_own(program, steps=steps)
    assert installed() == before
    if steps in ((1, 2), (2, 3)):  # the window is closed: only the steps are timed
        assert during[0][:3] == before[:3]
        assert during[0][5:] == before[5:]


def test_a_wrapper_of_the_program_s_own_put_on_in_the_window_stays() -> None:
    theirs, code = nn.Module.__call__, nn.Module.__call__.__code__
    calls = []

    def program(_: Any) -> None:
        assert nn.Module.__call__ is theirs
        assert theirs.__code__ is not code

        def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(type(module).__name__)
            return theirs(module, *args, **kwargs)

        nn.Module.__call__ = wrapper  # type: ignore[method-assign]
        nn.ReLU()(torch.ones(1))

    try:
        record_own(program)
        assert nn.Module.__call__ is not theirs
        assert theirs.__code__ is code
        assert nn.ReLU()(torch.ones(1)) == 1
        assert calls == ["ReLU", "ReLU"]
    finally:
        nn.Module.__call__ = theirs  # type: ignore[method-assign]


def test_an_exception_of_the_program_goes_on_as_it_is(tmp_path: Path) -> None:
    class Mine(Exception):
        pass

    before = installed()
    recording = record(out=tmp_path / "run", devices="cpu")

    def raises() -> None:
        with recording:
            train()
            raise Mine

    with pytest.raises(Mine):
        raises()
    assert installed() == before
    assert recording.run().rank().manifest.closed_by == "exception"


def test_a_second_recording_is_refused_and_leaves_the_first(tmp_path: Path) -> None:
    with record(out=tmp_path / "one", devices="cpu") as one:
        with pytest.raises(UsageError, match="another recording is active"), record(out=tmp_path / "two"):
            pass
        train()
    assert one.run().rank().manifest.steps_seen == 4


def test_a_forked_child_is_left_alone() -> None:
    before = installed()

    def program(_: Any) -> None:
        model = nn.Linear(4, 4)
        model(torch.ones(1, 4)).sum().backward()
        session = present(active.current())
        child = os.fork()
        if not child:
            try:
                assert installed()[:5] == before[:5]
                session.mark_step()
                assert model(torch.ones(1, 4)).sum() != 0
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        model(torch.ones(1, 4)).sum().backward()

    run = record_own(program)
    assert installed() == before
    assert run.manifest.notes == ()
    assert run.steps == [(1, "call", True), (2, "call", True)]  # and not the one that the child marked
    assert all(check.ok for check in run.manifest.checks)


def test_a_session_is_not_kept_by_what_python_never_forgets(tmp_path: Path) -> None:
    kept: Callable[[], Any]
    with record(out=tmp_path / "run", devices="cpu"):
        kept = weakref.ref(present(active.current()))
        train()
    gc.collect()
    assert kept() is None


def test_a_process_that_ends_early_leaves_what_it_had_written(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        recording = record(out=tmp_path / "run", devices="cpu")
        recording.__enter__()
        train()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    from gpuledger import load

    rank = load(tmp_path / "run.ledger").rank()
    assert rank.manifest.status == "cut off"
    assert len(rank.manifest.notes) == 1
    assert rank.table("blocks").num_rows > 0
    assert set(rank.table("blocks")["step"].to_pylist()) == {0, 1, 2, 3, 4}
    assert all(check.ok for check in rank.manifest.checks)


class Breaking(nn.Module):
    """A network whose graph breaks in each layer."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            torch._dynamo.graph_break()
            return x.relu()

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(self.Layer() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * 2


def compiled_model(backend: Callable[..., Any]) -> None:
    model = Breaking()
    model.compile(backend=backend)
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()


def compiled_step(backend: Callable[..., Any]) -> None:
    model = Breaking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step(torch.randn(2, 4))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [compiled_model, compiled_step])
def test_the_compiler_meets_the_same_frames_as_without_us(program: Callable[[Any], None]) -> None:
    from torch._dynamo.testing import CompileCounter

    def frames(record_it: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        counter = CompileCounter()
        if record_it:
            run = record_own(lambda _: program(counter))
            assert [note for note in run.manifest.notes if "error" in note] == []
        else:
            program(counter)
        return counter.frame_count, counter.op_count

    bare = frames(False)
    assert bare[0] > 1
    assert frames(True) == bare


class LateRecorders:
    """Has a session record by the dispatcher after the first optimizer step, and never before."""

    def __init__(self) -> None:
        self.stopped = 0
        self.windows_before: list[MemoryWindow | None] = []

    def begin(self, session: sessions.Session) -> None:
        """Wait."""

    def begin_after_step(self, session: sessions.Session) -> None:
        self.windows_before.append(session.window)
        session.adopt(DispatchRecorder(session.stacks, session.tags, session.guard), None)

    def window_ended(self) -> None:
        """Do nothing: nothing is observed."""

    def stop_watching(self) -> None:
        self.stopped += 1


def test_a_session_records_with_what_its_factory_gives_it(tmp_path: Path) -> None:
    before, recorders = installed(), LateRecorders()
    seen: list[int] = []
    settings = RecordSettings(tmp_path, 1, 3, devices="cpu")
    session = sessions.Session(
        settings, rank_directory=lambda: tmp_path / "rank-0", recorders=recorders, on_step=seen.append
    )
    session.start()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert session.window is not None
    assert isinstance(session.window.recorder, DispatchRecorder)
    session.finish("end of record")
    assert seen == [1, 2]
    assert recorders.windows_before == [None]
    assert recorders.stopped
    assert installed() == before


def test_no_kind_of_session_overrides_what_is_private_to_it() -> None:
    kinds = [SimulatedSession]
    for kind in kinds:
        own = {name for name in vars(kind) if name.startswith("_") and not name.startswith("__")}
        assert not own & set(dir(sessions.Session))


@pytest.mark.parametrize(
    ("of_torchrun", "has_failed", "can"), [(True, True, False), (False, True, True), (True, False, True)]
)
def test_a_rank_that_fails_before_its_first_step_is_recorded(
    of_torchrun: bool, has_failed: bool, can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits in vain for another rank, which has ended."""
    (tmp_path / "rank-1").mkdir()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if of_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(sys, "last_value", RuntimeError() if has_failed else None, raising=False)
    assert can_stand_by(tmp_path, "exit") is can
