"""Stacks after the recorded steps: when they are on, what they may cost, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from failing_allocator import MIB
from observing import put_back_code
from torch import nn

from gpuledger.collect.adapter import dynamo, frames, torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError
from gpuledger.collect.adapter.torch_entrances import evaluate, module_call
from gpuledger.collect.flight import late_stacks
from gpuledger.collect.flight.late_stacks import MOST_BLOCKS, MOST_OF_A_STEP, LateStacks, Taken
from gpuledger.collect.flight.stack_budget import FIRST_NS, GROWING_FRAC, MOST_NS, SHARE_FRAC, StackBudget
from gpuledger.collect.flight.step_counters import DeviceCounters

RING = 100_000
STACK_NS = 2_000


class Process:
    """A process with a GPU: time passes and blocks are allocated when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = self.allocations = self.compiled = 0
        self.allocated_bytes, self.blocks = 80 * MIB, 50
        self.kept_with: list[str | None] = []
        self.with_stack = 0
        self.ring_is_on = True
        monkeypatch.setattr(
            torch_private, "take_ring_stacks", lambda kept_with, _most: self.kept_with.append(kept_with)
        )
        monkeypatch.setattr(torch_private, "ring_is_on", lambda: self.ring_is_on)
        monkeypatch.setattr(frames, "stack_ns", lambda: STACK_NS)
        monkeypatch.setattr(dynamo, "compiled_frames", lambda: self.compiled)
        guard = Guard(lambda error: pytest.fail(str(error)))
        self.late = LateStacks(guard, RING, lambda: self.allocations, lambda: self.now_ns)
        self.late.begin()

    @property
    def takes(self) -> bool:
        return bool(self.kept_with) and self.kept_with[-1] is not None

    def allocate(self, count: int, each_ns: int = 10_000) -> None:
        self.with_stack += count if self.takes else 0
        self.allocations += count
        self.now_ns += count * (each_ns + (STACK_NS if self.takes else 0))

    def end_step(self) -> None:
        counters = DeviceCounters(0, self.allocated_bytes, 0, 0, self.blocks, self.allocations, 0)
        self.late.step_ended([counters, DeviceCounters(-1)])

    def train(self, model: nn.Module, between: int = 2, inside: int = 100) -> None:
        """One step: an input, a call of the model with its allocations, and the end."""
        self.allocate(between)
        model(1)
        self.allocate(inside)
        self.end_step()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    put_back_code(module_call(), evaluate())
    plain = module_call().__code__, evaluate().__code__
    found = Process(monkeypatch)
    yield found
    found.compiled = 0
    found.late.take_out()
    assert (module_call().__code__, evaluate().__code__) == plain


def test_stacks_are_taken_from_the_end_of_a_step_to_the_next_call(process: Process) -> None:
    model, plain = nn.Sequential(nn.Identity(), nn.Identity()), module_call().__code__
    process.end_step()
    assert process.kept_with == ["state"]
    process.allocate(3)
    model(1)
    assert process.kept_with == ["state", None]
    assert module_call().__code__ is plain  # modules inside cost nothing
    process.allocate(100)
    model(1)
    process.end_step()
    assert process.kept_with == ["state", None, "state"]
    assert process.late.stacks == process.with_stack == 3


def test_a_program_without_modules_is_sampled(process: Process) -> None:
    """Between two steps it calls nothing that ends the stacks."""
    steps = 2_000
    for _ in range(steps):
        process.allocate(1_000)
        process.end_step()
    assert 0.01 < process.with_stack / (steps * 1_000) < 0.1


@pytest.mark.parametrize(("between", "inside"), [(2, 100), (2, 3_000), (500, 500), (0, 20_000)])
def test_the_time_is_at_most_its_share(process: Process, between: int, inside: int) -> None:
    model = nn.Identity()
    for _ in range(1_000):
        process.train(model, between, inside)
    spent_ns = process.with_stack * STACK_NS
    one_step_ns = (between + inside) * STACK_NS
    assert spent_ns <= FIRST_NS + SHARE_FRAC * process.now_ns + 2 * one_step_ns
    assert process.with_stack > 0 or not between


