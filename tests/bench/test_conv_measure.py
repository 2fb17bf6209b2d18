"""What the convolution example measures, its script and its Makefile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conv_example import ALGORITHMS, EXAMPLE, MODES, TIMES, Load, run_script_file
from quick import quick_python

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def network(load: Load) -> Any:
    return load("network").VGG19(torch.device("cpu"), width=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_times_of_a_layer_add_up(load: Load, network: Any, name: str, mode: str) -> None:
    with torch.inference_mode():
        result = load("measure").measure(network, network.make_images(2, 32), name, mode, 3, 0.0, 60.0)
    assert (result["algorithm"], result["mode"], result["batch"], result["forwards"]) == (name, mode, 2, 3)
    layers = result["layers"]
    assert layers["layer"] == [layer.name for layer in network.convolutions]
    for conv_ms, overhead_ms, total_ms in zip(*(layers[key] for key in TIMES), strict=True):
        assert 0 < conv_ms <= total_ms
        assert conv_ms + overhead_ms == pytest.approx(total_ms, abs=2e-4)
    for key in TIMES:
        assert result[key] == pytest.approx(sum(layers[key]), abs=1e-3)
    assert result["peak_bytes"] is None, "a CPU has no counter of peak bytes: not known is not 0"


def test_the_product_stage_is_the_sum_over_the_images_of_a_loop(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = load("measure")
    ticks_ns = iter(range(0, 10**9, 1_000_000))
    monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: next(ticks_ns))
    layer = load("network").Layer("layer", torch.randn(2, 2, 3, 3), torch.zeros(2))
    for mode, count in (("batched", 1), ("loop", 3)):
        times = measure.LayerTimes("im2col", mode, False)
        times.convolve(layer, torch.randn(3, 2, 4, 4))
        assert times.read() == [measure.LayerTime(conv_ms=count, total_ms=2 * count + 1)]


def test_forwards_go_on_for_the_seconds_asked_and_end_when_time_is_up(
    load: Load, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = load("measure")
    images = network.make_images(1, 32)
    clock_s = iter(range(10**6))
    monkeypatch.setattr(measure.time, "monotonic", lambda: float(next(clock_s)))
    with torch.inference_mode():
        longer = measure.measure(network, images, "cudnn", "batched", 1, 10.0, 0.0)
        shorter = measure.measure(network, images, "cudnn", "batched", 1000, 0.0, 10.0)
    assert 1 < longer["forwards"] < 12
    assert 1 < shorter["forwards"] < 12


@pytest.mark.parametrize("name", ["direct", "im2col", "fft", "winograd"])
def test_a_wrong_convolution_would_be_seen(
    load: Load, network: Any, convolutions: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = network.make_images(1, 32)
    differences = load("measure").LayerDifferences(name, "batched")
    network.forward(images, differences.convolve)
    assert len(differences.differences) == 16
    assert max(differences.differences) < 1e-4
    right = convolutions.ALGORITHMS[name].convolve
    monkeypatch.setattr(convolutions.ALGORITHMS[name], "convolve", lambda *given: right(*given) + 0.5)
    wrong = load("measure").LayerDifferences(name, "batched")
    network.forward(images, wrong.convolve)
    assert min(wrong.differences) == pytest.approx(0.5, abs=1e-3)


class CountingAllocator:
    """Stands in for torch.cuda's counters: bytes alive, and their highest since the last restart."""

    def __init__(self) -> None:
        self.alive = self.peak = 0

    def grow(self, count: int) -> None:
        self.alive += count
        self.peak = max(self.peak, self.alive)

    def restart(self) -> None:
        self.peak = self.alive


def test_bytes_of_a_layer_and_the_peak_between_layers_are_told_apart(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, allocator = load("measure"), CountingAllocator()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: allocator.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", allocator.restart)
    allocator.grow(1000)
    allocator.restart()
    layer = load("network").Layer("layer", torch.randn(2, 2, 3, 3), torch.zeros(2))
    images = torch.randn(1, 2, 4, 4)
    output_bytes = images.nbytes

    def convolve(*_: Any) -> Any:
        allocator.grow(output_bytes + 700)
        allocator.grow(-700)
        return torch.zeros_like(images)

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocator.alive)
    monkeypatch.setattr(measure, "convolve_layer", convolve)
    memory = measure.LayerMemory("fft", "batched", standing_bytes=1000)
    for _ in range(2):
        memory.convolve(layer, images)
    assert [row.taken_bytes for row in memory.layers] == [700 + output_bytes] * 2
    assert [row.peak_bytes for row in memory.layers] == [1700 + output_bytes, 1700 + 2 * output_bytes]
    allocator.grow(5000)
    allocator.grow(-5000)
    memory.restart()
    assert memory.peak_bytes == 6000 + 2 * output_bytes, "a peak outside convolutions is the forward's too"


