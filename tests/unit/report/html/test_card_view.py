"""A watched GPU in the payload: its bytes add up to the GPU's, its peak is there, nothing is made up."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_runs import watch_run

from gpuledger.analyze.view.view import build_view
from gpuledger.errors import EmptyRunError
from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table, write_imported
from gpuledger.report.html.payload import build_payload

if TYPE_CHECKING:
    from pathlib import Path


def view_of(payload: dict[str, Any]) -> dict[str, Any]:
    (view,) = payload["views"]
    assert view["kind"] == "card"
    return dict(view)


def run_with_program(directory: Path, used: list[int], own: list[int | None]) -> dict[str, Any]:
    samples = [{"t_ns": t, "device_idx": 0, "used_bytes": one} for t, one in enumerate(used)]
    mine = [{"t_ns": t, "device_idx": 0, "pid": 5, "bytes": one} for t, one in enumerate(own) if one is not None]
    tables = {"samples": rows_to_table("samples", samples), "process_samples": rows_to_table("process_samples", mine)}
    facts = {"devices": [{"device_idx": 0, "name": "a card", "total_bytes": 1 << 40}], "pids": [5]}
    run = write_imported(ImportedRun("w", "watch", (), (ImportedRank(0, tables, facts, ()),)), directory)
    return view_of(build_payload(build_view(run)))


def test_the_curve_and_the_figures_are_the_cards(tmp_path: Path) -> None:
    run = watch_run(tmp_path / "w.ledger", [2 << 30, 7 << 30, 3 << 30], energy_j=900.0)
    payload = build_payload(build_view(run))
    view = view_of(payload)
    (used,) = view["timeline"]["bytes"]
    assert list(accumulate(used)) == [2 << 30, 7 << 30, 3 << 30]
    assert [payload["categories"][number]["key"] for number in view["timeline"]["categories"]] == ["used"]
    assert view["summary"]["peak_used_bytes"] == 7 << 30
    assert view["instants"]["allocated"][view["peak"]] == 7 << 30
    assert view["figures"]["peak_bytes"] == 5 << 30
    assert [row["energy_j"] for row in view["windows"]] == [900.0]
    assert view["power"] is None


@settings(max_examples=20)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 40)), min_size=2, max_size=30
    ).filter(lambda rows: any(own is not None for _, own in rows))
)
def test_the_program_and_the_rest_make_up_the_card(rows: list[tuple[int, int | None]], tmp_path_factory: Any) -> None:
    used, own = [one for one, _ in rows], [two for _, two in rows]
    view = run_with_program(tmp_path_factory.mktemp("card") / "w.ledger", used, own)
    stacked = np.array([list(accumulate(row)) for row in view["timeline"]["bytes"]])
    assert stacked.shape[0] == 2
    assert stacked.sum(axis=0).tolist() == used
    assert (stacked >= 0).all()
    assert view["instants"]["allocated"][view["peak"]] == max(used)
    held = np.array(view["accounts"]["bytes"]).reshape(2, -1).sum(axis=0)
    assert held.tolist() == view["instants"]["allocated"]


def test_a_run_of_nothing_is_refused(tmp_path: Path) -> None:
    run = write_imported(ImportedRun("e", "watch", (), (ImportedRank(0, {}, {}, ()),)), tmp_path / "e.ledger")
    with pytest.raises(EmptyRunError, match="no GPU was read"):
        build_payload(build_view(run))
