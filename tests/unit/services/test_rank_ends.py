"""Ranks keep how and why their processes ended; one that the kernel ended for lack of memory is explained."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import load_run

from gpuledger.analyze.view.view import build_view
from gpuledger.collect.launch.ends import ProcessEnd
from gpuledger.model.manifest import RankManifest, write_rank_manifest
from gpuledger.model.run import Run, read_run
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.json.document import show_document
from gpuledger.report.text.first_screen import first_screen
from gpuledger.services.program_end import KernelKills, ProgramEnd
from gpuledger.services.rank_ends import keep_ends

KILLED = -signal.SIGKILL
GIB = 1 << 30
AT_LIMIT = KernelKills(1, at_limit=True, limit_bytes=3 * GIB // 2)
CGROUP = "host memory reached the limit of 1.5 GiB of its job or container (cgroup)"


def ended(path: Path, status: int, kills: KernelKills | None, *ranks: int | None) -> Run:
    """Return a run after its end: of each rank, the exit status of its process. They ended one after the other."""
    run = load_run(path, blocks=20, ranks=len(ranks))
    for rank in run.ranks:
        value: dict[str, Any] = rank.manifest.to_json() | {"pid": 100 + rank.number, "steps_seen": 7}
        value["host_memory"] = [{"kind": "resident", "bytes": GIB, "peak_bytes": 2 * GIB}]
        write_rank_manifest(rank.directory, RankManifest.from_json(value))
    processes = {100 + number: ProcessEnd(10**18 + number, one) for number, one in enumerate(ranks)}
    return keep_ends(read_run(path), ProgramEnd(status, kills, processes))


def causes(run: Run) -> dict[int, str]:
    """Return rank -> why the kernel ended it, or a process beside it."""
    return {rank.number: one.cause.sentence for rank, one in build_view(run).out_of_memory if one.cause is not None}


@pytest.mark.parametrize(
    ("status", "kills", "expected"),
    [
        (KILLED, AT_LIMIT, f"The kernel ended the program, because {CGROUP}"),
        (KILLED, KernelKills(2), "The kernel ended the program, because the machine's memory was full"),
        (1, AT_LIMIT, f"The kernel ended a process beside the program, because {CGROUP}"),
        (1, KernelKills(3, at_limit=True), "The kernel ended 3 processes beside the program, because host memory"),
    ],
)
def test_what_the_kernel_ended_is_the_first_sentence(
    tmp_path: Path, status: int, kills: KernelKills, expected: str
) -> None:
    run = ended(tmp_path / "run", status, kills, status)
    assert run.rank().manifest.signal == (signal.SIGKILL if status == KILLED else None)
    view = build_view(run)
    lines = first_screen(view, Terminal(width_cells=None))
    (line,) = [line for line in lines if line.startswith("Out of memory")]
    assert line.removeprefix("Out of memory").strip().startswith(expected)
    assert line.endswith(". The process used 1.0 GiB when this was last measured")
    assert lines[lines.index(line) + 1].strip() == "after at least 7 steps"
    assert not any("held by" in line or line.startswith(("To fit the request", "Program ended")) for line in lines)
    (failure,) = show_document(view)["out_of_memory"]
    assert (failure["cause"]["kind"], failure["device_idx"]) == ("host_killed", -1)


@pytest.mark.parametrize(
    ("status", "kills"),
    [(KILLED, None), (KILLED, KernelKills(0)), (0, AT_LIMIT), (1, KernelKills(2)), (-signal.SIGSEGV, KernelKills(1))],
)
def test_without_a_kill_or_a_failure_there_is_none(tmp_path: Path, status: int, kills: KernelKills | None) -> None:
    """Kills on the machine are of other programs, unless this one received SIGKILL."""
    assert causes(ended(tmp_path / "run", status, kills, status)) == {}


def test_the_launcher_ends_the_other_ranks_after_the_one_that_the_kernel_ended(tmp_path: Path) -> None:
    run = ended(tmp_path / "run", 1, AT_LIMIT, -signal.SIGTERM, KILLED, KILLED)
    assert list(causes(run)) == [1]


def test_a_rank_whose_end_nobody_saw_was_ended_if_its_shell_says_so(tmp_path: Path) -> None:
    """A shell ends with 128 + 9. It has read the status of the process before gpuledger could."""
    run = ended(tmp_path / "run", 128 + signal.SIGKILL, AT_LIMIT, None)
    assert causes(run)[0].startswith("The kernel ended the program")


def test_the_rank_that_failed_is_the_one_beside_which_a_process_was_ended(tmp_path: Path) -> None:
    run = ended(tmp_path / "run", 1, AT_LIMIT, os.EX_OK, 1)
    assert list(causes(run)) == [1]


def test_ranks_keep_when_the_program_was_asked_to_end(tmp_path: Path) -> None:
    """Also one that has no end here: its process ran on another host."""
    run = load_run(tmp_path / "run", blocks=20, ranks=2)
    first = run.rank(0)
    write_rank_manifest(first.directory, replace(first.manifest, pid=100))
    end = ProgramEnd(137, None, {100: ProcessEnd(10**18 + 5, KILLED)}, stopped_ns=10**18)
    kept = [rank.manifest for rank in keep_ends(read_run(run.path), end).ranks]
    assert [(one.stopped_ns, one.ended_ns, one.signal) for one in kept] == [
        (10**18, 10**18 + 5, signal.SIGKILL),
        (10**18, None, None),
    ]
