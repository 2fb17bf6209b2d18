"""How many steps an estimate follows: three alike ones, or until the largest of changing inputs was seen."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch.utils.data import DataLoader

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.step_plan import MOST_CALLS, MOST_STEPS, SLOW_LOADER, StepPlan
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.loop_lengths import LoopLengths

pytestmark = pytest.mark.torch


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(find_card("h200"), CachingAllocator())


def followed(plan: StepPlan, device: SimulatedDevice, sizes: Sequence[int], once_bytes: int = 0) -> int:
    """Return the number of steps that a plan follows, of steps that request these bytes, and the first one others."""
    if once_bytes:
        device.malloc(once_bytes, "optimizer")
    for seen, size in enumerate(sizes, 1):
        device.allocator.free(device.malloc(size, "step"))
        if plan.is_last(seen):
            return seen
    return len(sizes)


def test_three_steps_are_enough_if_they_are_alike(device: SimulatedDevice) -> None:
    plan = StepPlan(None, device)
    assert followed(plan, device, [100, 100, 100, 100, 500], once_bytes=900) == 3
    assert not plan.varied


def test_a_fixed_number_is_kept(device: SimulatedDevice) -> None:
    assert followed(StepPlan(2, device), device, [900, 100, 300, 100]) == 2


def test_changing_steps_are_followed_until_none_is_larger_for_eight(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 5)
    plan = StepPlan(None, device)
    assert followed(plan, device, [900, 100, 110, 160, *[120] * 20]) == 4 + 8
    assert plan.varied
    assert followed(StepPlan(None, device), device, range(100, 10_000, 100)) == MOST_STEPS


def test_changing_steps_are_followed_further_while_that_is_fast(device: SimulatedDevice) -> None:
    """They may reserve more, because they leave gaps between blocks."""
    plan = StepPlan(None, device)
    assert followed(plan, device, [900, 100, 110, 160, *[120] * 40]) == MOST_STEPS


def test_inputs_of_a_random_size_differ_if_two_are_alike(device: SimulatedDevice) -> None:
    """The second and third one of the longest of some texts, for example. The first step tells that sizes change."""
    plan = StepPlan(None, device)
    assert followed(plan, device, [90_000, 100_000, 100_000, *[95_000] * 40], once_bytes=1000) == MOST_STEPS
    assert plan.varied


@pytest.mark.parametrize(
    ("first", "later", "varied"),
    [
        ((100_000, 1000), (100_000, 1100), False),
        ((100_000,), (100_000, 400_000), False),
        ((100_000, 400_000), (100_000,), False),
        ((100_000, 40_000), (100_000, 50_000), True),
    ],
    ids=["few others", "work between steps", "data before the first step", "other inputs"],
)
def test_the_first_step_had_other_inputs_if_many_sizes_are_replaced(
    first: Sequence[int], later: Sequence[int], varied: bool, device: SimulatedDevice
) -> None:
    plan = StepPlan(None, device)
    for seen in (1, 2, 3):
        for size in first if seen == 1 else later:
            device.allocator.free(device.malloc(size, "step"))
        assert plan.is_last(seen) == (seen == 3 and not varied)
    assert plan.varied == varied


def test_steps_that_differ_by_little_are_followed_too(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of random sizes can be nearly alike in two steps."""
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 5)
    plan = StepPlan(None, device)
    sizes = [mib << 20 for mib in (900, 1000, 1001, 1400, *[1000] * 20)]
    assert followed(plan, device, sizes) == 4 + 8
    assert plan.varied


