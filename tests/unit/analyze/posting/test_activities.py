"""Owners of kernels and operators, from journals whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from present import present
from traced import ENGINE, MAIN, NODE, OTHER, Trace

from gpuledger.analyze.posting.activities import OwnedSpans, own_spans
from gpuledger.analyze.posting.host_waits import host_waits
from gpuledger.model.accounts import PHASES, SPAN_KINDS, Phase
from gpuledger.model.journal.journal import (
    FUSION_RANGE,
    GRAPH_RANGE,
    LINE_RANGE,
    MODULE_RANGE,
    NO_GRAD,
    PHASE_RANGE,
    SCOPE_RANGE,
    ActivityKind,
    Part,
)
from gpuledger.model.journal.reading import journal_of
from gpuledger.model.pass_facts import HostWait


def places(spans: OwnedSpans) -> list[tuple[str, int, str, int]]:
    return [
        (SPAN_KINDS[kind], module, PHASES[phase], step)
        for kind, module, phase, step in zip(
            spans.kind.tolist(), spans.module_id.tolist(), spans.phase.tolist(), spans.step.tolist(), strict=True
        )
    ]


def training() -> Trace:
    """Module 0 holds module 1; one operator in each, the loss outside, backward in a thread of its own."""
    trace = Trace()
    trace.host(f"{MODULE_RANGE}0", 0, 100)
    trace.host(f"{MODULE_RANGE}1", 10, 50)
    trace.host("aten::linear", 12, 40, sequence=5)
    inner = trace.host("aten::addmm", 15, 30, sequence=5)
    outer = trace.host("aten::relu", 60, 70, sequence=6)
    loss = trace.host("aten::sum", 110, 120, sequence=7)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 130, 300)
    trace.host(f"{NODE}SumBackward0", 140, 150, sequence=7, lane=ENGINE)
    of_loss = trace.host("aten::expand", 141, 149, lane=ENGINE)
    trace.host(f"{NODE}ReluBackward0", 160, 170, sequence=6, lane=ENGINE)
    of_relu = trace.host("aten::threshold_backward", 161, 169, lane=ENGINE)
    trace.host(f"{NODE}AddmmBackward0", 180, 200, sequence=5, lane=ENGINE)
    of_linear = trace.host("aten::mm", 181, 190, lane=ENGINE)
    trace.host(f"{NODE}torch::autograd::AccumulateGrad", 201, 210, lane=ENGINE)
    of_gradient = trace.host("aten::add_", 202, 208, lane=ENGINE)
    trace.host(f"{PHASE_RANGE}{int(Phase.OPTIMIZER)}", 310, 400)
    of_optimizer = trace.host("aten::_foreach_add_", 320, 390)
    for number, launch in enumerate((inner, outer, loss, of_loss, of_relu, of_linear, of_gradient, of_optimizer, 999)):
        trace.device("kernel", 500 + 10 * number, 508 + 10 * number, launch)
    return trace


def test_kernels_find_module_phase_and_step() -> None:
    assert places(training().owned()) == [
        ("kernel", 1, "forward", 4),
        ("kernel", 0, "forward", 4),
        ("kernel", -1, "forward", 4),  # the loss
        ("kernel", -1, "backward", 4),
        ("kernel", 0, "backward", 4),
        ("kernel", 1, "backward", 4),
        ("kernel", 1, "backward", 4),  # the gradient goes with the node before it
        ("kernel", -1, "optimizer", 4),
        ("kernel", -1, "between", 4),  # nobody is known to have launched it
    ]


def test_a_module_that_computes_again_in_backward_wins_over_the_node() -> None:
    trace = training()
    trace.host(f"{NODE}CheckpointFunctionBackward", 220, 280, sequence=5, lane=ENGINE)
    trace.host(f"{MODULE_RANGE}3", 225, 270, lane=ENGINE)
    launch = trace.host("aten::addmm", 230, 240, sequence=9, lane=ENGINE)
    trace.device("again", 700, 710, launch)
    trace.host(f"{NODE}AddmmBackward0", 281, 290, sequence=9, lane=ENGINE)
    launch = trace.host("aten::mm", 282, 288, lane=ENGINE)
    trace.device("its gradient", 720, 730, launch)
    assert places(trace.owned())[-2:] == [("kernel", 3, "backward", 4), ("kernel", 3, "backward", 4)]


def test_a_model_called_without_gradients_is_evaluation_with_all_that_is_inside() -> None:
    trace = training()
    trace.host(f"{MODULE_RANGE}0{NO_GRAD}", 410, 500)
    trace.host(f"{MODULE_RANGE}1", 420, 450)  # what switches gradients on for itself is inside all the same
    inner = trace.host("aten::addmm", 430, 440, sequence=11)
    outer = trace.host("aten::relu", 460, 470)
    after = trace.host("aten::argmax", 510, 520)
    for launch in (inner, outer, after):
        trace.device("of the evaluation", 800 + launch, 801 + launch, launch)
    evaluated = [("kernel", 1, "evaluation", 4), ("kernel", 0, "evaluation", 4), ("kernel", -1, "between", 4)]
    assert places(trace.owned())[-3:] == evaluated


def test_what_an_optimizers_closure_computes_is_forward_and_backward() -> None:
    trace = Trace()
    trace.host(f"{PHASE_RANGE}{int(Phase.OPTIMIZER)}", 0, 900)
    trace.host(f"{MODULE_RANGE}0", 10, 100)
    launches = [trace.host("aten::mm", 20, 30, sequence=5), trace.host("aten::sum", 110, 120, sequence=6)]
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 130, 300)
    trace.host(f"{NODE}MmBackward0", 140, 150, sequence=5, lane=ENGINE)
    launches += [trace.host("aten::mm", 141, 149, lane=ENGINE), trace.host("aten::add_", 400, 410)]
    for launch in launches:
        trace.device("of the closure", 900 + launch, 901 + launch, launch)
    phases = [phase for _, _, phase, _ in places(trace.owned())]
    assert phases == ["forward", "forward", "backward", "optimizer"]


def test_copies_and_collectives_are_told_apart() -> None:
    trace = Trace()
    launch = trace.host("aten::copy_", 10, 20)
    trace.device("Memcpy HtoD", 30, 40, launch, ActivityKind.COPY)
    trace.device("ncclDevKernel_AllReduce", 50, 60, launch)
    trace.device("kernel", 2000, 2010, launch)
    spans = trace.owned()
    assert [kind for kind, *_ in places(spans)] == ["copy", "collective", "kernel"]
    assert spans.stream.tolist() == [7, 7, 7]
    assert spans.step.tolist() == [4, 4, 4]  # the step of the launch


def test_without_a_device_the_outermost_operators_are_the_spans() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}0", 0, 100)
    trace.host("aten::linear", 10, 50)
    trace.host("aten::addmm", 20, 40)
    trace.host("aten::relu", 60, 70)
    spans = trace.owned()
    assert places(spans) == [("host", 0, "forward", 4)] * 2
    assert (spans.end_ns - spans.start_ns).tolist() == [40, 10]


@pytest.mark.parametrize("name", [f"{MODULE_RANGE}0", f"{PHASE_RANGE}0", f"{LINE_RANGE}0", f"{GRAPH_RANGE}0"])
def test_a_range_of_ours_is_no_operator_though_its_number_is_0(name: str) -> None:
    trace = Trace()
    trace.host(name, 0, 100)
    trace.host("aten::mm", 10, 50)
    spans = trace.owned()
    assert (spans.start_ns.tolist(), spans.operator_id.tolist()) == ([10], [trace.names["aten::mm"]])


def test_without_a_time_pass_there_is_nothing() -> None:
    assert own_spans(journal_of([Part()])) is None


def test_no_kernel_is_lost_or_doubled() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        trace = Trace()
        at, launches = 0, []
        for _ in range(50):
            at += int(random.integers(1, 30))
            name = random.choice([f"{MODULE_RANGE}2", "aten::mul", f"{NODE}MulBackward0", f"{PHASE_RANGE}3"])
            launches.append(
                trace.host(str(name), at, at + int(random.integers(1, 200)), sequence=int(random.integers(-1, 9)))
            )
        for number in range(80):
            trace.device("kernel", 3000 + number, 3004 + number, int(random.choice([*launches, 777])))
        spans = trace.owned()
        assert spans.start_ns.tolist() == list(range(3000, 3080))
        assert set(spans.module_id.tolist()) <= {-1, 2}


def alone(trace: Trace, streams: tuple[tuple[int, tuple[str, ...]], ...], steps: int = 1) -> Trace:
    """Add steps of 1000 ns each whose kernels alone were recorded, on each stream in order."""
    trace.part.facts["kernels_alone"] = {"from_step": 5, "from_ns": 1000}
    for later in range(1, steps + 1):
        trace.later_steps.append((4 + later, 1000 * later, 1000 * later + 1000))
        for stream, names in streams:
            for number, name in enumerate(names):
                at = 1000 * later + 10 * number + stream
                trace.device(name, at, at + 3, 0, stream=stream)
    return trace


KERNELS = (*("kernel",) * 9,)


@pytest.mark.parametrize("steps", [1, 3])
def test_kernels_recorded_alone_belong_to_what_their_likes_do(steps: int) -> None:
    """Though one of them, launched by nobody known, has no owner in the first step either."""
    found = places(alone(training(), ((7, KERNELS),), steps).owned())
    assert len(found) == 9 * (1 + steps)
    for later in range(steps + 1):
        assert found[9 * later : 9 * later + 9] == [(*place[:3], 4 + later) for place in found[:9]]


@pytest.mark.parametrize(
    "streams",
    [
        ((7, KERNELS[1:]),),
        ((7, (*KERNELS, "kernel")),),
        ((7, (*KERNELS[1:], "other")),),
        ((7, KERNELS), (8, ("kernel",))),
        ((8, KERNELS),),
    ],
)
def test_a_step_that_launched_others_tells_nothing(streams: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
    expected = places(training().owned())
    assert places(alone(training(), streams).owned()) == expected


def with_loader(trace: Trace, copies: tuple[int, ...]) -> Trace:
    """Add copies of a thread that still records operators: on stream 13, launched and done at these times."""
    for at in copies:
        launch = trace.host("aten::copy_", at, at + 2, lane=OTHER)
        trace.device("Memcpy HtoD", at + 1, at + 9, launch, ActivityKind.COPY, stream=13)
    return trace


def test_copies_of_another_thread_do_not_prevent_a_match() -> None:
    spans = with_loader(alone(training(), ((7, KERNELS),)), (305, 1100, 1200)).owned()
    assert np.bincount(spans.step[spans.stream == 7]).tolist() == [0] * 4 + [9, 9]
    assert np.bincount(spans.step[spans.stream == 13]).tolist() == [0] * 4 + [1, 2]


def test_a_step_without_a_match_does_not_count_with_what_another_thread_launched() -> None:
    """Busy time would be divided by two steps, although the kernels of one are known."""
    spans = with_loader(alone(training(), ((7, (*KERNELS[1:], "other")),)), (305, 1100)).owned()
    assert set(spans.step.tolist()) == {4}
    assert places(spans)[-1] == ("copy", -1, "between", 4)


def test_likes_are_found_on_every_stream_and_times_are_their_own() -> None:
    trace = training()
    beside = trace.host("aten::copy_", 325, 330)
    trace.device("copy", 600, 650, beside, ActivityKind.COPY, stream=9)
    alone(trace, ((7, KERNELS), (9, ("copy",))))
    spans = trace.owned()
    last = int(np.flatnonzero((spans.stream == 9) & (spans.step == 5))[0])
    assert (spans.start_ns[last], spans.end_ns[last]) == (1009, 1012)
    assert (PHASES[spans.phase[last]], spans.kind[last]) == ("optimizer", SPAN_KINDS.index("kernel"))


def test_a_gap_is_the_hosts_where_nothing_was_launched_before_it() -> None:
    """The second kernel waited behind the first, the third for its launch; the last is of a step of kernels alone."""
    trace = Trace()
    first, second, third = (trace.host("aten::mm", at, at + 5) for at in (10, 20, 200))
    trace.device("kernel", 30, 100, first)
    trace.device("kernel", 110, 150, second)
    trace.device("kernel", 210, 260, third)
    trace.device("kernel", 120, 140, second, stream=8)
    assert host_waits(trace.owned()) == (HostWait(device_idx=0, gap_ns=10 + 60, host_ns=60),)
    both = alone(trace, ((7, ("kernel",) * 3), (8, ("kernel",))))
    assert host_waits(both.owned()) == (HostWait(device_idx=0, gap_ns=10 + 60, host_ns=60),)


def test_the_hosts_own_operators_wait_for_nobody() -> None:
    trace = Trace()
    for at in (10, 50):
        trace.host("aten::mm", at, at + 5)
    assert host_waits(trace.owned()) == ()


def test_a_graphs_kernels_are_of_the_module_that_launched_it() -> None:
    """Its launch has a number below 0, beside that of an operator with the same number above."""
    trace = Trace()
    trace.host(f"{MODULE_RANGE}3", 0, 100)
    trace.launches = -8
    launch = trace.host("cudaGraphLaunch", 20, 30)
    assert launch == -7
    trace.launches = 6
    trace.host("aten::mm", 200, 210)
    for at in (40, 60):
        trace.device("kernel", at, at + 10, launch)
    assert places(trace.owned()) == [("kernel", 3, "forward", 4)] * 2


def test_what_a_module_launches_without_an_operator_has_no_operator() -> None:
    """As a kernel of Triton's does; the range of ours around it is none."""
    trace = Trace()
    within = trace.host(f"{MODULE_RANGE}3", 0, 100)
    trace.device("triton_kernel", 40, 50, within)
    spans = trace.owned()
    assert places(spans) == [("kernel", 3, "forward", 4)]
    assert spans.operator_id.tolist() == [-1]


