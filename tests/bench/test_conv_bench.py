"""bench/memory/conv_algorithms.py, and the page that is made of what it writes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conv_example import ALGORITHMS, MODES, TIMES, Load, example_modules, run_script_file
from folders import BENCH, ROOT
from pages import blocks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with example_modules() as load_module:
        yield load_module


def case(batch: int, mib: float) -> dict[str, Any]:
    return {"batch": batch, "peak_bytes": int(mib * 2**20), "taken_bytes": int((mib - 700) * 2**20)}


def test_a_straight_line_is_found_again_and_the_larger_batch_held_against_it(load: Load) -> None:
    cases = [case(batch, 1000 + 48.5 * batch) for batch in (1, 2, 4, 8)] + [case(32, 1000 + 60 * 32)]
    fit = load("conv_algorithms").fit_cases(cases, 32)["peak_bytes"]
    assert fit["mib_per_image"] == pytest.approx(48.5, abs=1e-3)
    assert fit["constant_mib"] == pytest.approx(1000, abs=1e-2)
    assert fit["largest_residual_mib"] < 0.01
    assert (fit["held_out_predicted_mib"], fit["held_out_mib"]) == (2552.0, 2920.0)


def test_what_is_no_line_has_a_residual(load: Load) -> None:
    bent = [case(1, 4000), case(2, 4000), case(4, 4000), case(8, 4400), case(32, 4000)]
    fit = load("conv_algorithms").fit_cases(bent, 32)["peak_bytes"]
    assert fit["largest_residual_mib"] > 50


def test_without_bytes_there_is_no_line(load: Load) -> None:
    assert load("conv_algorithms").fit_cases([{"batch": 1, "peak_bytes": None, "taken_bytes": None}], 32) is None


def test_bench_measures_every_algorithm_mode_and_batch(tmp_path: Path) -> None:
    out = tmp_path / "results" / "conv.json"
    script = str(BENCH / "memory" / "conv_algorithms.py")
    small = ["--size", "32", "--width", "2", "--batches", "1,2", "--held-out", "3", "--repeats", "1"]
    done = run_script_file(script, "--out", str(out), "--device", "cpu", *small)
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


def test_an_algorithm_that_fails_does_not_take_the_others_with_it(
    load: Load, page_maker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, convolutions = load("conv_algorithms"), load("convolutions")

    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(convolutions.ALGORITHMS["fft"], "convolve", fail)
    out = tmp_path / "conv.json"
    small = ["--size", "32", "--width", "1", "--batches", "1,2", "--held-out", "3", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["bench", "--out", str(out), "--device", "cpu", *small])
    assert bench.main() == 1
    results = json.loads(out.read_text(encoding="utf-8"))
    assert len(results["algorithms"]) == 8
    errors = {
        (row["algorithm"], row.get("error")) for row in results["algorithms"] if "error" in row or not row["cases"]
    }
    assert errors == {("fft", "RuntimeError: CUDA out of memory")}
    with pytest.raises(SystemExit, match="incomplete: fft: RuntimeError: CUDA out of memory; fft looping"):
        filled(page_maker, page_maker.PAGE.read_text(encoding="utf-8"), results)


def test_watching_goes_on_after_one_that_failed(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    layers: dict[str, list[Any]] = {
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


def fill(page_maker: ModuleType, load: Load, results: dict[str, Any]) -> str:
    for row in results["algorithms"]:
        row["fit"] = load("conv_algorithms").fit_cases(row["cases"], results["held_out"])
    return filled(page_maker, page_maker.PAGE.read_text(encoding="utf-8"), results)


def filled(page_maker: ModuleType, text: str, results: dict[str, Any] | None) -> str:
    return blocks.fill(text, page_maker.makers(results))


def flat(page: str) -> str:
    """The page in one line: where lines break does not matter."""
    return " ".join(page.split())


def test_the_page_has_every_figure_of_the_results(page_maker: ModuleType, load: Load) -> None:
    page = fill(page_maker, load, make_results({"fft batched": 2.75}))
    assert "Card, driver 1.2, torch 9.9, cuDNN 9, 2030-01-02" in page
    assert "| direct | 20.0 | 40.0 | 80.0 | 160 | 20% |" in page
    assert "| direct | 700 | 800 | 1,000 | 1,400 | 100.0 | 600.0 | 0.0 | 3,800 | 3,800 |" in page
    assert "- fft: 600 MiB + 2.8 MiB per image, which still holds at batch 32" in page
    assert "| conv0 | 1.00 + 0.25, 152 |" in page
    assert page.count("<details>") == page.count("</details>") == 3
    assert "Not measured" not in page
    assert fill(page_maker, load, make_results({"fft batched": 2.75})) == page
    assert filled(page_maker, page, make_results_with_fit(load)) != page


def make_results_with_fit(load: Load) -> dict[str, Any]:
    results = make_results({"direct batched": 50})
    for row in results["algorithms"]:
        row["fit"] = load("conv_algorithms").fit_cases(row["cases"], 32)
    return results


def test_the_pages_words_follow_the_figures(page_maker: ModuleType, load: Load) -> None:
    fine = flat(fill(page_maker, load, make_results({})))
    assert "all within" in fine
    assert "| fft | 8,534 | 33,380 | 20.0 | 160 | 6,247 | 700 |" in fine
    assert "FFT needs 11% of its old memory, which was mostly of the implementation." in fine
    assert "FFT needs 56% of its old memory, which was of the algorithm itself. Winograd" in flat(
        fill(page_maker, load, make_results({"fft batched": 2900}))
    )
    assert "8 of the 8 peaks follow a straight line" in fine
    assert "Nearly constant: none. Growing: direct (× 2.00), im2col (× 2.00)" in fine
    assert "Nearly constant: fft (× 1.03). " in flat(fill(page_maker, load, make_results({"fft batched": 2.75})))
    assert "No, not on this GPU: 32 images" in fine
    off = flat(fill(page_maker, load, make_results({"winograd batched": 2000}, held_out_mib=900, difference=0.02)))
    assert "not within 0.001: cudnn, direct, fft" in off
    assert "It fits this GPU, narrowly: 32 images" in off
    assert "which is off by +24% at batch 32" in off
    assert "- winograd, batch 8: looping needs 1.00 times the time and saves 15,200 of 16,600 MiB." in off


def test_an_experiment_that_has_not_run_says_so(page_maker: ModuleType) -> None:
    page = page_maker.PAGE.read_text(encoding="utf-8")
    assert filled(page_maker, page, None).count("Not measured yet") == len(page_maker.MAKERS)


@pytest.mark.usefixtures("quick_children")
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
    shown = filled(page_maker, text, None)
    assert "| cudnn | 622 MiB |" in shown
    assert "| fft | 6,247 MiB (×10.0) |" in shown
    assert shown.count("](conv_algorithms.png)") == shown.count("](conv_algorithms_layers.png)") == 1
    with pytest.raises(SystemExit, match=r"none of cudnn\.ledger"):
        page_maker.take_watched(page.parent)
