"""A report's data as the text that the page reads: JSON in gzip in base64, long columns as differences.

The same run gives the same text, byte for byte. Times are nanoseconds since the recording opened, since an absolute
time does not fit a double.
"""

from __future__ import annotations

import base64
import gzip
import json
import shlex
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.memory.account_series import AccountSeries
from gpuledger.errors import EmptyRunError
from gpuledger.model.accounts import ROUNDING
from gpuledger.model.run import SUFFIX
from gpuledger.report.base.colors import (
    PHASE_COLORS,
    UNKNOWN_COLOR,
    category_color,
    phase_color,
    phase_order,
    stack_order,
)
from gpuledger.report.html.amount_columns import amount_columns, phases_of
from gpuledger.report.html.card_payload import card_payload
from gpuledger.report.html.columns import differences, power_columns, window_rows
from gpuledger.report.html.definitions import definitions
from gpuledger.report.html.provenance import check_rows, facts_of_rank, facts_of_run, oom_rows

if TYPE_CHECKING:
    from gpuledger.analyze.memory.live import I64
    from gpuledger.analyze.overview.findings import Finding
    from gpuledger.analyze.samples.series import Line as SeriesLine
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.report_tree import ReportTree
    from gpuledger.analyze.view.step_amounts import StepBar
    from gpuledger.analyze.view.view import DeviceView, RunView

FORMAT = 1
JOULE_DECIMALS = 6
REPORT_PARTS = (
    *("summary", "timeline", "bands", "modules", "account_series", "tensors", "balance", "findings", "windows"),
    *("times", "parts", "energy", "rates", "cost"),
)
"""What of a device is computed from its tables; the rest is made of these."""


def encode(payload: dict[str, Any]) -> str:
    """Return ``payload`` as base64 of gzip of JSON; it holds no character that could end a script element."""
    text = json.dumps(payload, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)).decode("ascii")


def build_payload(view: RunView) -> dict[str, Any]:
    """Return the object the page works on.

    Raises:
        EmptyRunError: no rank has a block or a reading of a card's bytes.
    """
    if not view.devices and not view.cards:
        raise EmptyRunError(
            f"{view.run.path.name}: no allocation was recorded and no card was read, there is nothing to report",
            hint="gpuledger doctor says what can be recorded here",
        )
    power = view.power
    view.compute(REPORT_PARTS)
    categories = _categories(view)
    numbers = {name: number for number, name in enumerate(categories)}
    phases = phase_order(
        phases_of(amounts for one in view.devices for amounts in (one.time_amounts, one.energy_amounts))
    )
    phase_numbers = {name: number for number, name in enumerate(phases)}
    return {
        "format": FORMAT,
        "name": view.run.name,
        "facts": facts_of_run(view.run.manifest),
        "run_notes": list(view.run.manifest.notes),
        "categories": [{"key": name, "color": category_color(name)} for name in categories],
        "definitions": {key: asdict(definition) for key, definition in definitions().items()},
        "phases": [{"key": name, "color": phase_color(name)} for name in phases],
        "part_colors": {**PHASE_COLORS, "other": UNKNOWN_COLOR},
        "views": [
            *(
                _device(one, power.get((one.rank.number, one.device_idx)), numbers, phase_numbers, view.run.name)
                for one in view.devices
            ),
            *(card_payload(card, numbers) for card in view.cards),
        ],
    }


def _categories(view: RunView) -> tuple[str, ...]:
    """Return every category of any device or card in the order of the stack."""
    found = {ROUNDING} if view.devices else set()
    for card in view.cards:
        found |= set(card.categories)
    for one in view.devices:
        series = one.account_series
        found |= set(one.timeline.categories) | {account.category for account in one.tensors.accounts}
        found |= {series.categories[code] for code in np.unique(series.category).tolist()}
    return stack_order(tuple(found))


def _device(
    view: DeviceView, power: SeriesLine | None, numbers: dict[str, int], phases: dict[str, int], name: str
) -> dict[str, Any]:
    origin_ns, summary, series = int(view.timeline.t_ns[0]), view.summary, view.account_series
    manifest = view.rank.manifest
    peak = next(k for k, instant in enumerate(series.instants) if instant.index == summary.instant.index)
    return {
        "kind": "books",
        "rank": view.rank.number,
        "device_idx": view.device_idx,
        "device_name": summary.device_name,
        "recorder": summary.recorder,
        "summary": asdict(summary) | {"instant": {"step": summary.instant.step}},
        "peak": peak,
        "notes": [*summary.notes],
        "timeline": _timeline(view, numbers, origin_ns),
        "bands": _bands(view, origin_ns),
        "instants": _instants(series, origin_ns),
        "tree": _tree(view.tree),
        "accounts": _accounts(series, view.tree, numbers),
        "tensors": _tensors(view, numbers),
        "time": None if view.times is None else _time(view.times, view, phases),
        "rates": None if view.rates is None else asdict(view.rates),
        "energy": None if view.energy is None else _energy(view.energy, view, phases),
        "bars": [_bar(bar) for bar in view.bars],
        "power": None if power is None else power_columns(power, origin_ns),
        "windows": window_rows(view.windows, origin_ns),
        "balance": asdict(view.balance) | {"instant": None},
        "findings": [_finding(finding, name) for finding in view.findings],
        "facts": facts_of_rank(manifest, view.device_idx, view.cost),
        "checks": check_rows(manifest, view.device_idx),
        "oom": oom_rows(manifest, view.device_idx),
    }