def test_a_kernel_is_of_the_step_in_which_its_operator_begins() -> None:
    """A step has its first moment and not its last; what begins outside all steps is of none."""
    trace = Trace()
    trace.later_steps = [(5, 1_200, 1_500)]
    starts = {0: 4, 999: 4, 1_000: 0, 1_199: 0, 1_200: 5, 1_499: 5, 1_500: 0}
    launches = [trace.host("aten::relu", start, start + 1) for start in starts]
    for number, launch in enumerate(launches):
        trace.device("kernel", 2_000 + 10 * number, 2_005 + 10 * number, launch)
    assert [step for *_, step in places(trace.owned())] == list(starts.values())


def test_the_first_operator_with_a_gradient_has_the_number_0() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}0", 0, 100)
    trace.host("aten::mm", 10, 20, sequence=0)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 130, 300)
    trace.host(f"{NODE}MmBackward0", 140, 150, sequence=0, lane=ENGINE)
    trace.device("its gradient", 500, 510, trace.host("aten::mm", 141, 149, lane=ENGINE))
    assert places(trace.owned()) == [("kernel", 0, "backward", 4)]


@pytest.mark.parametrize(("checkpoint", "module"), [(5, 1), (7, -1)])
def test_a_gradient_of_what_backward_computed_again_has_the_module_of_the_checkpoint(
    checkpoint: int, module: int
) -> None:
    """A checkpoint in a scope: its operators have sequence numbers of their own in the engine's thread."""
    trace = training()
    trace.host(f"{NODE}CheckpointFunctionBackward", 220, 250, sequence=checkpoint, lane=ENGINE)
    trace.host(f"{SCOPE_RANGE}0.0", 221, 222, lane=ENGINE)
    trace.host("aten::mm", 223, 230, sequence=0, lane=ENGINE)
    trace.host(f"{SCOPE_RANGE}-1", 231, 232, lane=ENGINE)
    trace.host(f"{NODE}MmBackward0", 260, 270, sequence=0, lane=ENGINE, made_by=ENGINE)
    trace.device("its gradient", 700, 710, trace.host("aten::mm", 261, 269, lane=ENGINE))
    trace.part.names.append("scope")
    assert places(trace.owned())[-1] == ("kernel", module, "backward", 4)


