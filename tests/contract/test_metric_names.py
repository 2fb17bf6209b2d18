"""One meaning per metric: a run gives the same figure for the same name in every command that prints it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from synthetic_work import load_timed

from gpuledger.analyze.compare.compare import FIGURES, compare
from gpuledger.analyze.compare.metrics import KINDS, headline, measure
from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.integrations.scalars import PREFIX, run_scalars
from gpuledger.model.imported import rows_to_table
from gpuledger.model.run import Run, read_run, write_table
from gpuledger.report.html.payload import build_payload

GIB = 1 << 30
PROGRAM = {"peak_allocated_bytes": 90 * GIB, "peak_reserved_bytes": 95 * GIB}
RECORDED = ("recorded_peak_allocated_bytes", "recorded_peak_reserved_bytes")
NAMES = {*KINDS, *RECORDED} - {"energy_j"}
"""The energy of a watched window is left out: accounts and windows have an energy each, under this name."""


def ask(*words: Any) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def with_higher_peaks_outside(path: Path) -> Run:
    """Return a run whose program took more after the recorded steps than in them."""
    rank = load_timed(path).rank()
    rows = rank.table("counters").to_pylist()
    write_table(rank.directory, rows_to_table("counters", [*rows[:-1], rows[-1] | PROGRAM]), "counters")
    return read_run(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return with_higher_peaks_outside(tmp_path_factory.mktemp("runs") / "one.ledger")


def named(value: Any) -> Iterator[tuple[str, float]]:
    """Yield every number of a JSON value that stands under the name of a metric, without ratios."""
    if isinstance(value, list):
        for one in value:
            yield from named(one)
    elif isinstance(value, dict):
        key = value.get("key", value.get("name"))
        if isinstance(key, str) and key in NAMES:
            yield from ((key, value[place]) for place in ("found", "after") if value.get(place) is not None)
        for name, one in value.items():
            if name == "ratio_to_first":
                continue
            number = one.get("value") if isinstance(one, dict) else one
            if name in NAMES and isinstance(number, int | float) and not isinstance(number, bool):
                yield name, float(number)
            yield from named(one)


def answers(run: Run, tmp_path: Path) -> dict[str, Any]:
    """Return what each command and function says of a run, as JSON values."""
    base = load_timed(tmp_path / "base.ledger", modules=20)
    metrics = measure(run.rank(), 0)
    limits = "\n".join(f"{name} = 1e300" for name in metrics)
    tolerances = "\n".join(f'{name} = "1 %"' for name in metrics if not KINDS[name].exact)
    (tmp_path / "budget.toml").write_text(f"[limits]\n{limits}\n[tolerances]\n{tolerances}\n")
    counters = json.loads(ask("export", run.path, "--to", "json", "--table", "counters", "-o", "-").stdout)
    return {
        "show": json.loads(ask("show", run.path, "--json").stdout),
        "check": json.loads(ask("check", run.path, "--budget", tmp_path / "budget.toml", "--json").stdout),
        "diff": json.loads(ask("diff", base.path, run.path, "--json").stdout)["after"],
        "compare": json.loads(ask("compare", run.path, "--json").stdout),
        "report": build_payload(build_view(run))["views"],
        "Recording.metrics": headline(run.rank()),
        "loggers": {name.removeprefix(PREFIX): value for name, value in run_scalars(run).items()},
        "sql": json.loads(ask("sql", run.path, "SELECT * FROM peaks", "--json").stdout),
        "counters": {name: max(row[name] for row in counters["tables"]["counters"]) for name in PROGRAM},
    }


def test_a_name_has_one_figure_wherever_it_stands(run: Run, tmp_path: Path) -> None:
    found: dict[str, dict[str, float]] = {}
    for command, value in answers(run, tmp_path).items():
        for name, number in named(value):
            found.setdefault(name, {})[command] = number
    assert {name: len(set(said.values())) for name, said in found.items()} == dict.fromkeys(found, 1), found
    assert {name: found[name]["show"] for name in PROGRAM} == PROGRAM
    assert found["peak_allocated_bytes"].keys() == {
        *("show", "check", "diff", "report", "Recording.metrics", "loggers", "counters")
    }
    assert found["recorded_peak_allocated_bytes"].keys() == {"show", "report", "sql"}
    assert all(found[name]["show"] < 90 * GIB for name in RECORDED)
    assert {"step_time_ns", "step_energy_j", "gpu_busy_frac"} <= found.keys()


def test_the_accounts_sum_to_the_recorded_peak(run: Run) -> None:
    document = json.loads(ask("show", run.path, "--json").stdout)
    assert sum(account["bytes"] for account in document["breakdown"]) == document["recorded_peak_allocated_bytes"]
    assert "90.0 GiB" in summarize(run.rank()).outside_notes[0]


def test_a_limit_on_the_peak_holds_for_the_whole_program(run: Run, tmp_path: Path) -> None:
    (tmp_path / "budget.toml").write_text('[limits]\npeak_allocated_bytes = "89 GiB"\n')
    assert ask("check", run.path, "--budget", tmp_path / "budget.toml").exit_code == 5


def test_a_watched_card_has_one_peak_and_one_energy(tmp_path: Path) -> None:
    second, mib = 10**9, 1 << 20
    run = load_timed(tmp_path / "card.ledger", blocks=0)
    rank = run.rank()
    samples = [
        {"t_ns": t * second, "device_idx": 0, "used_bytes": used * mib, "total_bytes": 80 * GIB}
        for t, used in enumerate((3, 5, 9, 4), 1)
    ]
    window = {"device_idx": 0, "start_ns": second, "end_ns": 4 * second, "energy_j": 70.0, "uncertainty_j": 1.0}
    tables: dict[str, list[dict[str, Any]]] = {"windows": [{**window, "ticks": 30}], "process_samples": []}
    for name, rows in {**tables, "samples": samples}.items():
        write_table(rank.directory, rows_to_table(name, rows), name)
    run = read_run(run.path)
    (row,) = compare([run]).rows
    metrics = measure(run.rank(), 0)
    shared = {"peak_bytes", "energy_j"}
    assert shared <= FIGURES.keys() & metrics.keys()
    assert {name: row.value(name) for name in shared} == {name: metrics[name].value for name in shared}
