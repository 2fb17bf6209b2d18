"""Phases: what a tag says of the place it was made in, for every thread its own."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from torch import nn

import gpuledger
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.phases import OUTSIDE, ModuleContext, Phases
from gpuledger.collect.attribution.tags import TagTable, base36, module_id_of, scope_piece, suffix
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import Part, TagFlag

pytestmark = pytest.mark.torch


@pytest.fixture
def phases() -> Phases:
    phases = Phases(lambda _token: None, TagTable())
    phases.start()
    return phases


def now(phases: Phases) -> dict[str, int]:
    """Return what the calling thread's token says once it is written down."""
    part = Part()
    number = phases.tags.number(phases.threads.token)
    phases.tags.drain(part)
    found = part.arrays()
    assert found["tags.tag_id"].tolist() == [number]
    return {name.removeprefix("tags."): int(column[0]) for name, column in found.items()}


def test_a_training_step(phases: Phases) -> None:
    assert now(phases) | {"visit": 0} == {
        "tag_id": 0, "step": 0, "phase": Phase.SETUP, "visit": 0,
        "module_id": -1, "scope_id": -1, "stack_id": -1, "flags": 0,
    }  # fmt: skip
    visits = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        phases.change(phase)
        tag = now(phases)
        assert (tag["phase"], tag["step"]) == (phase, 1)
        visits.append(tag["visit"])
    phases.enter_optimizer()
    assert now(phases)["phase"] == Phase.OPTIMIZER
    phases.leave_optimizer(Phase.BETWEEN)
    phases.change(Phase.BETWEEN, step=2)
    visits.append(now(phases)["visit"])
    assert now(phases)["step"] == 2
    assert visits == sorted(set(visits))


def test_a_phase_entered_twice_is_one_visit_and_a_new_step_another(phases: Phases) -> None:
    phases.change(Phase.FORWARD)
    first = now(phases)["visit"]
    phases.change(Phase.FORWARD)
    assert now(phases)["visit"] == first
    phases.change(Phase.FORWARD, step=2)
    assert now(phases)["visit"] == first + 1


def test_a_change_inside_a_module_stays_on_it(phases: Phases) -> None:
    phases.threads.stack.append([5, 0, -1])
    phases.change(Phase.FORWARD)
    assert now(phases)["module_id"] == 5


@pytest.mark.parametrize(
    ("before", "depth", "whole", "after"),
    [
        (Phase.FORWARD, 0, True, Phase.BETWEEN),
        (Phase.FORWARD, 0, False, Phase.FORWARD),
        (Phase.BETWEEN, 0, True, Phase.BETWEEN),
        (Phase.BACKWARD, 0, True, Phase.BACKWARD),
        (Phase.FORWARD, 1, True, Phase.OPTIMIZER),
        (Phase.OPTIMIZER, 1, True, Phase.OPTIMIZER),
    ],
)
def test_where_backward_returns_to(phases: Phases, before: Phase, depth: int, whole: bool, after: Phase) -> None:
    phases.change(Phase.BACKWARD)
    phases.optimizer_depth = depth
    phases.after_backward(before, whole=whole)
    assert phases.phase == after


@pytest.mark.parametrize(
    ("before", "during", "has_graph", "is_model", "after"),
    [
        (Phase.BETWEEN, Phase.FORWARD, True, True, (1, Phase.FORWARD)),
        (Phase.BETWEEN, Phase.EVALUATION, False, True, (1, Phase.BETWEEN)),
        (Phase.BETWEEN, Phase.FORWARD, False, False, (1, Phase.BETWEEN)),  # a transform of data
        (Phase.FORWARD, Phase.FORWARD, False, False, (1, Phase.FORWARD)),  # a frozen teacher, after the student
        (Phase.SETUP, Phase.FORWARD, False, False, (0, Phase.SETUP)),
        (Phase.SETUP, Phase.FORWARD, False, True, (1, Phase.BETWEEN)),
    ],
)
def test_where_a_call_returns_to(
    phases: Phases, before: Phase, during: Phase, has_graph: bool, is_model: bool, after: tuple[int, Phase]
) -> None:
    if before != Phase.SETUP:
        phases.change(before)
    phases.change(during)
    phases.after_call(before, has_graph=has_graph, is_model=is_model)
    assert (phases.step, phases.phase) == after


def test_flags_are_those_of_a_second_computation(phases: Phases) -> None:
    assert phases.flags_now() == 0
    phases.change(Phase.BACKWARD)
    phases.put(3, phases.flags_now(), 9)
    tag = now(phases)
    assert (tag["module_id"], tag["flags"], tag["stack_id"]) == (3, TagFlag.RECOMPUTED, 9)


def test_each_thread_has_its_own_place(phases: Phases) -> None:
    phases.put(4)
    found = []

    def elsewhere() -> None:
        found.append(phases.threads.token)
        phases.put(OUTSIDE)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [""]
    assert now(phases)["module_id"] == 4


@pytest.mark.parametrize(
    "text", ["", "mine", "0", "0.", ".1", "0.1.2", "zz.1", "0.-1", "0.1.2.3.4", "ü.1", "0.²", "a b.c", "0.zzzzzz"]
)
def test_a_text_of_the_program_s_own_is_no_tag(phases: Phases, text: str) -> None:
    assert phases.tags.number(text) == -1


@pytest.mark.parametrize("number", [0, 1, 35, 36, 1295, 1296, 10**12])
def test_base_36_is_what_python_reads(number: int) -> None:
    assert int(base36(number), 36) == number


def test_a_token_of_a_long_run_stays_short() -> None:
    assert len(base36(36**4) + suffix(36**4)) <= 15


@pytest.mark.parametrize("module_id", [OUTSIDE, 0, 35, 36, 123_456])
@pytest.mark.parametrize("more", [(), (1, 7)])
@pytest.mark.parametrize("scope", ["", scope_piece(3)])
def test_a_token_tells_its_module(module_id: int, more: tuple[int, ...], scope: str) -> None:
    token = TagTable().begin_visit(1, Phase.FORWARD) + suffix(module_id, *more) + scope
    assert module_id_of(token) == module_id


@pytest.mark.parametrize("text", ["", "7", "a.b.c", "not a token", "1.\u0661", "0.1.~"])
def test_a_text_that_is_no_token_names_no_module(text: str) -> None:
    assert module_id_of(text) == OUTSIDE
    assert TagTable().number(text) == OUTSIDE


def test_a_context_knows_the_module_at_work() -> None:
    registry = ModuleRegistry()
    model = nn.Sequential(nn.Linear(2, 2))
    number = registry.register(model)
    inner = registry.register(model[0])
    context = ModuleContext(registry)
    phases = Phases(context.set_token, TagTable())
    phases.start()
    assert (context.current_module_id, context.current_module_path) == (OUTSIDE, "")
    phases.put(number)
    assert (context.current_module_id, context.current_module_path) == (number, registry.path_of(number))
    phases.put(inner, 1, 4)
    assert (context.current_module_id, context.current_module_path) == (inner, registry.path_of(inner))


def test_one_module_alone_reads_tokens() -> None:
    package = Path(gpuledger.__file__).parent
    reads = re.compile(r"int\([^)]*, 36\)|partition\(\"~\"\)|_SCOPE_MARK")
    found = {place.name for place in package.rglob("*.py") if reads.search(place.read_text(encoding="utf-8"))}
    assert found == {"tags.py"}
