"""Random streams of allocations, frees and tags, written as a journal and posted: the sums hold at every instant."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.analyze.posting.posting import post_rank
from gpuledger.model.accounts import CATEGORIES, Identity, Phase
from gpuledger.model.journal.journal import REASONS, STEP_KINDS, Action, BlockState, JournalWriter, Part
from gpuledger.model.run import Rank

MODULES = 3
WHAT = st.sampled_from(("alloc", "alloc", "alloc", "free", "free", "wait", "tag", "step", "see", "drain"))


@dataclass
class Program:
    """A CPU program as a recorder would write it down, and what it held after each event, counted by hand."""

    parts: list[Part] = field(default_factory=lambda: [Part()])
    live: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    made: int = 0
    freed: int = 0
    tags: int = 0
    step: int = 0
    events: int = 0
    addresses: list[int] = field(default_factory=lambda: [64 * n for n in range(1, 400)])

    def open(self, sizes: list[int]) -> None:
        for size in sizes:
            self.live[self.addresses.pop()] = size
        snapshot = {"snapshot_id": 0, "device_idx": -1}
        self.parts[-1].add("snapshots", **snapshot, reason=REASONS.index("open"), event_count=0, t_ns=0)
        for address, size in self.live.items():
            block = {"segment_address": address, "address": address, "bytes": size, "requested_bytes": size}
            self.parts[-1].add("snapshot_blocks", **snapshot, **block, state=BlockState.ALLOCATED, stack_id=-1)
        self.count("open")

    def event(self, action: Action, address: int, size: int, *, tagged: bool = True) -> None:
        self.parts[-1].add(
            "events",
            device_idx=-1,
            action=action,
            address=address,
            bytes=size,
            stream=0,
            time_ns=1000 + self.events // 2,
            tag_id=self.tags - 1 if tagged else -1,
            stack_id=-1,
            operator_id=-1,
        )
        self.events += 1
        self.held.append(sum(self.live.values()))

    def count(self, reason: str) -> None:
        now = sum(self.live.values())
        same = dict.fromkeys(("allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "reserved_bytes"), now)
        same["peak_allocated_bytes"] = max([now, *self.held])
        active = now + sum(self.waiting.values())
        self.parts[-1].add(
            "counters",
            t_ns=1000 + self.events,
            device_idx=-1,
            step=self.step,
            reason=REASONS.index(reason),
            alloc_count=self.made,
            free_count=self.freed,
            requested_bytes=active,
            active_bytes=active,
            **same,
        )

    def alloc(self, size: int, number: int) -> None:
        address = self.addresses.pop(number % len(self.addresses))
        self.live[address] = size
        self.made += 1
        self.event(Action.ALLOC, address, size, tagged=number % 4 != 0)

    def free(self, number: int, *, completed: bool) -> None:
        if self.live:
            address = sorted(self.live)[number % len(self.live)]
            size = self.waiting[address] = self.live.pop(address)
            self.freed += 1
            self.event(Action.FREE_REQUESTED, address, size)
            if completed:
                self.complete(address)

    def complete(self, address: int) -> None:
        self.event(Action.FREE_COMPLETED, address, self.waiting.pop(address))
        self.addresses.append(address)

    def tag(self, number: int) -> None:
        self.parts[-1].add(
            "tags",
            tag_id=self.tags,
            step=self.step + 1,
            phase=number % len(Phase),
            visit=number // 4,
            module_id=number % (MODULES + 1) - 1,
            scope_id=-1,
            stack_id=-1,
            flags=number % 2,
        )
        self.tags += 1

    def end_step(self) -> None:
        self.step += 1
        self.count("step_end")
        times = {"start_ns": 1000 * self.step, "end_ns": 1000 * self.step + 500}
        self.parts[-1].add("steps", step=self.step, kind=STEP_KINDS.index("optimizer"), recorded=1, **times)

    def see(self, number: int) -> None:
        if self.live:
            self.parts[-1].add(
                "identities",
                device_idx=-1,
                address=sorted(self.live)[number % len(self.live)],
                kind=number % len(Identity),
                name_id=number % 3 - 1,
                module_id=number % (MODULES + 1) - 1,
                alloc_count=self.made,
                free_count=self.freed,
            )

    def post(self, directory: Path, *, closed: bool) -> Rank:
        last = self.parts[-1]
        last.names = ["a", "b"]
        last.modules = [
            {"path": "m" * n, "class_name": "M", "parent": n - 1, "root": 0, "parameters": 1, "compiled": False}
            for n in range(MODULES)
        ]
        last.facts = {"recorder": "dispatch", "called_roots": [0]}
        if closed:
            self.count("close")
            last.facts["closed"] = "exit"
        writer = JournalWriter(directory / "journal")
        for part in self.parts:
            writer.write(part)
        return Rank(0, directory, post_rank(directory))


@settings(max_examples=50)
@given(
    before=st.lists(st.integers(1, 1 << 40), max_size=5),
    actions=st.lists(st.tuples(WHAT, st.integers(0, 1000)), max_size=120),
    closed=st.booleans(),
)
def test_the_databases_close_at_every_instant(before: list[int], actions: list[tuple[str, int]], closed: bool) -> None:
    program = Program()
    program.open(before)
    for what, number in actions:
        if what == "alloc":
            program.alloc(1 + number * number, number)
        elif what in ("free", "wait"):
            program.free(number, completed=what == "free")
        elif what == "tag":
            program.tag(number)
        elif what == "step":
            program.end_step()
        elif what == "see":
            program.see(number)
        else:
            program.parts.append(Part())
    with tempfile.TemporaryDirectory() as directory:
        rank = program.post(Path(directory) / "rank-0", closed=closed)
        check(rank, program, len(before))
        assert rank.manifest.status == ("closed" if closed else "cut off")
        assert [c for c in rank.manifest.checks if not c.ok] == []


def check(rank: Rank, program: Program, alive_before: int) -> None:
    rows = rank.table("blocks").to_pylist()
    assert len(rows) == alive_before + program.made
    assert sum(row["alloc_index"] == -1 for row in rows) == alive_before
    born = [row["alloc_index"] for row in rows if row["alloc_index"] >= 0]
    assert len(set(born)) == len(born)
    by_category = np.zeros((len(CATEGORIES), program.events), dtype=np.int64)
    for row in rows:
        asked, done = row["free_requested_index"], row["free_index"]
        end = program.events if asked is None else asked
        by_category[CATEGORIES.index(row["category"]), max(row["alloc_index"], 0) : end] += row["requested_bytes"]
        assert row["alloc_index"] < end
        assert done is None or (asked is not None and asked < done < program.events)
        assert row["allocated_bytes"] == row["requested_bytes"]
    assert by_category.sum(axis=0).tolist() == program.held
    spans = rank.table("spans").to_pylist()
    covered = [index for span in spans for index in range(span["start_index"], span["end_index"] + 1)]
    assert covered == list(range(program.events))
    last = -1
    for step in rank.table("steps").to_pylist():
        if step["start_index"] is not None:
            assert step["start_index"] > last or step["start_index"] == 0
            last = step["end_index"]
