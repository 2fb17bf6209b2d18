"""The live view: what a frame shows, what is written between two frames, and that a run is only looked at."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from folders import RECORDINGS
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import ColorSystem
from synthetic import HOSTILE, make_run

from gpuledger.cards.nvml import NvmlSource
from gpuledger.cli.main import main
from gpuledger.cli.record import live as live_cli
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.flight.step_counters import DeviceCounters, StepCounters
from gpuledger.live import gauges as gauges_module
from gpuledger.live.gauges import Gauge, Gauges
from gpuledger.live.screen import History, ScreenChoice, frame, one_line
from gpuledger.live.view import LiveView, changes, write_lines
from gpuledger.live.watched_run import WatchedRun
from gpuledger.model.manifest import read_json
from gpuledger.model.run_directory import write_json
from gpuledger.report.base.terminal import Terminal

MIB, GIB = 1 << 20, 1 << 30
CARD = Gauge("NVIDIA H200", 71 * GIB, 140 * GIB, 612.4, 64, 0.93, 12_345.0, None)
BLIND = Gauge("unknown GPU", None, None, None, None, None, None, None)


class Nvml:
    """A binding with two GPUs, the second of which tells nothing but its name."""

    NVMLError = RuntimeError
    nvmlMemory_v2 = NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0
    _nvmlGetFunctionPointer = None

    def __init__(self) -> None:
        self.energy = count(1_000_000, 500)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "1.0"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"card {handle}"

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 * GIB, reserved=GIB, total=10 * GIB),
            "nvmlDeviceGetUUID": b"GPU-0",
            "nvmlDeviceGetFieldValues": [],
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
            "nvmlDeviceGetPowerUsage": 250_000,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=GIB)],
        }

        def answer(handle: int, *_: Any, **__: Any) -> Any:
            if handle == 1:
                raise RuntimeError("not supported")
            return next(self.energy) if name == "nvmlDeviceGetTotalEnergyConsumption" else answers[name]

        return answer


def running(place: Path, recording: str = "gan") -> Path:
    """Return a run that is still being written: a journal, no tables."""
    journal = place / "rank-0" / "journal"
    journal.mkdir(parents=True)
    (journal / "00000.npz").write_bytes((RECORDINGS / f"{recording}.npz").read_bytes())
    write_json(place / "manifest.json", {"schema_version": 1, "status": "running", "started_ns": 1})
    return place


def files(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.stat().st_mtime_ns for path in place.rglob("*")}


def test_gauges_are_the_cards_own_and_what_is_not_told_is_missing() -> None:
    source = NvmlSource(Nvml())
    gauges = Gauges([source.card(number) for number in source.numbers], pid=7)
    first, second = gauges.read()
    assert (first.used_bytes, first.power_w, first.temperature_c, first.busy_frac) == (5 * GIB, 250.0, 55, 0.4)
    assert (first.energy_j, first.process_bytes) == (0.5, GIB)
    assert second == Gauge("card 1", None, None, None, None, None, None, None)
    assert gauges.read()[0].energy_j == 1.0


@pytest.mark.parametrize("word", ["category", "module"])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_frame_fits_its_terminal(word: str, width: int, encoding: str, tmp_path: Path) -> None:
    run = WatchedRun(make_run(tmp_path / "h.ledger", hostile_names=True, blocks=300)).read()
    history = History()
    for used in range(300):
        history.add([Gauge("x", used, 300, None, None, None, None, None), BLIND])
    terminal = Terminal(width, encoding)
    lines = frame([CARD, BLIND], history, run, 10**9, ScreenChoice(word), terminal, 24)
    assert len(lines) <= 24
    assert [line for line in lines if cell_len(line) > width] == []
    assert not re.search(r"[\x00-\x1f\x7f]", "".join(lines))
    assert "".join(lines).encode(encoding)
    assert any(line.startswith(f"by {word}") for line in lines)


def test_columns_stay_where_they_are_while_numbers_change() -> None:
    terminal, places = Terminal(120), set()
    for used in (5, 71 * GIB, 139 * GIB):
        gauge = Gauge("NVIDIA H200", used, 140 * GIB, used / GIB, 64, 0.05, used / GIB, None)
        line = frame([gauge], History(), None, 0, ScreenChoice(), terminal, 24)[2]
        places.add((line.index(" of 140.0 GiB"), line.index(" W"), line.index(" °C")))
    assert len(places) == 1


def test_keys_change_the_choice_and_q_ends() -> None:
    choice = ScreenChoice()
    assert [choice.press(key) for key in "bsx"] == [True] * 3
    assert (choice.group_by, choice.by_name) == ("module", True)
    assert not choice.press("q")


def test_a_line_holds_the_reading() -> None:
    assert one_line([CARD], None, "12:00:00") == (
        "12:00:00 | NVIDIA H200 71.0 GiB of 140.0 GiB 612 W 64 °C 93 % 12.35 kJ"
    )


@given(st.lists(st.text("abc", max_size=3), max_size=6), st.lists(st.text("abc", max_size=3), max_size=6))
def test_only_what_changed_is_written_and_the_screen_is_the_new_frame(old: list[str], new: list[str]) -> None:
    screen = dict(enumerate(old, 1))
    written = re.findall(r"\x1b\[(\d+);1H(.*?)\x1b\[K", changes(old, new))
    for number, line in written:
        screen[int(number)] = line
    assert [screen[number] for number in sorted(screen)][: len(new)] == new
    assert all(screen[number] == "" for number in screen if number > len(new))
    assert len(written) <= sum(a != b for a, b in zip(old, new, strict=False)) + abs(len(old) - len(new))


def test_a_running_run_is_read_and_not_touched(tmp_path: Path) -> None:
    place = running(tmp_path / "gan.ledger")
    before = files(place)
    watched = WatchedRun(place)
    now = watched.read()
    assert now.status == "running"
    assert now.breakdown
    assert now.step >= 1
    assert files(place) == before
    assert watched.read().breakdown is now.breakdown, "what has not changed is not read again"
    watched.close()


def test_memory_that_grows_is_shown_while_the_run_is_written(tmp_path: Path) -> None:
    place = tmp_path / "leak.ledger"
    rank_directory = place / "rank-0"
    rank_directory.mkdir(parents=True)
    write_json(place / "manifest.json", {"schema_version": 1, "status": "running", "started_ns": 1})
    allocated = count(100 * MIB, 8 * MIB)
    blocks = count(10)

    def read() -> list[DeviceCounters]:
        size = next(allocated)
        return [DeviceCounters(0, size, size, size, next(blocks), 0, 0)]

    counters = StepCounters(read, lambda: -1)
    journal = RankJournal(lambda: rank_directory, [counters])
    devices = [{"device_idx": 0, "name": "GPU", "total_bytes": 80 * GIB}]
    journal.fact(recorder="cuda-history", devices=devices)
    watched = WatchedRun(place)
    for step in range(1, 101):
        counters.read(step, step)
        if step == 12:
            journal.append()
            assert watched.read().growth == (), "too few steps"
    journal.append()
    now = watched.read()
    assert [(round(one.step_bytes), one.last_step) for one in now.growth] == [(8 * MIB, 100)]
    lines = frame([], History(), now, 0, ScreenChoice(), Terminal(200), 24)
    marked = [line for line in lines if line.startswith("Memory grows: cuda:0: +8.0 MiB per step since step ")]
    assert len(marked) == 1
    assert "memory grows, cuda:0: +8.0 MiB per step since step" in one_line([], now, "12:00:00")
    narrow = frame([], History(), now, 0, ScreenChoice(), Terminal(40), 24)
    assert max(cell_len(line) for line in narrow) <= 40
    watched.close()


def test_a_run_that_has_written_nothing_yet_says_so(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"schema_version": 1, "status": "running"})
    lines = frame([], History(), WatchedRun(tmp_path).read(), 0, ScreenChoice(), Terminal(80), 24)
    assert "nothing is recorded yet" in lines
    write_json(tmp_path / "manifest.json", {"schema_version": 1, "status": "complete"})
    assert WatchedRun(tmp_path).read().note == "nothing was recorded"


def test_a_part_that_is_being_written_is_met_again_later(tmp_path: Path) -> None:
    place = running(tmp_path / "gan.ledger")
    part = place / "rank-0" / "journal" / "00000.npz"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    watched = WatchedRun(place)
    first = watched.read()
    part.write_bytes(whole)
    assert watched.read().breakdown
    assert first.name == "gan"


def test_without_a_terminal_it_ends_with_the_run(tmp_path: Path) -> None:
    place = running(tmp_path / "gan.ledger")
    manifest = read_json(place / "manifest.json")

    def end(_: float) -> None:
        write_json(place / "manifest.json", manifest | {"status": "complete"})

    stream = io.StringIO()
    write_lines(LiveView(None, WatchedRun(place)), stream, end)
    first, last = stream.getvalue().splitlines()
    assert "gan running" in first
    assert "gan complete" in last


def test_nothing_to_look_at_is_4_and_no_run_is_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges_module, "open_gauges", lambda pid: None)
    assert CliRunner().invoke(main, ["live"]).exit_code == 4
    assert CliRunner().invoke(main, ["live", str(tmp_path)]).exit_code == 3
    result = CliRunner().invoke(main, ["live", str(make_run(tmp_path / "a.ledger", blocks=100)), "--once"])
    assert result.exit_code == 0
    assert "by category" in result.stdout
    assert live_cli.live_command.name == "live"


def test_in_a_terminal_it_draws_on_a_screen_of_its_own_and_gives_it_back(tmp_path: Path) -> None:
    place = make_run(tmp_path / "a.ledger", blocks=100)
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    command = [sys.executable, "-m", "gpuledger", "live", str(place)]
    program = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    seen, pressed, deadline_s = b"", False, time.monotonic() + 600
    while time.monotonic() < deadline_s:
        try:
            seen += os.read(leader, 65536)
        except OSError:
            break
        if not pressed and b"by category" in seen:
            os.write(leader, b"bq")
            pressed = True
    assert program.wait(600) == 0
    os.close(leader)
    assert seen.startswith(b"\x1b[?1049h")
    assert seen.rstrip().endswith(b"\x1b[?1049l")


def test_colours_only_where_there_are_some(tmp_path: Path) -> None:
    run = WatchedRun(make_run(tmp_path / "a.ledger", blocks=200)).read()
    plain = frame([CARD], History(), run, 0, ScreenChoice(), Terminal(80), 24)
    colored = frame([CARD], History(), run, 0, ScreenChoice(), Terminal(80, colors=ColorSystem.TRUECOLOR), 24)
    assert "\x1b" not in "".join(plain)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in colored] == plain
    assert HOSTILE