def test_a_node_that_backward_creates_has_the_module_of_the_node_that_ran() -> None:
    """``create_graph=True``: operators inside a node have numbers of the engine's thread, also those of forward."""
    trace = training()
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 410, 600)
    trace.host(f"{NODE}AddmmBackward0", 420, 440, sequence=5, lane=ENGINE)
    trace.host("aten::mm", 421, 439, sequence=6, lane=ENGINE)
    trace.host(f"{NODE}ReluBackward0", 450, 460, sequence=6, lane=ENGINE)
    trace.host("aten::threshold_backward", 451, 459, sequence=7, lane=ENGINE)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 610, 900)
    for number, sequence in enumerate((7, 6)):
        start = 620 + 20 * number
        trace.host(f"{NODE}Created", start, start + 10, sequence=sequence, lane=ENGINE, made_by=ENGINE)
        launch = trace.host("aten::mul", start + 1, start + 9, lane=ENGINE)
        trace.device("of what backward created", 700 + number * 10, 705 + number * 10, launch)
    assert places(trace.owned())[-2:] == [("kernel", 0, "backward", 4), ("kernel", 1, "backward", 4)]


@pytest.mark.parametrize("launch", [0, 999])
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_kernel_of_which_no_launch_was_recorded_is_nobodys(is_alone: bool, launch: int) -> None:
    """Whether or not there are host events, the first of which has a module, a line and a compiled kernel."""
    trace = Trace()
    if not is_alone:
        for name in (f"{FUSION_RANGE}0", f"{MODULE_RANGE}3", f"{LINE_RANGE}0"):
            trace.host(name, 0, 5)
    trace.device("kernel", 10, 20, launch)
    spans = trace.owned()
    assert places(spans) == [("kernel", -1, "between", 4)]
    columns = (spans.operator_id, spans.launched_ns, spans.fusion_id, spans.scope_id, spans.stack_id)
    assert [column.tolist() for column in columns] == [[-1]] * 5
    assert (spans.is_replayed.tolist(), spans.is_matched.tolist()) == ([False], [False])