def test_a_whole_step_is_taken_now_and_then_and_its_freed_blocks_too(process: Process) -> None:
    model = nn.Identity()
    for _ in range(2_000):
        process.train(model)
    assert process.kept_with.count("alloc") == process.late.whole_steps
    assert 5 < process.late.whole_steps < 20
    assert process.with_stack == process.late.stacks


def test_whole_steps_come_more_often_while_memory_grows(process: Process) -> None:
    model = nn.Identity()
    for step in range(2_000):
        process.allocated_bytes += step * MIB
        process.train(model)
    assert 20 < process.late.whole_steps < 80


def larger_step(process: Process, model: nn.Module, *shapes: tuple[int, ...]) -> list[int]:
    """Train with inputs of these shapes. Returns the number of stacks after the call of each step, once it is known."""
    taken = []
    for shape in shapes:
        before = process.late.stacks
        process.allocate(2)
        model([torch.zeros(shape), "no tensor"])
        process.allocate(100)
        process.end_step()
        taken.append(process.late.stacks - before)
    return taken


def test_a_step_with_a_larger_input_than_before_is_taken_whole(process: Process) -> None:
    process.end_step()
    process.train(nn.Identity())
    assert larger_step(process, nn.Identity(), (8, 10), (8, 10), (2, 3), (8, 20), (8, 20), (8, 19)) == [
        *(2, 2, 2),
        102,
        *(2, 2),
    ]


def test_no_larger_step_is_taken_whole_without_time_for_it(process: Process) -> None:
    process.end_step()
    process.train(nn.Identity())
    assert larger_step(process, nn.Identity(), (8, 10)) == [2]
    process.late.budget.spend(process.late.budget.left_ns() - 150 * STACK_NS)
    assert larger_step(process, nn.Identity(), (8, 20), (8, 40)) == [2, 2]


def test_after_steps_without_time_for_stacks_the_size_of_a_step_is_known(process: Process) -> None:
    model = nn.Identity()
    process.end_step()
    process.train(model)
    process.late.budget.spend(10 * MOST_NS)
    before = len(process.kept_with)
    for _ in range(20):
        process.train(model)
    assert process.kept_with[before:] == [None]  # those after the last step with time for them
    process.late.budget.spend(process.late.budget.left_ns() - 500 * STACK_NS)
    assert larger_step(process, model, (8, 10), (8, 20), (8, 40)) == [0, 2, 102]


