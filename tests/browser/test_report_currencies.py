"""Time beside bytes in the report: the switch, the bars, the GPUs and the strip of watts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opened import Opened
from synthetic_work import load_timed

from gpuledger.analyze.overview import summary
from gpuledger.analyze.step.steps import StepTimes
from gpuledger.analyze.step.times import TimeBreakdown, break_down_time
from gpuledger.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuledger.model.run import Run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_timed(tmp_path_factory.mktemp("timed") / "run.ledger", blocks=800, hostile_names=True)


@pytest.fixture(scope="module")
def times(run: Run) -> TimeBreakdown:
    found = break_down_time(run.ranks[0], 0)
    assert found is not None
    return found


@pytest.fixture
def opened(open_report: Callable[..., Opened], run: Run) -> Opened:
    return open_report(ledger=run.path)


def amounts(opened: Opened) -> list[int]:
    """Return the exact amounts of the rows."""
    tips = opened.page.locator("#table-body .column-amount .number")
    return [
        int((tips.nth(row).get_attribute("data-tip") or "").split()[0].replace(",", "")) for row in range(tips.count())
    ]


def test_the_switch_shows_a_steps_time_by_module(opened: Opened, times: TimeBreakdown) -> None:
    before = opened.page.evaluate("document.getElementById('structure').toDataURL()")
    opened.page.keyboard.press("m")
    assert opened.page.evaluate("document.getElementById('structure').toDataURL()") != before
    assert opened.text("#instant-name") == "In one step"
    assert format_ns(times.work_ns) in opened.text("#instant-bytes")
    assert format_ns(times.busy_ns) in opened.text("#instant-where")
    assert not opened.page.locator("#instant-tools").is_visible()
    opened.page.select_option("#group", "category")
    assert opened.page.locator("#group option").count() == 4
    by_phase: dict[str, float] = {"idle": times.idle_ns or 0.0}
    for account in times.accounts:
        by_phase[account.phase] = by_phase.get(account.phase, 0.0) + account.time_ns
    assert amounts(opened) == pytest.approx(sorted(by_phase.values(), reverse=True), abs=len(times.accounts))
    opened.page.fill("#search", "forward")
    assert format_ns(by_phase["forward"]) in opened.text("#matched")
    opened.page.click("#shape-treemap")
    opened.page.locator("#structure").hover(position={"x": 60, "y": 200})
    assert "of the step" in opened.text("#tip")
    assert opened.complaints == []


def test_the_state_says_which_currency(open_report: Callable[..., Opened], run: Run) -> None:
    first = open_report(ledger=run.path)
    first.follow_card("busy")
    assert "metric=time" in first.state
    second = open_report(state=first.state, ledger=run.path)
    assert amounts(second) == amounts(first)
    assert second.page.locator("#metric-time").get_attribute("aria-pressed") == "true"
    second.follow_card("recorded_peak_allocated_bytes")
    assert second.text("#instant-name") == "At the peak"


def test_what_was_not_recorded_can_be_neither_chosen_nor_forced(open_report: Callable[..., Opened]) -> None:
    opened = open_report(state="#metric=energy", blocks=400, modules=6)
    assert opened.text("#instant-name") == "At the peak"
    assert opened.page.locator("#metric-time").is_disabled()
    assert "--passes" in (opened.page.locator("#metric-time").get_attribute("data-tip") or "")
    assert not opened.page.locator("#bars-section").is_visible()
    assert not opened.page.locator("#power-section").is_visible()
    assert opened.complaints == []


def test_joules_close_on_the_counter(opened: Opened) -> None:
    assert opened.text('[data-card="step_energy_j"] .card-value') == "100.00 J"
    assert "6.25 J per sample" in opened.text('[data-card="step_energy_j"]')
    assert "63.7 samples/s at batch 16" in opened.text('[data-card="step_time_ns"]')
    opened.follow_card("step_energy_j")
    assert "metric=energy" in opened.state
    assert opened.text("#instant-bytes") == "100.00 ± 2.00 J"
    assert "base power 120 W" in opened.text("#instant-where")
    opened.page.select_option("#group", "account")
    assert "all rows 100.00 J, 100.0 % of the step" in opened.text("#table-count")
    opened.page.click("#metric-time")
    assert "all rows" in opened.text("#table-count")
    assert opened.complaints == []


def test_time_is_copied_with_its_unit(opened: Opened) -> None:
    opened.page.click("#metric-time")
    opened.page.select_option("#group", "category")
    lines = opened.copied_by("#copy-csv").splitlines()
    assert lines[0] == "Phase,Modules,Time (ns per step),Share"
    assert [int(line.split(",")[2]) for line in lines[1:]] == amounts(opened)


def test_bars_and_power_stand_with_the_rest(opened: Opened, times: TimeBreakdown) -> None:
    assert "energy pass" in opened.text("#windows-body")
    assert "at most 600 W" in opened.text("#power-value")
    picture = "document.querySelector('#power canvas').toDataURL()"
    recorded = opened.page.evaluate(picture)
    opened.page.click("#span")
    assert "span=run" in opened.state
    assert opened.page.evaluate(picture) != recorded
    opened.page.locator("#power").scroll_into_view_if_needed()
    box = opened.page.locator("#power .u-over").bounding_box()
    assert box
    opened.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 25, steps=3)
    opened.page.mouse.up()
    assert "zoom=" in opened.state
    opened.page.mouse.click(box["x"] + box["width"] * 0.1, box["y"] + 20)
    assert "at=" in opened.state
    assert opened.complaints == []


def test_the_bars_have_one_legend_with_every_colour_once(opened: Opened, times: TimeBreakdown) -> None:
    assert opened.page.locator("#bars figure").count() == 3
    color = "node => getComputedStyle(node).backgroundColor"
    rows = opened.page.locator("#parts-body tr").all()
    legend = {row.locator(".swatch").evaluate(color): row.locator("th").inner_text() for row in rows}
    assert len(legend) == len(rows), "two parts have the same colour"
    pieces = [
        (one.evaluate(color), one.get_attribute("data-tip") or "")
        for one in opened.page.locator("#bars .split > span").all()
    ]
    assert [tip for shown, tip in pieces if not tip.startswith(f"{legend[shown]}: ")] == []
    idle = opened.page.locator("#parts-body tr", has_text="idle").inner_text()
    assert idle.count(format_ns(times.idle_ns)) == 2, "by part and by kind"
    assert opened.text("#bars-section h2") == "Time and energy of one step"


def test_a_piece_too_narrow_for_its_name_does_not_show_a_part_of_it(opened: Opened) -> None:
    inside = """name => {
        const [piece, box] = [name.parentElement, name].map((one) => one.getBoundingClientRect());
        return [box.top < piece.bottom, box.right <= piece.right + 0.5];
    }"""
    shown = [name.evaluate(inside) for name in opened.page.locator(".piece-name").all()]
    assert [True, True] in shown
    assert [True, False] not in shown


def test_a_narrow_window_needs_no_sideways_scroll(open_report: Callable[..., Opened], run: Run) -> None:
    opened = open_report(state="#metric=energy", width=390, ledger=run.path)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_time_of_a_program_without_steps_is_not_that_of_a_step(
    open_report: Callable[..., Opened], edit: Callable[[Path, str, object], None], tmp_path: Path
) -> None:
    run = load_timed(tmp_path / "run.ledger", blocks=50)
    edit(run.path / "rank-0" / "manifest.json", "timed_program", {"operators": 3, "is_whole": True})
    opened = open_report(ledger=run.path)
    opened.page.keyboard.press("m")
    assert opened.text("#instant-name") == "In the program"
    assert "mean of" not in opened.text("#instant-where")
    assert opened.text("#bars-section h2") == "Time of the program"
    assert "step" not in opened.text("[data-card=busy]")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("host clock, 5 unprofiled steps", "median"),
        ("host clock, mean of 5 unprofiled steps", "host clock, mean of 5 unprofiled steps"),
        ("GPU, kernels of 3 profiled steps", "mean"),
    ],
)
def test_a_step_time_says_whether_it_is_a_mean(
    source: str, line: str, open_report: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(summary, "step_times", lambda _rank: StepTimes(5, 1_000_000, None, source))
    opened = open_report(ledger=load_timed(tmp_path / "run.ledger", blocks=50).path)
    first = opened.page.locator('[data-card="step_time_ns"] .card-line').first
    assert first.inner_text() == line


def test_bars_keep_their_colours_on_paper(open_report: Callable[..., Opened], tmp_path: Path) -> None:
    opened = open_report(ledger=load_timed(tmp_path / "run.ledger", blocks=300).path)
    opened.page.emulate_media(media="print")
    style = "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node).printColorAdjust]"
    pieces = [piece.evaluate(style) for piece in opened.page.locator("#bars .split span, .swatch").all()]
    opened.page.emulate_media(media="screen")
    assert len(pieces) > 10
    assert {adjust for _, adjust in pieces} == {"exact"}, "browsers leave backgrounds out of what they print"