def _time(times: TimeBreakdown, view: DeviceView, phases: dict[str, int]) -> dict[str, Any]:
    """Return one step of the time pass, in nanoseconds."""
    return {
        "accounts": amount_columns(view.time_amounts, view.tree, view.modules, phases, 0),
        "steps": times.steps,
        "on_host": times.on_host,
        "work_ns": round(times.work_ns),
        "busy_ns": round(times.busy_ns),
        "idle_ns": None if times.idle_ns is None else round(times.idle_ns),
        "by_kind_ns": {kind: round(ns) for kind, ns in times.by_kind_ns.items()},
        "unplaced_ns": round(times.unplaced_ns),
        "undisturbed": asdict(times.undisturbed),
    }


def _energy(energy: EnergyBreakdown, view: DeviceView, phases: dict[str, int]) -> dict[str, Any]:
    """Return one step of the energy pass, in joules."""
    return {
        "accounts": amount_columns(view.energy_amounts, view.tree, view.modules, phases, JOULE_DECIMALS),
        "steps": energy.steps,
        "step_energy_j": round(energy.step_energy_j, JOULE_DECIMALS),
        "step_uncertainty_j": round(energy.step_uncertainty_j, JOULE_DECIMALS),
        "base_w": energy.base_w,
        "method": energy.method,
        "notes": list(energy.notes),
    }


def _bar(bar: StepBar) -> dict[str, Any]:
    """Return a step cut into parts, in the order in which phases are stacked."""
    parts = dict(bar.parts)
    return {**asdict(bar), "parts": [(name, parts[name]) for name in phase_order(tuple(parts))]}


def _finding(finding: Finding, name: str) -> dict[str, Any]:
    run = shlex.quote(f"{name}{SUFFIX}")
    words = ["gpuledger", *(run if word == "RUN" else word for word in finding.command)]
    return {
        "title": finding.title,
        "evidence": finding.evidence,
        "advice": finding.advice,
        "saving": finding.saving_bytes,
        "saved_from": finding.saved_from,
        "command": " ".join(words),
        "search": finding.search,
    }


def _timeline(view: DeviceView, numbers: dict[str, int], origin_ns: int) -> dict[str, Any]:
    timeline = view.timeline
    order = sorted(range(len(timeline.categories)), key=lambda row: numbers[timeline.categories[row]])
    return {
        "t": differences(timeline.t_ns - origin_ns),
        "index": differences(timeline.index),
        "categories": [numbers[timeline.categories[row]] for row in order],
        "bytes": [differences(timeline.bytes[row]) for row in order],
        "reserved": differences(timeline.reserved_bytes),
    }


def _bands(view: DeviceView, origin_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "kind": band.kind,
            "label": band.label,
            "step": band.step,
            "start": band.start_ns - origin_ns,
            "end": band.end_ns - origin_ns,
        }
        for band in view.bands
    ]


def _instants(series: AccountSeries, origin_ns: int) -> dict[str, list[Any]]:
    instants = series.instants
    return {
        "index": differences([instant.index for instant in instants]),
        "t": differences([instant.t_ns - origin_ns for instant in instants]),
        "label": [instant.label for instant in instants],
        "step": [instant.step for instant in instants],
        "phase": [instant.phase for instant in instants],
        "module": [instant.module for instant in instants],
        "allocated": series.allocated_bytes.tolist(),
        "active": series.active_bytes.tolist(),
        "reserved": series.reserved_bytes.tolist(),
    }


def _tree(tree: ReportTree) -> dict[str, Any]:
    classes = sorted(set(tree.class_name))
    class_id = {name: number for number, name in enumerate(classes)}
    return {
        "path": list(tree.path),
        "parent": list(tree.parent),
        "classes": classes,
        "class_id": [class_id[name] for name in tree.class_name],
    }


def _accounts(series: AccountSeries, tree: ReportTree, numbers: dict[str, int]) -> dict[str, list[int]]:
    """Return the accounts sorted by node; the last one is rounding."""
    nodes = np.array([tree.node_of[module_id] for module_id in series.module_id.tolist()], dtype=np.int64)
    codes = np.array([numbers.get(name, 0) for name in series.categories], dtype=np.int64)[series.category]
    order = np.lexsort((codes, nodes))
    starts = np.cumsum(series.run_count) - series.run_count
    counts = series.run_count[order]
    ahead = np.repeat(starts[order] - (np.cumsum(counts) - counts), counts)
    runs = ahead + np.arange(counts.sum())
    rounding = _runs_of(series.rounding_bytes)
    return {
        "node": differences([*nodes[order].tolist(), tree.rounding]),
        "category": [*codes[order].tolist(), numbers[ROUNDING]],
        "runs": [*counts.tolist(), len(rounding)],
        "first": [*series.first[runs].tolist(), *(first for first, _, _ in rounding)],
        "last": [*series.last[runs].tolist(), *(last for _, last, _ in rounding)],
        "bytes": [*series.bytes[runs].tolist(), *(held for _, _, held in rounding)],
    }


def _runs_of(values: I64) -> list[tuple[int, int, int]]:
    """Return (first, last, value) of every stretch of equal values that are not 0."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), values.size]
    return [(start, end - 1, int(values[start])) for start, end in pairwise(edges) if end > start and values[start]]


def _tensors(view: DeviceView, numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "name": [account.name for account in view.tensors.accounts],
        "module": [account.module for account in view.tensors.accounts],
        "category": [numbers[account.category] for account in view.tensors.accounts],
        "bytes": [account.bytes for account in view.tensors.accounts],
        "blocks": [account.blocks for account in view.tensors.accounts],
        "more": view.tensors.left_out,
    }