def test_kernels_before_the_first_step_are_of_none_and_so_are_their_likes() -> None:
    trace = Trace()
    trace.device("kernel", -10, -5, 999)
    assert [step for *_, step in places(alone(trace, ((7, ("kernel",)),)).owned())] == [0, 0]


def test_without_steps_nothing_is_in_one() -> None:
    trace = Trace()
    trace.host("aten::mm", 10, 20)
    trace.part.facts["activity_names"] = list(trace.names)
    assert present(own_spans(journal_of([trace.part]))).step.tolist() == [0]


def test_what_began_before_the_measured_steps_counts_for_none_and_shows_where_the_rest_is() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}0", 100, 200)
    trace.host("aten::linear", 110, 130)
    trace.host("aten::relu", 150, 170)
    trace.part.facts["times_from_ns"] = 120
    assert places(trace.owned()) == [("host", 0, "forward", 0), ("host", 0, "forward", 4)]


def test_steps_may_begin_with_number_1() -> None:
    trace = Trace()
    trace.later_steps = [(1, 2_000, 3_000)]
    trace.device("kernel", 2_100, 2_110, trace.host("aten::mm", 2_000, 2_010))
    assert [step for *_, step in places(trace.owned())] == [1]


def test_scopes_are_those_of_marks_and_in_backward_of_the_node_or_of_the_call() -> None:
    trace = Trace()
    trace.part.names += ["outer", "loss"]
    found: dict[int, int] = {}

    def kernel(start: int, scope: int, *, sequence: int = -1, lane: int = MAIN) -> None:
        launch = trace.host("aten::mm", start, start + 8, sequence=sequence, lane=lane)
        trace.device("kernel", 1_000 + start, 1_005 + start, launch)
        found[1_000 + start] = scope

    trace.host(f"{SCOPE_RANGE}0.0", 0, 1)
    kernel(10, 0, sequence=5)
    trace.host(f"{SCOPE_RANGE}-1", 30, 31)
    kernel(40, -1, sequence=6)
    trace.host(f"{SCOPE_RANGE}1.1", 60, 61)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 70, 300)
    trace.host(f"{NODE}MmBackward0", 80, 95, sequence=6, lane=ENGINE)
    kernel(81, 1, lane=ENGINE)  # made outside of scopes: where backward was called
    trace.host(f"{NODE}MmBackward0", 100, 115, sequence=5, lane=ENGINE)
    kernel(101, 0, lane=ENGINE)
    trace.host(f"{NODE}AccumulateGrad", 116, 130, lane=ENGINE)
    kernel(117, 0, lane=ENGINE)
    kernel(140, -1, lane=ENGINE)  # after the node
    trace.host(f"{NODE}Unknown", 150, 165, sequence=99, lane=ENGINE)
    kernel(151, 1, lane=ENGINE)
    trace.host(f"{NODE}CheckpointFunctionBackward", 170, 250, sequence=5, lane=ENGINE)
    kernel(171, 0, sequence=20, lane=ENGINE)  # a part of backward that makes a node itself
    trace.host(f"{SCOPE_RANGE}1.1", 180, 181, lane=ENGINE)
    kernel(182, 1, sequence=21, lane=ENGINE)  # again as in forward
    trace.host(f"{SCOPE_RANGE}-1", 191, 192, lane=ENGINE)
    kernel(193, 0, lane=ENGINE)
    trace.host(f"{NODE}MmBackward0", 205, 215, sequence=21, lane=ENGINE, made_by=ENGINE)
    kernel(206, 1, lane=ENGINE)
    trace.host(f"{SCOPE_RANGE}0.0", 220, 221)  # in the thread that waits for backward
    trace.host(f"{NODE}MmBackward0", 255, 265, sequence=20, lane=ENGINE, made_by=ENGINE)
    kernel(256, 1, lane=ENGINE)  # where backward was called
    trace.host(f"{SCOPE_RANGE}1", 270, 271)
    kernel(310, 1)
    trace.host(f"{SCOPE_RANGE}-1", 330, 331)
    kernel(340, -1)
    trace.host(f"{NODE}MmBackward0", 400, 420, sequence=6, lane=ENGINE)
    kernel(401, -1, lane=ENGINE)  # the call has ended
    spans = trace.owned()
    assert dict(zip(spans.start_ns.tolist(), spans.scope_id.tolist(), strict=True)) == found


