"""The modules at an instant, or in one step: the picture and the table of the same rows."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.view.report_tree import build_tree
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.html.amount_columns import amount_columns
from gpuledger.report.html.columns import differences
from gpuledger.report.html.definitions import Definition, of_column
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.memory.account_series import AccountSeries
    from gpuledger.analyze.memory.lifetimes import I64
    from gpuledger.analyze.memory.timeline import Timeline
    from gpuledger.analyze.step.energy import EnergyBreakdown
    from gpuledger.analyze.step.times import TimeBreakdown
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.report_tree import ReportTree
    from gpuledger.analyze.view.watched_card import WatchedCard

JOULE_DECIMALS = 6


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    series, index = device.account_series, device.summary.instant.index
    return {
        "peak": next(place for place, instant in enumerate(series.instants) if instant.index == index),
        "instants": _instants(series, device.timeline),
        "tree": _tree(device.tree),
        "accounts": _accounts(series, device.tree, page.categories),
        "tensors": _tensors(device, page.categories),
        "time": None if device.times is None else _time(device.times, device, page.phases),
        "energy": None if device.energy is None else _energy(device.energy, device, page.phases),
    }


def _card_data(card: WatchedCard, page: Page) -> dict[str, Any]:
    """Return a GPU's data, with all memory outside modules."""
    tree = build_tree((), ())
    return {
        "peak": int(np.searchsorted(card.moments, card.peak_at)),
        "instants": _card_instants(card),
        "tree": {"path": list(tree.path), "parent": list(tree.parent), "classes": [""], "class_id": [0, 0, 0, 0]},
        "accounts": _card_accounts(card, tree.outside, page.categories),
        "tensors": {"name": [], "module": [], "line": [], "category": [], "bytes": [], "blocks": [], "more": 0},
        "time": None,
        "energy": None,
    }


