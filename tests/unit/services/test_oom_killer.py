"""A program that was ended with SIGKILL is told apart by the kernel's own counters."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.cli.main import main
from gpuledger.collect.flight.host_memory import host_limit_bytes
from gpuledger.collect.launch import launch
from gpuledger.processes import memory_groups
from gpuledger.services import oom_killer
from gpuledger.services.oom_killer import killed_notes, read_kills

CGROUP, MACHINE = "/sys/fs/cgroup/memory.events", "/proc/vmstat"
KILLED = -signal.SIGKILL


def test_a_kill_at_the_limit_of_the_cgroup_is_named() -> None:
    (note,) = killed_notes(KILLED, {CGROUP: 2, MACHINE: 5}, lambda: {CGROUP: 3, MACHINE: 6})
    assert note == "The kernel ended the program with SIGKILL: host memory reached the limit of its cgroup."


def test_a_kill_on_a_full_machine_is_named() -> None:
    (note,) = killed_notes(128 + signal.SIGKILL, {CGROUP: 2, MACHINE: 5}, lambda: {CGROUP: 2, MACHINE: 6})
    assert "Host memory was full" in note


def test_another_kill_is_not_blamed_on_memory() -> None:
    (note,) = killed_notes(KILLED, {CGROUP: 2}, lambda: {CGROUP: 2})
    assert "not by this machine's out-of-memory killer" in note


def test_programs_that_were_not_killed_have_no_note() -> None:
    assert killed_notes(0, {}) == killed_notes(-signal.SIGTERM, {}) == killed_notes(1, {}) == []


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a cgroup inside a job's with a limit, as a cluster's scheduler makes them."""
    own = tmp_path / "jobs" / "job_17" / "step_0"
    own.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/jobs/job_17/step_0\n")
    (own / "memory.events").write_text("low 0\nhigh 0\noom 0\noom_kill 0\noom_group_kill 0\n")
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.events").write_text("oom 4\noom_kill 3\n")
    (own.parent / "memory.max").write_text(f"{8 << 30}\n")
    monkeypatch.setattr(memory_groups, "MEMBERSHIP", tmp_path / "self")
    monkeypatch.setattr(memory_groups, "MOUNT", tmp_path)
    monkeypatch.setattr(oom_killer, "_MACHINE", tmp_path / "vmstat")
    return own.parent


def test_the_counters_of_all_groups_above_the_process_are_read(job: Path) -> None:
    assert read_kills() == {str(job / "step_0" / "memory.events"): 0, str(job / "memory.events"): 3}


def test_the_lowest_limit_of_these_groups_is_that_of_the_process(job: Path) -> None:
    assert host_limit_bytes() == 8 << 30
    (job / "step_0" / "memory.max").write_text(f"{2 << 30}\n")
    assert host_limit_bytes() == 2 << 30


def test_groups_of_version_1_are_read(job: Path) -> None:
    mount = job.parents[1]
    (mount / "self").write_text("4:cpu,memory:/jobs\n0::/\n")
    (mount / "memory" / "jobs").mkdir(parents=True)
    (mount / "memory" / "jobs" / "memory.limit_in_bytes").write_text(f"{3 << 30}\n")
    (mount / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (mount / "memory" / "jobs" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 6\n")
    assert host_limit_bytes() == 3 << 30
    assert read_kills() == {str(mount / "memory" / "jobs" / "memory.oom_control"): 6}


def test_a_group_outside_of_what_is_visible_is_the_root(job: Path) -> None:
    mount = job.parents[1]
    (mount / "self").write_text("0::/../other\n")
    assert memory_groups.memory_groups() == [mount]


def test_a_program_that_is_killed_at_the_limit_of_its_job_is_told_so(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program counts the kill in the group's file, as the kernel does, and ends itself as the kernel would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "end_like", lambda status: sys.exit(128 - status))  # it would end the tests by SIGKILL
    script = f"printf 'oom 5\\noom_kill 4\\n' > {job}/memory.events; kill -9 $$"
    result = CliRunner().invoke(main, ["run", "--out", "killed.ledger", "--", "sh", "-c", script])
    assert result.exit_code == 128 + signal.SIGKILL
    manifest = json.loads((tmp_path / "killed.ledger" / "manifest.json").read_text())
    assert any("host memory reached the limit of its cgroup" in note for note in manifest["notes"])
