"""A GPU's allocator made of numbers: snapshots as torch gives them, and a process that runs out of memory in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuledger.analyze.memory.failures.oom import OutOfMemory, explain_oom
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.adapter import torch_private
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.flight.failures import Failures
from gpuledger.model.run import Rank
from gpuledger.model.run_directory import write_json
from gpuledger.model.run_writer import new_manifest

MIB = 1 << 20
BASE = 0x7F00_0000_0000
SEGMENT_BYTES = 20 * MIB
CAPACITY_BYTES = 80 * 1024 * MIB
FACTS = {"device_idx": 0, "total_bytes": CAPACITY_BYTES, "free_bytes": 100 * MIB, "largest_free_bytes": 0}


def snapshot(
    live: list[int],
    free: list[int],
    *,
    events: list[tuple[str, int, int]] = (),  # type: ignore[assignment]
    stream: int = 0,
    private_free: list[int] | None = None,
) -> dict[str, Any]:
    """Return a snapshot with one block per size: ``live`` allocated, ``free`` between them, in segments of their own.

    ``private_free`` are free blocks in a CUDA graph's pool. ``events`` are action, address and size.
    """
    segments = []
    address = BASE
    kinds = [("active_allocated", live, (0, 0)), ("inactive", free, (0, 0)), ("inactive", private_free or [], (1, 0))]
    for state, sizes, pool in kinds:
        for size in sizes:
            segments.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": size,
                    "stream": stream,
                    "segment_type": "large" if size > MIB else "small",
                    "segment_pool_id": pool,
                    "is_expandable": False,
                    "blocks": [{"address": address, "size": size, "requested_size": size, "state": state}],
                }
            )
            address += size
    trace = [
        {"action": action, "addr": place, "size": size, "stream": stream, "time_us": number}
        for number, (action, place, size) in enumerate(events)
    ]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}


def counters(allocated_bytes: int, allocations: int = 100) -> dict[str, Any]:
    """Return the allocator's counters as torch gives them, as far as they are read at an error."""
    return {
        "allocated_bytes": {"all": {"current": allocated_bytes, "peak": allocated_bytes}},
        "reserved_bytes": {"all": {"current": allocated_bytes}},
        "allocation": {"all": {"current": 10, "allocated": allocations}},
        "num_alloc_retries": 1,
    }


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any], int], None]:
    """Return a function that sets what the allocator shows."""
    state: dict[str, Any] = {}
    monkeypatch.setattr(torch_private, "memory_stats", lambda _device: counters(state["bytes"]))
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: state["snapshot"])
    monkeypatch.setattr(torch_private, "full_snapshot", lambda: state["snapshot"])
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: 1.0)
    monkeypatch.setattr(torch_private, "ring_from_ns", lambda: 1)  # the last events are kept

    def show(taken: dict[str, Any], allocated_bytes: int) -> None:
        state.update(snapshot=taken, bytes=allocated_bytes)

    return show


class Recorded:
    """A process that ran out of memory, and what its run says."""

    def __init__(self, directory: Path, number: int = 0) -> None:
        self.directory = directory / "oom.ledger"
        self.rank_directory = self.directory / f"rank-{number}"
        self.rank_directory.mkdir(parents=True)
        write_json(self.directory / "manifest.json", new_manifest("oom.ledger", ["train.py"], {}).to_json())
        self.registry = ModuleRegistry()
        stacks = StackTable()
        self.journal = RankJournal(lambda: self.rank_directory, [self.registry, stacks])
        device = {"device_idx": 0, "name": "GPU", "total_bytes": CAPACITY_BYTES}
        self.journal.fact(recorder="cuda-history", devices=[device], closed="exit")
        self.failures = Failures(self.journal, self.registry, stacks)

    def rank(self) -> Rank:
        self.journal.write()
        return Rank(0, self.rank_directory, post_rank(self.rank_directory))

    def explain(self) -> OutOfMemory:
        (found,) = explain_oom(self.rank())
        return found
