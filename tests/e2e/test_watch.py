"""``gpuledger watch`` on a scripted GPU: the real binding, the real sampler, and everything that can go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from present import present
from programs import GPULEDGER, Ended, execute, manifest
from quick import quick_gpuledger, quick_python
from stubbed import is_exact, library_directory, measured_well, sampler_of, watch, with_stub

from gpuledger.analyze.samples.series import PROCESS_SOURCE, STAND_IN_SOURCE, build_series
from gpuledger.analyze.samples.watched import Watched, watched
from gpuledger.cli.main import main
from gpuledger.services.runs import load


def notes_of(run: Path) -> list[str]:
    return [*manifest(run)["notes"], *load(run).rank().manifest.notes]


def watched_for(pause_s: float, directory: Path, **script: float) -> tuple[Ended, Watched]:
    """Return how a watch of a command of this length ended, and the figures of its GPU."""
    source = f"import time; time.sleep({pause_s}); print('hello')"
    ended = watch(["--out", "w", "--force", "--", sys.executable, "-c", source], directory, **script)
    (figures,) = watched(load(directory / "w.ledger"))
    return ended, figures


def test_a_command_is_watched_and_its_figures_are_known(tmp_path: Path) -> None:
    ended, figures = measured_well(
        lambda pause_s: watched_for(pause_s, tmp_path, watts=250),
        lambda found: is_exact(found[1].energy_j, found[1].energy_uncertainty_j) and found[1].samples > 20,
    )
    assert (ended.status, ended.stdout) == (0, b"hello\n")
    assert b"Energy" in ended.stderr
    run = load(tmp_path / "w.ledger")
    assert figures.energy_j is not None
    assert figures.duration_s is not None
    uncertainty_j = present(figures.energy_uncertainty_j)
    assert abs(figures.energy_j - 250 * figures.duration_s) <= uncertainty_j
    assert uncertainty_j < figures.energy_j
    assert figures.mean_power_w == pytest.approx(250, rel=0.1)
    assert figures.peak_power_w == 250
    assert figures.samples > 20
    rows = run.table("samples").to_pylist()
    assert {row["used_bytes"] for row in rows} == {1_000_000_000}
    assert {row["power_average_w"] for row in rows} == {None, 250.0}
    assert all(row["energy_j"] is None for row in rows)
    assert present(present(run.rank().manifest.sampler).readings) <= len(rows)


def test_bytes_follow_the_card(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("1000000000")
    source = f"""
import pathlib, time
used, seen = pathlib.Path({str(used)!r}), pathlib.Path({str(used) + ".seen"!r})
for size in (1, 3, 2):
    used.write_text(f"{{size}}000000000")
    while not seen.exists() or seen.read_text() != used.read_text():
        time.sleep(0.02)
"""
    environment = {**with_stub(tmp_path), "STUB_NVML_BYTES": str(used)}
    done = execute(
        [*quick_gpuledger(), "watch", "-q", "--out", "w", "--", sys.executable, "-c", source], tmp_path, environment
    )
    assert done.stderr == b""
    (figures,) = watched(load(tmp_path / "w.ledger"))
    assert figures.peak_bytes == 2_000_000_000
    assert figures.baseline_bytes == 1_000_000_000


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["no-such-command"], 127),
        (["/etc/hosts"], 126),
    ],
)
def test_the_end_is_the_commands_own(command: list[str], status: int, tmp_path: Path) -> None:
    assert watch(["--out", "w", "--", *command], tmp_path).status == status
    assert (tmp_path / "w.ledger").exists() == (status not in (126, 127))


def test_binary_output_and_children_left_behind(tmp_path: Path) -> None:
    """The watch ends with its command: what that left running is not waited for."""
    source = """
import os, sys, time
sys.stdout.buffer.write(bytes(range(256)))
sys.stdout.flush()
child = os.fork()
if child:
    open("child", "w").write(str(child))
else:
    os.closerange(0, 3)
    time.sleep(60)
