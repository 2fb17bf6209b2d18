"""Time in the payload: the analysis's own numbers, on the tree that holds the bytes; power beside them."""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import load_run
from synthetic_work import load_timed

from gpuledger.analyze.step.energy import IDLE, break_down_energy
from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.view.report_tree import IDLE_PATH, Module, build_tree
from gpuledger.analyze.view.step_amounts import Amount, owners_of
from gpuledger.analyze.view.view import build_view
from gpuledger.report.base.colors import CATEGORY_COLORS, PHASE_COLORS, UNKNOWN_COLOR, phase_color, phase_order
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.html.amount_columns import amount_columns
from gpuledger.report.html.payload import build_payload
from gpuledger.report.text.show_text import TableOptions, show_lines

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Run

MODULES = tuple(Module(n, None if n == 0 else 0, f"m{n}", "M") for n in range(5))
AMOUNTS = st.lists(
    st.builds(
        Amount,
        st.sampled_from(["", "unheard of", *(module.path for module in MODULES)]),
        st.sampled_from(["forward", "backward", "", IDLE]),
        st.floats(0, 1e9),
        st.none() | st.floats(0, 10),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_timed(tmp_path_factory.mktemp("timed") / "run.ledger", blocks=500)


@pytest.fixture(scope="module")
def payload(run: Run) -> dict[str, Any]:
    return build_payload(build_view(run))


def test_the_nodes_hold_the_breakdowns_own_times(run: Run, payload: dict[str, Any]) -> None:
    times = break_down_time(run.ranks[0], 0)
    assert times is not None
    view = payload["views"][0]
    columns = view["time"]["accounts"]
    assert columns["node"] == sorted(columns["node"])
    held = {
        (view["tree"]["path"][node], payload["phases"][category]["key"]): amount
        for node, category, amount in zip(columns["node"], columns["category"], columns["amount"], strict=True)
    }
    assert held.pop((IDLE_PATH, IDLE)) == pytest.approx(times.idle_ns, abs=1)
    expected = {(one.module or "(outside modules)", one.phase): one.time_ns for one in times.accounts}
    assert held == pytest.approx(expected, abs=1)
    assert sum(held.values()) == pytest.approx(times.work_ns, abs=len(held))


def test_bars_are_cut_from_the_same_sums(payload: dict[str, Any]) -> None:
    time = payload["views"][0]["time"]
    by_part, by_kind = (bar for bar in payload["views"][0]["bars"] if bar["currency"] == "time")
    for bar in (by_part, by_kind):
        assert bar["whole"] == pytest.approx(sum(amount for _, amount in bar["parts"]))
        assert bar["whole"] == pytest.approx(time["work_ns"] + time["idle_ns"], abs=2)
    assert [name for name, _ in by_part["parts"]] == ["forward", "backward", "optimizer", "between", IDLE]
    assert by_part["whole"] == time["unprofiled"]["median_ns"]
    assert [name for name, _ in by_kind["parts"]] == ["kernel", "copy", IDLE]


def test_parts_of_a_step_on_the_cpu_are_those_of_the_first_screen(tmp_path: Path) -> None:
    run = load_timed(tmp_path / "host.ledger", host=True)
    view = build_view(run)
    (bar,) = build_payload(view)["views"][0]["bars"]
    names = {name for name, _ in bar["parts"]}
    assert {"other operators", "outside operators"} <= names
    line = " ".join(show_lines(view, TableOptions(), Terminal()))
    assert [name for name, time_ns in bar["parts"] if time_ns >= 0.001 * bar["whole"] and f"{name} " not in line] == []


def test_joules_are_those_of_the_breakdown(run: Run, payload: dict[str, Any]) -> None:
    energy = break_down_energy(run.ranks[0], 0)
    assert energy is not None
    view = payload["views"][0]
    columns = view["energy"]["accounts"]
    assert sum(columns["amount"]) == pytest.approx(energy.step_energy_j) == pytest.approx(100.0)
    colors = {part["key"]: part["color"] for part in view["parts"]}
    assert list(colors) == ["forward", "backward", "optimizer", "between", "kernel", "copy", IDLE]
    assert {name for bar in view["bars"] for name, _ in bar["parts"]} == colors.keys()
    assert view["bars"][2]["whole"] == pytest.approx(energy.step_energy_j)
    largest = max(columns["amount"])
    place = columns["amount"].index(largest)
    found = next(one for one in energy.accounts if one.energy_j == pytest.approx(largest, abs=1e-5))
    assert columns["uncertainty"][place] == pytest.approx(found.uncertainty_j, abs=1e-5)
    path = view["tree"]["path"][columns["node"][place]]
    assert path == (IDLE_PATH if found.phase == IDLE else found.module or "(outside modules)")


def test_power_is_what_was_read(run: Run, payload: dict[str, Any]) -> None:
    power = payload["views"][0]["power"]
    read = [one for one in run.rank().table("samples")["power_instant_w"].to_pylist() if one is not None]
    assert np.array(list(accumulate(power["tenths_w"]))) / 10 == pytest.approx(np.array(read), abs=0.051)
    assert list(accumulate(power["t"])) == sorted(accumulate(power["t"]))


def test_a_run_without_these_passes_has_neither(tmp_path: Path) -> None:
    run = load_run(tmp_path / "run.ledger", blocks=50)
    payload = build_payload(build_view(run))
    assert payload["phases"] == []
    assert [payload["views"][0][name] for name in ("time", "energy", "power")] == [None] * 3


@given(AMOUNTS)
def test_nothing_is_lost_between_modules_and_nodes(amounts: list[Amount]) -> None:
    tree = build_tree(MODULES, owners_of(amounts, MODULES))
    numbers = {name: number for number, name in enumerate(("forward", "backward", "between", IDLE))}
    columns = amount_columns(amounts, tree, MODULES, numbers, 3)
    assert sum(columns["amount"]) == pytest.approx(sum(one.amount for one in amounts), abs=0.01)
    assert all(0 <= node < len(tree.path) for node in columns["node"])
    idle = sum(one.amount for one in amounts if one.phase == IDLE)
    at_idle = sum(a for node, a in zip(columns["node"], columns["amount"], strict=True) if node == tree.idle)
    assert at_idle == pytest.approx(idle, abs=0.01)
    known = [one.uncertainty is not None for one in amounts]
    assert all(one is not None for one in columns["uncertainty"]) or not all(known)


def test_phases_stand_in_the_order_of_a_step() -> None:
    assert phase_order((IDLE, "warp drive", "backward", "forward")) == ("forward", "backward", "warp drive", IDLE)
    assert phase_color("warp drive") == UNKNOWN_COLOR
    assert phase_color("forward") == PHASE_COLORS["forward"]


def test_no_time_has_the_colour_of_a_category_of_memory() -> None:
    assert not set(PHASE_COLORS.values()) & set(CATEGORY_COLORS.values())
    same = {("between", "other operators"), ("outside operators", "idle")}
    twice = {pair for pair in combinations(PHASE_COLORS, 2) if PHASE_COLORS[pair[0]] == PHASE_COLORS[pair[1]]}
    assert twice == same, "one meaning has one colour"


@pytest.mark.parametrize("background", ["#ffffff", "#1b1e22"])
def test_the_colours_of_time_can_be_seen_on_both_backgrounds(background: str) -> None:
    assert {
        name: contrast(color, background) for name, color in PHASE_COLORS.items() if contrast(color, background) < 3
    } == {}


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 has it, from 1 to 21."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
