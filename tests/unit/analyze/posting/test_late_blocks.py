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
from gpuledger.analyze.posting.late_blocks import BY_ORDER, BY_SIZE, LateBlocks, find_owners_of_late_blocks
from gpuledger.analyze.posting.posting import post_journal
from gpuledger.model.journal.columns import COLUMNS
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import Journal, read_journal
from gpuledger.report.text.oom_text import memory_texts

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


def failing_in_step_5(journal: Journal, blocks: Any, history: DeviceHistory, scale: int) -> Journal:
    """Return a journal with a failure in step 5, in which the allocations ``blocks`` came again at other addresses."""
    sizes = history.lives.requested_bytes[blocks] * scale
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