@pytest.mark.parametrize(("all_threads", "unknown"), [(False, 2), (True, -1)])
def test_a_node_is_of_the_thread_that_made_it_and_of_any_if_that_is_unknown(all_threads: bool, unknown: int) -> None:
    """Threads number their operators alike. A node's number is its maker's and not one of the thread that runs it.

    If all threads are recorded, one without events has made its nodes before the profile.
    """
    trace = Trace()
    trace.part.facts["times_of_all_threads"] = all_threads
    for start, lane, module in ((0, MAIN, 0), (100, OTHER, 1)):
        trace.host(f"{MODULE_RANGE}{module}", start, start + 50, lane=lane)
        trace.host("aten::mm", start + 10, start + 20, sequence=5, lane=lane)
    trace.host(f"{NODE}CheckpointFunctionBackward", 200, 290, sequence=7, lane=ENGINE)
    trace.host(f"{MODULE_RANGE}2", 210, 220, lane=ENGINE)
    trace.host("aten::mm", 211, 219, sequence=5, lane=ENGINE)
    trace.part.names.append("scope")
    trace.host(f"{SCOPE_RANGE}0.0", 221, 222, lane=ENGINE)
    trace.host(f"{NODE}MmBackward0", 230, 240, sequence=5, lane=ENGINE, made_by=MAIN)
    for number, made_by in enumerate((MAIN, OTHER, ENGINE, 0, 99)):
        at = 300 + 20 * number
        trace.host(f"{NODE}MmBackward0", at, at + 10, sequence=5, lane=ENGINE, made_by=made_by)
        trace.device("kernel", at + 500, at + 505, trace.host("aten::mm", at + 1, at + 9, lane=ENGINE))
    assert [module for _, module, *_ in places(trace.owned())] == [0, 1, 2, 2, unknown]


