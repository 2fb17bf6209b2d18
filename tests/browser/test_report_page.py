"""The report as its reader meets it: in a browser, offline, with a mouse and a keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opened import Opened
from synthetic import load_run, make_run
from synthetic_work import TIME_STEPS, load_timed

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.summary import Summary, summarize
from gpuledger.units import format_bytes, format_ns, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuledger.model.run import Run

pytestmark = pytest.mark.browser
SHAPE = {"blocks": 4000, "modules": 40}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(tmp_path_factory.mktemp("same") / "run.ledger", **SHAPE)


@pytest.fixture(scope="module")
def summary(run: Run) -> Summary:
    return summarize(run.ranks[0])


@pytest.fixture
def opened(open_report: Callable[..., Opened]) -> Opened:
    return open_report(**SHAPE)


def drag(opened: Opened, start_frac: float, end_frac: float) -> None:
    box = opened.page.locator("#timeline .u-over").bounding_box()
    assert box
    opened.page.mouse.move(box["x"] + box["width"] * start_frac, box["y"] + 80)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] * end_frac, box["y"] + 90, steps=4)
    opened.page.mouse.up()


def click_timeline(opened: Opened, frac: float) -> None:
    box = opened.page.locator("#timeline .u-over").bounding_box()
    assert box
    opened.page.mouse.click(box["x"] + box["width"] * frac, box["y"] + 80)


def table_bytes(opened: Opened) -> list[int]:
    """Return the exact bytes of the rows, as their tips tell them."""
    tips = opened.page.locator("#table-body .column-amount .number")
    return [
        int(tip.split()[0].replace(",", ""))
        for tip in (tips.nth(row).get_attribute("data-tip") for row in range(tips.count()))
        if tip
    ]


def pixels(opened: Opened, selector: str) -> str:
    return str(opened.page.evaluate(f"document.querySelector({selector!r}).toDataURL()"))


def test_nothing_is_fetched_and_nothing_complains(opened: Opened) -> None:
    opened.page.mouse.wheel(0, 4000)
    assert opened.requests == [opened.address]
    assert opened.complaints == []


def test_the_policy_forbids_the_network(opened: Opened) -> None:
    refused = opened.page.evaluate("fetch('https://example.org/').then(() => false, () => true)")
    assert refused
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


def test_cards_hold_the_runs_numbers(opened: Opened, summary: Summary) -> None:
    assert opened.value("recorded_peak_allocated_bytes") == f"{summary.recorded_peak_allocated_bytes:,} bytes"
    assert opened.value("recorded_peak_reserved_bytes") == f"{summary.recorded_peak_reserved_bytes:,} bytes"
    assert opened.text('[data-card="recorded_peak_allocated_bytes"] .card-value') == format_bytes(
        summary.recorded_peak_allocated_bytes
    )
    assert opened.text('[data-card="step_time_ns"] .card-value') == format_ns(summary.step_time.median_ns)
    assert summary.instant.phase in opened.text('[data-card="recorded_peak_allocated_bytes"]')


def test_the_table_is_the_breakdown_at_the_peak(opened: Opened, run: Run, summary: Summary) -> None:
    opened.page.select_option("#group", "account")
    while opened.page.locator("#more").is_visible():
        opened.page.click("#more")
    breakdown = break_down(run.ranks[0], find_peak(run.ranks[0]), by=("category", "module"))
    shown = table_bytes(opened)
    assert shown == sorted((account.bytes for account in breakdown.accounts), reverse=True)
    assert sum(shown) == summary.recorded_peak_allocated_bytes


def test_the_page_opens_at_the_peak(opened: Opened, summary: Summary) -> None:
    assert opened.text("#instant-name") == "At the peak"
    assert f"event {summary.instant.index:,}" in opened.text("#instant-where")


def test_a_click_on_the_timeline_chooses_an_instant_and_says_which(opened: Opened) -> None:
    before = table_bytes(opened)
    click_timeline(opened, 0.1)
    assert opened.text("#instant-name") != "At the peak"
    assert "before step 1 · setup" in opened.text("#instant-where")
    assert "at=" in opened.state
    assert table_bytes(opened) != before
    opened.page.click("#to-peak")
    assert table_bytes(opened) == before


def test_every_instant_sums_to_what_it_says_is_allocated(opened: Opened) -> None:
    opened.page.select_option("#group", "category")
    opened.page.click("#to-end")
    seen = 0
    while opened.page.locator("#earlier").is_enabled() and seen < 12:
        exact = opened.page.locator("#instant-bytes").get_attribute("data-tip")
        assert exact == f"{sum(table_bytes(opened)):,} bytes"
        opened.page.keyboard.press(",")
        seen += 1
    assert seen == 12


def test_dragging_zooms_and_a_double_click_shows_all(opened: Opened) -> None:
    whole = pixels(opened, "#timeline canvas")
    drag(opened, 0.5, 0.7)
    assert "zoom=" in opened.state
    assert pixels(opened, "#timeline canvas") != whole
    assert "at=" not in opened.state
    opened.page.locator("#timeline .u-over").dblclick(position={"x": 300, "y": 60})
    assert "zoom=" not in opened.state


def test_the_scale_reaches_the_capacity_when_asked(opened: Opened) -> None:
    before = pixels(opened, "#timeline canvas")
    opened.page.click("#scale")
    assert opened.page.locator("#scale").get_attribute("aria-pressed") == "true"
    assert pixels(opened, "#timeline canvas") != before


def test_the_axis_can_count_events(opened: Opened) -> None:
    by_time = pixels(opened, "#timeline canvas")
    opened.page.click("#axis")
    assert "axis=event" in opened.state
    assert pixels(opened, "#timeline canvas") != by_time
    drag(opened, 0.5, 0.7)
    start, end = (
        int(text) for text in opened.page.evaluate("location.hash.match(/zoom=([0-9]+)%2C([0-9]+)/).slice(1)")
    )
    assert 0 < start < end < 3 * SHAPE["blocks"]
    click_timeline(opened, 0.5)
    event = int(opened.text("#instant-where").split("event ")[1].replace(",", ""))
    assert start - 400 <= event <= end + 400
    opened.page.click("#axis")
    assert "zoom=" not in opened.state


def test_search_filters_table_and_picture_alike(opened: Opened, run: Run) -> None:
    opened.page.select_option("#group", "account")
    before = pixels(opened, "#structure")
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("weight mlp")
    breakdown = break_down(run.ranks[0], find_peak(run.ranks[0]), by=("category", "module"))
    expected = [a.bytes for a in breakdown.accounts if a.category == "weight" and "mlp" in a.module]
    assert table_bytes(opened) == sorted(expected, reverse=True)
    assert format_bytes(sum(expected)) in opened.text("#matched")
    assert pixels(opened, "#structure") != before
    opened.page.keyboard.press("Escape")
    assert opened.text("#matched") == ""
    assert pixels(opened, "#structure") == before


def test_heads_sort_up_and_down(opened: Opened) -> None:
    opened.page.select_option("#group", "module")
    assert table_bytes(opened) == sorted(table_bytes(opened), reverse=True)
    opened.page.click("#table-head .column-amount button")
    rising = table_bytes(opened)
    assert rising == sorted(rising)
    opened.page.click("#table-head .column-name button")
    names = opened.page.locator("#table-body .column-name").all_inner_texts()
    assert names == sorted(names, key=str.lower)
    assert opened.page.locator("#table-head .column-name").get_attribute("aria-sort") == "ascending"


def test_the_icicle_is_entered_by_click_and_left_by_escape(opened: Opened, summary: Summary) -> None:
    whole = pixels(opened, "#structure")
    opened.page.locator("#structure").click(position={"x": 40, "y": 60})
    assert "node=" in opened.state
    assert opened.page.locator("#trail button").count() == 3
    while "node=" in opened.state:
        opened.page.keyboard.press("Escape")
    opened.page.mouse.move(0, 0)
    assert pixels(opened, "#structure") == whole
    assert opened.text("#trail-bytes") == f"{format_bytes(summary.recorded_peak_allocated_bytes)} allocated"


def test_the_picture_can_be_walked_by_keyboard(opened: Opened) -> None:
    opened.page.locator("#structure").focus()
    opened.page.keyboard.press("ArrowDown")
    assert "everything allocated" in opened.page.locator("#structure-said").inner_text()
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.locator("#structure-said").inner_text().startswith("Net")
    opened.page.keyboard.press("Enter")
    assert "node=" in opened.state


def test_outside_and_rounding_are_always_drawn(opened: Opened) -> None:
    said = set()
    width = opened.page.locator("#structure").bounding_box()["width"]  # type: ignore[index]
    for offset in range(1, 60):
        opened.page.locator("#structure").hover(position={"x": width - offset, "y": 36})
        said.add(opened.text("#structure-said").split(",")[0])
    assert {"(outside modules)", "(rounding)"} <= said


def test_the_treemap_shows_the_same_bytes(opened: Opened) -> None:
    opened.page.click("#shape-treemap")
    opened.page.locator("#structure").hover(position={"x": 200, "y": 200})
    assert "allocated" in opened.text("#tip")
    opened.page.locator("#structure").click(position={"x": 200, "y": 200})
    assert "shape=treemap" in opened.state
    assert "node=" in opened.state


def test_the_state_is_in_the_address_both_ways(open_report: Callable[..., Opened]) -> None:
    first = open_report(**SHAPE)
    first.page.click("#to-end")
    first.page.select_option("#group", "module")
    first.page.fill("#search", "weight")
    first.page.click("#scale")
    drag(first, 0.4, 0.8)
    second = open_report(state=first.state, **SHAPE)
    for selector in ("#instant-name", "#instant-where", "#matched", "#table-count"):
        assert second.text(selector) == first.text(selector)
    assert table_bytes(second) == table_bytes(first)
    assert pixels(second, "#timeline canvas") == pixels(first, "#timeline canvas")
    second.page.evaluate("location.hash = ''")
    second.page.locator("#instant-name", has_text="At the peak").wait_for(state="attached")


@pytest.mark.parametrize(
    "address", ["#at=nonsense&node=99999&view=7&zoom=x&rows=-3&group=none&sort=!!", "#%", "#at=1e99"]
)
def test_a_damaged_address_still_shows_the_report(
    open_report: Callable[..., Opened], address: str, summary: Summary
) -> None:
    opened = open_report(state=address, **SHAPE)
    assert opened.value("recorded_peak_allocated_bytes") == f"{summary.recorded_peak_allocated_bytes:,} bytes"
    assert opened.complaints == []


INHERITED = ("constructor", "__proto__", "toString", "hasOwnProperty", "valueOf")


@pytest.mark.parametrize("word", INHERITED)
def test_an_address_reaches_nothing_that_objects_inherit(open_report: Callable[..., Opened], word: str) -> None:
    keys = (
        "view",
        "at",
        "zoom",
        "node",
        "q",
        "group",
        "sort",
        "rows",
        "axis",
        "scale",
        "shape",
        "metric",
        "span",
        "by",
    )
    opened = open_report(state="#" + "&".join(f"{key}={word}" for key in keys), **SHAPE)
    for key in (*keys, "q", "hide", "theme", word):
        opened.page.evaluate("address => { location.hash = address; }", f"{key}={word}")
        opened.page.wait_for_timeout(30)
    assert opened.complaints == []
    assert table_bytes(opened)


def test_cards_lead_to_what_they_say(opened: Opened) -> None:
    opened.page.click("#to-end")
    opened.follow_card("recorded_peak_allocated_bytes")
    assert opened.text("#instant-name") == "At the peak"
    opened.follow_card("largest_category")
    category = opened.text('[data-card="largest_category"] .card-value')
    assert opened.page.locator("#search").input_value() == category.replace(" ", "_")
    opened.follow_card("step_time_ns")
    assert "zoom=" in opened.state
    opened.follow_card("recorded_peak_reserved_bytes")
    assert opened.page.locator("#scale").get_attribute("aria-pressed") == "true"


def test_a_category_can_be_hidden(opened: Opened) -> None:
    before = pixels(opened, "#timeline canvas")
    opened.page.locator(".legend-entry", has_text="weight").first.click()
    assert "hide=weight" in opened.state
    assert pixels(opened, "#timeline canvas") != before


def test_dark_follows_the_system_and_the_button(open_report: Callable[..., Opened]) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = open_report(**SHAPE), open_report(dark=True, **SHAPE)
    assert light.page.evaluate(ground) != dark.page.evaluate(ground)
    assert pixels(light, "#timeline canvas") != pixels(dark, "#timeline canvas")
    light.page.click("#theme")
    assert light.page.evaluate(ground) == dark.page.evaluate(ground)
    assert pixels(light, "#timeline canvas") == pixels(dark, "#timeline canvas")


def test_numbers_explain_themselves(opened: Opened) -> None:
    opened.page.locator("#balance-body dfn", has_text="unaccounted").hover()
    assert "no other line explains" in opened.text("#tip")
    opened.page.locator("#balance-body dfn", has_text="context").focus()
    assert "CUDA context" in opened.text("#tip")


def test_the_balance_ends_with_the_remainder(opened: Opened) -> None:
    rows = opened.page.locator("#balance-body tr")
    assert rows.last.locator("th").inner_text() == "unaccounted"
    assert "3.0 MiB" in rows.last.inner_text()


def test_the_table_is_copied_as_markdown(opened: Opened) -> None:
    opened.page.select_option("#group", "category")
    copied = opened.copied_by("#copy-markdown")
    assert copied.splitlines()[0] == "| Category | Modules | Bytes | Share |"
    assert [int(line.split("|")[3]) for line in copied.splitlines()[2:]] == table_bytes(opened)


def test_ranks_stand_side_by_side(open_report: Callable[..., Opened]) -> None:
    opened = open_report(blocks=400, modules=6, ranks=3)
    rows = opened.page.locator("#ranks-body tr")
    assert rows.count() == 3
    assert "Highest" in opened.text("#ranks-caption")
    peaks = [parse_bytes(one) for one in opened.page.locator("#ranks-body td:nth-of-type(1)").all_inner_texts()]
    highest = peaks.index(max(peaks))
    assert highest != 0
    current = opened.page.locator('#ranks-body tr[aria-current="true"] th').inner_text()
    assert current == f"rank {highest} · cuda:0", "the page opens with the rank that `show` describes"
    first = opened.value("recorded_peak_allocated_bytes")
    opened.page.select_option("#view", "0")
    assert opened.value("recorded_peak_allocated_bytes") != first
    assert "view=0" in opened.state
    rows.nth(highest).locator("button").click()
    assert opened.value("recorded_peak_allocated_bytes") == first


def test_hostile_names_change_nothing(open_report: Callable[..., Opened]) -> None:
    opened = open_report(blocks=600, modules=40, hostile_names=True)
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 4
    assert opened.complaints == []
    assert opened.requests == [opened.address]
    for group in ("module", "account", "tensor"):
        opened.page.select_option("#group", group)
    opened.page.fill("#search", "</script>")
    assert "onerror" in opened.text("#table-body")
    opened.page.click("#shape-treemap")
    assert opened.complaints == []


def test_running_out_of_memory_stands_above_all(
    open_report: Callable[..., Opened], tmp_path: Path, edit: Callable[[Path, str, object], None]
) -> None:
    path = make_run(tmp_path / "oom.ledger", blocks=50, modules=3)
    sizes = {"tried_bytes": 2 << 30, "total_bytes": 80 << 30, "free_bytes": 1 << 30, "largest_free_bytes": None}
    edit(path / "rank-0" / "manifest.json", "oom", [{"device_idx": 0, **sizes}])
    checks = [{"name": "peak </script>", "device_idx": 0, "expected": 1, "found": 2, "ok": False}]
    edit(path / "rank-0" / "manifest.json", "checks", checks)
    edit(path / "rank-0" / "manifest.json", "notes", ["<b>first</b>", "second"])
    opened = open_report(ledger=path)
    assert "Out of memory: 2.0 GiB requested; the GPU had 1.0 GiB free." in opened.text("#alarm")
    assert "1 of 1 failed" in opened.text("#checks-summary")
    assert "peak </script>" in opened.text("#checks")
    assert opened.page.locator("#notes li").all_inner_texts() == ["<b>first</b>", "second"]
    assert opened.text('[data-card="notes"] .card-value') == "2"


def test_host_memory_that_ran_out_is_the_machines(
    open_report: Callable[..., Opened], tmp_path: Path, edit: Callable[[Path, str, object], None]
) -> None:
    path = make_run(tmp_path / "oom.ledger", blocks=50, modules=3, cuda=False)
    sizes = {"tried_bytes": 2 << 50, "total_bytes": 80 << 30, "free_bytes": 1 << 30, "largest_free_bytes": None}
    edit(path / "rank-0" / "manifest.json", "oom", [{"device_idx": -1, **sizes}])
    opened = open_report(ledger=path)
    assert "Out of memory: 2.0 PiB requested; the machine had 1.0 GiB free." in opened.text("#alarm")
    assert opened.page.get_by_text("To fit the request:").count() == 0  # nothing is known that would have let it pass
    assert opened.complaints == []


@pytest.mark.parametrize("source", ["Kineto", "recorder"])
def test_operator_times_say_what_measured_them(
    open_report: Callable[..., Opened], tmp_path: Path, edit: Callable[[Path, str, object], None], source: str
) -> None:
    path = tmp_path / "timed.ledger"
    load_timed(path, modules=3, blocks=50, host=True)
    if source == "recorder":
        edit(path / "rank-0" / "manifest.json", "time_steps", None)
        edit(path / "rank-0" / "manifest.json", "recorded_time_steps", TIME_STEPS)
    opened = open_report(ledger=path)
    assert f"host time, {source}" in opened.text('[data-card="busy"]')
    assert opened.complaints == []


def test_a_narrow_window_needs_no_sideways_scroll(open_report: Callable[..., Opened]) -> None:
    opened = open_report(width=390, **SHAPE)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_nothing_moves_after_the_page_is_ready(opened: Opened) -> None:
    places = "[...document.querySelectorAll('section, .GPU, canvas')].map((one) => one.getBoundingClientRect().top)"
    first = opened.page.evaluate(places)
    opened.page.wait_for_timeout(300)
    assert opened.page.evaluate(places) == first


def test_a_report_of_cpu_tensors_and_of_one_block_are_whole(open_report: Callable[..., Opened]) -> None:
    for shape in ({"blocks": 300, "cuda": False}, {"blocks": 1, "modules": 1}, {"blocks": 20, "modules": 0}):
        opened = open_report(**shape)
        assert opened.complaints == []
        assert opened.text("#instant-name") == "At the peak"
        is_gpu = shape.get("cuda", True)
        assert opened.page.locator("[data-card=recorded_peak_reserved_bytes]").count() == is_gpu
        assert ("of allocated" in opened.text("#balance-body")) == (not is_gpu)
        opened.page.click("#shape-treemap")
        opened.page.click("#to-end")
        assert opened.complaints == []


def test_it_prints(opened: Opened, tmp_path: Path) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    opened.page.click("#theme")
    dark = opened.page.evaluate(ground)
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#search").is_visible()
    assert opened.page.locator("#definitions").is_visible()
    assert opened.page.evaluate(ground) == "rgb(255, 255, 255)"
    opened.page.emulate_media(media="screen")
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.evaluate(ground) == dark
    assert len(opened.page.pdf(path=str(tmp_path / "report.pdf"))) > 50_000


@pytest.mark.parametrize(("cuda", "heading"), [(True, "GPU memory balance"), (False, "Memory balance")])
def test_the_balance_of_cpu_tensors_is_not_called_that_of_a_gpu(
    open_report: Callable[..., Opened], cuda: bool, heading: str
) -> None:
    opened = open_report(blocks=300, modules=6, cuda=cuda)
    assert opened.text("#balance-section h2") == heading
    assert "GPU" not in opened.text("#balance-caption")
    assert opened.complaints == []