def test_the_times_of_a_script_are_a_time_log_to_gpuledger(tmp_path: Path, load: Load, network: Any) -> None:
    from gpuledger.analyze.step.time_logs import read_time_log
    from gpuledger.services import runs

    measure = load("measure")
    with torch.inference_mode():
        result = measure.measure(network, network.make_images(2, 32), "winograd", "loop", 1, 0.0, 60.0)
    log = tmp_path / "times.txt"
    log.write_text(measure.time_log_lines(result), encoding="utf-8")
    read = read_time_log(runs.load_foreign(log))
    assert (read.algorithms, read.batches, read.types) == (("WINOGRAD-LOOP",), (2,), ("TOTAL", "CONV", "OVERHEAD"))
    assert read.layer_s[0, 0, 0].tolist() == pytest.approx([ms / 1000 for ms in result["layers"]["total_ms"]])


def run_script(*options: str) -> subprocess.CompletedProcess[str]:
    return run_script_file(str(EXAMPLE / "vgg19.py"), *options, "--size", "32", "--width", "2", "--device", "cpu")


def test_the_script_prints_a_line_and_writes_every_layer(tmp_path: Path) -> None:
    out = tmp_path / "fft.json"
    done = run_script("--algorithm", "fft", "--mode", "loop", "--batch", "2", "--repeat", "2", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fft, batch 2, loop: 2 forwards, ")
    assert done.stdout.count("\n") == 1
    written = json.loads(out.read_text(encoding="utf-8"))
    assert (written["size"], written["width"], written["device"]) == (32, 2, "cpu")
    assert [len(column) for column in written["layers"].values()] == [16] * 6


def test_times_go_below_those_of_an_older_log(tmp_path: Path) -> None:
    log = tmp_path / "times.txt"
    log.write_text("DIRECT, 1, TOTAL, 29.9255, 295.372\n", encoding="utf-8")
    done = run_script("--algorithm", "winograd", "--mode", "loop", "--batch", "2", "--log", str(log))
    assert done.returncode == 0, done.stderr
    lines = [line.split(", ") for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line[:3] for line in lines[1:]] == [["WINOGRAD-LOOP", "2", kind] for kind in ("TOTAL", "CONV", "OVERHEAD")]
    total, conv, overhead = ([float(value) for value in line[3:]] for line in lines[1:])
    assert len(total) == 16
    assert [a + b for a, b in zip(conv, overhead, strict=True)] == pytest.approx(total, abs=1e-3)


def test_json_on_stdout_is_one_document() -> None:
    done = run_script("--algorithm", "cudnn", "--repeat", "1", "--json", "-")
    assert json.loads(done.stdout)["algorithm"] == "cudnn"
    assert "1 forward, " in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--algorithm", "FTT"), "invalid choice: 'FTT'"),
        ((), "--algorithm"),
        (("--algorithm", "fft", "--batch", "0"), "0 is not a whole number from 1 on"),
    ],
)
def test_a_wrong_option_is_refused(
    load: Load, options: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vgg19.py", *options])
    with pytest.raises(SystemExit) as ended:
        load("vgg19").main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_make_names_every_algorithm_and_cleans_up_after_itself(tmp_path: Path, load: Load) -> None:
    told = subprocess.run(["make", "-n", "-C", str(EXAMPLE), "run"], capture_output=True, text=True, check=True).stdout
    variants = ",".join(f"{name}={name}" for name in load("convolutions").ALGORITHMS)
    assert f"--variants {variants} -- " in told
    assert "vgg19.py --algorithm {variant} --batch 1" in told
    (tmp_path / "build" / "plots").mkdir(parents=True)
    subprocess.run(["make", "-C", str(EXAMPLE), "clean", f"OUT={tmp_path / 'build'}"], check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_make_layers_times_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = ["BATCHES=1", "ALGORITHMS=winograd", "FORWARD=--size 32 --width 2 --device cpu --repeat 1"]
    command = ["make", "-C", str(EXAMPLE), "layers", f"PYTHON={quick_python()}", f"OUT={tmp_path / 'build'}", *small]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {place.name for place in (tmp_path / "build").iterdir()} == {"times.txt", "layers.png", "batches.png"}
    assert len((tmp_path / "build" / "times.txt").read_text(encoding="utf-8").splitlines()) == 3
