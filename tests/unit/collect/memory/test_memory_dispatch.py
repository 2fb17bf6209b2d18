"""The dispatch-mode recorder against a walk over every storage alive."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._prims.rng_prims import run_and_save_rng_state
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_in_torch_dispatch_mode,
)
from torch.utils.flop_counter import FlopCounterMode

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable, suffix
from gpuledger.collect.memory import dispatch
from gpuledger.collect.memory.dispatch import BLOCKED, UNSEEN_THREADS, DispatchRecorder
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import Action, Part

pytestmark = pytest.mark.torch


def walk() -> int:
    """Return the bytes of all storages that Python can reach, each once. A fake tensor of the compiler's has none."""
    storages = {}
    for thing in gc.get_objects():
        plain = type(thing) in (torch.Tensor, nn.Parameter)
        if plain and thing.device.type == "cpu" and thing.layout is torch.strided:
            storages[thing.untyped_storage()._cdata] = thing.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def recorder(errors: list[BaseException]) -> Iterator[DispatchRecorder]:
    gc.collect()
    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(errors.append))
    recorder.open(Part(), LiveObjects())
    yield recorder
    recorder.close(Part(), "close")
    assert errors == []


def held(recorder: DispatchRecorder) -> int:
    part = Part()
    recorder.read_counters(part, 0, "step_end", 0)
    return int(part.arrays()["counters.allocated_bytes"].sum())


def test_nothing_is_recorded_after_the_closing_counters(recorder: DispatchRecorder) -> None:
    """Other threads of the program go on between the counters and the last events."""
    first, part = torch.ones(1000), Part()
    recorder.read_counters(part, 1, "close", 0)
    second = first + 1
    del first
    recorder.close(part, "close")
    assert second.numel() == 1000
    found = part.arrays()
    made = int((found["events.action"] == Action.ALLOC).sum())
    assert (made, found["events.action"].size - made) == (1, 0)
    assert (found["counters.alloc_count"].tolist(), found["counters.free_count"].tolist()) == ([1], [0])


def test_fake_tensors_have_no_memory(recorder: DispatchRecorder) -> None:
    net = nn.Linear(256, 256)
    before = held(recorder)
    exported = torch.export.export(net, (torch.ones(2, 256),))
    fakes = [one.meta["val"] for one in exported.graph.nodes if "val" in one.meta]
    with FakeTensorMode():
        fakes.append(torch.empty(1 << 20) + 1)
    gc.collect()
    assert len(fakes) > 1
    assert held(recorder) - before < 4096


def test_an_operator_that_takes_an_operator_runs_and_its_results_are_recorded(recorder: DispatchRecorder) -> None:
    before = held(recorder)
    state, made = run_and_save_rng_state(torch.ops.aten.rand.default, [1024], device="cpu")
    assert held(recorder) - before == state.untyped_storage().nbytes() + made.untyped_storage().nbytes()


def test_a_profiler_of_the_program_s_own_sees_operators_twice_while_we_record_and_once_after() -> None:
    """As docs/numbers.md says; where torch no longer tells both calls, the page has a sentence too many."""

    def products() -> int:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:  # without it, torch 2.11 warns
            torch.ones(4, 4) @ torch.ones(4, 4)
        return sum(event.count for event in profiler.key_averages() if event.key == "aten::mm")

    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(list[BaseException]().append))
    recorder.open(Part(), LiveObjects())
    during = products()
    recorder.close(Part(), "close")
    assert (during, products()) == (2, 1)


def test_what_is_held_is_what_a_walk_over_everything_finds(recorder: DispatchRecorder) -> None:
    assert held(recorder) == walk()
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters())
    views = [torch.zeros(100)[3:7].view(2, 2).T for _ in range(3)]
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        gc.collect()
        assert held(recorder) == walk()
    del views, model, optimizer
    gc.collect()
    assert held(recorder) == walk()


def test_a_storage_that_grows_or_shrinks_ends_and_begins_anew(recorder: DispatchRecorder) -> None:
    before = held(recorder)
    x = torch.zeros(100)
    x.resize_(1000)
    assert held(recorder) - before == 4000
    x.untyped_storage().resize_(0)  # as sharded training does with what it has gathered
    x.detach()
    x.untyped_storage().resize_(4000)
    x.add_(1)
    assert held(recorder) - before == 4000
    del x
    assert held(recorder) == before


def test_a_storage_that_was_freed_and_left_has_no_bytes_although_views_keep_it(recorder: DispatchRecorder) -> None:
    before = held(recorder)
    x, part = torch.zeros(1000), torch.zeros(250)
    view = x.view(10, 100)
    x.untyped_storage().resize_(0)
    x.set_(part)  # type: ignore[call-overload]  # torch has not annotated it
    assert held(recorder) - before == 1000
    del view, x, part
    assert held(recorder) == before


