"""The payload: it holds the analyses' own numbers, the same bytes each time, and any name."""

from __future__ import annotations

import base64
import gzip
import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import HOSTILE, load_run

from gpuledger.analyze.memory.account_series import OUTSIDE
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.tree import OUTSIDE_PATH, ROUNDING_PATH
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.view import device_view
from gpuledger.analyze.view.report_tree import IDLE_PATH, Module, build_tree
from gpuledger.analyze.view.view import build_view
from gpuledger.errors import EmptyRunError
from gpuledger.model.accounts import CATEGORIES, DEVICE_LINES, ROUNDING
from gpuledger.report.base.colors import CATEGORY_COLORS, UNKNOWN_COLOR, category_color, stack_order
from gpuledger.report.html.columns import differences
from gpuledger.report.html.payload import build_payload, encode
from gpuledger.report.html.sections.registry import definitions

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Run


def decode(text: str) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text)))
    return payload


def payload_of(run: Run) -> dict[str, Any]:
    return decode(encode(build_payload(build_view(run))))


def unpack_accounts(payload: dict[str, Any], view: dict[str, Any], k: int) -> dict[tuple[str, str], int]:
    """Return the accounts at instant ``k`` as the page reads them."""
    accounts, held, run = view["accounts"], {}, 0
    nodes = list(accumulate(accounts["node"]))
    assert nodes == sorted(nodes)
    for node, category, count in zip(nodes, accounts["category"], accounts["runs"], strict=True):
        for position in range(run, run + count):
            if accounts["first"][position] <= k <= accounts["last"][position]:
                held[payload["categories"][category]["key"], view["tree"]["path"][node]] = accounts["bytes"][position]
        run += count
    return held


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(tmp_path / "run.ledger", blocks=1500)


def test_the_peaks_accounts_are_those_of_the_breakdown(run: Run) -> None:
    payload = payload_of(run)
    view = payload["views"][0]
    breakdown = break_down(run.ranks[0], find_peak(run.ranks[0]), by=("category", "module"))
    names = {(ROUNDING, ""): (ROUNDING, ROUNDING_PATH)}
    expected = {
        names.get((a.category, a.module), (a.category, a.module or OUTSIDE_PATH)): a.bytes for a in breakdown.accounts
    }
    assert unpack_accounts(payload, view, view["peak"]) == expected
    assert view["instants"]["allocated"][view["peak"]] == view["summary"]["recorded_peak_allocated_bytes"]


def test_every_instant_sums_to_allocated(run: Run) -> None:
    payload = payload_of(run)
    view = payload["views"][0]
    for k, allocated in enumerate(view["instants"]["allocated"]):
        assert sum(unpack_accounts(payload, view, k).values()) == allocated


def test_the_timelines_highest_sum_is_the_peak(run: Run) -> None:
    view = payload_of(run)["views"][0]
    columns = [list(accumulate(column)) for column in view["timeline"]["bytes"]]
    assert max(map(sum, zip(*columns, strict=True))) == view["summary"]["recorded_peak_allocated_bytes"]
    assert max(accumulate(view["timeline"]["reserved"])) == view["summary"]["peak_reserved_bytes"]


def test_cards_and_balance_are_the_analyses_own(run: Run) -> None:
    view = payload_of(run)["views"][0]
    summary, balance = summarize(run.ranks[0]), build_balance(run.ranks[0])
    assert view["summary"]["step_time"]["median_ns"] == summary.step_time.median_ns
    assert view["summary"]["capacity_bytes"] == summary.capacity_bytes
    lines = [(line["name"], line["bytes"], line["level"]) for line in view["balance"]["lines"]]
    assert lines == [(line.name, line.bytes, line.level) for line in balance.lines]
    assert view["balance"]["unaccounted_bytes"] == balance.unaccounted_bytes


def test_the_same_run_gives_the_same_bytes(run: Run) -> None:
    first, second = (encode(build_payload(build_view(run))) for _ in range(2))
    assert first == second


