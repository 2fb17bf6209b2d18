"""The one view of a run: lazy, the same numbers in every rendering, and nothing that a renderer works out itself."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from present import present
from synthetic import load_run
from synthetic_work import load_timed

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.analyze.memory.timeline import build_timeline
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.analyze.overview.ranks import Imbalance
from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.step.fusions import why_no_kernels
from gpuledger.analyze.step.overhead import find_overhead
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.view.chosen_devices import highest_devices
from gpuledger.analyze.view.device_view import DeviceView
from gpuledger.analyze.view.options import GROUPINGS, ViewOptions
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.errors import UsageError
from gpuledger.files.reading import MIB
from gpuledger.model.compilation import Compilation, CompiledRegion, GraphBreak
from gpuledger.model.run import Run
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.html.payload import REPORT_PARTS, build_payload
from gpuledger.report.text.run_summary import run_summary_lines
from gpuledger.report.text.show_text import TableOptions, show_lines
from gpuledger.report.text.tables import imbalance_line
from gpuledger.units import format_bytes, format_frac

PARTS = {name for name, part in vars(DeviceView).items() if isinstance(part, cached_property)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(tmp_path / "run.ledger", blocks=300, ranks=2)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_timed(tmp_path_factory.mktemp("timed") / "run.ledger", blocks=300)


def computed(view: DeviceView) -> set[str]:
    """Return the parts that were computed so far."""
    return PARTS & set(vars(view))


def test_a_view_computes_nothing_until_it_is_asked(run: Run) -> None:
    view = build_view(run)
    assert [computed(device) for device in view.devices] == [set(), set()]
    assert view.devices[0].summary == summarize(run.ranks[0])
    assert computed(view.devices[0]) == {"summary"}


def test_several_ranks_side_by_side_need_their_heads_alone(run: Run) -> None:
    view = build_view(run)
    show_lines(view, TableOptions(), Terminal())
    others = [device for device in view.devices if device is not view.highest]
    assert others
    assert all(computed(device) <= {"summary", "instant", "breakdown"} for device in others)


def test_a_single_table_needs_no_timeline_and_no_findings(timed: Run) -> None:
    view = build_view(timed, ViewOptions(group_by="module"))
    show_lines(view, TableOptions(), Terminal())
    assert computed(view.devices[0]).isdisjoint(
        {"timeline", "bands", "account_series", "tensors", "unknowns", "balance", "findings", "modules", "tree"}
    )


def test_the_parts_are_the_analyses_own(timed: Run) -> None:
    (view,) = build_view(timed, ViewOptions(at="end")).devices
    rank = timed.ranks[0]
    instant = resolve_instant(rank, "end", 0)
    assert view.instant == instant
    assert view.breakdown == break_down(rank, instant)
    assert view.balance == build_balance(rank, 0, "end")
    assert view.findings == find_findings(rank, 0)
    assert view.rates == find_rates(rank, 0)
    assert view.overhead == find_overhead(rank, 0)


def test_the_same_run_has_the_same_peak_in_every_rendering(timed: Run) -> None:
    peak = build_view(timed).highest.summary.peak_allocated_bytes
    shown = CliRunner().invoke(main, ["show", "--json", str(timed.path)])
    assert json.loads(shown.stdout)["peak_allocated_bytes"] == peak
    assert build_payload(build_view(timed))["views"][0]["summary"]["peak_allocated_bytes"] == peak
    assert format_bytes(peak).split()[0] in run_summary_lines(timed, Terminal())[0]
    assert format_bytes(peak).split()[0] in present(timed._repr_html_())


def test_a_report_forgets_what_it_read_rank_after_rank(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    build = build_timeline

    def counting(*arguments: Any) -> Any:
        # _kept: no public name tells what a rank holds in memory
        held.append(sum(len(rank._kept) > 1 for rank in run.ranks))
        return build(*arguments)

    view = build_view(run)
    for rank in run.ranks:
        rank.forget_columns()
    monkeypatch.setattr("gpuledger.analyze.memory.timeline.build_timeline", counting)
    view.compute(REPORT_PARTS)
    assert max(held) == 1
    assert not any(len(rank._kept) > 1 for rank in run.ranks)
    assert [device.summary for device in view.devices] == [summarize(rank) for rank in run.ranks]


def test_the_report_computes_every_part_before_it_is_drawn(timed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    view = build_view(timed)
    view.power  # noqa: B018  read by run, not by device
    view.compute(REPORT_PARTS)
    before = computed(view.devices[0])
    monkeypatch.setattr(type(timed.ranks[0]), "table", pytest.fail)
    build_payload(view)
    assert computed(view.devices[0]) - before <= {"tree", "time_amounts", "energy_amounts", "bars", "instant"}


def test_a_rank_without_blocks_is_left_out_of_the_highest(run: Run) -> None:
    for part in (run.ranks[0].directory / "blocks").glob("*.parquet"):
        part.unlink()
    assert [rank.number for rank, _ in highest_devices(run.ranks)] == [1]
    assert [device.rank.number for device in build_view(run).devices] == [1]


def test_what_tells_nothing_apart_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="no timing measurement"):
        build_view(run, ViewOptions(group_by="kernel")).devices[0].lines  # noqa: B018


@pytest.mark.torch
def test_a_moment_at_which_nothing_is_allocated_is_named(tmp_path: Path) -> None:
    import torch

    from gpuledger import record

    with record(out=tmp_path / "run", devices="cpu") as recording:
        torch.ones(1000).sum()
    for word in ("category", "line"):
        options = ViewOptions(group_by=word, at="end")
        with pytest.raises(UsageError, match="--at end: no memory is allocated"):
            build_view(recording.run(), options).devices[0].lines  # noqa: B018
    with pytest.raises(UsageError, match="step 2 was not recorded") as raised:
        build_view(recording.run(), ViewOptions(step=2)).devices[0].breakdown  # noqa: B018
    assert raised.value.hint == "The run has no recorded step: leave --step out"


def test_a_run_without_compiled_code_has_no_fusions(timed: Run) -> None:
    with pytest.raises(UsageError, match="no profiled kernels of compiled code"):
        show_lines(build_view(timed, ViewOptions(group_by="fusion")), TableOptions(), Terminal())


@pytest.mark.parametrize(
    ("graphs", "failure", "why", "hint"),
    [
        (0, "Attempted to wrap LSTM", "compiled no graph", "forward (net.py:5): Attempted to wrap LSTM"),
        (0, None, "compiled no graph", "Graph break (net.py:9): call of print"),
        (2, None, "ran no kernels of TorchInductor", "aot_eager"),
    ],
)
def test_a_run_whose_compiler_made_no_kernels_says_so(
    timed: Run, graphs: int, failure: str | None, why: str, hint: str
) -> None:
    region = CompiledRegion(
        source="dir/net.py:5", function="forward", compilations=graphs, seconds=1.0, failure=failure
    )
    broken = GraphBreak(source="dir/net.py:9", reason="call of print", count=1, graphs=0, seconds=0.0)
    done = Compilation(graphs=graphs, seconds=1.0, regions=(region,), places=(broken,))
    assert done.is_done == bool(graphs)
    assert hint in why_no_kernels(replace(timed.ranks[0].manifest, compilation=done))[1]
    assert why in why_no_kernels(replace(timed.ranks[0].manifest, compilation=done))[0]


@pytest.mark.parametrize("group_by", [one for one in GROUPINGS if one != "fusion"])
def test_every_grouping_can_be_shown(timed: Run, group_by: str) -> None:
    assert show_lines(build_view(timed, ViewOptions(group_by=group_by)), TableOptions(), Terminal())


def called_in(module: str) -> set[str]:
    """Return the names of what a module imports from ``gpuledger.analyze`` to be called."""
    path = importlib.import_module(module).__file__
    assert path
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuledger.analyze.")
        for alias in node.names
    }
    return called & imported


ANALYSES = {
    *("summarize", "break_down", "build_timeline", "thin", "read_lines", "find_findings", "build_balance"),
    *("break_down_time", "break_down_energy", "find_rates", "find_overhead", "step_parts", "build_account_series"),
    *(
        "find_imbalance",
        "explain_oom",
        "explain_ranks",
        "who_ran_out",
        "list_unknown",
        "lines_by",
        "resolve_instant",
        "find_peak",
    ),
}


def test_the_mean_of_many_ranks_is_that_of_all(tmp_path: Path) -> None:
    view = build_view(load_run(tmp_path / "run.ledger", blocks=60, modules=6, ranks=12))
    assert view.rank_set is not None
    assert view.imbalance is not None
    peaks = [line.recorded_peak_allocated_bytes for line in view.rank_set.lines]
    assert (len(peaks), len(view.devices)) == (12, 8)
    assert view.imbalance.mean_bytes == sum(peaks) / 12
    share = format_frac(max(peaks) * 12 / sum(peaks) - 1)
    said = f"has the highest peak, {format_bytes(max(peaks))}, {share} above the mean of "
    assert said in imbalance_line(view.imbalance)


@pytest.mark.parametrize(
    ("highest_bytes", "said"),
    [
        (1000 * MIB, "balanced: the highest peak is within 2 % of the mean, 1000.0 MiB"),
        (1020 * MIB, "balanced: the highest peak is within 2 % of the mean, 1000.0 MiB"),
        (1020 * MIB + 1, "unbalanced: rank 1 (cuda:0) has the highest peak, 1020.0 MiB, 2.0 % above the mean of"),
    ],
)
def test_ranks_are_unbalanced_if_they_differ_as_outliers_do(highest_bytes: int, said: str) -> None:
    found = Imbalance(1, 0, highest_bytes, 1000.0 * MIB, highest_bytes / (1000 * MIB))
    assert imbalance_line(found).startswith(said)
    small = Imbalance(1, 0, 3 * MIB // 2, 0.5 * MIB, 3.0)
    assert imbalance_line(small) == "balanced: the highest peak is within 1.0 MiB of the mean, 512.0 KiB"


@pytest.mark.parametrize("room", ["base", "text", "json", "html"])
def test_renderers_call_no_analysis(room: str) -> None:
    package = importlib.import_module(f"gpuledger.report.{room}")
    modules = [one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    found = {name: sorted(called_in(name) & ANALYSES) for name in modules}
    assert {name: calls for name, calls in found.items() if calls} == {}