def test_a_storage_that_moves_to_shared_memory_is_found_there(recorder: DispatchRecorder) -> None:
    moved = torch.ones(1000)
    before = moved.data_ptr()
    moved.share_memory_()
    moved.add_(1)
    assert moved.data_ptr() != before
    recorder.drain(part := Part(), "drain")
    events = part.arrays()
    live: set[int] = set()
    for action, address in zip(events["events.action"].tolist(), events["events.address"].tolist(), strict=True):
        if action == Action.ALLOC:
            assert address not in live
            live.add(address)
        elif action == Action.FREE_REQUESTED:
            live.remove(address)
    assert before not in live
    assert moved.data_ptr() in live
    assert held(recorder) == walk()


def test_views_and_tensors_from_elsewhere_are_met_once(recorder: DispatchRecorder) -> None:
    numpy = pytest.importorskip("numpy")
    before = held(recorder)
    x = torch.from_numpy(numpy.zeros(64))
    y = x[2:] + 1
    z = x.view(8, 8).sum()
    assert held(recorder) - before == 512 + y.nbytes + z.nbytes


def test_what_another_thread_lets_go_is_gone(recorder: DispatchRecorder) -> None:
    before = held(recorder)
    box = [torch.zeros(100) for _ in range(50)]
    assert held(recorder) - before == 50 * 400
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert held(recorder) == before


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def made_in_thread(recorder: DispatchRecorder, begin: Callable[[], object]) -> int:
    """Return the bytes that the recorder has after a thread that began with ``begin`` and keeps one tensor."""
    before, kept = held(recorder), []

    def work() -> None:
        begin()
        kept.append(torch.zeros(100))

    in_thread(work)
    return held(recorder) - before


def test_a_thread_that_calls_modules_is_recorded_until_it_ends(recorder: DispatchRecorder) -> None:
    stacks: list[int] = []

    def begin() -> None:
        recorder.set_token("0")
        recorder.set_token("0")
        stacks.append(len(_get_current_dispatch_mode_stack()))

    assert made_in_thread(recorder, begin) == 400
    assert made_in_thread(recorder, lambda: None) == 0
    assert stacks == [1]
    assert recorder.close(Part(), "close")  # no mode of the thread is left


def test_a_thread_in_an_inference_block_is_recorded_after_it(recorder: DispatchRecorder) -> None:
    def begin() -> None:
        with torch.inference_mode():
            recorder.set_token("0")
        recorder.set_token("0")

    assert made_in_thread(recorder, begin) == 400


def test_a_recording_ends_in_every_thread_at_its_next_chance(recorder: DispatchRecorder) -> None:
    began, ended = threading.Event(), threading.Event()
    found: list[tuple[int, bool, int]] = []

    def work() -> None:
        recorder.set_token("0")
        began.set()
        ended.wait()
        torch.zeros(100)
        stack = _get_current_dispatch_mode_stack
        found.append((len(stack()), recorder.close(Part(), "close"), len(stack())))

    thread = threading.Thread(target=work)
    thread.start()
    began.wait()
    assert not recorder.close(Part(), "close")
    count = recorder.counts()
    ended.set()
    thread.join()
    assert found == [(1, True, 0)]
    assert recorder.counts() == count


