"""Whatever of ours fails, and wherever a recording ends: nothing stays installed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from observing import put_back_code
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gpuledger import record
from gpuledger.collect.adapter import kineto, torch_private
from gpuledger.collect.adapter.user_profiler import WATCHED, UserProfiler
from gpuledger.collect.attribution import scopes
from gpuledger.collect.memory.dispatch import DispatchRecorder
from gpuledger.collect.passes.call_ranges import CallRanges
from gpuledger.collect.passes.graph_captures import GraphCaptures
from gpuledger.collect.passes.later_passes import LaterPasses
from gpuledger.collect.passes.scope_marks import ScopeMarks
from gpuledger.collect.passes.time_pass import TimePass
from gpuledger.collect.session import session as sessions

pytestmark = pytest.mark.torch

FUNCTIONS: list[Any] = [
    nn.Module.__call__,
    torch.autograd.backward,
    torch.autograd.grad,
    *(vars(kind)["__init__"] for kind in WATCHED),
]
CODES = [function.__code__ for function in FUNCTIONS]


@pytest.fixture(autouse=True)
def nobody_is_kept() -> Iterator[None]:
    """Collect optimizers in cycles: the recordings of tests after these would find them alive."""
    put_back_code(*FUNCTIONS)
    yield
    gc.collect()


def left() -> list[Any]:
    """Return what is installed; an empty list where nothing is."""
    exchanged = [one.__qualname__ for one, code in zip(FUNCTIONS, CODES, strict=True) if one.__code__ is not code]
    hooks = [*optimizers._global_optimizer_pre_hooks, *optimizers._global_optimizer_post_hooks]
    # _listener: whoever listens cannot be asked for
    listens = [scopes._listener] if scopes._listener is not None else []
    profiles = ["profiler"] if torch._C._autograd._profiler_enabled() else []
    return [*exchanged, *hooks, *_get_current_dispatch_mode_stack(), *listens, *profiles]


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def fails_once(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a method raise when it is called for the first time; return a list that then has an element."""
    original = getattr(owner, name)
    raised: list[int] = []

    def method(*args: Any, **kwargs: Any) -> Any:
        if not raised:
            raised.append(1)
            raise ZeroDivisionError("planted")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, method)
    return raised


