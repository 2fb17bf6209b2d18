"""Numbers of tensors are read at every step, and at fewer when they become many."""

from __future__ import annotations

import itertools

import pytest
import torch

from gpuledger.collect.flight import tensor_count
from gpuledger.collect.flight.tensor_count import MOST_COUNTS, ReferenceCounts

pytestmark = pytest.mark.torch


def test_each_tensor_counts_by_one() -> None:
    counts, kept = ReferenceCounts(), []
    for step in range(8, 20):
        kept.append(torch.ones(2))
        counts.step_ended(step)
    assert [step for step, _ in counts.counts] == list(range(8, 20))
    assert [number - counts.counts[0][1] for _, number in counts.counts] == list(range(12))


@pytest.mark.parametrize("steps", [100, 255, 256, 1000, 100_000])
def test_a_long_program_has_counts_until_its_end(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(tensor_count, "referenced_tensors", numbers.__next__)
    counts = ReferenceCounts()
    for step in range(1, steps + 1):
        counts.step_ended(step)
    found = [step for step, _ in counts.counts]
    distances = {after - before for before, after in itertools.pairwise(found)}
    assert len(distances) == 1
    assert len(found) >= min(steps, MOST_COUNTS // 2 - 1)
    assert len(found) < MOST_COUNTS
    assert found[-1] > steps - max(distances)
    assert next(numbers) < MOST_COUNTS + MOST_COUNTS * steps.bit_length() / 2


def test_nothing_is_read_where_python_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_count, "referenced_tensors", lambda: None)
    counts = ReferenceCounts()
    counts.step_ended(1)
    assert counts.counts == []
