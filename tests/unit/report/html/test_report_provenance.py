"""Provenance: what is known is said, what is not known is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuledger.model.manifest import DeviceFacts, FailedAllocation, Pause, RankManifest, ReplayCheck, Window
from gpuledger.model.run import Run
from gpuledger.model.run_manifest import RunManifest
from gpuledger.report.html.provenance import check_rows, facts_of_rank, facts_of_run, oom_rows

NOTHING = RankManifest(schema_version=1)


def run_of(manifest: RunManifest) -> Run:
    return Run(Path("one.ledger"), manifest, ())


def test_an_empty_manifest_gives_no_facts() -> None:
    assert facts_of_run(run_of(RunManifest(schema_version=1))) == [("Schema version", "1")]
    assert facts_of_rank(NOTHING, 0) == []
    assert check_rows(NOTHING, 0) == []
    assert oom_rows(NOTHING, 0) == []


def test_a_run_is_described() -> None:
    facts = dict(
        facts_of_run(
            run_of(
                RunManifest(
                    schema_version=1,
                    command=("python", "train.py", "--name", "two words"),
                    started_ns=1_760_000_000_000_000_000,
                    ended_ns=1_760_000_002_500_000_000,
                    status="complete",
                    exit_status=3,
                    settings={"steps": {"value": "1:3", "origin": "default"}},
                )
            )
        )
    )
    assert facts == {
        "Command": "python train.py --name 'two words'",
        "Started": "2025-10-09 08:53:20 UTC",
        "Duration": "2.50 s",
        "Status": "complete, exit status 3",
        "Schema version": "1",
        "Setting steps": "1:3 (default)",
    }


def test_a_process_is_described_with_its_own_device() -> None:
    facts = dict(
        facts_of_rank(
            replace(
                NOTHING,
                devices=(
                    DeviceFacts(device_idx=0, name="first"),
                    DeviceFacts(device_idx=1, name="second", uuid="GPU-1"),
                ),
                window=Window(first_step=1, last_step=3),
                steps_seen=8,
                pauses=tuple(Pause(reason="open", start_ns=0, duration_ns=ms * 1_000_000) for ms in (1, 2)),
                allocator_settings={"expandable_segments": True},
            ),
            1,
        )
    )
    assert facts["Device"] == "second"
    assert facts["Device UUID"] == "GPU-1"
    assert facts["Recorded steps"] == "1 to 3 of 8 seen"
    assert facts["Pauses of the recorder"] == "2, 3.00 ms in total"
    assert facts["Allocator settings"] == "expandable_segments:True"


def test_checks_and_out_of_memory_are_those_of_the_device() -> None:
    manifest = replace(
        NOTHING,
        checks=(
            ReplayCheck(name="a", device_idx=0, expected=1, found=1, ok=True),
            ReplayCheck(name="b", device_idx=1, expected=2, found=3, ok=False),
        ),
        oom=(FailedAllocation(device_idx=1, tried_bytes=7), FailedAllocation(device_idx=-1, tried_bytes=8)),
    )
    assert check_rows(manifest, 1) == [{"name": "b", "expected": "2", "found": "3", "ok": False}]
    assert oom_rows(manifest, 0) == []
    unknown = {"total_bytes": None, "free_bytes": None, "largest_free_bytes": None}
    assert oom_rows(manifest, 1) == [{"tried_bytes": 7, **unknown, "place": "GPU"}]
    assert oom_rows(manifest, -1) == [{"tried_bytes": 8, **unknown, "place": "machine"}]
