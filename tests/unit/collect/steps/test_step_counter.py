"""Which calls and marks are steps; what a program with several models, or with none that is called, counts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gpuledger
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.outermost_modules import versions_of
from gpuledger.collect.memory.known_objects import KnownObjects
from gpuledger.collect.steps import step_counter
from gpuledger.collect.steps.call_steps import HELD_CALLS, SWITCH_CALLS, FollowedModule, HeldCalls
from gpuledger.collect.steps.compiled_steps import CompiledSteps
from gpuledger.collect.steps.followed_optimizer import SWITCH_STEPS
from gpuledger.collect.steps.named_calls import NamedCalls, explain_steps
from gpuledger.collect.steps.step_counter import StepCounter

pytestmark = pytest.mark.torch
FIRST, SECOND, LARGER = 0, 1, 2


def followed_after(calls: list[int], containers: dict[int, int] | None = None) -> int:
    registry = ModuleRegistry()
    registry.container_of = lambda module_id: (containers or {}).get(module_id, -1)  # type: ignore[method-assign]
    registry.gives_way = lambda module_id: False  # type: ignore[method-assign]
    followed = FollowedModule(registry)
    for module_id in calls:
        followed.begins(module_id)
    return followed.module_id


def test_the_first_module_is_followed() -> None:
    assert followed_after([FIRST, SECOND, LARGER, FIRST]) == FIRST


def test_a_module_replaces_a_part_of_itself_and_no_other() -> None:
    assert followed_after([FIRST, SECOND, LARGER], {FIRST: LARGER}) == LARGER
    assert followed_after([FIRST, SECOND], {FIRST: LARGER}) == FIRST


def test_a_module_that_is_called_much_more_often_is_followed() -> None:
    assert followed_after([FIRST] + [SECOND] * SWITCH_CALLS) == FIRST
    assert followed_after([FIRST] + [SECOND] * (SWITCH_CALLS + 1)) == SECOND
    assert followed_after(([FIRST] + [SECOND] * SWITCH_CALLS) * 3) == FIRST


class Counted:
    """A counter that is told of calls, and the steps that it counted."""

    def __init__(self, *, awaits_training: bool = False, step_on: str = "auto", fills: int = 0) -> None:
        self.rows: list[tuple[str, int]] = []
        self.awaits_training = awaits_training
        self.version, self.fills = 0, fills
        """The weights' version, and the number of next calls that change it."""
        held = HeldCalls(lambda: self.awaits_training, lambda number, *_: self.rows.append(("held", number)))
        self.counter = StepCounter(
            Guard(_raise),
            before_optimizer=lambda _: None,
            after_optimizer=lambda _: None,
            ended=lambda kind, *_: self.rows.append((kind, self.counter.seen)),
            weights_version=lambda: (1, self.version),
            step_on=step_on,
            held=held,
        )
        self.counter.install()

    def call(self, times: int = 1) -> None:
        for _ in range(times):
            self.counter.call_began(FIRST, lambda: False)
            self.version += self.fills > 0
            self.fills -= 1
            self.counter.call_ended(FIRST, lambda: False)


def _raise(error: BaseException) -> None:
    raise error


class Probing(nn.Module):
    """A module that calls a part of itself while it is made."""

    def __init__(self, counted: Counted, times: int) -> None:
        super().__init__()
        with torch.no_grad():
            counted.call(times)


@pytest.mark.parametrize(("times", "steps"), [(1, 0), (SWITCH_CALLS + 3, 3)])
def test_calls_in_the_constructor_of_a_module_are_no_steps(times: int, steps: int) -> None:
    """As of the features of a picture, of which the next layer needs the size. A constructor that goes on does work."""
    counted = Counted()
    Probing(counted, times)
    assert counted.counter.seen == steps
    with torch.no_grad():
        counted.call(2)
    counted.counter.remove()
    assert counted.rows == [("call", number) for number in range(1, steps + 3)]


