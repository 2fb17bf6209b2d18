"""Kernels of a replayed CUDA graph are on the operators of its traced capture, by order, or on none."""

from __future__ import annotations

from typing import Any

import pytest
from traced import ENGINE, MAIN, NODE, Trace

from gpuledger.analyze.posting.activities import OwnedSpans
from gpuledger.analyze.posting.graph_replays import replay_notes
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import GRAPH_RANGE, MODULE_RANGE, ActivityKind

KERNEL, COPY = ActivityKind.KERNEL, ActivityKind.COPY


class Captured(Trace):
    """A trace with captures: host events and launches with ids of their own, at times before the measured steps."""

    def __init__(self) -> None:
        super().__init__()
        self.captured_names: dict[str, int] = {}

    def capture(self, number: int, kind: ActivityKind, name: str, start: int, **more: Any) -> None:
        end = more.pop("end", start + 1)
        row = {"lane": MAIN, "launch_id": 0, "sequence": -1, "forward_lane": 0} | more
        self.part.add(
            "captures",
            capture=number,
            kind=int(kind),
            name_id=self.captured_names.setdefault(name, len(self.captured_names)),
            start_ns=start,
            duration_ns=end - start,
            **row,
        )
        self.part.facts["captured_names"] = list(self.captured_names)

    def replay(self, number: int, start: int, kinds: list[ActivityKind], *, streams: tuple[int, ...] = (7,)) -> None:
        """Add a replay: a range with the number of its capture, the launch in it, and its work."""
        self.host(f"{GRAPH_RANGE}{number}", start, start + 20)
        launch = self.launches = self.launches + 1
        self._add(ActivityKind.HOST, -1, MAIN, "cudaGraphLaunch", start + 5, start + 10, -launch, -1, 0)
        for place, kind in enumerate(kinds):
            at = start + 30 + 10 * place
            self.device(f"kernel {place}", at, at + 10, -launch, kind, streams[place % len(streams)])


def a_capture(trace: Captured, number: int = 0, module: int = 3, at: int = -1000) -> None:
    """Add a capture: a module with two operators, its backward in autograd's thread, and an optimizer's copy."""
    trace.capture(number, ActivityKind.HOST, f"{MODULE_RANGE}{module}", at, end=at + 100, launch_id=1)
    trace.capture(number, ActivityKind.HOST, "aten::addmm", at + 10, end=at + 20, launch_id=2, sequence=5)
    trace.capture(number, ActivityKind.HOST, "aten::gelu", at + 30, end=at + 40, launch_id=3, sequence=6)
    node = {"lane": ENGINE, "sequence": 5, "forward_lane": MAIN}
    trace.capture(number, ActivityKind.HOST, f"{NODE}AddmmBackward0", at + 200, end=at + 240, launch_id=4, **node)
    trace.capture(number, ActivityKind.HOST, "aten::mm", at + 210, end=at + 220, launch_id=5, lane=ENGINE)
    trace.capture(number, ActivityKind.HOST, "aten::copy_", at + 300, end=at + 310, launch_id=6)
    for launch_id, kind, start in ((2, KERNEL, 15), (3, KERNEL, 35), (5, KERNEL, 215), (6, COPY, 305)):
        trace.capture(number, kind, "", at + start, launch_id=launch_id)


WORK = [KERNEL, KERNEL, KERNEL, COPY]


def owners(spans: OwnedSpans) -> list[tuple[int, int, int]]:
    """Return module, phase and step of every span."""
    return list(zip(spans.module_id.tolist(), spans.phase.tolist(), spans.step.tolist(), strict=True))


def operators(trace: Captured, spans: OwnedSpans) -> list[str]:
    words = [*trace.names, *trace.captured_names]
    return [words[number] if number >= 0 else "" for number in spans.operator_id.tolist()]


def test_work_of_a_replay_is_on_the_captured_operators() -> None:
    trace = Captured()
    a_capture(trace)
    trace.replay(0, 100, WORK)
    spans = trace.owned()
    assert owners(spans) == [
        (3, Phase.FORWARD, 4),
        (3, Phase.FORWARD, 4),
        (3, Phase.BACKWARD, 4),
        (-1, Phase.BETWEEN, 4),
    ]
    assert operators(trace, spans) == ["aten::addmm", "aten::gelu", "aten::mm", "aten::copy_"]
    assert spans.is_matched.all()
    assert replay_notes(spans.is_replayed, spans.is_matched) == []
    assert (spans.end_ns - spans.start_ns).tolist() == [10] * 4


def test_work_that_was_captured_outside_of_modules_is_where_it_is_replayed() -> None:
    trace = Captured()
    trace.capture(0, ActivityKind.HOST, "aten::addmm", -990, end=-980, launch_id=2, sequence=5)
    trace.capture(0, KERNEL, "", -985, launch_id=2)
    trace.host(f"{MODULE_RANGE}3", 95, 125)
    trace.replay(0, 100, [KERNEL])
    trace.replay(0, 200, [KERNEL])
    spans = trace.owned()
    assert owners(spans) == [(3, Phase.FORWARD, 4), (-1, Phase.BETWEEN, 4)]
    assert operators(trace, spans) == ["aten::addmm"] * 2


def test_every_replay_is_of_its_own_capture() -> None:
    trace = Captured()
    a_capture(trace, 0, module=3, at=-2000)
    a_capture(trace, 1, module=4, at=-1000)
    for number, start in ((1, 100), (0, 300), (1, 500)):
        trace.replay(number, start, WORK)
    assert [module for module, *_ in owners(trace.owned())][::4] == [4, 3, 4]


@pytest.mark.parametrize(
    ("number", "kinds", "streams"),
    [
        (0, WORK[:-1], (7,)),
        (0, [KERNEL, COPY, KERNEL, KERNEL], (7,)),
        (0, WORK, (7, 8)),
        (9, WORK, (7,)),
    ],
    ids=["another number", "another order", "several streams", "an unknown capture"],
)
def test_work_that_is_not_that_of_the_capture_is_not_matched(
    number: int, kinds: list[ActivityKind], streams: tuple[int, ...]
) -> None:
    trace = Captured()
    a_capture(trace)
    trace.replay(number, 100, kinds, streams=streams)
    spans = trace.owned()
    assert set(spans.module_id.tolist()) == {-1}
    assert not spans.is_matched.any()
    (note,) = replay_notes(spans.is_replayed, spans.is_matched)
    assert note.startswith(f"{len(kinds)} of {len(kinds)} kernels of replayed CUDA graphs")


def test_a_capture_without_replays_changes_nothing() -> None:
    plain, captured = Trace(), Captured()
    a_capture(captured)
    for trace in (plain, captured):
        trace.host(f"{MODULE_RANGE}5", 10, 60)
        trace.device("kernel", 70, 80, trace.host("aten::mm", 20, 30))
    assert owners(plain.owned()) == owners(captured.owned()) == [(5, Phase.FORWARD, 4)]


def test_captures_are_no_times_of_a_program_without_kernels() -> None:
    trace = Captured()
    a_capture(trace)
    trace.host("aten::mm", 20, 30)
    assert owners(trace.owned()) == [(-1, Phase.BETWEEN, 4)]
