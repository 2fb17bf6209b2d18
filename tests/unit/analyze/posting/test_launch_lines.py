"""Source lines of kernels and operators, from journals with a known answer: a measured step, then one with lines."""

from __future__ import annotations

import pytest
from traced import ENGINE, MAIN, NODE, Trace

from gpuledger.analyze.posting.launch_lines import read_line
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import LINE_RANGE, MODULE_RANGE, NO_GRAD, PHASE_RANGE, ActivityKind

BACKWARD = f"{PHASE_RANGE}{int(Phase.BACKWARD)}"
SHIFT = 2_000
MIX, INPUT, LOSS, START, OWN = range(5)
"""Stacks: a call that runs two operators, one before it, the loss, the call of backward, and code inside backward."""


class Pair(Trace):
    """A measured step at 0 and one with lines SHIFT later, in which each call of Python has a range."""

    def __init__(self) -> None:
        super().__init__()
        self.part.stacks = [[("train.py", number, "step")] for number in range(5)]
        self.part.facts["line_step"] = {"step": 5, "from_ns": SHIFT}
        self.later_steps = [(5, SHIFT, SHIFT + 1_000)]
        self.kernels: list[int] = []

    def call(self, name: str, start: int, line: int, *, pattern: bool, sequence: int = -1, lane: int = MAIN) -> None:
        """Add an operator of 8 ns with one kernel; in the pattern with the range and the operator inside it."""
        shift = SHIFT if pattern else 0
        number = sequence if sequence < 0 else sequence + 100 * pattern
        launch = self.host(name, start + shift, start + 8 + shift, sequence=number, lane=lane)
        if pattern:
            self.host("PythonDispatchMode", start + 1 + shift, start + 7 + shift, lane=lane)
            self.host(f"{LINE_RANGE}{line}", start + 2 + shift, start + 6 + shift, lane=lane)
            launch = self.host(name, start + 3 + shift, start + 5 + shift, lane=lane)
        self.device(name, 400 + start + shift, 405 + start + shift, launch)

    def lines(self) -> list[int]:
        return self.owned().stack_id.tolist()


def both(*, other: bool = False) -> Pair:
    """Return a training step twice; with ``other``, the measured one has an operator more."""
    pair = Pair()
    for pattern in (False, True):
        shift = SHIFT if pattern else 0
        pair.call("aten::randn", 0, INPUT, pattern=pattern)
        if other and not pattern:
            pair.call("aten::sort", 10, NONE, pattern=False)
        pair.host("Mix", 20 + shift, 50 + shift, sequence=5)
        pair.call("aten::mm", 22, MIX, pattern=pattern)
        pair.call("aten::add", 32, OWN, pattern=pattern)
        pair.call("aten::sum", 60, LOSS, pattern=pattern, sequence=6)
        pair.host(BACKWARD, 70 + shift, 200 + shift)
        if pattern:
            pair.host(f"{LINE_RANGE}{START}", 71 + shift, 71 + shift)
        for node, start, sequence in (("Sum", 80, 6), ("Mix", 100, 5), ("Old", 120, 3)):
            number = sequence + 100 * pattern
            pair.host(f"{NODE}{node}Backward", start + shift, start + 10 + shift, sequence=number, lane=ENGINE)
            launch = pair.host(f"aten::{node}", start + 1 + shift, start + 9 + shift, lane=ENGINE)
            pair.device(node, 400 + start + shift, 405 + start + shift, launch)
        pair.host(f"{NODE}AccumulateGrad", 140 + shift, 150 + shift, lane=ENGINE)
        pair.call("aten::add_", 141, OWN, pattern=pattern, lane=ENGINE)
    return pair


NONE = -1


def test_each_kernel_has_the_line_that_called_its_operator() -> None:
    sum_line, mix_line, unknown_line = LOSS, MIX, START  # a node that no profiled operator has created
    assert both().lines() == [INPUT, MIX, OWN, LOSS, sum_line, mix_line, unknown_line, OWN]


def test_kernels_of_the_step_with_lines_are_not_measured() -> None:
    assert set(both().owned().step.tolist()) == {4}