class Lines(torch.utils.data.Dataset[torch.Tensor]):
    """Lines with the given lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.lengths[index]:
            raise OSError("no such file")
        return torch.zeros(self.lengths[index])


@pytest.fixture
def patches() -> Iterator[Patches]:
    made = Patches()
    yield made
    made.undo()


def train(plan: StepPlan, device: SimulatedDevice, loader: Any) -> int:
    seen = 0
    for batch in loader:
        seen += 1
        device.allocator.free(device.malloc(batch.numel() * 4, "step"))
        if plan.is_last(seen):
            break
    return seen


def test_the_largest_batch_of_a_loader_is_reached(
    device: SimulatedDevice, patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 5)
    plan = StepPlan(None, device)
    plan.install(patches)
    lengths = [10, 10, 10, 10, 30, 10, 20, 40, *[10] * 50]
    loader = DataLoader(Lines(lengths), batch_size=1)
    assert train(plan, device, loader) == 8
    assert [int(batch.numel()) for batch in loader] == lengths


def test_batches_of_different_sizes_are_followed_further_while_that_is_fast(
    device: SimulatedDevice, patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may reserve more, because they leave gaps between blocks. Those that are alike do not."""
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 15)
    plan = StepPlan(None, device)
    plan.install(patches)
    assert train(plan, device, DataLoader(Lines([10, 40, *[10, 20] * 20]), batch_size=1)) == 15
    assert device.counters.alloc_count == 15
    alike = StepPlan(None, device)
    device.counters.alloc_count = 0
    assert train(alike, device, DataLoader(Lines([10] * 40), batch_size=1)) == 3


def sizes_given(plan: StepPlan, device: SimulatedDevice, loader: Any, most: int = 10_000) -> list[int]:
    """Return the sizes of the batches that a training gets, of at most so many in an epoch."""
    got: list[int] = []
    while True:
        for batch in itertools.islice(loader, most):
            got.append(int(batch.numel()))
            device.allocator.free(device.malloc(batch.numel() * 4, "step"))
            if plan.is_last(len(got)):
                return got


@pytest.mark.parametrize("requests", [5, 20_000])
def test_the_largest_of_all_batches_follow_the_first_ones(
    requests: int, device: SimulatedDevice, patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest batch can be one of the last, and those of nearly its size leave gaps between blocks."""
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", requests)
    plan, first = StepPlan(None, device), 5 if requests == 5 else MOST_STEPS
    plan.install(patches)
    lengths = [10, 20, 30, *[10] * 30, 95, 50, *[10] * 100, 99, 80, 100, 91, 10]
    assert sizes_given(plan, device, DataLoader(Lines(lengths), batch_size=1)) == [*lengths[:first], 95, 99, 100, 91]
    assert plan.largest_of == (4, len(lengths) - first)
    assert plan.has_largest


@pytest.mark.parametrize(
    ("lengths", "limit", "has"),
    [
        ([10, 30, *[10] * 22], 10_000, True),
        ([10, 30, *[10] * 50], 10_000, True),
        ([10, 30, *[10] * 50], 30, False),
        ([10] * 50, 10_000, False),
    ],
    ids=["few", "many", "not all read", "alike"],
)
def test_whether_a_step_had_the_largest_batch_is_known_if_all_were_read(
    lengths: list[int],
    limit: int,
    has: bool,
    device: SimulatedDevice,
    patches: Patches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuledger.simulate.estimate.steps.batches_ahead._MORE_BATCHES", limit)
    plan = StepPlan(None, device)
    plan.install(patches)
    train(plan, device, DataLoader(Lines(lengths), batch_size=1))
    assert plan.has_largest == has


@pytest.mark.parametrize("lengths", [[10] * 3, [10, 10, 20]], ids=["alike", "the last one is larger"])
def test_an_epoch_with_as_many_batches_as_are_needed(
    lengths: list[int], device: SimulatedDevice, patches: Patches
) -> None:
    """No batch is left from which the largest ones could be taken."""
    plan = StepPlan(None, device)
    plan.install(patches)
    assert sizes_given(plan, device, DataLoader(Lines(lengths), batch_size=1))[:3] == lengths
    assert plan.largest_of is None


def test_at_most_eight_of_the_largest_batches_follow(device: SimulatedDevice, patches: Patches) -> None:
    plan = StepPlan(None, device)
    plan.install(patches)
    lengths = [*range(1, MOST_STEPS + 1), *[98] * 10, 100, *[99] * 3]
    got = sizes_given(plan, device, DataLoader(Lines(lengths), batch_size=1))
    assert got[MOST_STEPS:] == [98] * 4 + [100] + [99] * 3


def test_batches_that_are_as_large_follow_few_steps(
    device: SimulatedDevice, patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gaps that they leave are not known yet. Of alike batches, they are."""
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 5)
    plan = StepPlan(None, device)
    plan.install(patches)
    lengths = [10, 20, 30, *[10] * 30, 29, 12, 28]
    loader = DataLoader(Lines(lengths), batch_size=1)
    assert sizes_given(plan, device, loader) == [10, 20, 30, 10, 10, 29, 28]
    smaller = StepPlan(None, device)
    smaller.install(patches)
    assert sizes_given(smaller, device, DataLoader(Lines([10, 20, 30, *[10] * 30]), batch_size=1)) == lengths[:3]


