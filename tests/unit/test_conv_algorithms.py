"""examples/conv_algorithms and its bench: five algorithms, one convolution; what is measured adds up."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "conv_algorithms"
ALGORITHMS = ("direct", "im2col", "fft", "winograd", "cudnn")
MODES = ("batched", "loop")
MODULES = ("convolutions", "network", "measure", "vgg19", "environment", "conv_algorithms")


@pytest.fixture(scope="module")
def load() -> Any:
    """Import a module of the example or of bench; none stays behind under its short name."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (EXAMPLE, ROOT / "bench"):
            patch.syspath_prepend(str(place))
        yield importlib.import_module
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def convolutions(load: Any) -> ModuleType:
    module: ModuleType = load("convolutions")
    return module


def convolve(convolutions: ModuleType, name: str, mode: str, images: Any, weight: Any) -> Any:
    return convolutions.convolve_layer(convolutions.ALGORITHMS[name], mode, images, weight, nullcontext)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 10), (1, 1), (33, 2), (2, 5)])
def test_every_algorithm_is_the_convolution(
    convolutions: ModuleType, name: str, mode: str, height: int, width: int
) -> None:
    generator = torch.Generator().manual_seed(height * 100 + width)
    images = torch.randn(3, 5, height, width, generator=generator)
    weight = torch.randn(4, 5, 3, 3, generator=generator)
    found = convolve(convolutions, name, mode, images, weight)
    expected = torch.nn.functional.conv2d(images, weight, padding=1)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert float((found - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_input_and_filters_are_left_as_they_were(convolutions: ModuleType, name: str) -> None:
    images, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    before = images.clone(), weight.clone()
    convolve(convolutions, name, "batched", images, weight)
    assert torch.equal(images, before[0])
    assert torch.equal(weight, before[1])


@pytest.mark.parametrize("name", ["direct", "im2col", "fft", "winograd"])
def test_only_the_librarys_own_way_calls_the_librarys_convolution(convolutions: ModuleType, name: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    called = set()

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Listen():
        convolve(convolutions, name, "batched", torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3))
    assert called
    assert not [operator for operator in called if "conv" in operator]
    assert ("addcmul_" if name == "direct" else "bmm") in called


@pytest.mark.parametrize("least", [*range(1, 40), 258])
def test_a_transforms_length_is_even_long_enough_and_fast(load: Any, least: int) -> None:
    length = load("convolutions.fft").choose_length(least)
    assert length >= least
    assert length % 2 == 0
    for factor in (2, 3, 5, 7):
        while length % factor == 0:
            length //= factor
    assert length == 1


def test_the_network_is_vgg19(load: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        network = load("network").VGG19(torch.device("cpu"))
        assert network.forward(network.make_images(2, 256), plain).shape == (2, 1000)
    assert network.weights_bytes == 143_667_240 * 4
    assert [len(block) for block in network.blocks] == [2, 2, 4, 4, 4]


def plain(layer: Any, images: Any) -> Any:
    return torch.nn.functional.conv2d(images, layer.weight, padding=1)


@pytest.fixture(scope="module")
def network(load: Any) -> Any:
    return load("network").VGG19(torch.device("cpu"), width=2)


def test_weights_and_images_are_the_same_every_time(load: Any, network: Any) -> None:
    make = load("network").VGG19
    again = make(torch.device("cpu"), width=2)
    assert all(map(torch.equal, weights(network), weights(again)))
    assert not torch.equal(weights(network)[0], weights(make(torch.device("cpu"), width=2, seed=1))[0])
    other = make(torch.device("cpu"), width=2)
    assert torch.equal(again.make_images(2, 32), other.make_images(2, 32))


def weights(network: Any) -> list[Any]:
    return [layer.weight for layer in network.convolutions]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_times_of_a_layer_add_up(load: Any, network: Any, name: str, mode: str) -> None:
    with torch.inference_mode():
        result = load("measure").measure(network, network.make_images(2, 32), name, mode, 3, 0.0, 60.0)
    assert (result["algorithm"], result["mode"], result["batch"], result["forwards"]) == (name, mode, 2, 3)
    assert [layer["layer"] for layer in result["layers"]] == [layer.name for layer in network.convolutions]
    for layer in result["layers"]:
        assert 0 < layer["conv_ms"] <= layer["total_ms"]
        assert layer["conv_ms"] + layer["overhead_ms"] == pytest.approx(layer["total_ms"], abs=2e-4)
    for key in ("conv_ms", "overhead_ms", "total_ms"):
        assert result[key] == pytest.approx(sum(layer[key] for layer in result["layers"]), abs=1e-3)
    assert result["peak_bytes"] is None, "a CPU has no counter of peak bytes: not known is not 0"


def test_the_product_stage_is_the_sum_over_the_images_of_a_loop(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = load("measure")
    ticks_ns = iter(range(0, 10**9, 1_000_000))
    monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: next(ticks_ns))
    layer = load("network").Layer("layer", torch.randn(2, 2, 3, 3), torch.zeros(2))
    for mode, count in (("batched", 1), ("loop", 3)):
        times = measure.LayerTimes("im2col", mode, False)
        times.convolve(layer, torch.randn(3, 2, 4, 4))
        assert times.read() == [measure.LayerTime(conv_ms=count, total_ms=2 * count + 1)]


def test_forwards_go_on_for_the_seconds_asked_and_end_when_time_is_up(
    load: Any, network: Any, monkeypatch: pytest.MonkeyPatch
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
    load: Any, network: Any, convolutions: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
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


def run_script(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "vgg19.py"), *options, "--size", "32", "--width", "2", "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_script_prints_a_line_and_writes_every_layer(tmp_path: Path) -> None:
    out = tmp_path / "fft.json"
    done = run_script("--algorithm", "fft", "--mode", "loop", "--batch", "2", "--repeat", "2", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fft, batch 2, loop: 2 forwards, ")
    assert done.stdout.count("\n") == 1
    written = json.loads(out.read_text(encoding="utf-8"))
    assert (written["size"], written["width"], written["device"], len(written["layers"])) == (32, 2, "cpu", 16)


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
    load: Any, options: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vgg19.py", *options])
    with pytest.raises(SystemExit) as ended:
        load("vgg19").main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def case(batch: int, mib: float) -> dict[str, Any]:
    return {"batch": batch, "peak_bytes": int(mib * 2**20), "workspace_bytes": int((mib - 700) * 2**20)}


def test_a_straight_line_is_found_again_and_the_larger_batch_held_against_it(load: Any) -> None:
    cases = [case(batch, 1000 + 48.5 * batch) for batch in (1, 2, 4, 8)] + [case(32, 1000 + 60 * 32)]
    fit = load("conv_algorithms").fit_cases(cases, 32)["peak_bytes"]
    assert fit["mib_per_image"] == pytest.approx(48.5, abs=1e-3)
    assert fit["constant_mib"] == pytest.approx(1000, abs=1e-2)
    assert fit["largest_residual_mib"] < 0.01
    assert (fit["held_out_predicted_mib"], fit["held_out_mib"]) == (2552.0, 2920.0)


def test_what_is_no_line_has_a_residual(load: Any) -> None:
    bent = [case(1, 4000), case(2, 4000), case(4, 4000), case(8, 4400), case(32, 4000)]
    fit = load("conv_algorithms").fit_cases(bent, 32)["peak_bytes"]
    assert fit["largest_residual_mib"] > 50


def test_without_bytes_there_is_no_line(load: Any) -> None:
    assert load("conv_algorithms").fit_cases([{"batch": 1, "peak_bytes": None, "workspace_bytes": None}], 32) is None


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
    load: Any, monkeypatch: pytest.MonkeyPatch
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
    assert [row.workspace_bytes for row in memory.layers] == [700, 700]
    assert [row.peak_bytes for row in memory.layers] == [1700 + output_bytes, 1700 + 2 * output_bytes]
    allocator.grow(5000)
    allocator.grow(-5000)
    memory.restart()
    assert memory.peak_bytes == 6000 + 2 * output_bytes, "a peak outside convolutions is the forward's too"


def test_bench_measures_every_algorithm_mode_and_batch(tmp_path: Path) -> None:
    out = tmp_path / "results" / "conv.json"
    command = [sys.executable, str(ROOT / "bench" / "conv_algorithms.py"), "--out", str(out), "--device", "cpu"]
    small = ["--size", "32", "--width", "2", "--batches", "1,2", "--held-out", "3", "--repeats", "1"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text(encoding="utf-8"))
    measured = [(row["algorithm"], row["mode"]) for row in results["algorithms"]]
    looped = [(name, "loop") for name in ("im2col", "fft", "winograd")]
    assert sorted(measured) == sorted([*((name, "batched") for name in ALGORITHMS), *looped])
    for row in results["algorithms"]:
        assert row["fit"] is None
        assert [one["batch"] for one in row["cases"]] == [1, 2, 3]
        assert all(one["within_tolerance"] and one["largest_difference"] < 1e-4 for one in row["cases"])
        assert all(len(one["layers"]["total_ms"]) == 16 for one in row["cases"])
    assert results["environment"]["versions"]["torch"] == torch.__version__
