"""What used to hang a watch or make it say what is not so: each in this process, on a scripted GPU."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from programs import execute
from stubbed import PAUSES_S, is_exact, measured_well, sampler_of, with_stub

import gpuledger
from gpuledger.analyze.samples.watched import watched
from gpuledger.collect.sampling import watcher as watchers
from gpuledger.collect.sampling.watcher import Watcher
from gpuledger.errors import GpuLedgerError, UsageError
from gpuledger.services.runs import load
from gpuledger.services.watching import WatchSettings, watch_command

SETTINGS = WatchSettings()


@pytest.fixture(autouse=True)
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stub in front of the driver's library, for the samplers that this process starts."""
    for name, value in with_stub(tmp_path, watts=200).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_signals_are_what_they_were_after_a_command() -> None:
    """Ignored ones were inherited by the next variant, which Ctrl-C then could not end."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    assert watch_command(["true"], Path("a.ledger"), SETTINGS, print) == 0
    assert [signal.getsignal(number) for number in numbers] == before


def test_many_commands_that_end_at_once(tmp_path: Path) -> None:
    for number in range(5):
        assert watch_command(["true"], tmp_path / f"{number}.ledger", SETTINGS, print) == 0
    (figures,) = watched(load(tmp_path / "4.ledger"))
    assert figures.energy_j is None or figures.notes


def test_files_of_the_users_directory_are_not_taken_for_ours(tmp_path: Path) -> None:
    for name in ("queue.py", "json.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file')")
    with gpuledger.watch("shadowed") as watch:
        pass
    assert watch.figures.samples > 0


def test_a_run_that_cannot_be_written_is_no_fault_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be created"):
        watch_command(["touch", "started"], tmp_path / "file" / "w.ledger", SETTINGS, print)
    assert not (tmp_path / "started").exists()


def test_a_sampler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose GPU is gone can keep a call for ever; the command's end is told all the same."""
    monkeypatch.setattr(watchers, "PATIENCE_S", 0.5)
    watch = gpuledger.watch("stuck")
    with watch:
        os.kill(sampler_of(os.getpid()), signal.SIGSTOP)
        for number in range(3000):  # more than a pipe holds: the program is not held up
            with watch.window(f"{number:0200d}"):
                pass
    notes = load(tmp_path / "stuck.ledger").manifest.notes
    assert any("did not answer" in note for note in notes)
    assert any("too busy" in note for note in notes)


def test_an_error_of_the_block_goes_on_though_the_run_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuledger.services.watching.post_ranks", refuse)
    with pytest.raises(ValueError, match="mine") as raised, gpuledger.watch("full"):
        raise ValueError("mine")
    assert raised.value.__notes__ == ["gpuledger: full.ledger could not be written: No space left on device"]
    said: list[str] = []
    assert watch_command(["sh", "-c", "exit 3"], tmp_path / "posting.ledger", SETTINGS, said.append) == 3
    place = tmp_path / "posting.ledger"
    assert said == [
        f"gpuledger: sampling every 5 ms into {place}",
        f"gpuledger: error: {place}: sampling stopped early: No space left on device",
    ]


def watch_that_forks(pause_s: float) -> gpuledger.Watch:
    """Return a watch that a forked child has tried to end."""
    with gpuledger.watch("forked", force=True) as watch:
        assert repr(watch) == "<Watch 'forked': watching into forked.ledger>"
        child = os.fork()
        if not child:
            watch.__exit__(None, None, None)
            os._exit(0 if repr(watch) == "<Watch 'forked': watching into forked.ledger>" else 1)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(pause_s)
    return watch


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_watch_to_its_parent() -> None:
    watch = measured_well(watch_that_forks, lambda watch: is_exact(watch.energy_j, watch.energy_uncertainty_j))
    assert repr(watch) == "<Watch 'forked': ended, forked.ledger>"
    assert watch.energy_j == pytest.approx(200 * (watch.figures.duration_s or 0), rel=0.1)


def watch_two_steps(pause_s: float) -> gpuledger.Watch:
    """Return a watch of two windows of this length."""
    with gpuledger.watch("steps", force=True) as watch:
        for _ in range(2):
            with watch.window("step"):
                time.sleep(pause_s)
        with pytest.raises(UsageError, match="needs a name"), watch.window(""):
            pass
        with pytest.raises(UsageError, match="already active"):
            watch.__enter__()
    return watch


def are_measured_apart(pause_s: float) -> bool:
    """Return whether two windows of this length, and the whole, have the energy of the time they took."""
    watch = watch_two_steps(pause_s)
    took_s: Counter[str | None] = Counter()
    for row in watch.run().rank().table("windows").to_pylist():
        took_s[row["name"]] += (row["end_ns"] - row["start_ns"]) / 1e9
    assert watch.windows.keys() == {"step"}
    assert 2 * pause_s <= took_s["step"] < took_s[None]
    expected = [pytest.approx(200 * took_s[name], rel=0.1) for name in ("step", None)]
    return [watch.windows["step"], watch.energy_j] == expected


def test_windows_of_one_name_are_summed_and_an_inner_one_is_not_the_whole() -> None:
    assert any(are_measured_apart(pause_s) for pause_s in PAUSES_S)


def test_what_is_interrupted_at_its_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Watcher, patience_s: float) -> None:
        del self, patience_s
        raise KeyboardInterrupt

    monkeypatch.setattr(Watcher, "_hear", interrupted)
    with pytest.raises(KeyboardInterrupt), gpuledger.watch("early"):
        pass
    assert not list(tmp_path.glob("*.ledger"))


def test_a_sampler_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(GpuLedgerError, match="the sampler did not start"), gpuledger.watch("none"):
        pass
    assert not list(tmp_path.glob("*.ledger"))


SIGPIPE = """
import os, psutil, signal, time, gpuledger
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with gpuledger.watch("piped") as watch:
    (sampler,) = psutil.Process().children()
    sampler.kill()
    os.waitid(os.P_PID, sampler.pid, os.WEXITED | os.WNOWAIT)
    with watch.window("x"):
        pass
    print("on")
"""


def test_a_program_that_ends_by_broken_pipes_is_not_ended_by_ours(stub: Path) -> None:
    done = execute([sys.executable, "-c", SIGPIPE], stub, dict(os.environ))
    assert (done.status, done.stdout) == (0, b"on\n")
    notes = load(stub / "piped.ledger").manifest.notes
    assert any("killed by signal 9" in note for note in notes)
