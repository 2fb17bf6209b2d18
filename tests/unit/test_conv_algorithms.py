"""examples/conv_algorithms and its bench: five algorithms, one convolution; what is measured adds up."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
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
TIMES = ("conv_ms", "overhead_ms", "total_ms")
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


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    layers = result["layers"]
    assert layers["layer"] == [layer.name for layer in network.convolutions]
    for conv_ms, overhead_ms, total_ms in zip(*(layers[key] for key in TIMES), strict=True):
        assert 0 < conv_ms <= total_ms
        assert conv_ms + overhead_ms == pytest.approx(total_ms, abs=2e-4)
    for key in TIMES:
        assert result[key] == pytest.approx(sum(layers[key]), abs=1e-3)
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


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Return a script's end; its torch takes one thread, for many threads on few cores wait for each other."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)


def run_script(*options: str) -> subprocess.CompletedProcess[str]:
    return run(str(EXAMPLE / "vgg19.py"), *options, "--size", "32", "--width", "2", "--device", "cpu")


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
    load: Any, options: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vgg19.py", *options])
    with pytest.raises(SystemExit) as ended:
        load("vgg19").main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def case(batch: int, mib: float) -> dict[str, Any]:
    return {"batch": batch, "peak_bytes": int(mib * 2**20), "taken_bytes": int((mib - 700) * 2**20)}


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
    assert load("conv_algorithms").fit_cases([{"batch": 1, "peak_bytes": None, "taken_bytes": None}], 32) is None


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
    assert [row.taken_bytes for row in memory.layers] == [700 + output_bytes] * 2
    assert [row.peak_bytes for row in memory.layers] == [1700 + output_bytes, 1700 + 2 * output_bytes]
    allocator.grow(5000)
    allocator.grow(-5000)
    memory.restart()
    assert memory.peak_bytes == 6000 + 2 * output_bytes, "a peak outside convolutions is the forward's too"


def test_bench_measures_every_algorithm_mode_and_batch(tmp_path: Path) -> None:
    out = tmp_path / "results" / "conv.json"
    script = str(ROOT / "bench" / "conv_algorithms.py")
    small = ["--size", "32", "--width", "2", "--batches", "1,2", "--held-out", "3", "--repeats", "1"]
    done = run(script, "--out", str(out), "--device", "cpu", *small)
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
    log = out.with_suffix(".log").read_text(encoding="utf-8").splitlines()
    assert len(log) == len(measured) * 2 * 3, "a line for each algorithm, mode, fitted batch and kind of time"
    assert {line.split(", ")[0] for line in log} == {
        "IM2COL-LOOP",
        "FFT-LOOP",
        "WINOGRAD-LOOP",
        *map(str.upper, ALGORITHMS),
    }


@pytest.fixture(scope="module")
def page_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_conv_doc", ROOT / "tools" / "make_conv_doc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_results(slopes_mib: dict[str, float], held_out_mib: float = 0.0, difference: float = 2e-5) -> dict[str, Any]:
    """Results as bench writes them: 600 MiB and a slope for each algorithm and mode; 100 MiB an image elsewhere."""
    bench_rows = [(name, "batched") for name in ALGORITHMS] + [(name, "loop") for name in ("im2col", "fft", "winograd")]
    rows = []
    for name, mode in bench_rows:
        slope = slopes_mib.get(f"{name} {mode}", 100.0)
        cases = [make_case(batch, 600 + slope * batch, difference) for batch in (1, 2, 4, 8)]
        cases.append(make_case(32, 600 + slope * 32 + held_out_mib, difference))
        rows.append({"algorithm": name, "mode": mode, "cases": cases})
    return {
        "environment": {
            "card": "Card",
            "driver": "1.2",
            "cudnn": 9,
            "date": "2030-01-02",
            "versions": {"torch": "9.9"},
        },
        "batches": [1, 2, 4, 8],
        "held_out": 32,
        "tolerance": 1e-3,
        "weights_bytes": 548 * 2**20,
        "capacity_bytes": 80 * 2**30,
        "algorithms": rows,
    }


def make_case(batch: int, peak_mib: float, difference: float) -> dict[str, Any]:
    peaks_bytes = [int((peak_mib - number) * 2**20) for number in range(16)]
    layers = {
        "layer": [f"conv{number}" for number in range(16)],
        "conv_ms": [1.0 * batch] * 16,
        "overhead_ms": [0.25 * batch] * 16,
        "total_ms": [1.25 * batch] * 16,
        "peak_bytes": peaks_bytes,
        "taken_bytes": [count - 548 * 2**20 for count in peaks_bytes],
    }
    return {
        "batch": batch,
        **{key: sum(layers[key]) for key in TIMES},
        "peak_bytes": max(layers["peak_bytes"]),
        "taken_bytes": max(layers["taken_bytes"]),
        "largest_difference": difference,
        "within_tolerance": difference <= 1e-3,
        "layers": layers,
    }


def fill(page_maker: ModuleType, load: Any, results: dict[str, Any]) -> str:
    for row in results["algorithms"]:
        row["fit"] = load("conv_algorithms").fit_cases(row["cases"], results["held_out"])
    text: str = page_maker.fill(page_maker.PAGE.read_text(encoding="utf-8"), results)
    return text


def flat(page: str) -> str:
    """The page in one line: where lines break does not matter."""
    return " ".join(page.split())


def test_the_page_has_every_figure_of_the_results(page_maker: ModuleType, load: Any) -> None:
    page = fill(page_maker, load, make_results({"fft batched": 2.75}))
    assert "Card, driver 1.2, torch 9.9, cuDNN 9, 2030-01-02" in page
    assert "| direct | 20.0 | 40.0 | 80.0 | 160 | 20% |" in page
    assert "| direct | 700 | 800 | 1,000 | 1,400 | 100.0 | 600.0 | 0.0 | 3,800 | 3,800 |" in page
    assert "- fft: 600 MiB + 2.8 MiB an image, which still holds at batch 32" in page
    assert "| conv0 | 1.00 + 0.25, 152 |" in page
    assert page.count("<details>") == page.count("</details>") == 3
    assert "Not measured" not in page
    assert fill(page_maker, load, make_results({"fft batched": 2.75})) == page
    assert page_maker.fill(page, make_results_with_fit(load)) != page


def make_results_with_fit(load: Any) -> dict[str, Any]:
    results = make_results({"direct batched": 50})
    for row in results["algorithms"]:
        row["fit"] = load("conv_algorithms").fit_cases(row["cases"], 32)
    return results


def test_the_pages_words_follow_the_figures(page_maker: ModuleType, load: Any) -> None:
    fine = flat(fill(page_maker, load, make_results({})))
    assert "all within" in fine
    assert "8 of the 8 peaks follow a straight line" in fine
    assert "Constant in effect: none. Growing: direct (× 2.00), im2col (× 2.00)" in fine
    assert "Constant in effect: fft (× 1.03). " in flat(fill(page_maker, load, make_results({"fft batched": 2.75})))
    assert "No, not on this card: 32 images" in fine
    off = flat(fill(page_maker, load, make_results({"winograd batched": 2000}, held_out_mib=900, difference=0.02)))
    assert "not within 0.001: cudnn, direct, fft" in off
    assert "It fits this card, narrowly: 32 images" in off
    assert "which is off by +24% at batch 32" in off
    assert "- winograd, batch 8: looping takes × 1.00 the time and saves 15,200 of 16,600 MiB." in off


def test_the_page_is_current(page_maker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_conv_doc.py", "--check"])
    assert page_maker.main() == 0, "run: python tools/make_conv_doc.py"
    monkeypatch.setattr(page_maker, "RESULTS", ROOT / "no such file.json")
    monkeypatch.setattr(page_maker, "UNMEASURED", ["something else"])
    assert page_maker.main() == 1


def test_make_names_every_algorithm_and_cleans_up_after_itself(tmp_path: Path, load: Any) -> None:
    told = subprocess.run(["make", "-n", "-C", str(EXAMPLE), "run"], capture_output=True, text=True, check=True).stdout
    variants = ",".join(f"{name}={name}" for name in load("convolutions").ALGORITHMS)
    assert f"--variants {variants} -- " in told
    assert "vgg19.py --algorithm {variant} --batch 1" in told
    (tmp_path / "build" / "plots").mkdir(parents=True)
    subprocess.run(["make", "-C", str(EXAMPLE), "clean", f"OUT={tmp_path / 'build'}"], check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []


def test_watched_runs_become_picture_and_table(
    page_maker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    for name, high in {"cudnn": 622, "fft": 6247}.items():
        log = tmp_path / f"memory_{name}.txt"
        log.write_text("memory.used [MiB]\n" + "0 MiB\n" * 3 + f"{high} MiB\n" * 5 + "0 MiB\n" * 3, encoding="utf-8")
        page_maker.gpuledger("import", "nvidia-smi", str(log), "--out", str(tmp_path / name))
    times = tmp_path / "times.log"
    times.write_text("FFT, 1, TOTAL, 1.5, 2.5\nFFT-LOOP, 1, TOTAL, 1.5, 2.5\n", encoding="utf-8")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    monkeypatch.setattr(page_maker, "TIME_LOG", times)
    monkeypatch.setattr(page_maker, "COMPARED", tmp_path / "compared.md")
    text = page_maker.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(page_maker, "PAGE", page)
    page_maker.take_watched(tmp_path)
    assert [place.name for place in sorted(page.parent.iterdir())] == [
        "conv_algorithms.png",
        "conv_algorithms_layers.png",
    ]
    filled = page_maker.fill(text, None)
    assert "| cudnn | 622 MiB |" in filled
    assert "| fft | 6,247 MiB (×10.0) |" in filled
    assert filled.count("](conv_algorithms.png)") == filled.count("](conv_algorithms_layers.png)") == 1
    with pytest.raises(SystemExit, match=r"none of cudnn\.ledger"):
        page_maker.take_watched(page.parent)


def test_watching_goes_on_after_one_that_failed(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("conv_algorithms")
    commands: list[list[str]] = []

    def watch(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 7 if "im2col" in command else 0)

    monkeypatch.setattr(bench.subprocess, "run", watch)
    monkeypatch.setattr(sys, "argv", ["bench", "--watch", str(tmp_path), "--watch-batches", "1,8"])
    watched = bench.watch_all(tmp_path, bench.read_arguments())
    names = [one["name"] for one in watched]
    assert names[:5] == list(ALGORITHMS)
    assert names[5:] == [
        "direct-batched-8",
        *(f"{name}-{mode}-8" for name in ("im2col", "fft", "winograd") for mode in MODES),
        "cudnn-batched-8",
    ]
    assert [one["exit_status"] for one in watched] == [7 if "im2col" in name else 0 for name in names]
    for name, command in zip(names, commands, strict=True):
        words = command[command.index("--") + 1 :]
        assert str(tmp_path / name) == command[command.index("--out") + 1]
        assert words[words.index("--algorithm") + 1] == name.partition("-")[0]
        assert float(words[words.index("--seconds") + 1]) == 3.0


def test_the_times_of_a_script_are_a_time_log_to_gpuledger(tmp_path: Path, load: Any, network: Any) -> None:
    from gpuledger import api
    from gpuledger.analyze.time_logs import read_time_log

    measure = load("measure")
    with torch.inference_mode():
        result = measure.measure(network, network.make_images(2, 32), "winograd", "loop", 1, 0.0, 60.0)
    log = tmp_path / "times.txt"
    log.write_text(measure.time_log_lines(result), encoding="utf-8")
    read = read_time_log(api.load_foreign(log))
    assert (read.algorithms, read.batches, read.types) == (("WINOGRAD-LOOP",), (2,), ("TOTAL", "CONV", "OVERHEAD"))
    assert read.layer_s[0, 0, 0].tolist() == pytest.approx([ms / 1000 for ms in result["layers"]["total_ms"]])


IMAGE_BYTES = 8 * 16 * 16 * 4


def images_taken(convolutions: ModuleType, name: str, mode: str, count: int, place: Path) -> float:
    """What a layer takes at its peak, its output included, in images of its input's size: recorded by gpuledger."""
    import gpuledger
    from gpuledger.analyze.instant import find_peak

    images, weight = torch.randn(count, 8, 16, 16), torch.randn(8, 8, 3, 3)
    with gpuledger.record("layer", out=place, devices="cpu") as recording:
        convolve(convolutions, name, mode, images, weight)
    rank = recording.run().rank(0)
    peak = find_peak(rank).index
    blocks = rank.table("blocks").to_pylist()
    live = [block for block in blocks if 0 <= block["alloc_index"] <= peak]
    live = [block for block in live if (block["free_requested_index"] or peak + 1) > peak]
    return sum(block["requested_bytes"] for block in live) / IMAGE_BYTES


