"""A program that was ended with SIGKILL is told apart by the kernel's own counters."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuledger.cli.main import main
from gpuledger.collect.launch import launch
from gpuledger.processes import memory_groups
from gpuledger.processes.memory_groups import host_limit_bytes
from gpuledger.services import program_end
from gpuledger.services.program_end import KernelKills, KillCounters, killed_notes, kills_between, read_kills

CGROUP, JOB, MACHINE = "/cgroup/job/step/memory.events", "/cgroup/job/memory.events", "/proc/vmstat"
KILLED = -signal.SIGKILL
LIMIT = 1536 << 20


def counters(in_step: int, on_machine: int, limits_of_job: int = 0) -> KillCounters:
    return KillCounters({CGROUP: in_step, MACHINE: on_machine}, {CGROUP: 0, JOB: limits_of_job}, LIMIT)


def test_a_kill_at_the_limit_of_the_cgroup_is_named(tmp_path: Path) -> None:
    """The limit is that of the job, and the kill is counted in the cgroup below it, too."""
    kills = kills_between(counters(2, 5), counters(3, 6, limits_of_job=1))
    assert kills == KernelKills(1, at_limit=True, limit_bytes=LIMIT)
    (note,) = killed_notes(KILLED, kills, tmp_path)
    assert note == "The kernel ended the program with SIGKILL: host memory reached the limit of its cgroup."


@pytest.mark.parametrize("in_step", [2, 3])
def test_a_kill_on_a_full_machine_is_named(in_step: int, tmp_path: Path) -> None:
    """The kernel counts it in the cgroup of its process, too, which has not reached its limit."""
    kills = kills_between(counters(2, 5), counters(in_step, 6))
    assert kills == KernelKills(1)
    (note,) = killed_notes(128 + signal.SIGKILL, kills, tmp_path)
    assert "Host memory was full" in note


def test_another_kill_is_not_blamed_on_memory(tmp_path: Path) -> None:
    (note,) = killed_notes(KILLED, kills_between(counters(2, 5), counters(2, 5, limits_of_job=3)), tmp_path)
    assert "not by this machine's out-of-memory killer" in note


def test_programs_that_were_not_killed_have_no_note(tmp_path: Path) -> None:
    kills = KernelKills(1, at_limit=True)
    assert [killed_notes(status, kills, tmp_path) for status in (0, -signal.SIGTERM, 1)] == [[], [], []]
    assert kills_between(KillCounters(), KillCounters()) is None
    assert killed_notes(KILLED, None, tmp_path) == []


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a cgroup inside a job's with a limit, as a cluster's scheduler makes them."""
    own = tmp_path / "jobs" / "job_17" / "step_0"
    own.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/jobs/job_17/step_0\n")
    (own / "memory.events").write_text("low 0\nhigh 0\noom 0\noom_kill 0\noom_group_kill 9\n")
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.events").write_text("oom 4\noom_kill 3\n")
    (own.parent / "memory.max").write_text(f"{8 << 30}\n")
    monkeypatch.setattr(memory_groups, "MEMBERSHIP", tmp_path / "self")
    monkeypatch.setattr(memory_groups, "MOUNT", tmp_path)
    monkeypatch.setattr(program_end, "_MACHINE", tmp_path / "vmstat")
    return own.parent


def test_the_counters_of_all_groups_above_the_process_are_read(job: Path) -> None:
    own, above = str(job / "step_0" / "memory.events"), str(job / "memory.events")
    assert read_kills() == KillCounters({own: 0, above: 3}, {own: 0, above: 4}, 8 << 30)


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
    (mount / "memory" / "jobs" / "memory.failcnt").write_text("11\n")
    of_jobs = mount / "memory" / "jobs"
    read = {str(of_jobs / "memory.oom_control"): 6}, {str(of_jobs / "memory.failcnt"): 11}
    assert read_kills() == KillCounters(*read, 3 << 30)


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