def test_hostile_names_arrive_whole_and_never_as_markup(tmp_path: Path) -> None:
    run = load_run(tmp_path / "run.ledger", blocks=300, modules=20, hostile_names=True)
    text = encode(build_payload(build_view(run)))
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    assert set(HOSTILE) <= set(decode(text)["views"][0]["tree"]["path"])


def test_every_rank_is_a_view(tmp_path: Path) -> None:
    run = load_run(tmp_path / "run.ledger", blocks=200, modules=4, ranks=3)
    views = payload_of(run)["views"]
    assert [(view["rank"], view["device_idx"]) for view in views] == [(0, 0), (1, 0), (2, 0)]
    assert [view["summary"]["recorded_peak_allocated_bytes"] for view in views] == [
        summarize(rank).recorded_peak_allocated_bytes for rank in run.ranks
    ]


def test_without_a_card_nothing_is_made_up(tmp_path: Path) -> None:
    view = payload_of(load_run(tmp_path / "run.ledger", blocks=200, cuda=False))["views"][0]
    assert view["balance"]["used_bytes"] is None
    assert view["balance"]["unaccounted_bytes"] is None


def test_a_run_without_blocks_says_so(tmp_path: Path) -> None:
    run = load_run(tmp_path / "run.ledger", blocks=10, cuda=False)
    for part in (run.ranks[0].directory / "blocks").glob("*.parquet"):
        part.unlink()
    with pytest.raises(EmptyRunError, match="no allocation was recorded"):
        build_payload(build_view(run))


def test_a_wide_model_gets_fewer_instants_but_keeps_the_peak(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_view(run).devices[0].account_series
    monkeypatch.setattr(device_view, "RUNS_OF_FILE", whole.bytes.size // 2)
    fewer = build_view(run).devices[0].account_series
    assert len(fewer.instants) < len(whole.instants)
    assert find_peak(run.ranks[0]).index in [instant.index for instant in fewer.instants]


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_differences_undo(values: list[int]) -> None:
    assert list(accumulate(differences(values))) == values


MODULES = (Module(0, None, "Net", "Net"), Module(1, 0, "a", "A"), Module(2, 1, "a.b", "B"), Module(3, 0, "c", "C"))


def test_the_tree_holds_owners_and_what_is_above_them() -> None:
    tree = build_tree(MODULES, [2, OUTSIDE])
    assert tree.path == ("", "Net", "a", "a.b", OUTSIDE_PATH, IDLE_PATH, ROUNDING_PATH)
    assert tree.parent == (-1, 0, 1, 2, 0, 0, 0)
    assert [tree.path[node] for node in (tree.outside, tree.idle, tree.rounding)] == list(tree.path[-3:])
    assert tree.path[tree.node_of[2]] == "a.b"
    assert tree.path[tree.node_of[OUTSIDE]] == OUTSIDE_PATH


@given(st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=10), st.sets(st.integers(-1, 12)))
def test_parents_come_first_whatever_the_table_says(parents: list[int | None], owners: set[int]) -> None:
    modules = tuple(Module(number, parent, f"m{number}", "M") for number, parent in enumerate(parents))
    tree = build_tree(modules, owners)
    assert all(parent < node for node, parent in enumerate(tree.parent))
    assert owners <= set(tree.node_of)
    assert len(set(tree.node_of.values())) == len(tree.node_of)


def test_every_category_has_its_own_colour() -> None:
    assert set(CATEGORY_COLORS) == {*CATEGORIES, ROUNDING}
    assert len(set(CATEGORY_COLORS.values())) == len(CATEGORY_COLORS)
    assert category_color("unheard_of") == UNKNOWN_COLOR


def test_the_stack_begins_with_what_stays() -> None:
    assert stack_order(("zebra", ROUNDING, "activation", "weight")) == ("weight", "activation", ROUNDING, "zebra")


def test_every_number_shown_is_defined() -> None:
    found = definitions()
    assert {f"category.{name}" for name in (*CATEGORIES, ROUNDING)} <= set(found)
    assert {*DEVICE_LINES, "allocated", "reserved", "used", "unused", "capacity"} <= set(found)
    assert all(one.title and one.meaning and one.source for one in found.values())
