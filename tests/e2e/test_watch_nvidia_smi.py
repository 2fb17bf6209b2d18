"""Where NVML's library cannot be loaded the tool nvidia-smi is read: a script that prints what the tool prints."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from present import present
from programs import Ended, environment, execute
from quick import quick_gpuledger

from gpuledger.analyze.samples.watched import watched
from gpuledger.services.runs import load

TOOL = """#!{python}
import sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
asked = words["--query-gpu"].split(",")
known = {known}
for name in asked:
    if name not in known:
        print(f'Field "{{name}}" is not a valid field to query.\\n')
        sys.exit(2)
assert words["--format"] == "csv,noheader"
printed = 0
while True:
    used = 700 + 300 * (printed > 2)
    printed += 1
    for index in range({cards}):
        shown = dict(known, **{{"index": index, "memory.used": f"{{used}} MiB"}})
        print(", ".join(str(shown[name]) for name in asked))
    if "-lms" not in sys.argv:
        break
    time.sleep(int(sys.argv[sys.argv.index("-lms") + 1]) / 1000)
"""
NEW = {
    "index": 0,
    "uuid": "GPU-5e2b7c1e-0000-0000-0000-000000000000",
    "name": "NVIDIA H200",
    "driver_version": "580.159.04",
    "memory.used": "0 MiB",
    "memory.total": "143771 MiB",
    "memory.reserved": "615 MiB",
    "power.draw.average": "250.00 W",
    "power.draw.instant": "300.50 W",
    "utilization.gpu": "75 %",
    "clocks.sm": "1980 MHz",
    "temperature.gpu": "45",
    "clocks_event_reasons.active": "0x0000000000000004",
}
OLD = {
    **{name: NEW[name] for name in ("index", "uuid", "name", "driver_version", "memory.used", "memory.total")},
    "name": "Tesla K80",
    "power.draw": "[N/A]",
    "utilization.gpu": "[Not Supported]",
    "clocks.sm": "562 MHz",
    "temperature.gpu": "45",
}


def watch(directory: Path, known: dict[str, object], *words: str, cards: int = 1) -> Ended:
    """Return how a watch ended that finds this tool, and of NVML a library that is none."""
    tools = directory / "tools"
    tools.mkdir()
    (tools / "libnvidia-ml.so.1").write_text("not a library")
    tool = tools / "nvidia-smi"
    tool.write_text(TOOL.format(python=sys.executable, known=known, cards=cards))
    tool.chmod(0o755)
    path = os.pathsep.join((str(tools), os.environ["PATH"]))
    settings = environment(PATH=path, LD_LIBRARY_PATH=str(tools))
    return execute([*quick_gpuledger(), "watch", "--out", "w", *words], directory, settings)


def test_the_tool_is_read_and_the_run_says_so(tmp_path: Path) -> None:
    ended = watch(tmp_path, NEW, "--", sys.executable, "-c", "import time; time.sleep(1.5); print('on')")
    assert (ended.status, ended.stdout) == (0, b"on\n")
    run = load(tmp_path / "w.ledger")
    assert any("nvidia-smi samples the GPUs" in note for note in run.rank().manifest.notes)
    assert run.manifest.notes == ()  # it ended when it was told
    assert b"nvidia-smi samples the GPUs" in b" ".join(ended.stderr.split())
    (figures,) = watched(run)
    assert (figures.peak_bytes, figures.baseline_bytes) == (300 << 20, 700 << 20)
    assert figures.peak_power_w == 300.5
    assert figures.energy_j == pytest.approx(250 * (figures.duration_s or 0), rel=0.3)
    assert figures.energy_uncertainty_j is None
    assert any("no energy counter" in note for note in figures.notes)
    row = run.table("samples").to_pylist()[0]
    assert row["driver_bytes"] == 615 << 20
    assert present(run.rank().manifest.sampler).interval_ns == 10_000_000
    assert run.rank().manifest.devices[0].name == "NVIDIA H200"


def test_an_old_tool_with_missing_values(tmp_path: Path) -> None:
    words = ("--gpu", "1", "--", sys.executable, "-c", "import time; time.sleep(0.5)")
    assert watch(tmp_path, OLD, *words, cards=2).status == 0
    run = load(tmp_path / "w.ledger")
    (figures,) = watched(run)
    assert (figures.device_idx, figures.energy_j, figures.peak_power_w) == (1, None, None)
    assert {row["power_average_w"] for row in run.table("samples").to_pylist()} == {None}


def test_a_card_that_the_tool_does_not_show_is_refused(tmp_path: Path) -> None:
    ended = watch(tmp_path, NEW, "--gpu", "7", "--", "touch", "started")
    assert (ended.status, (tmp_path / "started").exists()) == (4, False)
    assert b"GPU 7: this machine has no such GPU" in ended.stderr


def test_a_tool_that_finds_no_card_is_quoted(tmp_path: Path) -> None:
    ended = watch(tmp_path, {}, "--", "touch", "started")
    assert ended.status == 4
    assert b'nvidia-smi: Field "index" is not a valid field' in ended.stderr