def test_threads_leave_the_flags_of_torch_as_they_are(recorder: DispatchRecorder) -> None:
    """In any order of their ends: a flag left behind would keep torch.compile from compiling."""
    first, second = threading.Event(), threading.Event()

    def work(own: threading.Event, other: threading.Event) -> None:
        recorder.set_token("0")
        own.set()
        other.wait()

    threads = [threading.Thread(target=work, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close(Part(), "close")
    assert not is_in_torch_dispatch_mode()


def test_events_of_several_threads_are_in_order(recorder: DispatchRecorder) -> None:
    """Every storage begins where none is, and ends once; the total is that of what is alive."""
    before, part = held(recorder), Part()
    kept: list[torch.Tensor] = []

    def work() -> None:
        recorder.set_token("0")
        for _ in range(300):
            torch.ones(50).neg()
        kept.append(torch.ones(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(recorder) - before == 4 * 200
    recorder.drain(part, "drain")
    events = part.arrays()
    live: set[int] = set()
    for action, address in zip(events["events.action"].tolist(), events["events.address"].tolist(), strict=True):
        if action == Action.ALLOC:
            assert address not in live
            live.add(address)
        elif action == Action.FREE_REQUESTED:
            live.discard(address)
    assert {made.data_ptr() for made in kept} <= live


def test_a_thread_that_cannot_be_recorded_is_noted(recorder: DispatchRecorder) -> None:
    def notes_after(begin: Callable[[], object]) -> list[str]:
        in_thread(begin)
        recorder.drain(part := Part(), "drain")
        return part.notes

    def inside_a_mode() -> None:
        with FlopCounterMode(display=False):
            recorder.set_token("0")

    assert notes_after(lambda: recorder.set_token("0")) == []
    assert notes_after(inside_a_mode) == [UNSEEN_THREADS]


def test_a_thread_that_waits_for_another_does_not_wait_for_ever(
    recorder: DispatchRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is inside the recorder, in a finalizer of the program that waits for this thread."""
    monkeypatch.setattr(dispatch, "LONGEST_WAIT_S", 0.01)
    entered, done = threading.Event(), threading.Event()
    begin = recorder.storages.begin

    def waits(tensor: torch.Tensor) -> object:
        if threading.current_thread() is thread:
            entered.set()
            done.wait()
        return begin(tensor)

    def work() -> None:
        recorder.set_token("0")
        torch.ones(1)

    monkeypatch.setattr(recorder.storages, "begin", waits)
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    assert torch.ones(3).sum() == 3
    done.set()
    thread.join()
    recorder.drain(part := Part(), "drain")
    assert part.notes == [BLOCKED]


def test_a_tensor_that_no_operator_has_seen_is_recorded_where_it_is_observed(recorder: DispatchRecorder) -> None:
    made: list[torch.Tensor] = []
    in_thread(lambda: made.append(torch.zeros(100)))
    before = held(recorder)
    assert recorder.place_of(made[0]) == (-1, made[0].data_ptr())
    assert held(recorder) - before == 400


def test_the_program_s_own_modes_go_on_working(recorder: DispatchRecorder) -> None:
    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(
            self, func: Callable[..., object], types: object, args: Any = (), kwargs: Any = None
        ) -> object:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    before = held(recorder)
    with Counting() as counting:
        x = torch.zeros(100) + 1
        recorder.close(Part(), "close")
        assert _get_current_dispatch_mode_stack() == [counting]
        y = torch.zeros(100)
    assert counting.calls == 3
    assert held(recorder) - before == 400
    assert x.sum() + y.sum() == 100
    assert _get_current_dispatch_mode_stack() == []
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a flag left behind would keep torch.compile from compiling
        assert torch.compile(torch.neg, backend="eager", fullgraph=True)(torch.ones(1)) == -1


def test_a_whole_graph_compiles_while_it_is_on(recorder: DispatchRecorder) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).relu() + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 3.0))


def test_an_error_of_ours_is_handed_over_and_the_operator_has_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []
    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(errors.append))
    recorder.open(Part(), LiveObjects())
    monkeypatch.setattr(recorder.storages, "begin", lambda _: 1 / 0)
    assert torch.ones(3).sum() == 3
    assert {type(error) for error in errors} == {ZeroDivisionError}
    recorder.close(Part(), "close")


def test_events_balance_and_name_their_operator_and_what_was_going_on(errors: list[BaseException]) -> None:
    tags = TagTable()
    recorder = DispatchRecorder(StackTable(), tags, Guard(errors.append))
    part = Part()
    recorder.open(part, LiveObjects())
    recorder.set_token(tags.begin_visit(1, Phase.FORWARD) + suffix(3))
    x = torch.ones(10)
    recorder.set_token(tags.begin_visit(1, Phase.BACKWARD) + suffix(-1))
    del x
    recorder.close(part, "close")
    tags.drain(part)
    found = part.arrays()
    assert found["events.action"].tolist() == [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert found["events.tag_id"].tolist() == [0, 1, 1]
    assert found["tags.module_id"].tolist() == [3, -1]
    assert found["tags.phase"].tolist() == [Phase.FORWARD, Phase.BACKWARD]
    assert len(set(found["events.address"].tolist())) == 1
    assert part.facts["operators"][found["events.operator_id"][0]] == "aten.ones.default"
    assert recorder.counts()[-1] == (1, 1)
    assert errors == []


def test_nothing_stays_and_closing_twice_is_one(errors: list[BaseException]) -> None:
    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(errors.append))
    recorder.open(Part(), LiveObjects())
    assert len(_get_current_dispatch_mode_stack()) == 1
    recorder.close(Part(), "close")
    recorder.close(Part(), "close")
    assert _get_current_dispatch_mode_stack() == []


def test_a_storage_in_the_place_of_one_that_has_left_it(errors: list[BaseException]) -> None:
    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(errors.append))
    recorder.open(Part(), LiveObjects())

    def alive() -> int:
        allocations, frees = recorder.counts().get(-1, (0, 0))
        return allocations - frees

    before = alive()
    memory = np.ones(1000)
    moved = torch.from_numpy(memory)
    moved.add_(1)
    moved.share_memory_()  # nothing says that its storage has left, as when one is resized
    other = torch.from_numpy(memory)
    other.add_(1)
    assert alive() == before + 1
    moved.add_(1)
    assert alive() == before + 2
    recorder.close(Part(), "close")
    assert errors == []


def test_storages_that_share_memory_are_both_there(errors: list[BaseException]) -> None:
    gc.collect()  # what earlier tests have left behind must not be freed meanwhile
    recorder = DispatchRecorder(StackTable(), TagTable(), Guard(errors.append))
    recorder.open(Part(), LiveObjects())
    tensor = torch.ones(1000)
    other = torch.from_numpy(tensor.numpy()) + 0 * torch.from_numpy(tensor.numpy())
    alone = torch.from_numpy(tensor.numpy())
    alone.add_(1)
    frees = recorder.counts()[-1][1]
    del alone
    recorder.drain(Part(), "step_end")
    assert recorder.counts()[-1][1] == frees + 1
    frees = recorder.counts()[-1][1]
    del tensor
    recorder.drain(Part(), "step_end")
    assert recorder.counts()[-1][1] == frees + 1
    assert other.numel() == 1000
    recorder.close(Part(), "close")
    assert errors == []
