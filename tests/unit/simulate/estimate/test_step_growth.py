"""Memory that grows with every step is followed until that is certain. What keeps it is named, with its limit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
import torch

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.fit import Assumed, with_full_buffers
from gpuledger.simulate.estimate.growth import GrowthWatch, describe_growth
from gpuledger.simulate.estimate.step_plan import StepPlan
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
KIB = 1024


def steps_of(device: SimulatedDevice, plan: StepPlan, step: Callable[[], object]) -> int:
    """Return how many steps are followed."""
    with in_place(device, lambda _: None):
        for seen in range(1, 100):
            step()
            if plan.is_last(seen):
                return seen
    return 0


def new_plan() -> tuple[SimulatedDevice, StepPlan]:
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    return device, StepPlan(None, device)


def test_a_buffer_with_a_limit_is_named_and_the_upper_bound_has_it_full() -> None:
    device, plan = new_plan()
    replay: deque[tuple[torch.Tensor, int]] = deque(maxlen=105)
    losses: list[float] = []

    def step() -> None:
        losses.append(0.5)
        for action in range(3):
            replay.append((torch.zeros(KIB, device="cuda"), action))

    weights: list[torch.Tensor] = []
    with in_place(device, lambda _: None):
        weights.append(torch.zeros(1 << 23, device="cuda"))
    assert steps_of(device, plan, step) == 5
    assert plan.growth is not None
    assert plan.growth.bytes_per_step == 3 * 4 * KIB
    assert (plan.growth.steps_left, plan.growth.left_bytes) == (30, 90 * 4 * KIB)
    (said,) = describe_growth(device, plan.growth)
    assert "each step keeps 12.0 KiB more in replay (" in said
    assert "15 of at most 105 elements. It will be full after about 30 more steps, with 360.0 KiB more" in said
    peak_bytes = device.counters.peak_reserved_bytes
    outcome = {"still_to_come_bytes": plan.growth.left_bytes, "peak_reserved_bytes": peak_bytes}
    assert with_full_buffers(None, outcome) == Assumed(peak_bytes, peak_bytes + 360 * KIB)
    assert with_full_buffers(Assumed(1, 2), outcome) == Assumed(1, 2 + 360 * KIB)
    assert with_full_buffers(None, {**outcome, "still_to_come_bytes": 0}) is None


def test_a_list_without_a_limit_is_named_with_the_steps_until_the_gpu_is_full() -> None:
    device, plan = new_plan()
    results: list[torch.Tensor] = []
    assert steps_of(device, plan, lambda: results.append(torch.zeros(KIB, device="cuda"))) >= 5
    assert plan.growth is not None
    assert (plan.growth.steps_left, plan.growth.left_bytes) == (None, 0)
    (said,) = describe_growth(device, plan.growth)
    assert "each step keeps 4.0 KiB more in results (" in said
    assert "1,000 more steps need 3.9 MiB more, and the GPU will be full after about" in said


def test_elements_with_few_values_in_large_storages_are_told() -> None:
    device, plan = new_plan()
    rows: list[torch.Tensor] = []
    steps_of(device, plan, lambda: rows.append(torch.zeros(64, 256 * KIB, device="cuda")[0]))
    assert plan.growth is not None
    (said,) = describe_growth(device, plan.growth)
    assert "), the elements of which have 1.0 MiB of values in storages of 64.0 MiB each." in said


@pytest.mark.parametrize(
    ("sizes_kib", "is_growth"),
    [
        ([9, 2, 3, 5, 6, 9], False),  # batches of varied sizes
        ([9, 20, 30, 41, 50], True),
        ([9, 20, 32, 33, 35], False),
        ([9, 20, 32, 33, 35, 45, 46, 60, 62], True),
    ],
)
def test_growth_is_certain_after_more_steps_if_it_is_uneven(sizes_kib: list[int], *, is_growth: bool) -> None:
    device, _ = new_plan()
    watch = GrowthWatch(device)
    held: list[torch.Tensor] = []
    with in_place(device, lambda _: None):
        for step, size in enumerate(sizes_kib, 1):
            held[:] = [torch.zeros(size * KIB, device="cuda")]
            watch.see(step)
    assert watch.is_certain is is_growth
    assert (watch.found(len(sizes_kib)) is not None) is is_growth


def test_uneven_growth_takes_more_steps_to_be_certain() -> None:
    device, plan = new_plan()
    held: list[torch.Tensor] = []
    sizes = iter([3, 9, 1, 4, 2, 8] * 20)
    assert steps_of(device, plan, lambda: held.append(torch.zeros(next(sizes) * KIB, device="cuda"))) >= 9
    assert plan.growth is not None
    assert plan.growth.holder is not None
    assert plan.growth.holder.name == "held"


def test_little_growth_is_not_told() -> None:
    device, plan = new_plan()
    kept: list[torch.Tensor] = []
    with in_place(device, lambda _: None):
        kept.append(torch.zeros(1 << 28, device="cuda"))
    steps_of(device, plan, lambda: kept.append(torch.zeros((), device="cuda")))
    assert plan.growth is not None
    assert describe_growth(device, plan.growth) == []