def test_held_calls_are_steps_if_no_training_follows() -> None:
    counted = Counted(awaits_training=True)
    with torch.no_grad():
        counted.call(3)
        assert counted.rows == []
        counted.awaits_training = False
        counted.call()
    counted.counter.remove()
    assert counted.rows == [("held", 1), ("held", 2), ("held", 3), ("call", 4)]


def test_held_calls_are_steps_at_the_end_of_the_program() -> None:
    counted = Counted(awaits_training=True)
    with torch.no_grad():
        counted.call(2)
    counted.counter.end_with_program(lambda: False)
    counted.counter.remove()
    assert counted.rows == [("held", 1), ("held", 2)]


def test_only_a_limited_number_of_calls_is_held() -> None:
    counted = Counted(awaits_training=True)
    with torch.no_grad():
        counted.call(HELD_CALLS + 1)
    counted.counter.remove()
    assert counted.rows[-1] == ("call", HELD_CALLS + 1)


def test_calls_that_fill_weights_are_held() -> None:
    """As a lazy module does, in a call for each part that has no weights yet."""
    counted = Counted(fills=3)
    with torch.no_grad():
        counted.call(3)
        assert counted.rows == []
        counted.call()
    counted.counter.remove()
    assert counted.rows == [("held", 1), ("held", 2), ("held", 3), ("call", 4)]


def test_a_lazy_weight_that_gets_its_shape_is_filled() -> None:
    """On a simulated GPU, nothing writes the weight then."""
    lazy = nn.LazyLinear(2, bias=False)
    before = versions_of([lazy])
    assert isinstance(lazy.weight, nn.UninitializedParameter)
    lazy.weight.materialize((2, 4))
    after = versions_of([lazy])
    assert before[0] == after[0]
    assert before != after


def test_calls_that_always_change_weights_are_steps() -> None:
    counted = Counted(fills=SWITCH_CALLS + 9)
    with torch.no_grad():
        counted.call(SWITCH_CALLS + 3)
    counted.counter.remove()
    assert counted.rows[-2:] == [("call", SWITCH_CALLS + 2), ("call", SWITCH_CALLS + 3)]


def test_held_calls_are_dropped_by_a_training() -> None:
    counted = Counted(awaits_training=True)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with torch.no_grad():
        counted.call(2)
    optimizer.step()
    counted.counter.end_with_program(lambda: False)
    counted.counter.remove()
    assert counted.rows == [("optimizer", 1)]


def test_the_last_call_with_gradients_ends_with_the_program_and_only_once() -> None:
    counted = Counted()
    counted.call(3)
    assert counted.rows == [("call", 1), ("call", 2)]
    counted.counter.end_with_program(lambda: False)
    counted.counter.end_with_program(lambda: False)
    assert counted.rows[2:] == [("held", 3)]
    counted.call(2)
    counted.counter.remove()
    counted.counter.end_with_program(lambda: False)
    assert counted.counter.seen == 4


def test_marks_are_ignored_where_something_else_is_a_step() -> None:
    counted = Counted(step_on="module")
    counted.counter.expect_marks()
    counted.counter.mark()
    with torch.no_grad():
        counted.call(2)
    counted.counter.remove()
    assert counted.rows == [("call", 1), ("call", 2)]


def test_a_model_that_was_not_called_yet_awaits_a_training() -> None:
    registry, model, helper = ModuleRegistry(), nn.Linear(2, 2), nn.Linear(2, 2)
    registry.register(model)
    registry.note_called(registry.register(helper))
    assert registry.awaits_first_call()
    model.eval()
    assert not registry.awaits_first_call()
    model.train().requires_grad_(False)
    assert not registry.awaits_first_call()
    model.requires_grad_(True)
    registry.note_called(registry.register(model))
    assert not registry.awaits_first_call()


def test_a_larger_model_is_followed_from_its_first_call_on() -> None:
    registry, draft, target, part = ModuleRegistry(), nn.Linear(2, 2), nn.Linear(4, 4), nn.Linear(8, 8)
    followed, small, large = FollowedModule(registry), registry.register(draft), registry.register(target)
    followed.begins(small)
    registry.note_called(small)
    assert followed.awaits_larger()
    assert followed.gives_way_to_larger(large)
    registry.note_called(large)
    assert (followed.module_id, followed.awaits_larger(), followed.gives_way_to_larger(small)) == (large, False, False)
    alone = registry.register(part)
    followed.begins(alone)
    followed.module_id = alone
    around = registry.register(nn.Sequential(part, nn.Linear(8, 8)))
    assert (followed.awaits_larger(), followed.gives_way_to_larger(around)) == (False, False)


