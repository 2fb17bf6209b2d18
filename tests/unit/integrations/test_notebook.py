"""What a notebook shows of a run, a diff and a balance: their numbers, and every name as text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from present import present
from synthetic import make_run

from gpuledger.analyze.compare.diff import diff_runs
from gpuledger.analyze.memory.timeline import build_timeline
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.overview.summary import summarize
from gpuledger.model.run import Run, read_run
from gpuledger.model.run_directory import write_json
from gpuledger.report.html.svg import HEIGHT, timeline_svg
from gpuledger.units import format_bytes

ALLOWED = {"div", "style", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
DRAWN = {"svg", "polygon", "polyline", "path", "rect", "text", "title"}


class Tags(HTMLParser):
    """Collects tags and text, and sees that every element is closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.words = ""
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.open.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "style")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one.ledger", blocks=300, ranks=2)
    make_run(place / "hostile.ledger", blocks=300, hostile_names=True)
    return place


def read(runs: Path, name: str) -> Run:
    return read_run(runs / f"{name}.ledger")


def test_a_run_shows_every_rank_and_the_peak(runs: Path) -> None:
    run = read(runs, "one")
    tags = Tags(present(run._repr_html_()))
    for rank in run.ranks:
        assert format_bytes(summarize(rank).recorded_peak_allocated_bytes) in tags.words
    assert "activation" in tags.words
    assert "svg" in tags.seen


@pytest.mark.parametrize("name", ["one", "hostile"])
def test_names_are_text_and_nothing_runs(runs: Path, name: str) -> None:
    run, other = read(runs, name), read(runs, "one")
    for value in (run, diff_runs(other, run), build_balance(run.rank())):
        markup = present(value._repr_html_())
        tags = Tags(markup)
        assert tags.seen <= ALLOWED | DRAWN
        assert tags.open == []
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", markup)
    assert ("</script>" in Tags(present(diff_runs(other, run)._repr_html_())).words) is (name == "hostile")


def test_a_run_that_holds_nothing_says_so(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"schema_version": 1})
    assert "No allocation was recorded." in present(read_run(tmp_path)._repr_html_())


def test_the_picture_reaches_its_top_at_the_highest_line(runs: Path) -> None:
    timeline = build_timeline(read(runs, "one").rank(), None, 200)
    root = ET.fromstring(timeline_svg(timeline))
    shapes = [shape for shape in root.iter() if "points" in shape.attrib]
    heights = [float(point.split(",")[1]) for shape in shapes for point in shape.attrib["points"].split()]
    assert min(heights) == pytest.approx(14, abs=0.1)
    assert max(heights) == pytest.approx(HEIGHT - 20, abs=0.1)
    assert len(shapes) == len(timeline.categories) + 1
