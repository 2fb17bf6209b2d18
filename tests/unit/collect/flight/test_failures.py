"""Out-of-memory errors: recorded in any step, kept small, told in one sentence, and replayed."""

from __future__ import annotations

import _thread
import errno
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from failing_allocator import BASE, CAPACITY_BYTES, FACTS, MIB, Recorded, card, snapshot
from present import present
from torch import nn
from torch.autograd.variable import Variable

from gpuledger.analyze.memory.failures.memory_map import read_memory_map
from gpuledger.analyze.memory.failures.oom import Besides, Ending, explain_oom
from gpuledger.cli.main import main
from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.memory import out_of_memory
from gpuledger.model.journal.reading import read_journal
from gpuledger.report.html.sections.failures import _failure as drawn_failure
from gpuledger.report.json.document import oom_document
from gpuledger.report.text.oom_text import memory_texts, request_text

__all__ = ["card"]


def test_fragmented_memory_is_named(card: Callable[..., None], tmp_path: Path) -> None:
    free = [18 * MIB] * 100
    card(snapshot([CAPACITY_BYTES - 100 * MIB - sum(free)], free), CAPACITY_BYTES - 100 * MIB - sum(free))
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 1024 * MIB}, 812)
    found = recorded.explain()
    assert found.step == 812
    assert found.cause is not None
    assert found.cause.sentence == "1.8 GiB are free, but in 100 pieces of at most 18.0 MiB: the memory is fragmented"
    assert {one.action: one.fits for one in found.remedies} == {
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": None,  # there are no events to replay
        "empty the cache (torch.cuda.empty_cache())": False,
    }


@pytest.mark.parametrize(
    ("facts", "state", "kind"),
    [
        ({"tried_bytes": 60 * 1024 * MIB}, {"live": [30 * 1024 * MIB], "free": []}, "one_large_request"),
        (
            {"tried_bytes": 300 * MIB, "total_bytes": 8 * 1024 * MIB, "free_bytes": 70 * 1024 * MIB},
            {"live": [8 * 1024 * MIB], "free": []},
            "memory_fraction",
        ),
        ({"tried_bytes": 300 * MIB}, {"live": [1024 * MIB], "free": []}, "other_processes"),
        (
            {"tried_bytes": 300 * MIB},
            {"live": [78 * 1024 * MIB], "free": [], "private_free": [1024 * MIB]},
            "private_pool",
        ),
        ({"tried_bytes": 300 * MIB}, {"live": [79 * 1024 * MIB], "free": []}, "full"),
    ],
)
def test_the_cause_is_named(
    card: Callable[..., None], tmp_path: Path, facts: dict[str, Any], state: dict[str, Any], kind: str
) -> None:
    card(snapshot(**state), sum(state["live"]))
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, **facts}, 5)
    cause = recorded.explain().cause
    assert cause is not None
    assert cause.kind == kind


def test_the_request_has_its_line_its_module_and_the_shapes_of_the_inputs(
    card: Callable[..., None], tmp_path: Path
) -> None:
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    recorded = Recorded(tmp_path)

    class Asking(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 7)
            return values

    model = nn.Sequential(nn.Identity(), Asking()).eval()
    model(torch.zeros(4, 32))
    (fact,) = recorded.failures.facts
    assert fact["frames"][0][2] == "forward"
    assert fact["inputs"] == [[4, 32]]
    found = recorded.explain()
    assert found.line.startswith("test_failures.py:")
    assert found.module == "Sequential.1"
    assert found.cause is not None
    assert found.cause.kind == "evaluation"


def test_the_first_and_the_worst_of_a_thousand_are_kept_and_the_others_counted(
    card: Callable[..., None], tmp_path: Path
) -> None:
    recorded = Recorded(tmp_path)
    for step in range(1, 1001):
        size = 79 * 1024 * MIB if step == 500 else 70 * 1024 * MIB
        card(snapshot([size], []), size)
        recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, step)
    first, worst = recorded.rank().manifest.oom
    assert (first.step, first.times, worst.step, worst.times) == (1, 499, 500, 501)
    assert worst.last_step == 1000


