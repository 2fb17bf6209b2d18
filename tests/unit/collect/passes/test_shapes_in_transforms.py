"""Shapes of operators are not recorded where the profiler would keep memory of tensors that the program has freed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gpuledger.collect.adapter import kineto
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.user_profiler import UserProfiler
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.passes import program_times
from gpuledger.collect.passes.held_threads import HeldThreads
from gpuledger.collect.passes.program_times import AWAITED, ProgramTimes
from gpuledger.collect.passes.time_pass import TimePass

GUARD = Guard(lambda error: pytest.fail(str(error)))


@pytest.mark.parametrize("with_shapes", [False, True])
def test_the_profiler_keeps_what_a_transform_has_wrapped_until_it_stops(with_shapes: bool) -> None:
    """If this fails with a newer PyTorch, shapes can be recorded in all programs."""
    held: list[Any] = []

    def squared(x: torch.Tensor) -> torch.Tensor:
        result = x * x
        inner = torch._C._functorch.get_unwrapped(result)
        held.append(StorageWeakRef(inner.untyped_storage()))
        return result + 1

    with torch.autograd.profiler.profile(record_shapes=with_shapes):
        torch.func.vmap(squared)(torch.ones(4, 1000))
        assert held[0].expired() is not with_shapes
    assert held[0].expired()


class Profiler:
    """Stands in for Kineto on a GPU."""

    made: list[bool]

    def __init__(self, *, with_shapes: bool = True, all_threads: kineto.OthersWait | None = None) -> None:
        self.has_shapes, self.has_all_threads = with_shapes, all_threads is not None
        Profiler.made.append(with_shapes)

    def start(self) -> None:
        pass

    def stop(self, *, wait: bool) -> list[Any]:
        return []


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> StackTable:
    Profiler.made = []
    monkeypatch.setattr(kineto, "Profiler", Profiler)
    return StackTable()


def time_pass_of(directory: Path, stacks: StackTable | None) -> TimePass:
    journal = RankJournal(lambda: directory, [])
    others = HeldThreads(journal, set(), GUARD.absorbs)
    found = TimePass(journal, ModuleRegistry(), GUARD, lambda: None, others)
    if stacks is not None:
        found.use_lines(stacks)
    return found


def test_the_timing_measurement_has_shapes_unless_the_recorded_steps_have_transforms(
    stacks: StackTable, tmp_path: Path
) -> None:
    for has_transforms in (False, True):
        stacks.has_transforms = has_transforms
        time_pass = time_pass_of(tmp_path, stacks)
        time_pass.begin()
        assert not time_pass.keeps_tensors
        time_pass.end(keep=False)
    assert Profiler.made == [True, False]


def test_a_profile_without_shapes_records_the_calling_thread_alone(
    stacks: StackTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one of all threads could crash the program: see ``kineto.can_record_all_threads``."""
    monkeypatch.setattr(ModuleRegistry, "runs_in_other_threads", lambda _registry: True)
    monkeypatch.setattr(kineto, "can_record_all_threads", lambda: True)
    time_pass = time_pass_of(tmp_path, stacks)
    time_pass.begin()
    assert time_pass.has_all_threads
    time_pass.leave_out_shapes()
    assert Profiler.made == [True, False]
    assert not time_pass.has_all_threads
    assert time_pass.end(keep=False)


class Doubled(torch.autograd.Function):
    """Runs a transform inside an operator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, then: Callable[[], None]) -> torch.Tensor:
        result = torch.func.vmap(lambda one: one * 2)(x)
        then()
        return result


def test_a_program_without_steps_is_recorded_without_shapes_from_its_first_transform_on(
    stacks: StackTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_times, "why_no_time_pass", lambda _allocations: None)
    monkeypatch.setattr(program_times, "LiveObjects", lambda: SimpleNamespace(modules=list))
    soon: list[Callable[[], None]] = []
    monkeypatch.setattr(program_times, "call_soon", soon.append)

    def between_operators() -> None:
        while soon:
            soon.pop()()

    time_pass = time_pass_of(tmp_path, stacks)
    journal = RankJournal(lambda: tmp_path, [])
    watch = UserProfiler(lambda: None, lambda _error: False)
    program = ProgramTimes(time_pass, journal, watch, lambda: None, GUARD)
    program.install()
    data = torch.ones(4, 3)
    try:
        for _ in range(AWAITED + 10):
            data = data * 1
            between_operators()
        assert Profiler.made == [True]
        Doubled.apply(data, between_operators)  # type: ignore[no-untyped-call]
        assert Profiler.made == [True]  # it would crash if it began anew inside an operator
        for _ in range(8):
            torch.func.vmap(lambda x: x * 2)(data)
            between_operators()
        assert Profiler.made == [True, False]
        assert program.is_open
    finally:
        program.drop()
    assert not time_pass.is_open
