"""The bar charts: lengths are bytes, one total, one scale, one order, and any name can be drawn."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from synthetic import load_run, make_run

from gpuledger.cli.inspect.keywords import bar_panels, read_asked
from gpuledger.cli.main import main
from gpuledger.errors import UsageError
from gpuledger.report.plots.bar_plot import KINDS, Panel, draw_bars, spread

pytest.importorskip("matplotlib")
from matplotlib.patches import Rectangle

GIB = 1 << 30


@pytest.fixture(scope="module")
def panels(tmp_path_factory: pytest.TempPathFactory) -> list[Panel]:
    place = tmp_path_factory.mktemp("runs")
    runs = [load_run(place / f"r{n}.ledger", blocks=400 + 300 * n, seed=n, hostile_names=n == 3) for n in range(4)]
    return [panel for run in runs for panel in bar_panels(run, read_asked((), None))]


def heights(axis: object) -> list[tuple[float, float]]:
    """Return (place, height) of every bar of an axis."""
    return [(round(bar.get_x(), 6), bar.get_height()) for bar in axis.patches]  # type: ignore[attr-defined]


@pytest.mark.parametrize("share", [0.0, 0.03])
def test_both_bars_are_the_same_total(panels: list[Panel], share: float) -> None:
    figure = draw_bars(panels, "two-bar", min_share_frac=share)
    assert len(figure.axes) == 4
    for panel, axis in zip(panels, figure.axes, strict=True):
        places = sorted({place for place, _ in heights(axis)})
        assert len(places) == 2
        for place in places:
            total = sum(height for x, height in heights(axis) if x == place)
            assert total * GIB == pytest.approx(panel.grouping.total_bytes)
        hatched = [bar for bar in axis.patches if isinstance(bar, Rectangle) and bar.get_hatch()]
        assert [bar.get_height() * GIB for bar in hatched] == pytest.approx([panel.grouping.untrackable.bytes] * 2)
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["Layer", "Data structure"]


@pytest.mark.parametrize("kind", KINDS)
def test_panels_share_scale_and_order_drawn_together_or_one_by_one(panels: list[Panel], kind: str) -> None:
    together = draw_bars(panels, kind)
    assert len({axis.get_ylim() for axis in together.axes}) == 1
    for panel, axis in zip(panels, together.axes, strict=True):
        (alone,) = draw_bars([panel], kind, among=panels).axes
        assert alone.get_ylim() == axis.get_ylim()
        assert [bar.get_facecolor() for bar in alone.patches] == [bar.get_facecolor() for bar in axis.patches]
        assert [height for _, height in heights(alone)] == pytest.approx([height for _, height in heights(axis)])
    if kind == "categories":
        labels = [[tick.get_text() for tick in axis.get_xticklabels()] for axis in together.axes]
        assert labels == [labels[0]] * len(labels)


def test_categories_descend_with_their_shares_and_the_total_in_the_title(panels: list[Panel]) -> None:
    figure = draw_bars(panels[:1], "categories")
    (axis,) = figure.axes
    labels = [tick.get_text() for tick in axis.get_xticklabels()]
    sizes = [height for _, height in sorted(heights(axis))]
    own = [size for label, size in zip(labels, sizes, strict=True) if label not in ("Others", "Untrackable")]
    assert own == sorted(own, reverse=True)
    assert labels[-2:] == ["Others", "Untrackable"]
    assert sum(sizes) * GIB == pytest.approx(panels[0].grouping.total_bytes)
    shares = [text.get_text() for text in axis.texts if text.get_text().endswith(" %")]
    assert len(shares) == len(sizes)
    assert "GPU memory by data structure: " in figure.texts[0].get_text()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_below_the_smallest_share_is_named(panels: list[Panel], kind: str) -> None:
    panel = panels[0]
    figure = draw_bars([panel], kind, min_share_frac=0.05)
    foot = " ".join(text.get_text() for text in reversed(figure.texts[1:]))
    total = panel.grouping.total_bytes
    groups = [group for one in panel.grouping.dictionaries for group in one.groups]
    drawn = groups if kind == "two-bar" else panel.grouping.dictionaries[1].groups
    small = [group.name for group in drawn if 0 < group.bytes < 0.05 * total]
    assert small
    assert [name for name in small if name not in foot] == []
    left = [line.name for line in panel.grouping.untrackable.lines if line.bytes]
    assert any("_" in name for name in left)
    assert [name for name in left if name.replace("_", " ") not in foot] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["png", "svg"])
def test_any_name_can_be_drawn_without_a_warning(panels: list[Panel], kind: str, form: str) -> None:
    title = "</svg> $x^{2$ 🔥\x00\u202e" + "long " * 30
    file = io.BytesIO()
    draw_bars([Panel(title, panels[3].grouping)], kind, title=title).savefig(file, format=form, dpi=50)
    assert file.getvalue()[:4] in (b"\x89PNG", b"<?xm")


def test_one_dictionary_makes_one_bar(panels: list[Panel], tmp_path: Path) -> None:
    run = load_run(tmp_path / "r.ledger", blocks=300, cuda=False, ranks=2)
    found = bar_panels(run, read_asked(("tbd",), None))
    assert [panel.title for panel in found] == ["r · rank 0 · cpu", "r · rank 1 · cpu"]
    for kind in KINDS:
        figure = draw_bars(found, kind)
        assert len(figure.axes) == 2
        assert not [bar for axis in figure.axes for bar in axis.patches if bar.get_hatch()]


def test_an_unknown_kind_and_too_many_panels_are_refused(panels: list[Panel]) -> None:
    with pytest.raises(UsageError, match="pie"):
        draw_bars(panels, "pie")
    with pytest.raises(UsageError, match="at most 64"):
        draw_bars(panels * 17, "two-bar")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_there_are_as_many_axes_as_panels_and_they_do_not_touch(panels: list[Panel], kind: str, count: int) -> None:
    figure = draw_bars((panels * 2)[:count], kind)
    boxes = [axis.get_position() for axis in figure.axes]
    assert len(boxes) == count
    assert all(box.x0 >= 0 and box.x1 <= 1 and box.y0 >= 0 and box.y1 <= 1 for box in boxes)
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(0.01, 8))
def test_labels_keep_order_and_distance_and_stay_inside(middles: list[float], gap: float) -> None:
    wanted = sorted(middles)
    places = spread(wanted, gap, 100.0)
    assert len(places) == len(wanted)
    assert all(above - below >= gap * 0.999 for below, above in pairwise(places))
    assert min(places) >= 0
    assert max(places) <= 100 + 1e-9
    if all(above - below >= gap for below, above in pairwise(wanted)):
        assert places == pytest.approx(wanted)


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    for name, blocks in (("small", 200), ("large", 900)):
        make_run(tmp_path / f"{name}.ledger", blocks=blocks)
    return tmp_path


def test_a_folder_gets_a_picture_of_each_run_on_the_scale_of_all(two_runs: Path) -> None:
    out = two_runs / "out"
    words = ["plot", two_runs / "small", two_runs / "large", two_runs / "small", "--kind", "two-bar"]
    result = ask(*words, "-o", f"{out}/")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["large.png", "small-2.png", "small.png"]
    assert (out / "small.png").read_bytes() == (out / "small-2.png").read_bytes()
    alone = ask("plot", two_runs / "small", "--kind", "two-bar", "-o", two_runs / "alone.png")
    assert alone.exit_code == 0
    assert (two_runs / "alone.png").read_bytes() != (out / "small.png").read_bytes()
    refused = ask(*words, "-o", out)
    assert (refused.exit_code, "already exists" in refused.stderr) == (2, True)
    assert ask(*words, "-o", out, "--force").exit_code == 0


def test_a_folder_takes_every_kind_in_every_format(two_runs: Path) -> None:
    result = ask("plot", two_runs / "small", "-o", f"{two_runs}/", "--format", "pdf")
    assert (result.exit_code, result.stdout) == (0, f"{two_runs / 'small.pdf'}\n")
    assert (two_runs / "small.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_takes_the_options_of_group(two_runs: Path, kind: str) -> None:
    file = two_runs / "k.toml"
    file.write_text('["mine & yours"]\nHeads = ["head"]\n')
    words = ["--keywords", file, "--reported-memory", 500, "--title", "A & B", "--min-share", "1%"]
    result = ask("plot", two_runs / "small", "--kind", kind, *words, "-o", two_runs / "x.svg")
    assert result.exit_code == 0, result.output
    text = (two_runs / "x.svg").read_text(encoding="utf-8")
    assert all(word in text for word in ("A &amp; B", "Heads", "Others", "Untrackable", "untrackable"))


def test_a_wrong_keyword_file_ends_plot_before_a_picture(two_runs: Path) -> None:
    (two_runs / "k.toml").write_text("[a]\nb = []\n")
    words = ["--kind", "two-bar", "--keywords", two_runs / "k.toml", "-o", two_runs / "x.png"]
    result = ask("plot", two_runs / "small", *words)
    assert (result.exit_code, (two_runs / "x.png").exists()) == (3, False)
    assert "line 2" in result.stderr