@pytest.mark.parametrize("later", [30, 28], ids=["as large", "smaller"])
def test_batches_that_are_no_larger_do_not_follow_many_steps(
    later: int, device: SimulatedDevice, patches: Patches
) -> None:
    plan = StepPlan(None, device)
    plan.install(patches)
    lengths = [10, 20, 30, *[10] * 30, *[later] * 5]
    assert len(sizes_given(plan, device, DataLoader(Lines(lengths), batch_size=1))) == MOST_STEPS
    assert plan.largest_of is None


def test_the_largest_batches_are_not_waited_for_in_a_later_epoch(device: SimulatedDevice, patches: Patches) -> None:
    """The script can end its epochs before all batches were given."""
    plan = StepPlan(None, device)
    plan.install(patches)
    lengths = [10, 20, 30, *[10] * 30, 95, 50, *[96] * 5]
    got = sizes_given(plan, device, DataLoader(Lines(lengths), batch_size=1), most=MOST_STEPS + 2)
    assert got == [*lengths[:MOST_STEPS], 95, 96, *lengths[:1]]


class Rest:
    """Stands for the rest of a program in which nothing ends a loop."""

    began = False
    is_open = True

    def __init__(self) -> None:
        self.lengths = LoopLengths()


@pytest.mark.parametrize(
    ("lengths", "least_bytes", "patience_s", "read"),
    [
        ([4] * 30, 16, 60.0, 24),
        ([4] * 30, 17, 60.0, 60),
        ([4] * 30, 17, -1.0, 3),
        ([4, *[5] * 29], 16, 60.0, 60),
    ],
    ids=["alike", "alike and small", "alike and slow", "different"],
)
def test_batches_that_are_alike_are_read_once_in_the_rest(
    lengths: list[int],
    least_bytes: int,
    patience_s: float,
    read: int,
    device: SimulatedDevice,
    patches: Patches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuledger.simulate.estimate.steps.batches_ahead._ALIKE_BYTES", least_bytes)
    monkeypatch.setattr("gpuledger.simulate.estimate.steps.batches_ahead._PATIENCE_S", patience_s)
    plan, rest = StepPlan(None, device), Rest()
    plan.install(patches, rest)  # type: ignore[arg-type]
    lines = Lines(lengths)
    got: list[int] = []
    monkeypatch.setattr(Lines, "__getitem__", lambda lines, index: got.append(index) or torch.zeros(lengths[index]))
    loader = DataLoader(lines, batch_size=1)
    batches = iter(loader)
    next(batches)
    rest.began = True
    assert 1 + len(list(batches)) == 30
    assert len(list(loader)) == 30
    assert len(got) == read


class Clock:
    """A clock on which each reading of a batch takes the given time."""

    def __init__(self, batch_s: float) -> None:
        self.batch_s, self.asked = batch_s, 0

    def monotonic(self) -> float:
        self.asked += 1
        return self.batch_s * (self.asked // 2)


@pytest.mark.parametrize(
    ("batch_s", "largest_of", "is_said"),
    [(0.0001, (1, 76), False), (0.2, (1, 76), False), (100.0, None, True)],
    ids=["fast", "slow machine", "slow loader"],
)
def test_the_batches_that_are_read_ahead_do_not_depend_on_the_speed_of_the_machine(
    batch_s: float,
    largest_of: tuple[int, int] | None,
    is_said: bool,
    device: SimulatedDevice,
    patches: Patches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a loader that takes very long has fewer of them, and a note says so."""
    monkeypatch.setattr("gpuledger.simulate.estimate.steps.batches_ahead.time", Clock(batch_s))
    plan = StepPlan(None, device)
    plan.install(patches)
    lengths = [10, *[20, 10] * 40, 95, *[10] * 18]
    assert len(sizes_given(plan, device, DataLoader(Lines(lengths), batch_size=1))) == MOST_STEPS + bool(largest_of)
    assert plan.largest_of == largest_of
    assert (SLOW_LOADER in plan.describe()) == is_said


def test_an_error_of_a_later_batch_is_raised_when_the_program_gets_there(
    device: SimulatedDevice, patches: Patches
) -> None:
    plan = StepPlan(None, device)
    plan.install(patches)
    batches = iter(DataLoader(Lines([5, 6, 0]), batch_size=1))
    assert [int(next(batches).numel()) for _ in range(2)] == [5, 6]
    with pytest.raises(OSError, match="no such file"):
        next(batches)
    assert len(list(DataLoader(Lines([]), batch_size=1))) == 0


def test_batches_of_other_sizes_are_no_growth(device: SimulatedDevice) -> None:
    """The last batch of a step is still there when the step ends."""
    plan, batch = StepPlan(None, device), 0
    for seen, size in enumerate([9000, 10_000, 12_000, 11_000, 12_500, *[5000] * 20], 1):
        batch, before = device.malloc(size, "batch"), batch
        if before:
            device.allocator.free(before)
        if plan.is_last(seen):
            break
    assert plan.growth is None


def new_counter() -> StepCounter:
    def ignore(*_: object) -> None:
        """Take anything."""

    return StepCounter(Guard(ignore), before_optimizer=ignore, after_optimizer=ignore, ended=ignore)


def test_an_optimizer_that_steps_later_is_waited_for(device: SimulatedDevice) -> None:
    """As that of a GAN's generator, of which every fifth step of the critic has one."""
    plan = StepPlan(None, device)
    said: list[str] = []
    with in_place(device, said.append, install_more=lambda patches, _: plan.install(patches)):
        critic, generator = (torch.nn.Linear(4, 4, device="cuda") for _ in range(2))
        judges, makes = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
        others = torch.optim.SGD(critic.parameters()), torch.optim.SGD(torch.nn.Linear(4, 4).parameters())
        judges.step()
        assert not any(plan.is_last(seen) for seen in range(1, MOST_STEPS))
        assert plan.describe() == [], "the program could end by itself"
        assert plan.is_last(MOST_STEPS)
        assert plan.describe() == [
            "Adam with 2 parameters took no step in the first 24 steps, so its state is not included. Simulate more "
            "steps with --steps N."
        ]
        makes.step()
        assert plan.is_last(4)
        assert plan.describe() == []
        assert len(others) == 2, "of the same parameters, and not on the GPU"


@pytest.mark.parametrize("trained", [False, True])
def test_calls_that_keep_more_are_followed_further_than_steps(device: SimulatedDevice, trained: bool) -> None:
    """As text generation, of which each call adds to the cache of keys and values."""
    plan = StepPlan(None, device)
    plan.counter = new_counter()
    plan.counter.trained = trained
    ended = next(seen for seen in range(1, 5000) if device.malloc(1 << 20, "cache") and plan.is_last(seen))
    assert ended == (MOST_STEPS if trained else MOST_CALLS)
    assert plan.longest == MOST_CALLS
    assert StepPlan(3, device).longest == 3


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [(40, 40), (101, 30), (None, 30)],
    ids=["the end is near", "the end is far", "without an end"],
)
def test_calls_that_keep_more_are_followed_to_the_end_of_their_loop(
    tokens: int | None, steps: int, device: SimulatedDevice, patches: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last call has the largest cache, also if the many requests of memory are those of a large model."""
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS", 30)
    monkeypatch.setattr("gpuledger.simulate.estimate.step_plan._MOST_REQUESTS_TO_END", 100)
    plan, rest = StepPlan(None, device), Rest()
    plan.install(patches, rest)  # type: ignore[arg-type]
    plan.counter = new_counter()
    rest.lengths.begins(1, 10, 0, None, sys._getframe())
    rest.lengths.has(1, iter(()) if tokens is None else range(tokens))
    seen = 0
    while tokens is None or seen < tokens:
        rest.lengths.iterates(1, seen)
        seen += 1
        device.malloc(1 << 20, "cache")
        if plan.is_last(seen):
            break
    assert seen == steps
    assert device.counters.alloc_count == steps