def test_errors_counted_with_one_that_is_replaced_stay_counted(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    for step, gib in enumerate((60, 70, 50, 50, 79), 1):
        card(snapshot([gib * 1024 * MIB], []), gib * 1024 * MIB)
        recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, step)
    first, worst = recorded.rank().manifest.oom
    assert (first.step, worst.step) == (1, 5)
    assert first.times + worst.times == 5


def test_one_that_is_replaced_leaves_no_blocks_to_the_next(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    for step, gib in enumerate((60, 70, 79), 1):
        card(snapshot([gib * 1024 * MIB], []), gib * 1024 * MIB)
        recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, step)
    rank = recorded.rank()
    worst = explain_oom(rank)[-1]
    assert [one["bytes"] for one in drawn_failure(rank, worst)["segments"]] == [79 * 1024 * MIB]


def test_the_request_of_the_last_error_is_told(card: Callable[..., None], tmp_path: Path) -> None:
    """cuDNN asks for smaller and smaller workspaces, and PyTorch's message has the last one."""
    recorded = Recorded(tmp_path)
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    for size in (300, 54, 24):
        recorded.failures.happened({**FACTS, "tried_bytes": size * MIB}, 4)
    rank = recorded.rank()
    (found,) = explain_oom(rank)
    assert "3 errors of this kind, the last one for 24.0 MiB" in request_text(rank, found)