"""
    ended = watch(["-q", "--", sys.executable, "-c", source], tmp_path)
    assert (ended.status, ended.stdout, ended.stderr) == (0, bytes(range(256)), b"")
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        ({"init_error": 9}, [], b"no GPU can be read: Driver Not Loaded"),
        ({"cards": 0}, [], b"this machine has no GPU"),
        ({"no_permission": 1}, [], b"Insufficient Permissions"),
        ({}, ["--gpu", "7"], b"GPU 7: this machine has no such GPU"),
    ],
)
def test_without_a_card_the_command_is_not_started(
    script: dict[str, float], words: list[str], message: bytes, tmp_path: Path
) -> None:
    ended = watch([*words, "--", "touch", "started"], tmp_path, **script)
    assert ended.status == 4
    assert message in ended.stderr
    assert b"sampling every" not in ended.stderr
    assert not (tmp_path / "started").exists()
    assert not list(tmp_path.glob("*.ledger"))


@pytest.mark.parametrize(
    "words",
    [
        ["--interval", "0"],
        ["--interval", "0ms"],
        ["--interval", "1us"],
        ["--interval", "5 parsecs"],
        ["--gpu", "first"],
        ["--pid", "999999999"],
        ["--pid", "1", "--", "true"],
        ["--variants", "a=1,a=2", "--", "echo", "{variant}"],
        ["--variants", "a=1", "--", "echo"],
    ],
)
def test_what_cannot_be_asked_is_refused(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a GPU is asked for: there need not be one here."""
    monkeypatch.chdir(tmp_path)
    words = words if "--" in words or "--pid" in words else [*words, "--", "touch", "started"]
    ended = CliRunner().invoke(main, ["watch", *words])
    assert ended.exit_code == 2
    assert len(ended.stderr.strip().splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    assert watch(["--out", "w", "--", "true"], tmp_path).status == 0
    assert watch(["--out", "w", "--", "true"], tmp_path).status == 2
    assert watch(["--out", "w", "--force", "--", "true"], tmp_path).status == 0


@pytest.mark.parametrize(
    ("script", "energy", "power"),
    [({"no_power": 1}, None, None), ({"no_energy": 1}, 300.0, 300.0), ({"old_driver": 1}, 300.0, 300.0)],
)
def test_what_a_card_does_not_tell_is_null(
    script: dict[str, float], energy: float | None, power: float | None, tmp_path: Path
) -> None:
    figures = measured_well(
        lambda pause_s: watched_for(pause_s, tmp_path, **script)[1],
        lambda found: (found.energy_j is None) == (energy is None) and found.samples > 10,
    )
    assert (figures.energy_j is None) == (energy is None)
    assert figures.peak_power_w == (None if power is None else pytest.approx(power, abs=0.01))
    assert figures.samples > 10


def test_a_card_that_is_lost_ends_its_samples(tmp_path: Path) -> None:
    ended = watch(
        ["--out", "w", "--", sys.executable, "-c", "import time; time.sleep(1.2)"], tmp_path, lost_after_s=0.6
    )
    assert ended.status == 0
    assert any("GPU 0 stopped responding" in note for note in notes_of(tmp_path / "w.ledger"))


def test_process_ids_that_are_not_ours_are_noted_and_the_card_stands_for_them(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("1000000000")
    source = f"import time; open({str(used)!r}, 'w').write('3000000000'); time.sleep(0.7)"
    environment = {**with_stub(tmp_path, pid=4_000_000), "STUB_NVML_BYTES": str(used)}
    execute([*quick_gpuledger(), "watch", "--out", "w", "--", sys.executable, "-c", source], tmp_path, environment)
    run = load(tmp_path / "w.ledger")
    assert any("reports process ids from outside this container" in note for note in notes_of(tmp_path / "w.ledger"))
    (line,), _ = build_series([run], per="process")
    assert (line.peak[1], line.baseline, line.line.source) == (2e9, 0, STAND_IN_SOURCE)


def test_the_bytes_of_the_commands_own_processes_are_told_apart(tmp_path: Path) -> None:
    """A grandchild that lives for a second is the command's; a stranger is not, and no sign of a container."""
    owner = tmp_path / "owner"
    owner.write_text("1")
    source = f"""
import os, pathlib, time
time.sleep(0.4)
owner, seen = pathlib.Path({str(owner)!r}), pathlib.Path({str(owner) + ".seen"!r})
owner.write_text(str(os.getpid()))
while seen.read_text() != owner.read_text():
    time.sleep(0.02)
time.sleep(0.6)
"""
    (tmp_path / "own.py").write_text(source)
    environment = {**with_stub(tmp_path, pid_bytes=7e8), "STUB_NVML_PID": str(owner)}
    command = [*quick_gpuledger(), "watch", "--out", "w", "--", "sh", "-c", f"{sys.executable} own.py; true"]
    execute(command, tmp_path, environment)
    run = load(tmp_path / "w.ledger")
    assert notes_of(tmp_path / "w.ledger") == []
    assert int(owner.read_text()) in run.rank().manifest.pids
    assert {row["pid"] for row in run.table("process_samples").to_pylist()} == {1, int(owner.read_text())}
    (line,), _ = build_series([run], per="process")
    assert (line.peak[1], line.line.source) == (7e8, PROCESS_SOURCE)


def begin(directory: Path, *words: str) -> subprocess.Popen[bytes]:
    """Return a watch under way whose command has said ``ready``."""
    running = subprocess.Popen(
        [*GPULEDGER, "watch", "--out", "w", *words],
        cwd=directory,
        env=with_stub(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    return running


READY = """
import pathlib, time
print("ready", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("on")
"""


def test_a_killed_sampler_leaves_the_command_alone(tmp_path: Path) -> None:
    running = begin(tmp_path, "--", sys.executable, "-c", READY)
    os.kill(sampler_of(running.pid), signal.SIGKILL)
    (tmp_path / "go").touch()
    stdout, _ = running.communicate(timeout=600)
    assert (running.returncode, stdout) == (0, b"on\n")
    assert any("killed by signal 9" in note for note in notes_of(tmp_path / "w.ledger"))


def test_a_killed_watch_keeps_its_parts_and_ends_the_command(tmp_path: Path) -> None:
    source = "import time; print('ready', flush=True); time.sleep(60)"
    running = begin(tmp_path, "--", sys.executable, "-c", source)
    running.kill()
    running.communicate(timeout=600)  # the command holds the pipe as long as it lives
    deadline = time.monotonic() + 600
    rank = load(tmp_path / "w.ledger").rank()
    while not any("gpuledger was killed" in note for note in rank.manifest.notes) and time.monotonic() < deadline:
        time.sleep(0.2)
        rank = load(tmp_path / "w.ledger").rank()
    assert any("gpuledger was killed" in note for note in rank.manifest.notes)
    assert rank.table("samples").num_rows > 0


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_both_and_keeps_the_run(times: int, tmp_path: Path) -> None:
    running = begin(tmp_path, "--", sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(30)")
    for _ in range(times):
        running.send_signal(signal.SIGINT)
        time.sleep(0.1)
    running.communicate(timeout=600)
    assert running.returncode == -signal.SIGINT
    run = manifest(tmp_path / "w.ledger")
    assert (run["status"], run["signal"]) == ("complete", signal.SIGINT)
    assert load(tmp_path / "w.ledger").rank().table("samples").num_rows > 0


def test_a_process_that_runs_already(tmp_path: Path) -> None:
    source = (
        "import pathlib, time\nwhile not any(pathlib.Path('w.ledger/rank-0/journal').glob('*.npz')): time.sleep(0.05)"
    )
    with subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path) as other:
        assert watch(["--out", "w", "--pid", str(other.pid)], tmp_path).status == 0
    run = load(tmp_path / "w.ledger")
    assert other.pid in run.rank().manifest.pids


def variants_of(pause_s: float, directory: Path) -> list[dict[str, Any]]:
    """Return the figures of a short and a long command, after one that fails has run, too."""
    variants = f"short={pause_s},long={4 * pause_s},bad=x"
    words = ["--out", "v", "--force", "--variants", variants, "--", sys.executable, "-c"]
    assert watch([*words, "import sys, time; time.sleep(float('{variant}'))"], directory).status == 1
    done = execute([*quick_gpuledger(), "compare", "--json", "v/short.ledger", "v/long.ledger"], directory)
    figures: list[dict[str, Any]] = json.loads(done.stdout)[:2]
    return figures


def test_variants_are_run_and_compared(tmp_path: Path) -> None:
    short, long = measured_well(
        lambda pause_s: variants_of(pause_s, tmp_path),
        lambda figures: all(one["energy_j"] is not None for one in figures),
    )
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"short.ledger", "long.ledger", "bad.ledger", "plots"}
    assert {path.name for path in (tmp_path / "v" / "plots").iterdir()} >= {"compared.md", "compared.csv"}
    assert manifest(tmp_path / "v" / "bad.ledger")["exit_status"] == 1
    assert short["duration_s"] < long["duration_s"]
    assert short["energy_j"] < long["energy_j"]


PYTHON = """
import json, time, gpuledger
with gpuledger.watch("mine", out="mine", force=True) as watch:
    with watch.window("outer"):
        time.sleep({pause_s})
        with watch.window("inner"):
            time.sleep({pause_s})
    with watch.window("short"):
        pass
print(json.dumps([watch.energy_j, watch.energy_uncertainty_j, watch.windows]))
"""


def windows_of(pause_s: float, directory: Path) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return what the program has printed, and the rows of its windows."""
    program = PYTHON.format(pause_s=pause_s)
    done = execute([quick_python(), "-c", program], directory, with_stub(directory, watts=200))
    return json.loads(done.stdout), load(directory / "mine.ledger").rank().table("windows").to_pylist()


def are_windows_exact(found: tuple[list[Any], list[dict[str, Any]]]) -> bool:
    """Return whether the energy of all windows is exact but for a short one, which was not held up."""
    by_name = {row["name"]: row for row in found[1]}
    short = by_name.pop("short")
    exact = (is_exact(row["energy_j"], row["uncertainty_j"]) for row in by_name.values())
    return all(exact) and short["end_ns"] - short["start_ns"] < 1e8


def test_from_python_with_named_windows(tmp_path: Path) -> None:
    printed, rows = measured_well(lambda pause_s: windows_of(pause_s, tmp_path), are_windows_exact)
    energy_j, uncertainty_j, windows = printed
    took_s = {row["name"]: (row["end_ns"] - row["start_ns"]) / 1e9 for row in rows}
    assert windows["short"] is None  # below the counter's resolution, and not 0 J
    assert windows["outer"] == pytest.approx(200 * took_s["outer"], rel=0.1)
    assert windows["inner"] == pytest.approx(200 * took_s["inner"], rel=0.15)
    assert energy_j == pytest.approx(200 * took_s[None], rel=0.1)
    assert 0 < uncertainty_j < energy_j


def test_a_full_disk_ends_the_samples_and_not_the_command(tmp_path: Path) -> None:
    limited = f"ulimit -f 1; exec {' '.join(GPULEDGER)} watch --out w --interval 1ms -- sh -c 'sleep 1; echo on'"
    environment: dict[str, Any] = {**with_stub(tmp_path), "LD_LIBRARY_PATH": str(library_directory())}
    done = execute(["bash", "-c", limited], tmp_path, environment)
    assert done.stdout == b"on\n"
    assert b"sampling stopped early" in done.stderr
    assert done.status == 0


VARIANTS = """
import sys
from gpuledger.cli import main
from gpuledger.services import variants
variants.Idle.LONGEST_S = 0.5
sys.argv[1:] = ["watch", "--out", "v", "--repeat", "2", "--", "sh", "-c", "echo 2000000000 > used; sleep 0.3"]
main.main()
"""


def test_a_card_that_does_not_come_back_to_its_baseline_is_said(tmp_path: Path) -> None:
    """The command leaves bytes behind: its second run begins from another GPU."""
    used = tmp_path / "used"
    used.write_text("1000000000")
    environment = {**with_stub(tmp_path), "STUB_NVML_BYTES": str(used)}
    done = execute([quick_python(), "-c", VARIANTS], tmp_path, environment)
    assert done.status == 0
    assert b"r2: started although the GPU was not idle after 0 s: GPU 0 uses 953.7 MiB more memory" in done.stderr
    assert any("not idle" in note for note in notes_of(tmp_path / "v" / "r2.ledger"))
    assert notes_of(tmp_path / "v" / "r1.ledger") == []
    assert "shown as their mean" in b" ".join(done.stderr.split()).decode()
