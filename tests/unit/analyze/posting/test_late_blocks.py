"""Blocks that were allocated after the recorded steps get the owners of the same allocations in a recorded step."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import RECORDINGS

from gpuledger.analyze.memory.failures.failed_request import read_failed_state
from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.posting.device import DeviceHistory, device_histories
from gpuledger.analyze.posting.late.late_blocks import (
    BY_ADDRESS,
    BY_ORDER,
    BY_SIZE,
    BY_STACK,
    LateBlocks,
    find_owners_of_late_blocks,
)
from gpuledger.analyze.posting.posting import post_journal
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import CATEGORIES, Phase
from gpuledger.model.journal.columns import COLUMNS
from gpuledger.model.journal.journal import REASONS, Action
from gpuledger.model.journal.reading import Journal, read_journal
from gpuledger.report.json.document import oom_document
from gpuledger.report.text.oom_text import memory_texts, request_text

MADE_BEFORE = 10_000
MOVED = 1 << 40


def recorded(name: str, directory: Path) -> tuple[Journal, DeviceHistory]:
    (directory / "00000.npz").write_bytes((RECORDINGS / f"{name}.npz").read_bytes())
    journal = read_journal(directory)
    return journal, device_histories(journal)[0]


def table(name: str, **columns: Any) -> dict[str, np.ndarray]:
    count = max(np.size(column) for column in columns.values())
    return {
        column: np.broadcast_to(np.asarray(columns[column]), count).astype(kind)
        for column, kind in COLUMNS[name].items()
    }


def failing_after(journal: Journal, history: DeviceHistory, index: int) -> tuple[Journal, Any]:
    """Return a journal with a failure after an event of the recorded steps, and the blocks that were allocated then."""
    lives, counts = history.lives, history.counts
    alive = np.flatnonzero((lives.alloc_index <= index) & (lives.free_requested_index > index))
    counters = {name: np.append(values, values[-1]) for name, values in journal.tables["counters"].items()}
    counters["alloc_count"][-1] = counts.alloc_base + np.searchsorted(counts.alloc_at, index, "right")
    counters["free_count"][-1] = counts.free_base + np.searchsorted(counts.free_at, index, "right")
    counters["device_idx"][-1], counters["reason"][-1] = history.device_idx, REASONS.index("oom")
    fact = {"failure_id": 0, "device_idx": history.device_idx, "step": 2, "t_ns": int(counters["t_ns"][-1])}
    blocks = table(
        "failure_blocks",
        **{"failure_id": 0, "device_idx": history.device_idx, "segment_address": 0, "state": 1},
        **{"address": lives.address[alive], "bytes": lives.requested_bytes[alive]},
        requested_bytes=lives.requested_bytes[alive],
    )
    tables = {**journal.tables, "counters": counters, "failure_blocks": blocks}
    return replace(journal, tables=tables, facts={**journal.facts, "oom": [fact]}), alive


def failing_in_step_5(journal: Journal, blocks: Any, history: DeviceHistory, scale: int) -> Journal:
    """Return a journal with a failure in step 5, in which the allocations ``blocks`` came again at other addresses."""
    return failing_with(journal, history.lives.requested_bytes[blocks] * scale, history)


def failing_with(journal: Journal, sizes: Any, history: DeviceHistory) -> Journal:
    """Return a journal with a failure in step 5, in which blocks of these sizes were allocated."""
    addresses = MOVED + np.arange(sizes.size, dtype=np.int64) * (1 << 32)
    last = MADE_BEFORE + sizes.size
    fact = {"failure_id": 0, "device_idx": history.device_idx, "step": 5, "allocations": last}
    tables = {
        **journal.tables,
        "failure_events": table(
            "failure_events",
            **{"failure_id": 0, "device_idx": 0, "action": Action.ALLOC, "address": addresses, "bytes": sizes},
            **{"stream": 0},
        ),
        "failure_blocks": table(
            "failure_blocks",
            **{"failure_id": 0, "device_idx": 0, "segment_address": 0, "address": addresses, "bytes": sizes},
            **{"requested_bytes": sizes, "state": 1},
        ),
        "step_memory": table(
            "step_memory",
            **{"device_idx": 0, "step": [4], "end_ms": 0, "allocated": 0, "reserved": 0, "peak": 0, "blocks": 0},
            **{"allocations": [MADE_BEFORE], "retries": 0, "host": 0},
        ),
    }
    return replace(journal, tables=tables, facts={**journal.facts, "oom": [fact]})


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "lstm"])
def test_blocks_of_an_error_in_the_recorded_steps_are_known_although_it_freed_them(name: str, tmp_path: Path) -> None:
    journal, history = recorded(name, tmp_path)
    lives, owners = history.lives, history.owners
    middle = int(np.sort(lives.alloc_index)[lives.alloc_index.size // 2])
    failing, alive = failing_after(journal, history, middle)
    assert (lives.free_requested_index[alive] != NEVER).any()
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(alive.size))
    assert (found.known_by == BY_ADDRESS).all()
    for ours, theirs in ((found.category, owners.category), (found.module_id, owners.module_id)):
        assert ours.tolist() == theirs[alive].tolist()
    assert found.stack_id.tolist() == owners.stack_id[alive].tolist()


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "lstm"])
@pytest.mark.parametrize("scale", [1, 3])
def test_the_same_step_again_has_the_same_owners(name: str, scale: int, tmp_path: Path) -> None:
    journal, history = recorded(name, tmp_path)
    steps = history.owners.step[history.lives.alloc_index >= 0]
    mine = np.flatnonzero((history.owners.step == steps.max()) & (history.lives.alloc_index >= 0))
    mine = mine[np.argsort(history.lives.alloc_index[mine])]
    again = failing_in_step_5(journal, mine, history, scale)
    found: LateBlocks = find_owners_of_late_blocks(again, history, again.facts["oom"][0], np.arange(mine.size))
    assert (found.step == 5).all()
    assert (found.known_by == BY_ORDER).mean() > 0.95
    known = found.known_by == BY_ORDER
    assert (found.category[known] == history.owners.category[mine][known]).mean() > 0.95
    assert (found.module_id[known] == history.owners.module_id[mine][known]).mean() > 0.95
    stacks = history.owners.stack_id[mine]
    assert (found.stack_id[known] == stacks[known]).mean() > 0.95


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "lstm"])
@pytest.mark.parametrize("scale", [7, 1000])
def test_a_larger_batch_that_fails_in_backward_has_the_same_owners(name: str, scale: int, tmp_path: Path) -> None:
    """Gradients of weights keep their sizes, and what a reduction needs besides has any size."""
    journal, history = recorded(name, tmp_path)
    mine, owners = last_step(history), history.owners
    size = history.lives.requested_bytes[mine]
    stays = np.isin(owners.category[mine], [CATEGORIES.index("gradient"), CATEGORIES.index("optimizer_state")])
    in_backward = np.flatnonzero(owners.phase[mine] == Phase.BACKWARD)
    larger = np.where(stays | (size <= 64), size, size * scale)
    for count in in_backward[1 :: in_backward.size // 4].tolist():
        sizes = np.insert(larger[:count], count // 2, [777, 1554])
        failing = failing_with(journal, sizes, history)
        found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(sizes.size))
        of_block = np.insert(mine[:count], count // 2, [-1, -1])
        known = found.known_by == BY_ORDER
        assert known[of_block >= 0].mean() > 0.95
        assert not known[of_block < 0].any()
        assert (found.module_id[known] == owners.module_id[of_block[known]]).all()
        assert (found.category[known] == owners.category[of_block[known]]).all()


def test_tables_of_a_failure_are_written_with_their_owners(tmp_path: Path) -> None:
    journal, history = recorded("lstm", tmp_path)
    mine = np.flatnonzero((history.owners.step == 2) & (history.lives.alloc_index >= 0))[:10]
    posted = post_journal(failing_in_step_5(journal, mine, history, 1))
    rows = posted.tables["failure_blocks"].to_pylist()
    assert len(rows) == 10
    assert {row["state"] for row in rows} == {"allocated"}
    assert posted.tables["step_memory"].to_pylist()[0]["allocations"] == MADE_BEFORE


def test_blocks_at_a_failure_have_the_lines_of_the_recorded_steps(tmp_path: Path) -> None:
    journal, history = recorded("resnet50", tmp_path)
    mine = np.flatnonzero((history.owners.step == 2) & (history.lives.alloc_index >= 0))
    posted = post_journal(failing_in_step_5(journal, mine, history, 1))
    state = read_failed_state(posted, posted.manifest.oom[0])
    assert state is not None
    rows = posted.tables["failure_blocks"].to_pylist()
    with_line = sum(row["allocated_bytes"] for row in rows if row["stack_id"] is not None)
    assert 0 < sum(state.lines.values()) <= with_line <= state.allocated_bytes
    assert list(state.lines.values()) == sorted(state.lines.values(), reverse=True)
    assert all(re.fullmatch(r"\S+:\d+ \S+", line) for line in state.lines)
    held = memory_texts(replace(explain_oom(posted, replays=False)[0], holders=None))
    assert any(line.startswith(f"held by {next(iter(state.lines))} ") for line in held)


def test_a_block_that_is_known_by_a_size_of_several_lines_has_no_line(tmp_path: Path) -> None:
    journal, history = recorded("lstm", tmp_path)
    owners, size = history.owners, history.lives.requested_bytes
    step = np.flatnonzero((owners.step == owners.step.max()) & (history.lives.alloc_index >= 0))
    failing = failing_in_step_5(journal, step[:1], history, 1)
    failing.tables["failure_events"]["address"][:] = 1  # the block is not among the events, so only its size is left
    fact = failing.facts["oom"][0]
    same = np.isin(np.arange(size.size), step) & (size == size[step[0]])
    for lines in (1, 2):
        stacks = np.where(same, 7, owners.stack_id)
        stacks[np.flatnonzero(same)[: lines - 1]] = 8
        alike = replace(owners, stack_id=stacks, category=np.where(same, 1, owners.category))
        alike = replace(alike, module_id=np.where(same, 1, owners.module_id))
        found = find_owners_of_late_blocks(failing, replace(history, owners=alike), fact, np.arange(1))
        assert found.known_by.tolist() == [BY_SIZE]
        assert found.stack_id.tolist() == [7 if lines == 1 else -1]


def last_step(history: DeviceHistory) -> Any:
    steps = history.owners.step[history.lives.alloc_index >= 0]
    mine = np.flatnonzero((history.owners.step == steps.max()) & (history.lives.alloc_index >= 0))
    return mine[np.argsort(history.lives.alloc_index[mine])]


def with_own_stacks(journal: Journal, stacks: list[int], *, of_events: bool = False) -> Journal:
    """Return a journal in which the first blocks, or their events, have stacks of their own."""
    place = np.arange(len(stacks))
    address = journal.tables["failure_blocks"]["address"][: len(stacks)]
    columns = {"failure_id": 0, "event_idx": place if of_events else -1, "address": address, "stack_id": stacks}
    tables = {**journal.tables, "failure_stacks": table("failure_stacks", **columns)}
    return replace(journal, tables=tables)


@pytest.mark.parametrize("kind", ["weight", "optimizer_state"])
@pytest.mark.parametrize("prefix", ["", "sharded_"])
def test_what_a_training_keeps_is_known_by_its_address_beside_allocations_of_the_step(
    kind: str, prefix: str, tmp_path: Path
) -> None:
    """Whole or sharded: weights and states stay where they are, while other blocks are allocated after them."""
    journal, history = recorded("gpt2", tmp_path)
    lives, owners = history.lives, history.owners
    kept = np.flatnonzero((owners.category == CATEGORIES.index(kind)) & (lives.free_requested_index == NEVER))[:20]
    owners.category[kept] = CATEGORIES.index(prefix + kind)
    failing = failing_with(journal, np.full(4, 3 << 30), history)
    blocks = table(
        "failure_blocks",
        **{"failure_id": 0, "device_idx": history.device_idx, "segment_address": 0, "state": 1},
        **{"address": lives.address[kept], "bytes": lives.requested_bytes[kept]},
        requested_bytes=lives.requested_bytes[kept],
    )
    failing = replace(failing, tables={**failing.tables, "failure_blocks": blocks})
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(kept.size))
    assert kept.size
    assert (found.known_by == BY_ADDRESS).all()
    assert (found.category == CATEGORIES.index(prefix + kind)).all()
    assert found.module_id.tolist() == owners.module_id[kept].tolist()


PLANTED = [("/home/user/train.py", 7, "keep"), ("/home/user/train.py", 70, "<module>")]
OTHER_WAY = [
    ("/usr/lib/python3/dist-packages/torch/functional.py", 1, "stack"),
    *PLANTED[:1],
    ("/home/user/other.py", 1, "f"),
]
OF_AUTOGRAD = [("/usr/lib/python3/dist-packages/torch/autograd/graph.py", 1, "_engine_run_backward"), *PLANTED]


@pytest.mark.parametrize("stack", [PLANTED, OTHER_WAY])
def test_a_block_with_a_stack_of_its_own_has_its_line(stack: Any, tmp_path: Path) -> None:
    journal, history = recorded("lstm", tmp_path)
    journal.stacks.append(stack)
    own = len(journal.stacks) - 1
    failing = with_own_stacks(failing_with(journal, np.array([3 << 30] * 4), history), [own] * 3)
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(4))
    assert found.known_by.tolist() == [BY_STACK] * 3 + [-1]
    assert found.stack_id.tolist() == [own] * 3 + [-1]
    assert (found.category == -1).all()
    posted = post_journal(failing)
    state = read_failed_state(posted, posted.manifest.oom[0])
    assert state is not None
    ((line, size),) = state.lines.items()
    assert (line.rpartition("/")[2], size) == ("train.py:7 keep", 9 << 30)
    assert (state.line_known_bytes, state.line_inferred_bytes, state.allocated_bytes) == (9 << 30, 0, 12 << 30)
    texts = memory_texts(replace(explain_oom(posted, replays=False)[0], holders=None))
    assert "source lines: 9.0 GiB known, 3.0 GiB unknown" in texts


def test_a_stack_that_only_names_the_call_of_backward_is_no_line(tmp_path: Path) -> None:
    journal, history = recorded("lstm", tmp_path)
    journal.stacks.append(OF_AUTOGRAD)
    failing = with_own_stacks(failing_with(journal, np.array([3 << 30]), history), [len(journal.stacks) - 1])
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(1))
    assert (found.known_by.tolist(), found.stack_id.tolist()) == ([-1], [-1])


def test_inferred_lines_are_counted_apart(tmp_path: Path) -> None:
    journal, history = recorded("resnet50", tmp_path)
    posted = post_journal(failing_in_step_5(journal, last_step(history), history, 1))
    state = read_failed_state(posted, posted.manifest.oom[0])
    assert state is not None
    assert state.line_known_bytes == 0
    assert state.line_inferred_bytes == sum(state.lines.values()) > 0


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "lstm"])
def test_other_code_after_the_recorded_steps_has_no_line_of_theirs(name: str, tmp_path: Path) -> None:
    journal, history = recorded(name, tmp_path)
    sizes = np.full(last_step(history).size // 2, 117 << 20)
    failing = failing_with(journal, sizes, history)
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(sizes.size))
    assert (found.known_by == -1).all()
    assert (found.stack_id == -1).all()
    assert (found.step == 5).all()


@pytest.mark.parametrize("scale", [1, 3])
def test_an_order_that_the_steps_own_stacks_contradict_is_not_used(scale: int, tmp_path: Path) -> None:
    journal, history = recorded("gpt2", tmp_path)
    journal.stacks.append(PLANTED)
    own, mine = len(journal.stacks) - 1, last_step(history)
    failing = with_own_stacks(failing_in_step_5(journal, mine, history, scale), [own] * 4, of_events=True)
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(mine.size))
    assert not (found.known_by == BY_ORDER).any()


def test_an_order_of_one_size_needs_a_stack_that_confirms_it(tmp_path: Path) -> None:
    """A larger batch has failed in forward, where all blocks have one size. The stack of the input is its own."""
    journal, history = recorded("lstm", tmp_path)
    mine = last_step(history)[:6]
    journal.stacks.extend([PLANTED, [("/home/user/other.py", 1, "f")]])
    recorded_line, other_line = len(journal.stacks) - 2, len(journal.stacks) - 1
    history.lives.requested_bytes[mine] = 1 << 20
    history.owners.stack_id[mine] = recorded_line
    failing = failing_with(journal, np.full(6, 9 << 30), history)
    of_input = {line: with_own_stacks(failing, [line]) for line in (recorded_line, other_line)}
    for one, known in ((failing, 0), (of_input[recorded_line], 6), (of_input[other_line], 1)):
        found = find_owners_of_late_blocks(one, history, one.facts["oom"][0], np.arange(6))
        assert (found.stack_id >= 0).sum() == known


def without_blocks(history: DeviceHistory) -> DeviceHistory:
    """Return a device on which nothing was allocated in the recorded steps."""

    def emptied(one: object) -> dict[str, Any]:
        return {name: value[:0] for name, value in vars(one).items() if isinstance(value, np.ndarray)}

    lives, owners = history.lives, history.owners
    return replace(history, lives=replace(lives, **emptied(lives)), owners=replace(owners, **emptied(owners)))


@pytest.mark.parametrize("has_blocks", [True, False])
def test_a_step_like_one_of_which_all_stacks_were_taken_has_its_lines(tmp_path: Path, has_blocks: bool) -> None:
    """Steps 5 and 6 are unlike the recorded ones, if any. The stacks of step 5 were taken, and step 6 fails."""
    journal, history = recorded("lstm", tmp_path)
    history = history if has_blocks else without_blocks(history)
    own = len(journal.stacks)
    journal.stacks.extend([("/home/user/late.py", line, "late")] for line in range(6))
    sizes = np.array([(3 + number) << 20 for number in range(6)] * 2)
    failing = with_own_stacks(failing_with(journal, sizes, history), list(range(own, own + 6)), of_events=True)
    counted = failing.tables["step_memory"]
    failing.tables["step_memory"] = {name: np.concatenate((values, values)) for name, values in counted.items()}
    failing.tables["step_memory"]["step"][1] = 5
    failing.tables["step_memory"]["allocations"][1] += 6
    failing.tables["failure_blocks"]["state"][:6] = 0  # those of step 5 are free
    failing.facts["oom"][0]["step"] = 6
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(12))
    assert found.known_by.tolist() == [-1] * 6 + [BY_ORDER] * 6
    assert found.stack_id.tolist() == [-1] * 6 + list(range(own, own + 6))
    assert (found.module_id == -1).all()


def segment_of(size: int) -> int:
    """Return the size of the segment that a request of ``size`` bytes asks for, by PyTorch's rule."""
    if size <= 1 << 20:
        return 2 << 20
    return 20 << 20 if size < 10 << 20 else -(-size // (2 << 20)) * (2 << 20)


def with_request(journal: Journal, **facts: Any) -> Journal:
    (fact,) = journal.facts["oom"]
    return replace(journal, facts={**journal.facts, "oom": [{**fact, **facts}]})


@pytest.mark.parametrize("scale", [1, 3])
def test_a_request_in_backward_has_the_module_that_comes_next_in_a_recorded_step(scale: int, tmp_path: Path) -> None:
    journal, history = recorded("gpt2", tmp_path)
    mine, owners = last_step(history), history.owners
    is_in_backward = (owners.phase[mine] == Phase.BACKWARD) & (owners.module_id[mine] >= 0)
    inside = [place for place in np.flatnonzero(is_in_backward).tolist() if place]
    for place in inside[:: len(inside) // 12]:
        size = int(history.lives.requested_bytes[mine[place]])
        failing = failing_in_step_5(journal, mine[:place], history, scale)
        (failure,) = post_journal(with_request(failing, tried_bytes=segment_of(size * scale))).manifest.oom
        assert (failure.module_id, failure.is_module_by_order) == (owners.module_id[mine[place]], True)


def test_a_request_of_another_size_or_outside_backward_has_no_module_by_order(tmp_path: Path) -> None:
    journal, history = recorded("gpt2", tmp_path)
    mine = last_step(history)
    in_backward = int(np.flatnonzero(history.owners.phase[mine] == Phase.BACKWARD)[40])
    size = int(history.lives.requested_bytes[mine[in_backward]])
    failing = failing_in_step_5(journal, mine[:in_backward], history, 1)
    tried = {"tried_bytes": segment_of(size)}
    for facts in (
        {"tried_bytes": segment_of(size) + (64 << 20)},
        {**tried, "frames": [["train.py", 3, "f"]]},  # the program's own thread asked
        {**tried, "library": "NCCL"},
    ):
        (failure,) = post_journal(with_request(failing, **facts)).manifest.oom
        assert (failure.module_id, failure.is_module_by_order) == (None, False)
    in_forward = int(np.flatnonzero(history.owners.phase[mine] == Phase.FORWARD)[5])
    size = int(history.lives.requested_bytes[mine[in_forward]])
    failing = failing_in_step_5(journal, mine[:in_forward], history, 1)
    (failure,) = post_journal(with_request(failing, tried_bytes=segment_of(size))).manifest.oom
    assert failure.module_id is None


def test_a_module_that_is_known_is_not_replaced(tmp_path: Path) -> None:
    journal, history = recorded("gpt2", tmp_path)
    mine = last_step(history)
    place = int(np.flatnonzero(history.owners.phase[mine] == Phase.BACKWARD)[40])
    tried = segment_of(int(history.lives.requested_bytes[mine[place]]))
    failing = with_request(failing_in_step_5(journal, mine[:place], history, 1), tried_bytes=tried, module_id=0)
    posted = post_journal(failing)
    assert (posted.manifest.oom[0].module_id, posted.manifest.oom[0].is_module_by_order) == (0, False)
    by_order = post_journal(with_request(failing, module_id=None))
    (failure,) = explain_oom(by_order, replays=False)
    assert f"module {failure.module} by order" in request_text(by_order, failure)
    assert oom_document(0, failure)["is_module_by_order"]


def of_older_steps(journal: Journal) -> Journal:
    """Return a journal in which the allocator no longer has the events of the blocks."""
    events = {name: values[:0] for name, values in journal.tables["failure_events"].items()}
    return replace(journal, tables={**journal.tables, "failure_events": events})


def kept_for_backward(history: DeviceHistory) -> list[int]:
    """Return activations of the last step, largest first, whose line has no other owner for a block of their size."""
    owners, sizes = history.owners, history.lives.requested_bytes
    forward = [one for one in last_step(history).tolist() if owners.phase[one] == Phase.FORWARD]
    of_line: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for one in forward:
        key = int(owners.stack_id[one]), int(sizes[one])
        of_line.setdefault(key, set()).add((int(owners.category[one]), int(owners.module_id[one])))
    sole = [
        one
        for one in forward
        if owners.stack_id[one] >= 0
        and owners.category[one] == CATEGORIES.index("activation")
        and len(of_line[int(owners.stack_id[one]), int(sizes[one])]) == 1
    ]
    return sorted(sole, key=lambda one: -int(sizes[one]))


def test_a_block_of_another_order_has_the_owner_of_its_line(tmp_path: Path) -> None:
    """A list keeps what an evaluation has allocated, of which the recorded steps had none."""
    journal, history = recorded("gpt2", tmp_path)
    owners, sizes = history.owners, history.lives.requested_bytes
    kept = kept_for_backward(history)[:6]
    failing = of_older_steps(failing_with(journal, np.array([117 << 20, *sizes[kept].tolist()]), history))
    failing = with_own_stacks(failing, [-1, *owners.stack_id[kept].tolist()])
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(7))
    assert found.known_by.tolist() == [-1] + [BY_STACK] * 6
    assert found.category.tolist() == [-1] + [CATEGORIES.index("activation")] * 6
    same_lines = [
        {int(owners.module_id[one]) for one in last_step(history).tolist() if owners.stack_id[one] == stack}
        for stack in owners.stack_id[kept].tolist()
    ]
    assert all(
        module in {-1, *of_line} for module, of_line in zip(found.module_id[1:].tolist(), same_lines, strict=True)
    )
    assert found.stack_id[1:].tolist() == owners.stack_id[kept].tolist()


@pytest.mark.parametrize(("with_stack", "is_known"), [(4, True), (3, True), (2, False)])
def test_a_block_without_a_stack_has_the_category_of_most_blocks_of_its_size(
    with_stack: int, is_known: bool, tmp_path: Path
) -> None:
    """Of six blocks with a size that no recorded step has, most must have a line."""
    journal, history = recorded("gpt2", tmp_path)
    stack = int(history.owners.stack_id[kept_for_backward(history)[0]])
    failing = of_older_steps(failing_with(journal, np.full(6, 117 << 20), history))
    failing = with_own_stacks(failing, [stack] * with_stack)
    found = find_owners_of_late_blocks(failing, history, failing.facts["oom"][0], np.arange(6))
    others = range(with_stack, 6)
    category = CATEGORIES.index("activation")
    assert found.category[:with_stack].tolist() == [category] * with_stack
    assert [int(found.category[one]) for one in others] == [category if is_known else -1 for _ in others]
    assert [int(found.known_by[one]) for one in others] == [BY_SIZE if is_known else -1 for _ in others]


def test_what_outlives_its_step_is_not_temporary(tmp_path: Path) -> None:
    journal, history = recorded("gpt2", tmp_path)
    block = kept_for_backward(history)[0]
    same_line = history.owners.stack_id == history.owners.stack_id[block]
    history.owners.category[same_line] = CATEGORIES.index("temporary")
    failing = failing_with(journal, np.array([117 << 20]), history)
    failing = with_own_stacks(failing, [int(history.owners.stack_id[block])])
    older = of_older_steps(failing)
    for one, category in ((failing, CATEGORIES.index("temporary")), (older, -1)):
        found = find_owners_of_late_blocks(one, history, one.facts["oom"][0], np.arange(1))
        assert (found.known_by[0], found.category[0]) == (BY_STACK, category)