def test_the_error_that_ended_the_program_has_its_own_place(card: Callable[..., None], tmp_path: Path) -> None:
    """cuDNN goes on without a workspace. Steps later, the program's own request fails."""
    recorded = Recorded(tmp_path)
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    for step, size in ((4, 300), (4, 54), (9, 24)):
        recorded.failures.happened({**FACTS, "tried_bytes": size * MIB}, step)

    class Asking(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 24.00 MiB. GPU 0 has")

    try:
        nn.Sequential(nn.Identity(), Asking())(torch.zeros(4, 32))
    except torch.OutOfMemoryError as error:
        recorded.failures.ended_program("CUDA out of memory. Tried to allocate 25.00 MiB. GPU", error.__traceback__)
        assert not recorded.failures.facts[0].get("ended_program"), "another one"
        recorded.failures.ended_program(str(error), error.__traceback__)
    rank = recorded.rank()
    (found,) = explain_oom(rank)
    assert "300.0 MiB did not fit on cuda:0 in step 4" in request_text(rank, found)
    assert request_text(rank, found).endswith("3 errors of this kind")
    said = memory_texts(found)[0]
    assert said.startswith(
        "the last of them ended the program: 24.0 MiB did not fit in step 9, asked for at test_failures"
    )
    assert said.endswith("in forward, module Sequential.1, inputs 4 × 32")
    assert oom_document(0, found)["ending"]["step"] == 9


def test_one_error_that_ended_the_program_is_told_once(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    recorded.failures.happened({**FACTS, "tried_bytes": 2048 * MIB}, 4)
    recorded.failures.ended_program("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", None)
    (found,) = explain_oom(recorded.rank())
    assert found.ending == Ending(2048 * MIB, 4, found.line, found.module, found.inputs)
    assert not any("ended the program" in text for text in memory_texts(found))


def test_two_errors_of_one_step_with_nearly_the_same_memory_are_one(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    for step, size in ((7, 79_000), (7, 79_001), (8, 79_002), (8, 79_003)):
        card(snapshot([size * MIB], []), size * MIB)
        recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, step)
    assert [(one.step, one.times) for one in recorded.rank().manifest.oom] == [(7, 2), (8, 2)]


def test_two_errors_in_one_step_have_each_its_own_map(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    for size in (60 * MIB, 79 * MIB):
        card(snapshot([size], []), size)
        recorded.failures.happened({**FACTS, "tried_bytes": 30 * MIB}, 7)
    rank = recorded.rank()
    drawn = [[one["bytes"] for one in drawn_failure(rank, one)["segments"]] for one in explain_oom(rank)]
    assert drawn == [[60 * MIB], [79 * MIB]]


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), OSError(errno.ENOSPC, "No space left on device")],
    ids=["GPU", "host", "disk"],
)
def test_an_error_while_one_is_recorded_ends_the_recording_and_does_not_reach_the_program(
    error: Exception, card: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(tmp_path)
    card(snapshot([MIB], []), MIB)
    observers: list[Callable[..., None]] = []
    monkeypatch.setattr(torch_private, "watch_out_of_memory", observers.append)
    ends: list[BaseException] = []
    guard = Guard(ends.append)
    out_of_memory.watch(guard, lambda facts: recorded.failures.happened(facts, 3))

    def fail() -> None:
        raise error

    monkeypatch.setattr(torch_private, "light_snapshot", fail)
    observers[0](0, MIB, CAPACITY_BYTES, 0)
    assert (ends, guard.ended) == ([error], True)
    observers[0](0, MIB, CAPACITY_BYTES, 0)  # the next one is the program's alone
    assert ends == [error]


def test_blocks_are_read_once_at_an_error_and_not_for_those_that_are_counted(
    card: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(tmp_path)
    observers: list[Callable[..., None]] = []
    snapshots: list[dict[str, Any]] = []

    def taking() -> dict[str, Any]:
        snapshots.append(snapshot([MIB], [3 * MIB, 2 * MIB]))
        return snapshots[-1]

    card(snapshot([MIB], []), MIB)
    monkeypatch.setattr(torch_private, "light_snapshot", taking)
    monkeypatch.setattr(torch_private, "watch_out_of_memory", observers.append)
    happened = recorded.failures.happened
    out_of_memory.watch(Guard(lambda _error: None), lambda facts: happened(facts, 3), reads_blocks=False)
    for _ in range(50):
        observers[0](0, 4 * MIB, CAPACITY_BYTES, 0)
    assert len(snapshots) == 1
    (failure,) = recorded.rank().manifest.oom
    assert (failure.times, failure.largest_free_bytes) == (50, 3 * MIB)


def test_an_error_that_our_own_snapshot_causes_is_counted(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)

    def taking() -> dict[str, Any]:
        recorded.failures.happened({**FACTS, "tried_bytes": MIB}, 3)
        return snapshot([MIB], [])

    card(snapshot([MIB], []), MIB)
    torch_private.light_snapshot = taking  # undone by the fixture
    recorded.failures.happened({**FACTS, "tried_bytes": MIB}, 3)
    assert len(recorded.rank().manifest.oom) == 1


def test_a_second_error_while_one_is_written_is_counted(card: Callable[..., None], tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    inner: list[threading.Thread] = []

    def taking() -> dict[str, Any]:
        other = threading.Thread(target=recorded.failures.happened, args=({**FACTS, "tried_bytes": MIB}, 3))
        inner.append(other)
        other.start()
        other.join(60)
        return snapshot([MIB], [])

    card(snapshot([MIB], []), MIB)
    torch_private.light_snapshot = taking  # undone by the fixture
    recorded.failures.happened({**FACTS, "tried_bytes": MIB}, 3)
    assert not inner[0].is_alive()
    assert len(recorded.rank().manifest.oom) == 1


def test_a_hundred_thousand_blocks_are_written_whole(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([4096] * 100_000, []), 4096 * 100_000)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": MIB}, 3)
    state = recorded.explain().state
    assert state is not None
    assert (state.blocks, state.allocated_bytes) == (100_000, 4096 * 100_000)
    assert state.known_frac == 0


def test_show_prints_why_without_any_recorded_block(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 812)
    recorded.journal.write()
    result = CliRunner().invoke(main, ["show", str(recorded.directory)])
    text = " ".join((result.output + str(result.exception or "")).split())
    assert "The GPU is full" in text
    assert "step 812" in text


@pytest.mark.parametrize("divided", [True, False])
def test_what_else_is_on_the_gpu_is_shown(divided: bool, card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([40 * MIB], [10 * MIB]), 40 * MIB)
    recorded = Recorded(tmp_path)
    free = CAPACITY_BYTES - 350 * MIB
    recorded.failures.happened({**FACTS, "tried_bytes": 30 * MIB, "free_bytes": free}, 5)
    recorded.journal.fact(pid=7)
    t_ns = recorded.failures.facts[0]["t_ns"]
    for pid, size in ((7, 90), (9, 250), (10, 10)) if divided else ():
        for later in (1, 2):
            sizes = {"pid": pid, "bytes": size * later * MIB}
            recorded.journal.part.add("process_samples", t_ns=t_ns + later, device_idx=0, **sizes)
    failure = recorded.explain()
    (text,) = [one for one in memory_texts(failure) if one.startswith("also used")]
    if divided:
        assert failure.besides == Besides(260 * MIB, 40 * MIB)
        own = "40.0 MiB by this process outside PyTorch (context, libraries)"
        assert text == f"also used on the GPU: 260.0 MiB by other processes, {own}"
    else:
        assert failure.besides == Besides(undivided_bytes=300 * MIB)
        assert text == "also used on the GPU: 300.0 MiB outside PyTorch (context, libraries, other processes)"


def test_the_report_has_the_cause_and_a_map_of_segments(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([60 * MIB, 20 * MIB], [18 * MIB], private_free=[40 * MIB]), 80 * MIB)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 30 * MIB}, 812)
    rank = recorded.rank()
    segments, others = read_memory_map(rank, rank.manifest.oom[0])
    assert others == 0
    assert [(one.bytes // MIB, one.pool_id, one.parts[0][0]) for one in segments] == [
        *((60, 0, "unknown"), (20, 0, "unknown"), (18, 0, "free, too small"), (40, 1, "free")),
    ]
    assert [one.totals for one in segments][::3] == [{"unknown": 60 * MIB}, {"free": 40 * MIB}]
    (fewer,), left = read_memory_map(rank, rank.manifest.oom[0], most=1)
    assert (fewer.bytes, left) == (40 * MIB, 3)


def test_a_segment_of_many_blocks_is_drawn_in_equal_pieces(card: Callable[..., None], tmp_path: Path) -> None:
    """The first half has used and free blocks in turn, most of it used. The second half is free."""
    count, used, free = 3000, 3 * 4096, 4096
    taken = snapshot([count * (used + free) * 2], [])
    (segment,) = taken["segments"]
    sizes = [used, free] * count + [count * (used + free)]
    places = [BASE + sum(sizes[:2]) * (number // 2) + (number % 2) * used for number in range(len(sizes))]
    segment["blocks"] = [
        {"address": place, "size": size, "requested_size": size, "state": state}
        for place, size, state in zip(
            places, sizes, ["active_allocated", "inactive"] * count + ["inactive"], strict=True
        )
    ]
    card(taken, count * used)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": count * (used + free)}, 812)
    rank = recorded.rank()
    ((drawn,), _) = read_memory_map(rank, rank.manifest.oom[0])
    half = drawn.bytes // 2
    assert drawn.parts == (("unknown", half), ("free", half))
    assert drawn.totals == {"unknown": count * used, "free": half, "free, too small": count * free}


def test_thread_capture_and_inputs_are_shown(card: Callable[..., None], tmp_path: Path) -> None:
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    recorded = Recorded(tmp_path)
    thread = threading.Thread(
        target=recorded.failures.happened, args=({**FACTS, "tried_bytes": 300 * MIB}, 812), name="prefetch"
    )
    thread.start()
    thread.join()
    recorded.failures.facts[0] |= {"is_capturing": True, "inputs": [[8, 4096]]}
    recorded.journal.fact(oom=recorded.failures.facts)
    rank = recorded.rank()
    (failure,) = explain_oom(rank)
    assert (failure.thread, failure.is_capturing, failure.inputs) == ("prefetch", True, ((8, 4096),))
    text = request_text(rank, replace(failure, module="net"))
    assert "in thread prefetch, while a CUDA graph was captured, inputs 8 × 4,096" in text


@contextmanager
def waiting_for_backward(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep threads in the call of autograd's engine inside the block, as those that wait for a backward on a GPU."""
    goes_on = threading.Lock()
    goes_on.acquire()
    engine = SimpleNamespace(run_backward=goes_on.acquire)
    monkeypatch.setattr(Variable, "_execution_engine", engine)

    def loss_backward() -> None:
        torch.autograd.graph._engine_run_backward(True)  # type: ignore[arg-type]
        goes_on.release()

    threads = [threading.Thread(target=loss_backward) for _ in range(count)]
    for thread in threads:
        thread.start()
    names = {"_engine_run_backward"}
    while sum(frame.f_code.co_name in names for frame in sys._current_frames().values()) < count:
        time.sleep(0.01)
    try:
        yield
    finally:
        goes_on.release()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("waiting", "is_known"), [(1, True), (0, False), (2, False)])
def test_a_request_of_autograds_thread_has_the_line_that_waits_for_it(
    waiting: int, is_known: bool, card: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    recorded = Recorded(tmp_path)
    monkeypatch.setattr(torch_private, "is_in_backward", lambda: True)
    with waiting_for_backward(waiting, monkeypatch):
        _thread.start_new_thread(recorded.failures.happened, ({**FACTS, "tried_bytes": 300 * MIB}, 812))
        while "took_ns" not in str(recorded.failures.facts):
            time.sleep(0.01)
    rank = recorded.rank()
    (failure,) = explain_oom(rank)
    assert (failure.thread, failure.in_backward) == ("", True)
    assert failure.line.endswith(" loss_backward") == is_known
    text = request_text(rank, replace(failure, module="net.front"))
    assert f"{', ' * is_known}in backward of net.front" in text
    assert "in backward" in request_text(rank, replace(failure, module=""))


def test_of_several_ranks_the_first_that_failed_is_complete_and_the_others_have_a_line(
    card: Callable[..., None], tmp_path: Path
) -> None:
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    first, later = Recorded(tmp_path, number=1), Recorded(tmp_path, number=0)
    for recorded, step in ((first, 811), (later, 812)):
        recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, step)
        recorded.journal.write()
    result = CliRunner().invoke(main, ["show", str(first.directory)])
    text = " ".join(result.output.split())
    assert text.startswith("Ranks Rank 1 ran out of memory first, in step 811, then rank 0. Out of memory The GPU is")
    assert text.count("The GPU is full") == 1
    complete, _, others = text.partition(" Then ")
    assert "300.0 MiB did not fit on cuda:0 of rank 1 in step 811" in complete
    assert others.startswith("300.0 MiB did not fit on cuda:0 of rank 0 in step 812")


def test_without_the_last_events_only_live_blocks_have_stacks(
    card: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history that is somebody else's does not say which allocation an event was."""
    taken = snapshot([8 * MIB], [], events=[("alloc", BASE, 8 * MIB)])
    frames = [{"filename": "/home/user/train.py", "line": 7, "name": "keep"}]
    taken["segments"][0]["blocks"][0]["frames"] = taken["device_traces"][0][0]["frames"] = frames
    card(taken, 8 * MIB)
    recorded = Recorded(tmp_path)
    monkeypatch.setattr(torch_private, "ring_from_ns", lambda: 0)
    recorded.failures.has_stacks = True
    recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 7)
    recorded.journal.write()
    tables = read_journal(recorded.rank_directory / "journal").tables
    assert not tables["failure_events"]["bytes"].size
    assert tables["failure_stacks"]["event_idx"].tolist() == [-1]
    assert present(recorded.explain().state).lines == {"train.py:7 keep": 8 * MIB}


def test_stacks_that_the_allocator_has_of_blocks_and_events_are_stored(
    card: Callable[..., None], tmp_path: Path
) -> None:
    taken = snapshot([8 * MIB, 4 * MIB], [2 * MIB], events=[("alloc", BASE, 8 * MIB), ("alloc", BASE + 1, 512)])
    frames = [{"filename": "/home/user/train.py", "line": 7, "name": "keep"}]
    for number in (0, 2):  # a live block and a free one
        taken["segments"][number]["blocks"][0]["frames"] = frames
    taken["segments"][1]["blocks"][0]["frames"] = []
    taken["device_traces"][0][1]["frames"] = frames
    card(taken, 12 * MIB)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 7)
    recorded.journal.write()
    journal = read_journal(recorded.rank_directory / "journal")
    assert journal.stacks == [[("/home/user/train.py", 7, "keep")]]
    assert {name: values.tolist() for name, values in journal.tables["failure_stacks"].items()} == {
        **{"failure_id": [0, 0], "event_idx": [-1, 1], "address": [BASE, BASE + 1], "stack_id": [0, 0]}
    }
    state = recorded.explain().state
    assert state is not None
    assert list(state.lines.values()) == [8 * MIB]
    assert (state.line_known_bytes, state.line_inferred_bytes) == (8 * MIB, 0)