def test_an_operator_with_a_gradient_is_forward_only_after_a_model_was_called() -> None:
    """Until a backward, an optimizer or an evaluation; each thread for itself."""
    trace = Trace()
    found = []

    def kernel(start: int, phase: str, *, sequence: int = 9, lane: int = MAIN) -> None:
        launch = trace.host("aten::mul", start, start + 5, sequence=sequence, lane=lane)
        trace.device("kernel", 1_000 + start, 1_005 + start, launch)
        found.append(phase)

    kernel(0, "between")
    for at, name in ((10, f"{PHASE_RANGE}{int(Phase.BACKWARD)}"), (110, f"{PHASE_RANGE}{int(Phase.OPTIMIZER)}")):
        trace.host(f"{MODULE_RANGE}0", at, at + 10)
        kernel(at + 12, "forward", sequence=0)
        kernel(at + 20, "between", sequence=-1)
        kernel(at + 26, "between", lane=OTHER)
        trace.host(name, at + 32, at + 40)
        kernel(at + 50, "between")
    trace.host(f"{MODULE_RANGE}0", 210, 220)
    trace.host(f"{MODULE_RANGE}0{NO_GRAD}", 222, 230)
    kernel(240, "between")
    assert [phase for _, _, phase, _ in places(trace.owned())] == found


def test_an_optimizer_inside_a_module_is_of_no_module_and_backward_is() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}3", 0, 900)
    for at, phase in ((10, Phase.OPTIMIZER), (110, Phase.BACKWARD)):
        trace.host(f"{PHASE_RANGE}{int(phase)}", at, at + 50)
        trace.device("kernel", at + 1_000, at + 1_005, trace.host("aten::add_", at + 1, at + 9))
    assert places(trace.owned()) == [("kernel", -1, "optimizer", 4), ("kernel", 3, "backward", 4)]


def test_a_module_that_compiled_code_calls_is_not_part_of_its_kernel() -> None:
    trace = Trace()
    trace.host(f"{FUSION_RANGE}0", 0, 100)
    trace.device("kernel", 1_000, 1_010, trace.host("aten::mm", 1, 5))
    trace.host(f"{MODULE_RANGE}3", 10, 90)
    trace.device("kernel", 1_020, 1_030, trace.host("aten::mm", 20, 30))
    assert trace.owned().fusion_id.tolist() == [0, -1]


@pytest.mark.parametrize("name", ["7", f"{FUSION_RANGE}x"])
def test_a_name_like_that_of_a_compiled_kernel_is_none(name: str) -> None:
    trace = Trace()
    trace.host(name, 0, 100)
    trace.device("kernel", 1_000, 1_010, trace.host("aten::mm", 1, 5))
    assert trace.owned().fusion_id.tolist() == [-1]


def test_a_compiled_kernel_counts_and_not_the_operators_around_it() -> None:
    trace = Trace()
    trace.host("CompiledFunction", 10, 90)
    trace.host("aten::addmm", 20, 80)
    trace.host(f"{FUSION_RANGE}0", 30, 40)
    trace.host(f"{FUSION_RANGE}1", 50, 70)
    trace.host("aten::relu", 100, 110)
    spans = trace.owned()
    assert spans.start_ns.tolist() == [30, 50, 100]
    assert spans.fusion_id.tolist() == [0, 1, -1]


def test_a_node_without_a_number_has_that_of_its_own_event_inside() -> None:
    """A hook of a tensor has run an operator in the node, before its own event."""
    trace = Trace()
    trace.host(f"{MODULE_RANGE}1", 0, 50)
    trace.host("aten::tanh", 10, 20, sequence=5)
    trace.host(f"{MODULE_RANGE}2", 60, 100)
    trace.host("aten::relu", 70, 80, sequence=6)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 200, 900)
    trace.host(f"{NODE}ReluBackward0", 210, 300, sequence=6, made_by=MAIN, lane=ENGINE)
    trace.host("ReluBackward0", 220, 290, sequence=6, made_by=MAIN, lane=ENGINE)
    trace.host(f"{NODE}TanhBackward0", 310, 400, lane=ENGINE)
    of_hook = trace.host("aten::mul", 320, 330, lane=ENGINE)
    trace.host("TanhBackward0", 340, 390, sequence=5, made_by=MAIN, lane=ENGINE)
    of_node = trace.host("aten::tanh_backward", 350, 380, lane=ENGINE)
    trace.host(f"{NODE}torch::autograd::AccumulateGrad", 410, 420, lane=ENGINE)
    for launch in (of_hook, of_node):
        trace.device("kernel", 1_000 + launch, 1_001 + launch, launch)
    assert places(trace.owned()) == [("kernel", 1, "backward", 4)] * 2