def test_the_module_around_a_module_is_known() -> None:
    registry, part = ModuleRegistry(), nn.Linear(2, 2)
    alone = registry.register(part)
    assert registry.container_of(alone) == -1
    assert registry.register(nn.Sequential(part, nn.ReLU())) == registry.container_of(alone)


class Formula(nn.Module):
    """A module of pure functions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).softmax(-1)


def test_calls_of_modules_without_weights_are_steps_unless_one_with_weights_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, layer, model, data = nn.MSELoss(), nn.ReLU(), nn.Linear(4, 4).eval(), torch.ones(4, 4)
    weights = torch.zeros(4, 4, requires_grad=True)
    alive: list[nn.Module] = []  # other tests have modules, too
    monkeypatch.setattr(LiveObjects, "modules", lambda _: list(alive))

    def steps(name: str, iteration: Callable[[], object]) -> list[int]:
        with gpuledger.record(name, out=tmp_path / name, devices="cpu", stacks=False) as recording:
            for _ in range(3):
                iteration()
        return [int(row["step"]) for row in recording.run().rank().table("steps").to_pylist()]

    assert steps("plain", lambda: loss(layer(layer(data @ weights)), data).backward()) == [1, 2, 3]
    alive.append(model)
    assert steps("model", lambda: model(Formula()(Formula()(data)))) == [1, 2, 3]


def test_a_module_without_weights_gives_way_to_one_that_has_some() -> None:
    registry, formula = ModuleRegistry(), Formula()
    bare, layer = registry.register(formula), registry.register(nn.ReLU())
    assert (registry.can_take_steps(bare), registry.gives_way(bare)) == (True, False)
    assert not registry.can_take_steps(layer)
    model = nn.Linear(2, 2)
    followed = FollowedModule(registry)
    assert followed.begins(bare)
    assert followed.begins(registry.register(model))
    assert (registry.can_take_steps(bare), registry.gives_way(bare)) == (False, True)
    del model
    assert registry.can_take_steps(bare)


@pytest.mark.parametrize(("step_on", "has_model"), [("optimizer", False), ("optimizer", True), ("module", False)])
def test_a_chosen_step_that_never_comes_is_explained(step_on: str, has_model: bool) -> None:
    registry, counted = ModuleRegistry(), Counted(step_on=step_on)
    if has_model:
        registry.note_called(registry.register(nn.Linear(2, 2)))
    said = explain_steps(counted.counter, registry, step_on)
    after_failure = explain_steps(counted.counter, registry, "optimizer", failed=True)
    counted.counter.remove()
    assert after_failure == "No step was counted: the program failed before the end of its first step."
    missing = "step of an optimizer" if step_on == "optimizer" else "call of a model"
    assert said.startswith(f"No step was counted: no {missing} was seen.")
    assert ("--step-on module" in said) is has_model


@pytest.mark.parametrize(("each", "is_noted"), [(1, False), (2, True), (4, True)])
def test_weights_that_change_after_few_calls_are_noted(each: int, is_noted: bool) -> None:
    """As in gradient accumulation with an optimizer that is no ``torch.optim.Optimizer``."""
    counted = Counted()
    for number in range(1, 10):
        counted.call()
        counted.version += number % each == 0
    said = explain_steps(counted.counter, ModuleRegistry(), "auto")
    counted.counter.remove()
    assert ("Call gpuledger.step()" in said) is is_noted
    assert not is_noted or f"changed after {8 // each} of 8 calls only" in said


@pytest.mark.parametrize("step_on", ["auto", "module"])
@pytest.mark.parametrize("trains", [True, False])
def test_the_first_step_begins_with_the_first_call(step_on: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program makes its model and its data before."""
    clock_ns = [1_000]
    monkeypatch.setattr(step_counter, "time", SimpleNamespace(time_ns=lambda: clock_ns[0]))
    counted, times_ns = Counted(step_on=step_on), list[tuple[int, int]]()
    counted.counter._ended = lambda _kind, *times: times_ns.append(times)
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight])
    for _ in range(3):
        clock_ns[0] += 5_000
        counted.call()
        clock_ns[0] += 10
        if trains:
            optimizer.step()
    counted.counter.remove()
    ends_ns = [6_010, 11_020, 16_030] if trains and step_on == "auto" else [11_010, 16_020]  # when the next call begins
    assert times_ns == list(zip([6_000, *ends_ns], ends_ns, strict=False))


