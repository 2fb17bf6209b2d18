"""A program that was ended with SIGKILL is told apart by the kernel's own counters."""

from __future__ import annotations

import signal
from pathlib import Path

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


def test_the_counters_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    place = str(tmp_path / "memory.events")
    assert read_kills((place, str(tmp_path / "absent"))) == {place: 3}