def _instants(series: AccountSeries, timeline: Timeline) -> dict[str, list[Any]]:
    instants, first = series.instants, int(timeline.t_ns[0])
    places = [(instant.t_ns if timeline.has_times else max(instant.index, 0)) - first for instant in instants]
    return {
        "index": differences([instant.index for instant in instants]),
        "t": differences(places),
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
    """Return the breakdown, sorted by node; rounding is last."""
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
    """Return (first, last, value) of every run of equal values that are not 0."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), values.size]
    return [(start, end - 1, int(values[start])) for start, end in pairwise(edges) if end > start and values[start]]


def _tensors(view: DeviceView, numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "name": [account.name for account in view.tensors.accounts],
        "module": [account.module for account in view.tensors.accounts],
        "line": [account.line for account in view.tensors.accounts],
        "category": [numbers[account.category] for account in view.tensors.accounts],
        "bytes": [account.bytes for account in view.tensors.accounts],
        "blocks": [account.blocks for account in view.tensors.accounts],
        "more": view.tensors.left_out,
    }


def _time(times: TimeBreakdown, view: DeviceView, phases: dict[str, int]) -> dict[str, Any]:
    """Return one step of the timing measurement, in ns; of a program without steps, all of it."""
    return {
        "accounts": amount_columns(view.time_amounts, view.tree, view.modules, phases, 0),
        "steps": times.steps,
        "on_host": times.on_host,
        "of_program": view.rank.manifest.timed_program is not None,
        "source": "Kineto" if view.rank.manifest.recorded_time_steps is None else "recorder",
        "work_ns": round(times.work_ns),
        "busy_ns": round(times.busy_ns),
        "step_ns": None if times.step_ns is None else round(times.step_ns),
        "of_profiled_step": times.of_profiled_step,
        "idle_ns": None if times.idle_ns is None else round(times.idle_ns),
        "by_kind_ns": {kind: round(ns) for kind, ns in times.by_kind_ns.items()},
        "unplaced_ns": round(times.unplaced_ns),
        "unprofiled": asdict(times.unprofiled),
    }


def _energy(energy: EnergyBreakdown, view: DeviceView, phases: dict[str, int]) -> dict[str, Any]:
    """Return one step of the energy measurement, in J."""
    return {
        "accounts": amount_columns(view.energy_amounts, view.tree, view.modules, phases, JOULE_DECIMALS),
        "steps": energy.steps,
        "step_energy_j": round(energy.step_energy_j, JOULE_DECIMALS),
        "step_uncertainty_j": round(energy.step_uncertainty_j, JOULE_DECIMALS),
        "base_w": energy.base_w,
        "unusual_step_s": energy.unusual_step_s,
        "method": energy.method,
        "notes": list(energy.notes),
    }


def _card_instants(card: WatchedCard) -> dict[str, list[Any]]:
    moments = card.moments
    count, used = moments.size, card.used_bytes[moments]
    labels = ["peak" if at == card.peak_at else "" for at in moments.tolist()]
    labels[-1] = labels[-1] or "end"
    return {
        "index": differences(moments),
        "t": differences(card.t_ns[moments] - card.origin_ns),
        "label": labels,
        "step": [0] * count,
        "phase": [""] * count,
        "module": [""] * count,
        **{name: used.tolist() for name in ("allocated", "active", "reserved")},
    }


def _card_accounts(card: WatchedCard, node: int, numbers: dict[str, int]) -> dict[str, list[int]]:
    """Return one entry per category, with a separate run at each time."""
    moments = card.moments
    places = range(moments.size)
    return {
        "node": differences([node] * len(card.categories)),
        "category": [numbers[name] for name in card.categories],
        "runs": [moments.size] * len(card.categories),
        "first": [*places] * len(card.categories),
        "last": [*places] * len(card.categories),
        "bytes": card.bytes[:, moments].ravel().tolist(),
    }


_BODY = """<div class="section-head">
<h2 id="instant-name"></h2>
<p class="readout"><span id="instant-bytes" class="number strong"></span><span id="instant-where" class="number \
muted"></span></p>
<div class="tools" id="instant-tools" role="group" aria-label="Instant">
<button id="earlier" type="button" class="button icon" aria-label="Earlier instant" data-tip="Earlier instant \
(,)">‹</button>
<button id="later" type="button" class="button icon" aria-label="Later instant" data-tip="Later instant (.)">›</button>
<button id="to-peak" type="button" class="button" data-tip="Go to the peak (p)">Peak</button>
<button id="to-end" type="button" class="button" data-tip="Go to the end (e)">End</button>
</div>
</div>
<div class="section-head filter">
<input id="search" type="search" placeholder="Search module, class or category" aria-label="Search module, class or \
category" autocomplete="off" spellcheck="false" data-tip="Press / to search">
<span id="matched" class="number muted" aria-live="polite"></span>
<div class="tools segmented" role="group" aria-label="Quantity">
<button id="metric-bytes" type="button" class="button">Bytes</button><button id="metric-time" type="button" \
class="button">Time</button><button id="metric-energy" type="button" class="button">Energy</button>
</div>
<div class="tools segmented" role="group" aria-label="Picture">
<button id="shape-icicle" type="button" class="button">Icicle</button><button id="shape-treemap" type="button" \
class="button">Treemap</button>
</div>
</div>
<p class="trail"><span id="trail"></span><span id="trail-bytes" class="number muted"></span></p>
<div class="canvas"><canvas id="structure" tabindex="0" role="img" aria-label="Modules and their bytes at the chosen \
instant; arrow keys move, Enter zooms in, Escape zooms out" aria-describedby="structure-said"></canvas></div>
<p id="structure-said" class="offscreen" aria-live="polite"></p>

<ul id="step-notes" class="notes muted" hidden></ul>
<div class="section-head table-tools">
<label>Group by <select id="group"></select></label>
<span id="table-count" class="number muted"></span>
<div class="tools">
<button id="copy-markdown" type="button" class="button">Copy as Markdown</button>
<button id="copy-csv" type="button" class="button">Copy as CSV</button>
</div>
</div>
<p id="table-note" class="caption"></p>
<div class="scroll"><table class="ledger" id="table"><thead id="table-head"></thead><tbody \
id="table-body"></tbody></table></div>
<button id="more" type="button" class="button more">Show more</button>"""

SECTION = Section(
    name="instant",
    scripts=tuple(script(name) for name in ("icicle.js", "treemap.js", "structure.js", "rows.js", "table.js")),
    data=_data,
    card_data=_card_data,
    help={
        "amount.bytes": of_column(
            "Bytes", "blocks", "requested_bytes", "requested bytes of the blocks allocated at this instant"
        ),
        "amount.time": Definition(
            "Time",
            "time of the module's own kernels in one step (on a CPU: of its operators), over all phases",
            "Kineto (CUPTI on a GPU), mean over the profiled steps",
        ),
        "amount.energy": Definition(
            "Energy",
            "the module's estimated share of the step's energy: base power by time, the rest by kind of work",
            "sum: NVML energy counter; shares: estimated",
        ),
        "total": Definition("With child modules", "the module and all modules inside it", "sum"),
    },
    body=_BODY,
)