@pytest.mark.parametrize(
    ("name", "mode", "each"),
    [
        ("direct", "batched", (18 / 16) ** 2 + 1),
        ("im2col", "batched", 9 + 1),
        ("im2col", "loop", 1),
        ("fft", "loop", 0),
        ("winograd", "batched", 4 + 4),
        ("winograd", "loop", 1),
        ("cudnn", "batched", 1),
    ],
)
def test_an_image_more_takes_what_the_algorithm_says(
    convolutions: ModuleType, tmp_path: Path, name: str, mode: str, each: float
) -> None:
    one, four = (images_taken(convolutions, name, mode, count, tmp_path / f"{count}.ledger") for count in (1, 4))
    assert four - one == pytest.approx(3 * each, abs=1e-6)


def test_spectra_of_filters_take_most_of_what_fft_takes(convolutions: ModuleType, tmp_path: Path) -> None:
    one, four = (images_taken(convolutions, "fft", "batched", count, tmp_path / f"{count}.ledger") for count in (1, 4))
    filters = 8 * 18 * 10 * 8 * 8 / IMAGE_BYTES
    assert one == 2 * filters, "the spectra and their copy by frequency"
    assert four - one < filters


def test_make_layers_times_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = ["BATCHES=1", "ALGORITHMS=cudnn winograd", "FORWARD=--size 32 --width 2 --device cpu --repeat 1"]
    command = ["make", "-C", str(EXAMPLE), "layers", f"PYTHON={sys.executable}", f"OUT={tmp_path / 'build'}", *small]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {place.name for place in (tmp_path / "build").iterdir()} == {"times.txt", "layers.png", "batches.png"}
    assert len((tmp_path / "build" / "times.txt").read_text(encoding="utf-8").splitlines()) == 6
