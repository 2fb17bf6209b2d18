"""Settings of the allocator under which a failed request would have fitted, from the last events before it.

The expected verdicts follow from PyTorch's rules: a request of 10 MiB or more has a segment of its own, rounded up to
2 MiB; smaller ones share segments of 20 MiB; expandable segments grow and shrink by pages of 20 MiB.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from failing_allocator import BASE, FACTS, MIB, Recorded, card, snapshot

from gpuledger.analyze.memory.failures.oom import explain_ranks
from gpuledger.analyze.memory.failures.replayed_settings import FailureReplay
from gpuledger.cli.main import main
from gpuledger.model.journal.journal import TORCH_ACTIONS

__all__ = ["card"]
Card = Callable[[dict[str, Any], int], None]

EXPANDABLE = "expandable_segments:True"


class Filled:
    """A GPU on which ``count`` blocks of ``size`` bytes were allocated in segments of ``segment`` bytes."""

    def __init__(self, count: int, size: int, segment: int, each: int = 1) -> None:
        self.size = size
        self.reserved_bytes = count // each * segment
        self.places = [BASE + one // each * segment + one % each * size for one in range(count)]
        self.events = [("alloc", place, size) for place in self.places]
        self.live = list(self.places)

    def free(self, places: list[int]) -> None:
        """Free blocks."""
        self.events += [("free_requested", place, self.size) for place in places]
        self.live = [place for place in self.live if place not in places]

    def snapshot(self, events: list[tuple[str, int, int]], private_free: list[int] | None = None) -> dict[str, Any]:
        """Return what the allocator shows at the error: blocks in use, and the rest of the reserved memory as free."""
        sizes = [self.size] * len(self.live)
        taken = snapshot(sizes, [self.reserved_bytes - sum(sizes)], events=events, private_free=private_free)
        for segment, place in zip(taken["segments"], self.live, strict=False):
            segment["blocks"][0]["address"] = place
        return taken


def verdicts(
    card: Card, directory: Path, filled: Filled, tried_bytes: int, capacity_bytes: int, *, cut: bool = False
) -> dict[str, bool | None]:
    """Return the verdicts for a request, without the run's own setting; ``cut`` leaves the events out."""
    card(filled.snapshot([] if cut else filled.events), len(filled.live) * filled.size)
    recorded = Recorded(directory)
    free_bytes = capacity_bytes - filled.reserved_bytes
    fact = {**FACTS, "tried_bytes": tried_bytes, "free_bytes": free_bytes, "total_bytes": 80 << 30}
    recorded.failures.happened(fact, 3)
    rank = recorded.rank()
    first, *others = FailureReplay(rank, rank.manifest.oom[0]).verdicts()
    assert (first.alloc_conf, first.fits) == ("", False)
    fits = {one.action.partition("=")[2]: one.fits for one in recorded.explain().remedies if "CONF" in one.action}
    assert fits == {one.alloc_conf: one.fits for one in others if one.fits or one.alloc_conf == EXPANDABLE}
    return {one.alloc_conf: one.fits for one in others}


