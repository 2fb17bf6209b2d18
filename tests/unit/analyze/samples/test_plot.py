"""Lines over time: what is drawn is what was read, peaks are kept and named apart, and files repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st
from imports import make
from synthetic import load_run, make_run

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.samples.series import Series, build_series
from gpuledger.cli.main import main
from gpuledger.errors import EmptyRunError, UsageError
from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table, write_imported
from gpuledger.model.run import Run
from gpuledger.report.plots.line_plot import Framing, draw_lines, short_names
from gpuledger.report.plots.plot_style import LINE_COLORS, SUFFIXES, axis_unit, line_look, own_settings, picture_bytes

MIB = 1 << 20
OLD = ("cudnn", "direct", "fft", "im2col", "winograd")


def sampled(
    place: Path,
    name: str = "made",
    used_mib: list[float] | None = None,
    *,
    total_mib: int | None = None,
    step_ns: int = 10_000_000,
    devices: int = 1,
    **columns: list[Any],
) -> Run:
    """Return a run with these readings of each of its GPUs."""
    used = used_mib or [0, 5, 9, 5, 0]
    rows = [
        {
            "t_ns": 10**18 + number * step_ns,
            "device_idx": device,
            "used_bytes": round(value * MIB) * (device + 1),
            **{key: values[number] for key, values in columns.items()},
        }
        for device in range(devices)
        for number, value in enumerate(used)
    ]
    facts = [{"device_idx": n, "name": "Card", "total_bytes": total_mib and total_mib * MIB} for n in range(devices)]
    rank = ImportedRank(0, {"samples": rows_to_table("samples", rows)}, {"devices": facts})
    return write_imported(ImportedRun(name, "watch", (), (rank,)), place / f"{name}.ledger")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return [make("nvidia-smi", tmp_path_factory.mktemp(n), DATA / "nvidia_smi" / f"memory_{n}.txt") for n in OLD]


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_the_old_logs_keep_their_peaks_and_their_seconds(old: list[Run]) -> None:
    series, notes = build_series(old)
    assert notes == []
    assert [one.peak[1] / MIB for one in series] == [622, 622, 6247, 622, 4406]
    assert [round(float(one.t_s[-1]), 2) for one in series] == [7.19, 24.01, 22.53, 7.22, 21.19]
    aligned, _ = build_series(old, align="first-use")
    for one, moved in zip(series, aligned, strict=True):
        first = one.t_s[one.values > 0][0]
        assert moved.t_s[moved.values > 0][0] == 0
        assert moved.peak[0] == pytest.approx(one.peak[0] - first)


def test_the_baseline_is_the_first_reading(tmp_path: Path) -> None:
    run = sampled(tmp_path, used_mib=[560, 560, 700, 560])
    above, whole = (build_series([run], baseline=choice)[0][0] for choice in (None, "none"))
    assert (above.peak[1] / MIB, above.baseline / MIB) == (140, 560)
    assert (whole.peak[1] / MIB, whole.baseline) == (700, 0)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3000), st.integers(8, 400))
def test_a_thinned_line_keeps_peak_lowest_point_and_ends(
    tmp_path_factory: pytest.TempPathFactory, used: list[int], points: int
) -> None:
    run = sampled(tmp_path_factory.mktemp("run"), used_mib=list(map(float, used)))
    (one,), _ = build_series([run], baseline="none", points=points)
    assert one.values.max() == max(used) * MIB
    assert one.values.min() == min(used) * MIB
    assert (one.values[0], one.values[-1]) == (used[0] * MIB, used[-1] * MIB)
    assert one.t_s.size <= max(points, 8)
    assert np.all(np.diff(one.t_s) > 0)


def test_each_card_has_its_line_and_name(tmp_path: Path) -> None:
    series, _ = build_series([sampled(tmp_path, "two", devices=2), sampled(tmp_path, "one")])
    assert [one.name for one in series] == ["two · GPU 0", "two · GPU 1", "one"]
    assert series[1].peak[1] == 2 * series[0].peak[1]


def test_runs_of_one_name_are_told_apart(old: list[Run]) -> None:
    assert [one.name for one in build_series(old[:3])[0]] == ["imported", "imported (2)", "imported (3)"]


def test_average_and_instant_power_are_never_mixed(tmp_path: Path) -> None:
    both = sampled(tmp_path, "both", [0, 1], power_average_w=[100, 110], power_instant_w=[90, 300])
    average = sampled(tmp_path, "average", [0, 1], power_average_w=[50, 60])
    assert build_series([both], "power")[0][0].peak[1] == 300
    assert [one.peak[1] for one in build_series([both, average], "power")[0]] == [110, 60]


def test_a_column_that_is_read_rarely_is_a_line_of_its_readings(tmp_path: Path) -> None:
    run = sampled(tmp_path, used_mib=[0, 1, 2, 3], utilization_frac=[None, 0.5, None, 0.75])
    (one,), _ = build_series([run], "utilization")
    assert one.values.tolist() == [0.5, 0.75]
    assert one.t_s.tolist() == pytest.approx([0.0, 0.02])


def test_what_a_run_does_not_have_is_noted_or_refused(tmp_path: Path, old: list[Run]) -> None:
    with_power = sampled(tmp_path, "power", [0, 1], power_average_w=[1, 2])
    series, notes = build_series([with_power, old[0]], "power")
    assert len(series) == 1
    assert notes == ["imported: the run has no samples of power."]
    with pytest.raises(EmptyRunError, match="no samples of clock"):
        build_series(old, "clock")
    with pytest.raises(UsageError, match="measured for a whole GPU only"):
        build_series(old, "power", per="process")


def test_the_program_is_drawn_by_its_own_process(tmp_path: Path) -> None:
    run = load_run(tmp_path / "gpu.ledger", blocks=300)
    (one,), _ = build_series([run], per="process")
    rows = [row for row in run.table("process_samples").to_pylist() if row["pid"] == run.rank().manifest.pid]
    assert one.peak[1] == max(row["bytes"] for row in rows)
    assert one.baseline == 0


def test_a_run_without_a_card_is_drawn_from_its_allocator(tmp_path: Path) -> None:
    run = load_run(tmp_path / "cpu.ledger", cuda=False, blocks=300)
    (one,), _ = build_series([run])
    assert one.line.steps
    assert one.peak[1] == break_down(run.rank(), find_peak(run.rank())).allocated_bytes


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["memory_fft", "memory_direct"], ["fft", "direct"]),
        (["a", "b"], ["a", "b"]),
        (["run", "run"], ["run", "run"]),
        (["x", "x_2"], ["x", "x_2"]),
        (["fft-r1", "fft-r2"], ["r1", "r2"]),
        (["log · GPU 0", "log · GPU 1"], ["GPU 0", "GPU 1"]),
        (["var-0", "var-1"], ["var-0", "var-1"]),
        (["memory_", "memory_fft"], ["memory_", "memory_fft"]),
        (["one"], ["one"]),
    ],
)
def test_names_lose_the_beginning_they_share(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short


def test_colors_and_styles_are_fixed_and_differ() -> None:
    looks = [line_look(number) for number in range(28)]
    assert len(set(looks)) == 28
    assert [color for color, _ in looks[:7]] == list(LINE_COLORS)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("B", 6247 * MIB, "6,247 MiB"),
        ("B", 195.64 * MIB, "195.6 MiB"),
        ("B", 71.5 * 1024 * MIB, "71.50 GiB"),
        ("B", 300 * 1024, "300 KiB"),
        ("W", 700.0, "700 W"),
        ("1", 0.355, "35.5 %"),
        ("MHz", 1980.0, "1,980 MHz"),
    ],
)
def test_values_bear_the_unit_of_their_axis(unit: str, value: float, text: str) -> None:
    assert axis_unit(unit, value).text(value) == text


def figure_of(series: list[Series], **framing: str) -> Any:
    with own_settings():
        return draw_lines(series, Framing(**{"metric": "memory", "align": "start", **framing}))


def words_of(figure: Any) -> str:
    return "\n".join(text.get_text() for text in [*figure.texts, *figure.axes[0].texts])


def test_peaks_are_named_and_no_two_labels_overlap(old: list[Run]) -> None:
    figure = figure_of(build_series(old)[0])
    axis = figure.axes[0]
    labels = [text for text in axis.texts if "MiB" in text.get_text()]
    assert len(labels) == 5
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in labels]
    inside = axis.get_window_extent().padded(1)
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1
        assert inside.y0 <= box.y0 <= box.y1 <= inside.y1


def test_twenty_equal_peaks_are_still_told_apart(tmp_path: Path) -> None:
    runs = [sampled(tmp_path, f"run{number}") for number in range(20)]
    figure = figure_of(build_series(runs)[0])
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if "MiB" in text.get_text()]
    assert len(boxes) == 12
    assert not any(box.overlaps(other) for n, box in enumerate(boxes) for other in boxes[:n])


def test_the_capacity_is_drawn_where_it_is_near_and_named_where_it_is_far(tmp_path: Path) -> None:
    near = figure_of(build_series([sampled(tmp_path, "near", [0, 700], total_mib=1000)])[0])
    assert "capacity 1,000 MiB" in words_of(near)
    assert near.axes[0].get_ylim()[1] > 1000
    far = figure_of(build_series([sampled(tmp_path, "far", [0, 700], total_mib=143_771)])[0])
    assert "capacity 140.40 GiB, above this picture" in words_of(far) or "143,771 MiB, above" in words_of(far)
    assert far.axes[0].get_ylim()[1] < 1000


def test_the_axis_and_the_words_say_what_was_asked(tmp_path: Path) -> None:
    run = sampled(tmp_path, used_mib=[100, 160], power_average_w=[100, 110])
    assert "MiB above the first sample" in words_of(figure_of(build_series([run])[0]))
    power = figure_of(build_series([run], "power")[0], metric="power", title="Mine")
    assert "Mine" in words_of(power)
    assert "W · mean of the last second" in words_of(power)
    moved = figure_of(build_series([run], align="first-use")[0], align="first-use")
    assert "first use" in moved.axes[0].get_xlabel()


def test_one_reading_and_no_bytes_can_be_drawn(tmp_path: Path) -> None:
    assert figure_of(build_series([sampled(tmp_path, "one", [5])])[0]).axes
    assert figure_of(build_series([sampled(tmp_path, "none", [0, 0, 0])])[0]).axes


def test_nothing_is_drawn_between_two_samples_that_was_not_measured(tmp_path: Path) -> None:
    few = figure_of(build_series([sampled(tmp_path, "few", [0, 4, 1])])[0]).axes[0]
    (line,) = [line for line in few.lines if line.get_gid() == "data"]
    assert (line.get_drawstyle(), line.get_marker()) == ("steps-post", ".")
    (area,) = few.collections
    heights = {round(float(y), 6) for path in area.get_paths() for _, y in path.vertices}
    assert heights == {0.0, 4.0, 1.0}, "no slope: each corner has a value that was read"
    many = figure_of(build_series([sampled(tmp_path, "many", [float(n % 7) for n in range(500)])])[0]).axes[0]
    assert [line.get_marker() for line in many.lines if line.get_gid() == "data"] == ["None"]


def test_hostile_names_reach_the_picture_as_text(tmp_path: Path) -> None:
    name = "$x^2$ <svg onload=x>&\u202e\U0001f525"
    figure = figure_of(build_series([sampled(tmp_path, name)])[0])
    assert b"<svg" in (content := picture_bytes(figure, ".svg"))
    assert b"<svg onload" not in content
    assert "$x^2$" in words_of(figure)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_runs_give_the_same_file(old: list[Run], suffix: str) -> None:
    first, second = (picture_bytes(figure_of(build_series(old[:2])[0]), suffix) for _ in range(2))
    assert first == second
    assert len(first) > 5_000


def test_a_users_matplotlib_settings_change_nothing(old: list[Run]) -> None:
    import matplotlib

    plain = picture_bytes(figure_of(build_series(old[:1])[0]), ".svg")
    with matplotlib.rc_context({"font.size": 30.0, "lines.linewidth": 9.0, "axes.facecolor": "red"}):
        assert picture_bytes(figure_of(build_series(old[:1])[0]), ".svg") == plain


def test_plot_writes_one_picture_and_prints_its_path(tmp_path: Path) -> None:
    place = tmp_path / "x.svg"
    result = ask("plot", DATA / "nvidia_smi", "-o", place, "--align", "first-use")
    assert (result.exit_code, result.stdout) == (0, f"{place}\n")
    assert place.read_bytes().startswith(b"<?xml")
    assert ask("plot", DATA / "nvidia_smi", "-o", place).exit_code == 2
    assert ask("plot", DATA / "nvidia_smi", "-o", place, "--force").exit_code == 0


@pytest.mark.parametrize("words", [("-o", "x.gif"), ("-o", "x"), ("--metric", "joy"), ("--kind", "pie")])
def test_plot_refuses_what_it_cannot_draw(tmp_path: Path, words: tuple[str, str]) -> None:
    result = ask("plot", DATA / "nvidia_smi", *words)
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_plot_draws_a_time_log_by_itself(tmp_path: Path) -> None:
    log = DATA / "time_log" / "logALEX.txt"
    for name, words in (("layers", ()), ("batches", ("--kind", "batches"))):
        assert ask("plot", log, *words, "-o", tmp_path / f"{name}.pdf").exit_code == 0
    assert (tmp_path / "layers.pdf").read_bytes() != (tmp_path / "batches.pdf").read_bytes()
    refused = ask("plot", log, log, "-o", tmp_path / "two.png")
    assert (refused.exit_code, "takes one time log" in refused.stderr) == (2, True)


def test_plot_without_matplotlib_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    run = make_run(tmp_path / "a.ledger", cuda=False, blocks=50)
    result = ask("plot", run, "-o", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "pip install 'gpuledger[plot]'" in result.stderr
