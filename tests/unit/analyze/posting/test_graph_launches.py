"""What the time pass writes of Kineto's events that no operator tells of."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from gpuledger.collect.adapter import kineto, kineto_events  # noqa: E402
from gpuledger.collect.adapter.guard import Guard  # noqa: E402
from gpuledger.collect.attribution.module_registry import ModuleRegistry  # noqa: E402
from gpuledger.collect.passes import energy_cards  # noqa: E402
from gpuledger.collect.passes.time_pass import TimePass  # noqa: E402
from gpuledger.model.journal.journal import ActivityKind, Part  # noqa: E402
from gpuledger.model.journal.reading import journal_of  # noqa: E402

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Event:
    """An event as Kineto tells it; a runtime call and what it launched have the same correlation."""

    said: str
    start: int
    correlation: int
    linked: int = 0
    on_card: bool = False

    def name(self) -> str:
        return self.said

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return 5

    def device_index(self) -> int:
        return 0

    def device_resource_id(self) -> int:
        return 7

    def start_thread_id(self) -> int:
        return 1

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def sequence_nr(self) -> int:
        return -1

    def fwd_thread_id(self) -> int:
        return 0

    def activity_type(self) -> str:
        is_call = self.said.startswith("cuda")
        return "kernel" if self.on_card else "cuda_runtime" if is_call else "cpu_op"


class Journal:
    """Keeps one part."""

    def __init__(self) -> None:
        self.part = Part()

    def note(self, sentence: str) -> None:
        self.part.notes.append(sentence)

    def pause(self, reason: str, started_ns: int) -> None:
        """Do nothing: how long the program waited is told elsewhere."""

    def fact(self, **facts: object) -> None:
        self.part.facts.update(facts)


def passed(
    journal: Journal, events: list[Event], monkeypatch: pytest.MonkeyPatch, *, kernels_alone_from: int | None = None
) -> None:
    """Write the time pass in which the profiler was told of ``events``."""

    class Profiler:
        has_all_threads = False

        def __init__(self, *, with_shapes: bool, all_threads: kineto.OthersWait | None) -> None:
            assert (with_shapes, all_threads) == (True, None)

        def start(self) -> None:
            pass

        def leave_out_operators(self) -> bool:
            return True

        def stop(self, *, wait: bool) -> list[Event]:
            return events

    monkeypatch.setattr(kineto, "Profiler", Profiler)
    monkeypatch.setattr(energy_cards, "wait_for", lambda _: None)
    one = TimePass(journal, ModuleRegistry(), Guard(lambda _: None), lambda: None)  # type: ignore[arg-type]
    one.begin()
    if kernels_alone_from is not None:
        one.leave_out_operators(kernels_alone_from)
    assert one.end()


def test_graphs_launched_before_kernels_alone_are_recorded_have_a_launch_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [
        Event("aten::mm", 10, 42),
        Event("cudaLaunchKernel", 12, 41),
        Event("gemm", 20, 41, linked=42, on_card=True),
        Event("cudaGraphLaunch", 30, 42),
        Event("in a graph", 40, 42, on_card=True),
        Event("cudaGraphLaunch", 130, 43),
        Event("in a graph", 140, 43, on_card=True),
    ]
    assert set(kineto_events.graph_launches(events, [event.said for event in events], 100)) == {42}
    journal = Journal()
    monkeypatch.setattr(time, "time_ns", lambda: 100)
    passed(journal, events, monkeypatch, kernels_alone_from=5)
    assert journal.part.facts["kernels_alone"] == {"from_step": 5, "from_ns": 100}
    table = journal_of([journal.part]).tables["activities"]
    kinds = [ActivityKind(kind).name for kind in table["kind"].tolist()]
    assert list(zip(kinds, table["launch_id"].tolist(), strict=True)) == [
        ("HOST", 42),
        ("KERNEL", 42),
        ("HOST", -42),
        ("KERNEL", -42),
        ("KERNEL", 0),
    ]


@pytest.mark.parametrize(("on_card", "noted"), [(True, False), (False, True)])
def test_a_program_on_a_card_whose_kernels_were_not_told_is_noted(
    on_card: bool, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy_cards, "cards_in_use", lambda: [(0, "GPU-a")])
    journal = Journal()
    passed(journal, [Event("aten::mm", 10, 42), Event("gemm", 20, 41, linked=42, on_card=on_card)], monkeypatch)
    assert ["no kernels" in note for note in journal.part.notes] == [True] * noted
