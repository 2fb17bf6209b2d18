"""When a GPU program without modules reads the bytes of its context: after the first operator that uses the GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.user_profiler import UserProfiler
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes import program_times
from gpuledger.collect.passes.program_times import AWAITED, ProgramTimes


@pytest.mark.parametrize(("first_on_gpu", "seen_at"), [(1, 1), (2, 2), (5, 8), (1_000, 32)])
def test_the_first_operator_is_the_first_one_with_memory_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_on_gpu: int, seen_at: int
) -> None:
    done: list[None] = []
    seen: list[int] = []
    begun: list[int] = []
    monkeypatch.setattr(program_times, "call_soon", lambda action: action())
    monkeypatch.setattr(torch_private, "has_used_gpu", lambda: len(done) >= first_on_gpu)
    monkeypatch.setattr(ProgramTimes, "_begin", lambda _self: begun.append(len(done)))
    time_pass: Any = SimpleNamespace(keeps_tensors=False, is_in_operator=False, stop_counting=lambda: True)
    watch = UserProfiler(lambda: None, lambda _error: False)
    guard = Guard(lambda error: pytest.fail(str(error)))
    program = ProgramTimes(time_pass, RankJournal(lambda: tmp_path, []), watch, lambda: seen.append(len(done)), guard)
    for _ in range(AWAITED):
        done.append(None)
        program._count_one()
    assert (seen, begun) == ([seen_at], [AWAITED])