def test_a_kernel_that_begins_with_the_step_with_lines_is_of_that_step() -> None:
    pair = both()
    launch = pair.host("aten::relu", 300, 310)
    for start in (SHIFT - 1, SHIFT):
        pair.device("late", start, SHIFT + 5, launch)
    spans = pair.owned()
    late = pair.names["late"]
    assert spans.start_ns[spans.name_id == late].tolist() == [SHIFT - 1]


def test_an_operator_without_an_equivalent_has_no_line_and_the_others_keep_theirs() -> None:
    assert both(other=True).lines() == [INPUT, NONE, MIX, OWN, LOSS, LOSS, MIX, START, OWN]


@pytest.mark.parametrize("trains", [True, False])
def test_an_evaluation_in_the_step_with_lines_is_no_equivalent_of_a_forward(trains: bool) -> None:
    """The step can be between two trainings. Its evaluation of the model has the operators of the forward, too."""
    pair = Pair()
    pair.host(f"{MODULE_RANGE}0", 0, 20)
    pair.call("aten::mm", 5, NONE, pattern=False, sequence=1)
    pair.call("aten::mm", 5, INPUT, pattern=True)
    if trains:
        pair.call("aten::mm", 35, MIX, pattern=True, sequence=2)
    assert pair.lines() == [MIX if trains else NONE]


@pytest.mark.parametrize("grad", ["", NO_GRAD])
def test_modules_have_no_ranges_in_the_step_with_lines(grad: str) -> None:
    pair, sequence = Pair(), -1 if grad else 1
    pair.host(f"{MODULE_RANGE}0{grad}", 0, 20)
    pair.call("aten::mm", 5, NONE, pattern=False, sequence=sequence)
    pair.call("aten::mm", 5, MIX, pattern=True, sequence=sequence)
    assert pair.lines() == [MIX]


def test_without_a_step_with_lines_nothing_has_one() -> None:
    pair = Pair()
    del pair.part.facts["line_step"]
    pair.call("aten::randn", 0, INPUT, pattern=False)
    assert pair.lines() == [NONE]


@pytest.mark.parametrize(("word", "line"), [(f"{LINE_RANGE}7", 7), (f"{LINE_RANGE}x", NONE), ("aten::mm", NONE)])
def test_a_range_names_its_stack(word: str, line: int) -> None:
    assert read_line(word) == line


def test_lines_are_those_of_a_step_without_a_capture_in_it() -> None:
    """A capture in the measured step has the events of that step a second time, and they enclose each other."""
    plain, captured = both(), both()
    names: dict[str, int] = {}
    for start, end, name in ((18, 56, "Mix"), (20, 50, "Mix"), (22, 30, "aten::mm"), (32, 40, "aten::add")):
        captured.part.add(
            "captures",
            capture=0,
            kind=int(ActivityKind.HOST),
            lane=MAIN,
            name_id=names.setdefault(name, len(names)),
            start_ns=start,
            duration_ns=end - start,
            launch_id=0,
            sequence=-1,
            forward_lane=0,
        )
    captured.part.facts["captured_names"] = list(names)
    assert captured.lines() == plain.lines()


def test_operators_in_a_range_around_a_call_have_its_line() -> None:
    """A module of PyTorch's has one range; the operators inside have no dispatch mode around them."""
    pair = Pair()
    for pattern in (False, True):
        shift = SHIFT if pattern else 0
        pair.call("aten::randn", 0, INPUT, pattern=pattern)
        if pattern:
            pair.host(f"{LINE_RANGE}{MIX}", 20 + shift, 60 + shift)
        for name, start in (("aten::linear", 21), ("aten::relu", 41)):
            pair.host(name, start + shift, start + 15 + shift)
            inner = pair.host("aten::inner", start + 1 + shift, start + 10 + shift)
            pair.device(name, 400 + start + shift, 405 + start + shift, inner)
        pair.call("aten::sum", 62, LOSS, pattern=pattern)
    assert pair.lines() == [INPUT, MIX, MIX, LOSS]