def test_where_the_ring_is_not_kept_it_is_on_while_stacks_are_taken(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the beginning of a step that is taken whole: the order of its allocations is known."""
    changes: list[str] = []

    def change(on: bool, change: str) -> None:
        process.ring_is_on = on
        changes.append(change)

    process.ring_is_on = False
    monkeypatch.setattr(torch_private, "is_history_off", lambda: not process.ring_is_on)
    monkeypatch.setattr(torch_private, "start_ring", lambda _most, kept_with: change(True, f"start {kept_with}"))
    monkeypatch.setattr(torch_private, "take_ring_stacks", lambda kept_with, _most: change(True, f"take {kept_with}"))
    monkeypatch.setattr(torch_private, "stop_ring", lambda: change(False, "stop"))
    process.late.begin(keeps_events=False)
    process.end_step()
    process.train(nn.Identity())
    larger_step(process, nn.Identity(), (8, 10))
    changes.clear()
    larger_step(process, nn.Identity(), (8, 20))
    assert changes == ["take alloc", "take state"]
    nn.Identity()(1)
    assert changes[2:] == ["stop"]
    process.end_step()
    process.late.pause()
    assert changes[3:] == ["start state", "stop"]


def test_the_ring_keeps_few_stacks(process: Process) -> None:
    """What :data:`MOST_OF_A_STEP` allows, while memory grows with every step."""
    model, most = nn.Identity(), 0
    in_ring: list[int] = []
    for _ in range(400):
        process.allocated_bytes += 100 * MIB
        process.now_ns += 10_000_000_000  # the budget is always full
        before = process.late.taken is Taken.WHOLE_STEP
        process.train(model, 0, MOST_OF_A_STEP)
        in_ring = [*in_ring, MOST_OF_A_STEP * before][-RING // (2 * MOST_OF_A_STEP) :]
        most = max(most, sum(in_ring))
    assert 0 < most <= 30_000


def test_a_step_of_too_many_allocations_is_not_taken_whole(process: Process) -> None:
    model = nn.Identity()
    for _ in range(200):
        process.now_ns += 10_000_000_000
        process.train(model, 0, MOST_OF_A_STEP + 1)
    assert process.late.whole_steps == 0


def test_a_whole_step_that_does_not_end_is_given_up(process: Process) -> None:
    model = nn.Identity()
    while process.late.taken is not Taken.WHOLE_STEP:
        process.train(model)
    for _ in range(10):  # the training has ended, and something else goes on
        process.allocate(100)
        model(1)
    assert not process.takes
    assert process.with_stack < 1_000


def test_no_stacks_are_taken_while_there_are_many_blocks(process: Process) -> None:
    process.blocks = MOST_BLOCKS + 1
    process.end_step()
    assert not process.takes
    process.blocks = MOST_BLOCKS
    process.end_step()
    assert process.takes


def test_an_evaluation_has_stacks_until_the_model_trains_again(process: Process) -> None:
    model, loss = nn.Sequential(nn.Identity()), nn.Identity()
    process.train(model)
    model.eval()
    for _ in range(5):
        process.allocate(10)
        model(1)
        loss(1)
        process.allocate(10)
    assert process.with_stack == 100
    model.train()
    model(1)
    process.allocate(10)
    assert process.with_stack == 100


def test_an_evaluation_without_end_is_given_up(process: Process) -> None:
    model = nn.Identity()
    process.train(model)
    model.eval()
    for _ in range(1_000):
        model(1)
        process.allocate(100)
    assert not process.takes
    assert process.with_stack * STACK_NS < 2 * FIRST_NS


def test_compiled_programs_are_left_alone_unless_calls_are_observed_for_good(process: Process) -> None:
    process.compiled = 1
    process.end_step()
    assert not process.kept_with
    process.compiled = 0
    process.end_step()
    assert process.takes
    process.compiled = 1  # now, with the observed code: it stays
    nn.Identity()(1)
    assert not process.takes
    process.end_step()
    assert process.takes
    process.compiled = 0
    nn.Identity()(1)


def test_a_history_that_has_replaced_the_ring_is_not_changed(process: Process) -> None:
    process.end_step()
    process.ring_is_on = False
    before = list(process.kept_with)
    nn.Identity()(1)
    process.end_step()
    assert process.kept_with == before
    process.ring_is_on = True
    process.late.begin()
    process.end_step()
    assert process.kept_with == [*before, "state"]


def test_without_an_observer_of_calls_no_stacks_are_taken(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> None:
        raise CannotInstrumentError("replaced by another tool")

    monkeypatch.setattr(process.late._calls, "install", cannot)
    for _ in range(3):
        process.end_step()
    assert not process.takes


def test_after_taking_out_evaluations_change_nothing(process: Process) -> None:
    process.train(nn.Identity())
    process.late.take_out()
    nn.Identity().eval()
    assert process.late.taken is not Taken.EVALUATING


def test_the_budget_is_a_share_of_the_time_and_saves_up_to_a_limit() -> None:
    now_ns = 0
    budget = StackBudget(lambda: now_ns)
    assert budget.left_ns() == FIRST_NS
    budget.spend(FIRST_NS + 1_000)
    assert budget.left_ns() == -1_000
    now_ns = 1_000_000
    assert budget.left_ns() == SHARE_FRAC * 1_000_000 - 1_000
    budget.spend(budget.left_ns())
    budget.is_growing = True
    now_ns = 2_000_000
    assert budget.left_ns() == GROWING_FRAC * 1_000_000
    now_ns = 1 << 62
    assert budget.left_ns() == MOST_NS
    assert budget.spent_ns == FIRST_NS + round(SHARE_FRAC * 1_000_000)


def test_the_estimate_of_a_stack_is_more_than_it_takes() -> None:
    assert 1_500 <= frames.stack_ns() < 1_000_000
    assert late_stacks.MOST_BLOCKS < RING