def train(model: nn.Module, steps: int, after: Callable[[int], None] = lambda _: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        after(step)


def test_after_an_error_inside_an_operator_the_mode_goes_at_the_next_call(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = fails_once(DispatchRecorder, "_note", monkeypatch)
    with record("broken", out=tmp_path / "broken") as recording:
        model(torch.ones(2, 4))
        assert raised
        model(torch.ones(2, 4))
        assert left() == []
    assert any("planted" in note for note in recording.run().rank().manifest.notes)


def test_after_an_error_in_a_backward_pass_nothing_comes_back_with_its_end(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """autograd puts back the dispatch modes that were there when the pass began."""
    with record("broken", out=tmp_path / "broken"):
        loss = model(torch.ones(2, 4)).sum()
        raised = fails_once(DispatchRecorder, "_note", monkeypatch)
        loss.backward()
        assert raised
        model(torch.ones(2, 4))
        assert left() == []


def test_a_window_that_closes_in_a_backward_pass_leaves_no_mode(model: nn.Module, tmp_path: Path) -> None:
    """Where the optimizer steps in backward, as soon as a gradient is there, steps end inside it."""
    last = next(model.parameters())
    optimizer = torch.optim.SGD([last], lr=0.1)
    hook = last.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with record("inside", out=tmp_path / "inside", steps=(1, 2), passes="memory,energy:3") as recording:
        for _ in range(5):
            model(torch.ones(2, 4)).sum().backward()
        assert _get_current_dispatch_mode_stack() == []
    hook.remove()  # or parameter, hook and optimizer would keep each other alive
    assert left() == []
    assert recording.run().rank().manifest.steps_seen == 5


@pytest.mark.parametrize("broken", ["install", "_entered"])
def test_an_error_where_the_recording_begins_is_noted(
    broken: str, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = fails_once(UserProfiler, broken, monkeypatch)
    with record("broken", out=tmp_path / "broken", passes="memory,energy:2,time", steps=(1, 1)) as recording:
        train(model, 16)
        assert raised
        assert left() == []
    assert any("planted" in note for note in recording.run().rank().manifest.notes)


@pytest.mark.parametrize(
    ("place", "broken"), [(CallRanges, "end_all"), (TimePass, "_write"), (TimePass, "_take_out_ranges")]
)
def test_an_error_where_the_time_pass_ends_leaves_no_profiler(
    place: type, broken: str, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = fails_once(place, broken, monkeypatch)
    with record("broken", out=tmp_path / "broken", passes="memory,energy:2,time", steps=(1, 1)):
        train(model, 16)
        assert raised
        assert left() == []


def test_an_error_where_captures_are_written_leaves_no_observer_of_calls(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of the model are the steps here. They are observed again after the timing measurement."""
    raised = fails_once(GraphCaptures, "_write_those_in_steps", monkeypatch)
    with record("broken", out=tmp_path / "broken", passes="memory,time", steps=(1, 1), step_on="module"):
        with torch.no_grad():
            for _ in range(12):
                model(torch.ones(2, 4))
        assert raised
        assert left() == []


class Scoped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with scopes.Scope("inside"):
            return self.inner(x).relu()


def test_a_time_pass_that_ends_inside_calls_ends_their_ranges_before_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto can write a warning to the program's stderr for a range that has no end."""
    under_way: list[str] = []
    at_the_end: list[list[str]] = []

    class Range:
        def __init__(self, name: str) -> None:
            self._name = name

        def __enter__(self) -> None:
            under_way.append(self._name)

        def __exit__(self, *_: object) -> None:
            under_way.remove(self._name)

    stop = kineto.Profiler.stop

    def stopped(profiler: kineto.Profiler, *, wait: bool) -> list[Any]:
        at_the_end.append(list(under_way))
        return stop(profiler, wait=wait)

    monkeypatch.setattr(torch_private, "open_range", Range)
    monkeypatch.setattr(kineto.Profiler, "stop", stopped)
    raised = fails_once(ScopeMarks, "_text", monkeypatch)
    with record("long", out=tmp_path / "long", passes="memory,energy:2,time", steps=(1, 1)):
        train(nn.Sequential(Scoped(), Scoped()), 16)
    assert raised
    assert at_the_end == [[]]
    assert under_way == []


@pytest.mark.parametrize(("owner", "method"), [(LaterPasses, "_before_any_fork"), (sessions.Session, "end")])
def test_an_error_at_a_fork_reaches_nobody(
    owner: Any, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Any) -> None:
        raise ZeroDivisionError("planted")

    with record("forks", out=tmp_path / "forks", passes="memory,time", steps=(1, 1)):
        with monkeypatch.context() as broken:
            broken.setattr(owner, method, fails)
            child = os.fork()
            if not child:
                os._exit(3)
        assert os.waitpid(child, 0)[1] == 3 << 8
    assert capfd.readouterr().err == ""


def test_one_part_that_cannot_be_taken_out_keeps_no_other_in(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuledger.collect.memory.window import MemoryWindow

    fails_once(MemoryWindow, "take_out", monkeypatch)
    with record("broken", out=tmp_path / "broken", steps=(1, 1)):
        train(model, 3)
        assert left() == []


def test_notes_are_written_where_a_source_cannot_be_drained(tmp_path: Path) -> None:
    from gpuledger.collect.attribution.rank_journal import RankJournal
    from gpuledger.model.journal.journal import Part
    from gpuledger.model.journal.reading import read_journal

    class Broken:
        def drain(self, part: Part) -> None:
            raise ZeroDivisionError

    journal = RankJournal(lambda: tmp_path, [Broken()])
    journal.note("what happened")
    with pytest.raises(ZeroDivisionError):
        journal.write()
    assert read_journal(tmp_path / "journal").notes == ["what happened"]


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() != -1:
            raise ValueError("in backward")
        return x


def test_after_an_error_in_the_backward_pass_of_a_time_pass_no_profiler_comes_back(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = fails_once(CallRanges, "fail", monkeypatch)
    fails = Fails()

    def recompute(_: Any) -> None:
        with pytest.raises(ValueError, match="in backward"):
            fails(torch.ones(1))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record("broken", out=tmp_path / "broken", passes="memory,energy:2,time", steps=(1, 1)):
        for _ in range(16):
            result = model(torch.ones(2, 4))
            result.register_hook(recompute)
            result.sum().backward()
            optimizer.step()
        assert raised
        assert left() == []


def test_steps_that_end_in_a_backward_pass_are_timed_outside_of_it(model: nn.Module, tmp_path: Path) -> None:
    """A profiler that begins there is gone when the pass ends, and no other could begin any more."""
    last = next(model.parameters())
    optimizer = torch.optim.SGD([last], lr=0.1)
    hook = last.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with record("inside", out=tmp_path / "inside", steps=(1, 1), passes="memory,energy:2,time") as recording:
        for _ in range(16):
            model(torch.ones(2, 4)).sum().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            model(torch.ones(2, 4))
    hook.remove()
    assert profiler.key_averages()
    assert left() == []
    manifest = recording.run().rank().manifest
    assert manifest.time_steps
    assert not [note for note in manifest.notes if "error" in note]