def test_operators_that_call_modules_do_not_count_but_what_they_call() -> None:
    """As a checkpoint, which is a function of autograd around modules, and its node, which calls them again."""
    trace = Trace()
    trace.host(f"{MODULE_RANGE}0", 0, 100)
    trace.host("CheckpointFunction", 10, 90, sequence=5)
    trace.host("aten::detach", 12, 15)
    trace.host(f"{MODULE_RANGE}1", 20, 80)
    trace.host("aten::linear", 30, 60, sequence=-1)
    trace.host("aten::addmm", 31, 59, sequence=-1)
    trace.host("Scaled", 70, 75, sequence=-1)  # a function without modules counts
    trace.host("aten::mul", 71, 74, sequence=-1)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 200, 900)
    trace.host(f"{NODE}CheckpointFunctionBackward", 210, 800, sequence=5, lane=ENGINE)
    trace.host("CheckpointFunctionBackward", 220, 790, sequence=5, lane=ENGINE)
    trace.host(f"{MODULE_RANGE}1", 230, 300, lane=ENGINE)
    trace.host("aten::linear", 240, 290, sequence=6, lane=ENGINE)
    trace.host(f"{NODE}AddmmBackward0", 400, 500, sequence=6, lane=ENGINE)
    trace.host("aten::mm", 410, 490, lane=ENGINE)
    spans = trace.owned()
    found = zip(spans.start_ns.tolist(), spans.module_id.tolist(), spans.phase.tolist(), strict=True)
    forward, backward = int(Phase.FORWARD), int(Phase.BACKWARD)
    in_forward = [(12, 0, forward), (30, 1, forward), (70, 1, forward)]
    assert sorted(found) == [*in_forward, (240, 1, backward), (400, 1, backward)]


def test_compiled_code_that_compiled_code_calls_is_in_the_module_of_the_call() -> None:
    """As the kernels in a branch of ``torch.cond``, which runs for one of several blocks."""
    trace = Trace()
    trace.part.modules += [{"root": 0, "path": path} for path in ("", "one", "two")]
    parts = [{"path": "one", "module_id": 1, "moved_bytes": 1}, {"path": "two", "module_id": 2, "moved_bytes": 9}]
    trace.part.facts["fusions"] = [
        {"file": "c.py", "line": 1, "kernel": "k", "parts": one} for one in (parts, [], None)
    ]
    trace.host(f"{MODULE_RANGE}0", 0, 900)
    trace.host(f"{FUSION_RANGE}0", 10, 90)
    trace.host(f"{FUSION_RANGE}1", 20, 40)
    trace.host(f"{FUSION_RANGE}2", 110, 190)
    trace.host(f"{FUSION_RANGE}7", 120, 180)
    trace.host(f"{FUSION_RANGE}1", 130, 140)
    spans = trace.owned()
    found = zip(spans.start_ns.tolist(), spans.fusion_id.tolist(), spans.module_id.tolist(), strict=True)
    assert list(found) == [(20, 1, 2), (130, 1, 0)]


def test_modules_that_a_compiled_function_computes_run_in_forward() -> None:
    """Whether anything calls them or not, also in a closure. An optimizer's own step computes no module."""
    trace = Trace()
    trace.part.modules += [{"root": 0, "path": ""}]
    kernel = {"file": "c.py", "line": 1, "kernel": "k"}
    trace.part.facts["fusions"] = [{**kernel, "parts": [{"path": "", "module_id": number}]} for number in (-1, 0)]
    trace.host(f"{FUSION_RANGE}0", 10, 20)
    trace.host("aten::mul", 25, 29, sequence=1)
    trace.host(f"{FUSION_RANGE}1", 30, 40)
    trace.host("aten::mean", 50, 60, sequence=2)
    trace.host(f"{PHASE_RANGE}{int(Phase.OPTIMIZER)}", 70, 90)
    trace.host(f"{FUSION_RANGE}0", 72, 74)
    trace.host(f"{FUSION_RANGE}1", 75, 80)
    spans = trace.owned()
    phases = [Phase(number).name for number in spans.phase.tolist()]
    assert phases == ["BETWEEN", "BETWEEN", "FORWARD", "FORWARD", "OPTIMIZER", "FORWARD"]


def test_a_compiled_step_of_an_optimizer_is_in_its_phase_and_in_backward_stays_there() -> None:
    """No hook of the optimizer runs in compiled code. What a hook of a gradient updates is part of backward."""
    trace = Trace()
    kernel = {"file": "c.py", "line": 1, "kernel": "k", "parts": [{"path": "", "module_id": -1}]}
    trace.part.facts["fusions"] = [kernel, {**kernel, "in_optimizer": True}]
    trace.host(f"{FUSION_RANGE}0", 10, 20)
    trace.host(f"{FUSION_RANGE}1", 30, 40)
    trace.host("aten::mul", 50, 60)
    trace.host(f"{PHASE_RANGE}{int(Phase.BACKWARD)}", 70, 90)
    trace.host(f"{FUSION_RANGE}1", 72, 74)
    phases = [Phase(number).name for number in trace.owned().phase.tolist()]
    assert phases == ["BETWEEN", "OPTIMIZER", "BETWEEN", "BACKWARD"]


