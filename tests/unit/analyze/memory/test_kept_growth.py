"""Tensors that a container keeps are growth as long as they become more until the last step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuledger.analyze.memory.kept_growth import KeptTensors, find_kept_tensors
from gpuledger.model.flight_facts import CensusFacts, Holder

STEPS = np.arange(8, 301)
FIRST, LAST = 17, 201
KIB = 1 << 10


def found_in(
    tensors: NDArray[np.int64], *, element_bytes: int = 16 * KIB, share: float = 1.0, until: int = 300
) -> KeptTensors | None:
    """Return what is found with some numbers of tensors, of which a list had ``share`` at a census after step 201."""
    more = round(share * (tensors[STEPS == LAST][0] - tensors[STEPS == FIRST][0]))
    kept = Holder(kind="list", name="kept", length=more, more=more, element_bytes=element_bytes, element_tensors=1.0)
    first = CensusFacts(step=FIRST, took_ns=1, is_complete=True)
    last = CensusFacts(step=LAST, took_ns=1, is_complete=True, kept=kept if more > 0 else None)
    counts = tuple(zip(STEPS.tolist(), (9000 + tensors).tolist(), strict=True))
    rank: Any = SimpleNamespace(manifest=SimpleNamespace(censuses=(first, last), tensor_counts=counts))
    return find_kept_tensors(rank, until)


@pytest.mark.parametrize(("size", "found"), [(16 * KIB, True), (2 * KIB, False), (64, False)])
def test_a_tensor_of_each_step_is_growth_if_it_is_no_loss(size: int, found: bool) -> None:
    """2 KiB are 0.6 MiB in all."""
    kept = found_in(STEPS, element_bytes=size)
    assert (kept is not None) is found
    if kept is not None:
        assert (kept.step_bytes, kept.since_step) == (size, FIRST)


@pytest.mark.parametrize("steps", [10, 20, 40])
def test_tensors_of_each_evaluation_are_growth(steps: int) -> None:
    kept = found_in(10 * (STEPS // steps))
    assert kept is not None
    assert kept.step_bytes == pytest.approx(16 * KIB * 10 / steps, rel=0.25)


def test_tensors_that_begin_late_are_growth_from_then_on() -> None:
    kept = found_in(np.maximum(STEPS - 120, 0))
    assert kept is not None
    assert kept.since_step == pytest.approx(120, abs=12)
    assert kept.step_bytes == pytest.approx(16 * KIB, rel=0.15)


@pytest.mark.parametrize(
    "tensors",
    [
        np.minimum(STEPS, 240),  # a cache that is full after the last census
        np.minimum(STEPS, 150),
        STEPS % 250,  # the outputs of an epoch that has ended after the last census
        STEPS % 50,
        np.where(STEPS < 230, STEPS, 0),
        np.sqrt(STEPS * 1000).astype(int),  # what fills ever slower
        STEPS * 0,
    ],
)
def test_what_ends_or_begins_again_is_no_growth(tensors: NDArray[np.int64]) -> None:
    assert found_in(tensors) is None


@pytest.mark.parametrize(("until", "found"), [(0, False), (100, False), (230, True)])
def test_what_follows_a_failed_request_does_not_count(until: int, found: bool) -> None:
    tensors = np.where(STEPS <= 230, STEPS, 0)
    assert (found_in(tensors, until=until) is not None) is found


@pytest.mark.parametrize(("full_at", "found"), [(10**9, True), (230, False), (265, False)])
def test_losses_beside_a_list_do_not_hide_that_it_is_full(full_at: int, found: bool) -> None:
    assert (found_in(2 * STEPS + np.minimum(STEPS, full_at), share=0.334) is not None) is found


def test_a_list_with_few_of_the_new_tensors_is_no_growth() -> None:
    """What the others do would decide whether it has stopped to grow."""
    assert found_in(STEPS * 10, share=0.1) is None
