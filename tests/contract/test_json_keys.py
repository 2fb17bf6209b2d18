"""The keys of every JSON document: scripts read them, so a key may be added but not renamed or dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from json_page import documented_keys
from synthetic import make_run

from gpuledger.analyze.memory.growth import Growth
from gpuledger.cli.main import main
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.report.json.document import growth_document

SHOW = {
    "schema_version": int,
    "rank": int,
    "device_idx": int,
    "device_name": str,
    "recorder": str,
    "peak_allocated_bytes": int,
    "peak_reserved_bytes": int,
    "recorded_peak_allocated_bytes": int,
    "recorded_peak_reserved_bytes": int,
    "capacity_bytes": int,
    "step_time_ns": int,
    "step_time_p95_ns": int,
    "step_time_source": str,
    "instant": dict,
    "allocated_bytes": int,
    "requested_bytes": int,
    "active_bytes": int,
    "reserved_bytes": int,
    "breakdown": list,
    "lines": list,
    "notes": list,
}
INSTANT = {"device_idx": int, "index": int, "t_ns": int, "step": int, "phase": str, "label": str}
ACCOUNT = {"category": str, "bytes": int, "blocks": int}
BALANCE = {
    "schema_version": int,
    "rank": int,
    "device_idx": int,
    "device_name": str,
    "instant": dict,
    "total_bytes": int,
    "used_bytes": int,
    "process_bytes": int,
    "unaccounted_bytes": int,
    "lines": list,
    "notes": list,
}
COMPARED = {
    "name": str,
    "device_idx": int,
    "peak_bytes": int,
    "mean_active_bytes": float,
    "area_mib_s": float,
    "duration_s": float,
    "active_s": float,
    "baseline_bytes": int,
    "samples": int,
    "notes": list,
    "ratio_to_first": dict,
    "repeats": int,
    "spread": dict,
}
LINE = {"name": str, "bytes": int, "level": int, "source": str, "note": str}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "two.ledger", ranks=2, blocks=300)


def document(*words: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*(str(word) for word in words), "--json"])
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def has(found: dict[str, Any], keys: dict[str, type]) -> None:
    assert {key: type(found.get(key)) for key in keys} == keys


def test_show(run: Path) -> None:
    found = document("show", run)
    has(found, SHOW)
    has(found["instant"], INSTANT)
    assert found["schema_version"] == SCHEMA_VERSION
    for account in found["breakdown"]:
        has(account, ACCOUNT)
        assert "module" in account
    modules = {account["module"] for account in found["breakdown"]}
    assert None in modules  # outside modules, and rounding
    assert not modules & {"", "(outside modules)"}
    has(found["overhead"], {"paused_ns": int})
    assert {"recorder_bytes", "profiled_step_frac", "profiled_operators_step_frac", "energy_j"} <= set(
        found["overhead"]
    )
    has(found["imbalance"], {"rank": int, "device_idx": int, "highest_bytes": int, "mean_bytes": float, "ratio": float})
    for rank in found["ranks"]:
        has(rank, SHOW)


def test_balance(run: Path) -> None:
    found = document("balance", run)
    has(found, BALANCE)
    has(found["instant"], INSTANT)
    for line in found["lines"]:
        has(line, LINE)
    for rank in found["ranks"]:
        has(rank, BALANCE)


def test_compare(run: Path) -> None:
    result = CliRunner().invoke(main, ["compare", str(run), "--json"])
    rows = json.loads(result.stdout)
    assert isinstance(rows, list)
    for row in rows:
        has(row, COMPARED)
        assert {"energy_j", "energy_uncertainty_j", "exit_status"} <= set(row)


@pytest.mark.torch
@pytest.mark.usefixtures("quick_children")
def test_doctor() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    found = json.loads(result.stdout)
    has(found, {"schema_version": int, "gpuledger_version": str, "ok": bool, "checks": list})
    for check in found["checks"]:
        has(check, {"name": str, "status": str, "found": str, "todo": str})


def test_export(run: Path) -> None:
    result = CliRunner().invoke(main, ["export", str(run), "--to", "json", "-o", "-"])
    found = json.loads(result.stdout)
    has(found, {"schema_version": int, "run": dict, "ranks": list, "tables": dict})


SIDE = {"run": str, "rank": int, "device_idx": int, "device_name": str, "allocated_bytes": int, "metrics": dict}


def test_diff(run: Path, tmp_path: Path) -> None:
    found = document("diff", run, make_run(tmp_path / "other.ledger", blocks=200, seed=7, ranks=2))
    has(found, {"schema_version": int, "equal": bool, "before": dict, "after": dict})
    has(found, {"figures": list, "breakdown": list})
    assert found["time_by_module"] == found["energy_by_module"] == []
    for side in (found["before"], found["after"]):
        has(side, SIDE)
        has(side["instant"], INSTANT)
        assert all(set(metric) == {"value", "spread", "source"} for metric in side["metrics"].values())
    assert found["figures"]
    for figure in found["figures"]:
        assert set(figure) == {"name", "before", "after", "delta", "noise", "noise_known", "within_noise"}
    keys = {"category", "module", "before_bytes", "after_bytes", "delta_bytes", "noise_bytes", "within_noise"}
    assert found["breakdown"]
    assert all(keys <= set(account) for account in found["breakdown"])
    assert len(found["ranks"]) == 2
    assert isinstance(found["notes"], list)


def test_check(run: Path) -> None:
    found = document("check", run, "--against", run)
    has(found, {"schema_version": int, "run": str, "ok": bool, "over": list, "limits": list, "notes": list})
    for gate in found["limits"]:
        has(gate, {"key": str, "unit": str, "ok": bool, "found": int, "written": str, "note": str, "source": str})
        assert {"limit", "over", "base", "rank", "device_idx"} <= set(gate)


def test_the_page_has_every_key_and_no_other(run: Path, tmp_path: Path) -> None:
    several = document("show", run)
    assert set(several) == documented_keys("show")
    assert set(document("balance", run)) == documented_keys("balance")
    assert set(document("group", run)) - {"layer", "data structure"} == documented_keys("group")
    compared = json.loads(CliRunner().invoke(main, ["compare", str(run), "--json"]).stdout)
    assert set(compared[0]) == documented_keys("compare")
    other = make_run(tmp_path / "other.ledger", blocks=200, seed=7, ranks=2)
    assert set(document("diff", run, other)) == documented_keys("diff")
    assert set(document("check", run, "--against", run)) == documented_keys("check")
    assert set(document("what-if", run)) == documented_keys("what-if")
    assert set(growth_document(Growth(0, -1, 1.0, 1, 9, 9, None, None, None))) == documented_keys("Growth")