class TooLarge(torch.optim.SGD):
    """An optimizer that cannot make its state."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise MemoryError


def test_a_first_step_of_the_optimizer_that_fails_is_explained() -> None:
    registry, counted = ModuleRegistry(), Counted()
    model = nn.Linear(2, 2)
    registry.note_called(registry.register(model))
    with contextlib.suppress(MemoryError):  # the program handles it, and ends with a status of its own
        TooLarge(model.parameters()).step()
    said = explain_steps(counted.counter, registry, "optimizer")
    counted.counter.remove()
    assert said == "No step was counted: the first step of the optimizer failed."


def test_a_mark_without_a_recording_does_nothing_and_loads_nothing() -> None:
    program = "import sys, gpuledger; gpuledger.step(); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_a_recording_from_python_takes_marks_and_named_calls(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    recorded = {}
    for step_on in ("mark", "call:ReLU", "call:0"):
        with gpuledger.record(out=tmp_path / step_on[-1], devices="cpu", step_on=step_on) as recording:
            for _ in range(2):
                model(torch.ones(2, 4))
                model(torch.ones(2, 4))
                gpuledger.step()
        recorded[step_on] = [row["kind"] for row in recording.run().rank().table("steps").to_pylist()]
        gpuledger.step()
    assert recorded == {"mark": ["marked"] * 2, "call:ReLU": ["call"] * 4, "call:0": ["call"] * 4}
    with pytest.raises(gpuledger.UsageError, match="step-on 'x'"), gpuledger.record(step_on="x"):
        pass


@pytest.mark.parametrize(
    ("owner", "name", "step_on"),
    [
        (NamedCalls, "_is_named", "call:Linear"),
        (StepCounter, "named_call_began", "call:Linear"),
        (StepCounter, "named_call_ended", "call:Linear"),
        (StepCounter, "mark", "mark"),
        (StepCounter, "end_with_program", "module"),
        (FollowedModule, "begins", "module"),
        (ModuleRegistry, "awaits_first_call", "auto"),
    ],
)
def test_an_error_of_ours_never_reaches_the_program(
    owner: type, name: str, step_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("ours")

    model = nn.Sequential(nn.Linear(4, 4))
    before = nn.Module.__call__.__code__
    monkeypatch.setattr(owner, name, breaks)
    monkeypatch.setattr(KnownObjects, "expects_training", lambda *_: False)  # optimizers of other tests can be alive
    with gpuledger.record(out=tmp_path / "run", devices="cpu", step_on=step_on) as recording, torch.no_grad():
        results = [model(torch.ones(2, 4)) for _ in range(SWITCH_CALLS + 3)]  # and models
        gpuledger.step()
    assert len(results) == SWITCH_CALLS + 3
    assert nn.Module.__call__.__code__ is before
    notes = recording.run().rank().manifest.notes
    assert [note for note in notes if "ZeroDivisionError: ours" in note]


def steps_of(optimizers: list[torch.optim.Optimizer]) -> int:
    """Return how many steps are counted if these optimizers step in turn."""
    counted = Counted()
    for optimizer in optimizers:
        counted.counter._before_step(optimizer)
        counted.counter._after_step(optimizer)
    counted.counter.remove()
    return counted.counter.seen


def optimizer_of(*weights: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(weights), 0.1)


def test_an_optimizer_that_is_made_again_in_every_step_is_followed() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert steps_of([optimizer_of(weight) for _ in range(10)]) == 9  # the second could be one of two


def test_optimizers_of_other_parameters_do_not_add_steps() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(4)]
    assert steps_of([optimizer_of(weight) for weight in weights] * 3) == 3


def test_two_optimizers_of_the_same_parameters_count_once() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert steps_of([optimizer_of(weight), optimizer_of(weight)] * 3) == 3


def two_optimizers() -> list[torch.optim.Optimizer]:
    return [optimizer_of(nn.Parameter(torch.ones(2))) for _ in range(2)]


def test_all_steps_of_trainings_one_after_the_other_are_counted() -> None:
    """The first optimizer still exists, as in a notebook."""
    first, second = two_optimizers()
    assert steps_of([first] * SWITCH_STEPS + [second] * 5) == SWITCH_STEPS + 5
    assert steps_of([first] * 10 + [second] * 10 + [first] * 10 + [second] * 10) == 40


@pytest.mark.parametrize("warm_up", [1, SWITCH_STEPS - 1])
def test_a_second_optimizer_that_begins_later_does_not_add_steps(warm_up: int) -> None:
    first, second = two_optimizers()
    assert steps_of([first] * warm_up + [second, first] * 9) == warm_up + 9


def test_a_second_optimizer_that_begins_after_a_long_time_adds_one_step() -> None:
    """Until the first one steps again, it could be another training."""
    first, second = two_optimizers()
    assert steps_of([first] * 20 + [second, first] * 9) == 20 + 1 + 9
    assert steps_of(([first] * 10 + [second]) * 5) == 51


class Compiled:
    """Steps of compiled functions, of which some update the only weight."""

    def __init__(self, *, waits: bool, count: int = 1) -> None:
        self.count, self.version, self.waits = count, 0, waits
        self.steps = CompiledSteps(lambda: (self.count, self.version))

    def call(self, key: int = 1, *, updates: bool = False) -> bool:
        """Return whether a step ends when this call begins."""
        ended = self.steps.begins(key, waits=self.waits)
        self.version += updates
        return ended


def test_compiled_calls_are_steps_if_they_update_weights() -> None:
    compiled = Compiled(waits=True)
    assert [compiled.call(updates=updates) for updates in (True, True, False, True)] == [False, True, True, False]
    assert compiled.steps.updates
    assert compiled.steps.ends(waits=True)
    assert not compiled.steps.ends(waits=True)


def test_compiled_calls_without_an_optimizer_are_steps_if_there_are_weights() -> None:
    for count in (0, 1):
        compiled = Compiled(waits=False, count=count)
        assert [compiled.call(key) for key in (1, 2, 1, 2)] == [False, False, bool(count), False]


def test_a_weight_that_is_new_was_not_updated() -> None:
    compiled = Compiled(waits=True)
    compiled.call()
    compiled.count, compiled.version = 2, 1
    assert not compiled.call()


def test_compiled_calls_after_backward_are_parts_of_a_step_until_they_are_too_many() -> None:
    compiled = Compiled(waits=False, count=3)
    asked: list[bool] = []

    def parts(calls: int, *, has_gradients: bool) -> list[bool]:
        def ask() -> bool:
            asked.append(has_gradients)
            return has_gradients

        compiled.steps.module_called()
        return [compiled.steps.is_part(ask) for _ in range(calls)]

    assert parts(4, has_gradients=False) == [False] * 4
    assert parts(8, has_gradients=True) == [True] * 6 + [False] * 2
    assert parts(1, has_gradients=True) == [True]
    assert asked == [False, True, True]
    compiled.steps.module_called()
    compiled.call()
    assert not compiled.steps.is_part(lambda: True)


def test_compiled_calls_between_calls_of_a_module_are_no_steps() -> None:
    compiled = Compiled(waits=True)
    for _ in range(3):
        assert not compiled.call(updates=True)
        compiled.steps.module_called()
    assert not compiled.steps.updates
    assert [compiled.call(updates=True) for _ in range(2)] == [False, True]
    compiled.steps.module_called()
    assert compiled.call()