def test_expandable_segments_join_what_is_left_of_each_segment(card: Card, tmp_path: Path) -> None:
    """40 requests of 10.5 MiB leave 1.5 MiB in each segment of 12 MiB; expandable segments need 420 MiB for them."""
    filled = Filled(40, 21 * MIB // 2, 12 * MIB)
    assert verdicts(card, tmp_path, filled, 60 * MIB, 500 * MIB)[EXPANDABLE] is True


@pytest.mark.parametrize(
    ("own", "private_free", "notes"),
    [
        ("", [], {}),
        ("", [MIB], {EXPANDABLE: "CUDA graphs"}),
        ("max_split_size_mb:64", [], {EXPANDABLE: "not beside max_split_size_mb"}),
        (EXPANDABLE, [], dict.fromkeys(("max_split_size_mb:64", "max_split_size_mb:256"), f"not beside {EXPANDABLE}")),
    ],
)
def test_a_setting_that_is_a_hazard_beside_others_has_a_note(
    own: str, private_free: list[int], notes: dict[str, str], card: Card, tmp_path: Path
) -> None:
    """Every second block of 9 MiB is freed, so that all settings are replayed and neither of the own ones fits."""
    filled = Filled(20, 9 * MIB, 20 * MIB, each=2)
    filled.free(filled.places[::2])
    card(filled.snapshot(filled.events, private_free), len(filled.live) * filled.size)
    recorded = Recorded(tmp_path)
    free_bytes = 220 * MIB - filled.reserved_bytes
    recorded.failures.happened({**FACTS, "tried_bytes": 60 * MIB, "free_bytes": free_bytes}, 3)
    rank = recorded.rank()
    first, *others = FailureReplay(rank, replace(rank.manifest.oom[0], alloc_conf=own)).verdicts()
    assert first.alloc_conf == own
    assert all(one.fits is not None for one in others)
    found = {one.alloc_conf: one.note for one in others if one.note}
    assert found.keys() == notes.keys()
    assert all(words in found[setting] for setting, words in notes.items())


def test_expandable_segments_do_not_help_if_each_page_has_a_block(card: Card, tmp_path: Path) -> None:
    """Every second block of 9 MiB is freed. A page of 20 MiB always has one in use, so no page can be given back."""
    filled = Filled(20, 9 * MIB, 20 * MIB, each=2)
    filled.free(filled.places[::2])
    found = verdicts(card, tmp_path, filled, 60 * MIB, 220 * MIB)
    assert found[EXPANDABLE] is False
    # Rounded up to 10 MiB, each block has a segment of its own, and those of the freed blocks are given back.
    assert found["roundup_power2_divisions:4"] is True


def in_recorded_steps(card: Card, directory: Path, filled: Filled, *, known: bool = True) -> list[bool | None]:
    """Return the verdicts on expandable segments and powers of two for an error in the recorded steps.

    All blocks are freed after the error. Without ``known``, the allocator has one block more than was recorded.
    """
    card(filled.snapshot([]), len(filled.live) * filled.size)
    recorded = Recorded(directory)
    events = filled.events if known else filled.events[1:]
    now_ns = time.time_ns() - 1000 * len(events)
    later = [("free_requested", place, filled.size) for place in filled.live]
    times_ns = [now_ns + 1000 * number for number in range(len(events))] + [now_ns + 10**10] * len(later)
    recorded.journal.part.add(
        "events",
        device_idx=0,
        action=[TORCH_ACTIONS[action] for action, *_ in (*events, *later)],
        address=[place for _, place, _ in (*events, *later)],
        bytes=[size for *_, size in (*events, *later)],
        time_ns=times_ns,
        **dict.fromkeys(("stream", "tag_id"), 0),
        **dict.fromkeys(("stack_id", "operator_id"), -1),
    )
    fact = {**FACTS, "tried_bytes": 60 * MIB, "free_bytes": 220 * MIB - filled.reserved_bytes}
    recorded.failures.happened(fact, 1)
    rank = recorded.rank()
    fits = {one.alloc_conf: one.fits for one in FailureReplay(rank, rank.manifest.oom[0]).verdicts()}
    return [fits[EXPANDABLE], fits["roundup_power2_divisions:4"]]


def test_an_error_in_the_recorded_steps_is_replayed_from_what_was_recorded(card: Card, tmp_path: Path) -> None:
    filled = Filled(20, 9 * MIB, 20 * MIB, each=2)
    filled.free(filled.places[::2])
    assert in_recorded_steps(card, tmp_path, filled) == [False, True]


def test_recorded_requests_that_are_not_all_are_not_replayed(card: Card, tmp_path: Path) -> None:
    filled = Filled(20, 9 * MIB, 20 * MIB, each=2)
    filled.free(filled.places[1::2])
    assert in_recorded_steps(card, tmp_path, filled, known=False) == [None, None]


def test_no_setting_helps_if_the_bytes_are_missing(card: Card, tmp_path: Path) -> None:
    filled = Filled(40, 21 * MIB // 2, 12 * MIB)
    assert set(verdicts(card, tmp_path, filled, 81 * MIB, 500 * MIB, cut=True).values()) == {False}


@pytest.mark.parametrize(
    ("capacity_bytes", "cut"), [(500 * MIB, True), (560 * MIB, False)], ids=["no events", "the replay does not fail"]
)
def test_what_cannot_be_replayed_is_not_known(card: Card, tmp_path: Path, capacity_bytes: int, cut: bool) -> None:
    filled = Filled(40, 21 * MIB // 2, 12 * MIB)
    assert set(verdicts(card, tmp_path, filled, 60 * MIB, capacity_bytes, cut=cut).values()) == {None}


def test_settings_of_later_ranks_are_not_replayed(card: Card, tmp_path: Path) -> None:
    filled = Filled(40, 21 * MIB // 2, 12 * MIB)
    card(filled.snapshot(filled.events), 420 * MIB)
    ranks = []
    for name in ("first", "later"):
        recorded = Recorded(tmp_path / name)
        recorded.failures.happened({**FACTS, "tried_bytes": 60 * MIB, "free_bytes": 20 * MIB}, 3)
        ranks.append(recorded.rank())
    found = [[one.action.partition("=")[2] for one in failure.remedies] for _, failure in explain_ranks(ranks[::-1])]
    assert EXPANDABLE in found[0]
    assert found[1] == [""]


def test_what_if_replays_an_error_of_a_run_without_recorded_steps(card: Card, tmp_path: Path) -> None:
    filled = Filled(40, 21 * MIB // 2, 12 * MIB)
    card(filled.snapshot(filled.events), 420 * MIB)
    recorded = Recorded(tmp_path)
    recorded.failures.happened({**FACTS, "tried_bytes": 60 * MIB, "free_bytes": 20 * MIB}, 3)
    recorded.journal.write()
    result = CliRunner().invoke(main, ["what-if", str(recorded.directory)])
    assert result.exit_code == 0, result.output
    rows = [line.split("  ")[0] for line in result.output.splitlines() if "would have fitted" in line]
    assert result.output.startswith("Out of memory in step 3")
    assert EXPANDABLE in rows
    as_json = json.loads(CliRunner().invoke(main, ["what-if", str(recorded.directory), "--json"]).output)
    assert as_json["settings"] == []
    (failed,) = as_json["out_of_memory"]
    assert {one["alloc_conf"] for one in failed["settings"] if one["fits"]} == set(rows)


def test_free_memory_is_of_the_gpu_where_a_limit_is_set(card: Card, tmp_path: Path) -> None:
    card(snapshot([8 * 1024 * MIB], []), 8 * 1024 * MIB)
    recorded = Recorded(tmp_path)
    fact = {"tried_bytes": 300 * MIB, "total_bytes": 8 * 1024 * MIB, "free_bytes": 70 * 1024 * MIB}
    recorded.failures.happened({**FACTS, **fact}, 3)
    recorded.journal.write()
    text = " ".join(CliRunner().invoke(main, ["show", str(recorded.directory)]).output.split())
    assert "free on the GPU: 70.0 GiB of 80.0 GiB" in text
