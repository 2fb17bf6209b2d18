"""Logs of times per layer: the two old ones to the digit, what is not whole in them, and their two pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st
from imports import make

from gpuledger.analyze.step.time_logs import is_time_log, read_time_log
from gpuledger.cli.main import main
from gpuledger.errors import GpuLedgerError, InputError
from gpuledger.formats.readers import find_format, read_files
from gpuledger.formats.time_log import MAX_BATCH, MAX_MS, MAX_UNREAD
from gpuledger.report.plots.time_plot import draw_batches, draw_layers

LOGS = DATA / "time_log"
TOTALS_MS = {
    "logVGG.txt": {
        "CUDNN": "47.4 68.8 105.5 180.4",
        "IM2COL": "99.0 160.9 271.6 464.1",
        "DIRECT": "2827 5333 10402 20569",
        "FFT": "8534 12017 19093 33380",
        "WINOGRAD": "7463 13426 26147 50382",
    },
    "logALEX.txt": {
        "CUDNN": "6.76 6.56 8.50 12.4",
        "IM2COL": "8.90 12.4 17.0 26.9",
        "DIRECT": "95.9 183 348 675",
        "FFT": "818 896 1622 3032",
    },
}
"""Sums over the layers of the type TOTAL, the mean of three repetitions, at batch 1, 2, 4 and 8."""


@pytest.mark.parametrize("name", TOTALS_MS)
def test_the_old_logs_to_the_digit(tmp_path: Path, name: str) -> None:
    log = read_time_log(make("time-log", tmp_path, LOGS / name))
    assert log.batches == (1, 2, 4, 8)
    assert set(log.algorithms) == set(TOTALS_MS[name])
    total = log.total_s[:, :, log.types.index("TOTAL")] * 1e3
    for algorithm, sums_ms in TOTALS_MS[name].items():
        found = total[log.algorithms.index(algorithm)]
        for value, text in zip(found, sums_ms.split(), strict=True):
            assert f"{value:.{len(text.partition('.')[2])}f}" == text


def test_the_first_repetition_of_a_layer_keeps_its_digits(tmp_path: Path) -> None:
    run = make("time-log", tmp_path, LOGS / "logVGG.txt")
    row = run.rank(0).table("spans").to_pylist()[0]
    assert row["end_ns"] - row["start_ns"] == 29_925_500
    assert (row["step"], row["module_id"]) == (1, 0)


def test_parts_of_a_total_are_kept_apart(tmp_path: Path) -> None:
    log = read_time_log(make("time-log", tmp_path, LOGS / "logVGG.txt"))
    at = {name: log.total_s[log.algorithms.index(name), 0] * 1e3 for name in log.algorithms}
    conv, overhead = log.types.index("CONV"), log.types.index("OVERHEAD")
    assert at["IM2COL"][conv] == pytest.approx(9.25, abs=0.005)
    assert at["FFT"][overhead] == pytest.approx(3063, abs=0.5)
    assert np.isnan(at["CUDNN"][conv])  # all zeros: not measured


def test_pictures_have_values_at_points_the_spread_of_runs_and_the_shapes_of_layers(tmp_path: Path) -> None:
    log = read_time_log(make("time-log", tmp_path, LOGS / "logALEX.txt"))
    figure = draw_layers(log)
    first, last = figure.axes[0], figure.axes[-1]
    words = [text.get_text() for text in first.texts]
    assert f"{log.layer_s[0, 0, log.types.index('TOTAL'), 0] * 1e3:.2f}" in words
    bands = [band for band in first.collections if band.get_gid() == "spread"]
    assert len(bands) == len(log.algorithms)
    corners = np.asarray(bands[0].get_paths()[0].vertices)[:, 1]
    spread = (log.layer_low_s, log.layer_high_s)
    low, high = (float(one[0, 0, log.types.index("TOTAL")].min()) * 1e3 for one in spread)
    assert float(corners.min()) == pytest.approx(low)
    assert high > low
    labels = [label.get_text() for label in last.get_xticklabels()]
    assert labels[0] == "1\n3→64\n11×11 /4\nP 23.2k\nI 1.57M"


def test_a_time_log_is_shown_compared_and_reported(tmp_path: Path) -> None:
    path = str(LOGS / "logALEX.txt")
    shown = CliRunner().invoke(main, ["show", path])
    assert shown.exit_code == 0, shown.output
    assert next(line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  DIRECT")) == "95.94"
    document = json.loads(CliRunner().invoke(main, ["show", path, "--json"]).stdout)
    assert document["network"] == "AlexNet"
    assert [len(one["layer_s"]) for one in document["layers"]] == [5] * 4 * 3 * 4
    rows = json.loads(CliRunner().invoke(main, ["compare", path, "--json"]).stdout)
    found = {(row["algorithm"], row["type"], row["batch"]): row for row in rows}
    assert found["CUDNN", "TOTAL", 8]["total_s"] == pytest.approx(12.4e-3, abs=5e-5)
    assert found["CUDNN", "TOTAL", 8]["ratio_to_first"] == pytest.approx(12.38 / 674.8, rel=1e-3)
    assert found["CUDNN", "CONV", 8]["total_s"] is None
    assert ",CUDNN,CONV,8,,,,," in CliRunner().invoke(main, ["compare", path, "--csv"]).stdout
    page = tmp_path / "page.html"
    written = CliRunner().invoke(main, ["report", path, "-o", str(page)])
    assert written.exit_code == 0, written.output
    assert "<td>95.94</td>" in page.read_text("utf-8")


def read(place: Path, text: str) -> tuple[int, tuple[str, ...]]:
    path = place / "log.txt"
    path.write_text(text)
    run = read_files("time-log", (path,), "log", {})
    return sum(len(rank.tables["spans"]) for rank in run.ranks), run.unread


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("FFT, 1, TOTAL, 1.0, 2.", "cut off"),
        ("FFT, 1, TOTAL, 1.0\n", "1 layers, but earlier lines have 2"),
        ("FFT, one, TOTAL, 1.0, 2.0\n", "batch 'one'"),
        ("FFT, 0, TOTAL, 1.0, 2.0\n", "batch '0'"),
        ("FFT, 1, TOTAL, 1.0, nan\n", "not a number"),
        ("FFT, 1, TOTAL, 1.0, -2\n", "negative"),
        ("FFT, 1, TOTAL, 1.0, 1e300\n", "negative or not a number"),
        ("Segmentation fault\n", "expected ALGO, BATCH, TIME_TYPE"),
        ("FFT, 1, TOTAL, 1.0, 2,5x\n", "could not convert"),
    ],
)
def test_a_line_that_is_not_whole_is_named_and_the_rest_kept(tmp_path: Path, bad: str, reason: str) -> None:
    spans, unread = read(tmp_path, "DIRECT, 1, TOTAL, 1.5, 2.5\n" + bad)
    assert spans == 2
    (line,) = unread
    assert "line 2" in line
    assert reason in line


@pytest.mark.parametrize("text", ["", "\n", "hello\n"])
def test_a_file_without_times_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read(tmp_path, text)


def test_content_tells_the_format(tmp_path: Path) -> None:
    assert find_format(LOGS / "logVGG.txt") == find_format(LOGS) == "time-log"
    other = tmp_path / "x.csv"
    other.write_text("embedding, 12.5\n")
    assert find_format(other) != "time-log"


def test_a_run_of_another_kind_holds_no_times(tmp_path: Path) -> None:
    run = make("nvidia-smi", tmp_path, DATA / "nvidia_smi" / "memory_cudnn.txt")
    assert not is_time_log(run)
    with pytest.raises(GpuLedgerError, match="has no times per layer"):
        read_time_log(run)


def test_pictures_say_what_the_log_says(tmp_path: Path) -> None:
    log = read_time_log(make("time-log", tmp_path, LOGS / "logVGG.txt"))
    layers, batches = draw_layers(log), draw_batches(log)
    assert [len(figure.axes) for figure in (layers, batches)] == [6, 3]
    drawn = layers.axes[0].get_lines()
    assert len(drawn) == len(log.algorithms)
    assert np.asarray(drawn[0].get_ydata()) == pytest.approx(log.layer_s[0, 0, 0] * 1e3)
    words = [text.get_text() for axis in batches.axes for text in axis.texts]
    assert {"105.5", "50,382", "9.25"} <= set(words)
    told = " ".join(text.get_text() for text in batches.texts)
    assert "not drawn: CUDNN CONV, CUDNN OVERHEAD" in told


ABOVE_ZERO = st.floats(0.001, 1e5)


@given(
    st.lists(
        st.tuples(st.sampled_from("AB"), st.sampled_from([1, 8]), st.lists(ABOVE_ZERO, min_size=3, max_size=3)),
        min_size=1,
        max_size=12,
    )
)
def test_repetitions_become_their_mean(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, list[float]]]
) -> None:
    place = tmp_path_factory.mktemp("log")
    path = place / "log.txt"
    path.write_text("".join(f"{name}, {batch}, TOTAL, {', '.join(map(str, ms))}\n" for name, batch, ms in rows))
    log = read_time_log(make("time-log", place, path))
    for name, batch in {(name, batch) for name, batch, _ in rows}:
        mean = np.mean([ms for one, size, ms in rows if (one, size) == (name, batch)], axis=0)
        found = log.layer_s[log.algorithms.index(name), log.batches.index(batch), 0] * 1e3
        assert found == pytest.approx(mean, abs=2e-6)


@pytest.mark.parametrize("more", [0, 1, 1_234])
def test_lines_that_cannot_be_read_are_listed_up_to_a_limit_and_then_counted(more: int, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("A,1,TOTAL,5\n\n" + "A,0,TOTAL,5\n" * (MAX_UNREAD + more) + "A,2,TOTAL,5\n", encoding="utf-8")
    found = read_files("time-log", [path], "log", {}).unread
    assert found[:MAX_UNREAD] == tuple(
        f"{path}: line {number}: 'A,0,TOTAL,5': batch '0' is not a whole number above 0"
        for number in range(3, MAX_UNREAD + 3)
    )
    assert found[MAX_UNREAD:] == ((f"{path}: … and {more:,} more lines",) if more else ())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("A,1,TOTAL", "expected ALGO, BATCH, TIME_TYPE"),
        ("A,x,TOTAL,5,6", "batch 'x'"),
        (f"A,{MAX_BATCH},TOTAL,5,6", "batch"),
        (f"A,{MAX_BATCH - 1},TOTAL,0,6", None),
        (f"A,1,TOTAL,0,{MAX_MS}", "negative or not a number"),
        ("A,1,TOTAL,-1,5", "negative or not a number"),
        ("A,1,TOTAL,nan,5", "negative or not a number"),
        ("A,1,TOTAL,5", "1 layers, but earlier lines have 2"),
        ("A,1,TOTAL,5,6, ", None),
    ],
)
def test_a_line_has_a_batch_times_and_as_many_layers_as_the_others(
    line: str, reason: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"A,1,TOTAL,5,6\n{line}\nA,2,TOTAL,5,6\n", encoding="utf-8")
    found = read_files("time-log", [path], "log", {}).unread
    assert len(found) == (reason is not None)
    assert all((reason or "") in one for one in found)