def test_an_operator_of_python_counts_and_not_what_it_calls_through_a_line() -> None:
    """Nor the compiler, though it is the first event of all."""
    trace = Trace()
    trace.host("dynamo", 0, 9)
    trace.host("_compile.compile_inner (dynamo_timed)", 1, 8)
    trace.host("Mix", 10, 60)
    trace.host(f"{LINE_RANGE}0", 20, 50)
    trace.host("aten::addmm", 25, 40)
    assert trace.owned().start_ns.tolist() == [10]


def test_the_time_of_the_compiler_is_nobodys() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}0", 0, 900)
    trace.host("dynamo", 10, 500)
    trace.host("entire_frame_compile", 11, 499)
    trace.host("_compile.compile_inner (dynamo_timed)", 12, 498)
    trace.host("aten::addmm", 20, 30)
    trace.host("TorchDynamo Cache Lookup", 510, 520)
    trace.host("aten::linear", 530, 540)  # an operator that compiles is measured all the same
    trace.host("inner", 531, 539)
    trace.host("_compile.compile_inner (dynamo_timed)", 532, 538)
    trace.host(f"{FUSION_RANGE}0", 600, 700)
    trace.host(f"{NODE}CompiledFunctionBackward", 710, 800)
    trace.host("backward._backward_impl", 720, 730)
    trace.host("backward._backward_impl (dynamo_timed)", 721, 729)
    spans = trace.owned()
    found = zip(spans.start_ns.tolist(), spans.module_id.tolist(), strict=True)
    assert list(found) == [(510, 0), (530, 0), (600, 0), (710, -1)]


def test_of_events_that_begin_together_the_longer_is_around_the_shorter() -> None:
    """Whichever of them was written first."""
    for module_first in (False, True):
        trace = Trace()
        if module_first:
            trace.host(f"{MODULE_RANGE}3", 10, 100)
        launch = trace.host("aten::mm", 10, 20)
        if not module_first:
            trace.host(f"{MODULE_RANGE}3", 10, 100)
        trace.device("kernel", 40, 50, launch)
        assert places(trace.owned()) == [("kernel", 3, "forward", 4)]


def test_a_module_has_what_begins_in_it_and_not_what_begins_at_its_end() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}3", 10, 100)
    for start in (9, 10, 99, 100):
        trace.device("kernel", 200 + start, 201 + start, trace.host("aten::mm", start, start + 1))
    assert [module for _, module, *_ in places(trace.owned())] == [-1, 3, 3, -1]


def test_what_a_mark_itself_launches_is_nobodys() -> None:
    trace = Trace()
    trace.host(f"{MODULE_RANGE}3", 0, 100)
    trace.host(f"{LINE_RANGE}0", 2, 5)
    launch = trace.host(f"{SCOPE_RANGE}-1", 10, 12)
    trace.device("kernel", 40, 50, launch)
    spans = trace.owned()
    assert places(spans) == [("kernel", -1, "between", 4)]
    assert (spans.scope_id.tolist(), spans.fusion_id.tolist(), spans.stack_id.tolist()) == ([-1], [-1], [-1])


def test_a_kernel_is_measured_with_the_step_that_launched_it_though_it_runs_in_the_next() -> None:
    """Its launch is the first activity of all, and the next step's kernels alone were recorded."""
    trace = Trace()
    launch = trace.host("aten::mm", 990, 995)
    trace.device("kernel", 1_002, 1_005, launch)
    assert [step for *_, step in places(alone(trace, ((7, ("kernel",)),)).owned())] == [4, 5]


def test_a_replayed_kernel_is_the_compiled_one_of_its_capture_and_the_first_has_the_number_0() -> None:
    trace = Trace()
    trace.part.facts["fusions"] = [
        {"file": "c.py", "function": "call", "line": line, "kernel": kernel}
        for line, kernel in enumerate(("triton_poi_a_0", "triton_red_b_1"))
    ]
    trace.launches = -8
    launch = trace.host("cudaGraphLaunch", 20, 30)
    for at, name in ((40, "triton_poi_a_0"), (60, "triton_red_b_1")):
        trace.device(name, at, at + 10, launch)
    spans = trace.owned()
    assert spans.fusion_id.tolist() == [0, 1]
    assert (spans.is_replayed.tolist(), spans.is_matched.tolist()) == ([True, True], [True, True])


@pytest.mark.parametrize("with_lines", [False, True])
def test_operators_of_a_captured_graph_are_not_measured_themselves(with_lines: bool) -> None:
    """They ran while the graph was captured, before the profiled steps."""
    trace = Trace()
    trace.host("aten::mm", 10, 20)
    column = {"lane": 1, "name_id": 0, "start_ns": 30, "duration_ns": 5, "launch_id": 9, "sequence": -1}
    trace.part.add("captures", capture=0, kind=int(ActivityKind.HOST), forward_lane=0, **column)
    trace.part.facts["captured_names"] = ["aten::add"]
    if with_lines:  # nor those of the step with lines
        trace.part.facts["line_step"] = {"step": 5, "from_ns": 500}
        trace.host("aten::mm", 500, 510)
    assert trace.owned().start_ns.tolist() == [10]
