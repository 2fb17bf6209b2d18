"""The head of the page: that memory ran out, and the figures that lead to the sections below."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.html.definitions import Definition, of_column
from gpuledger.report.html.provenance import oom_rows
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import DeviceView
    from gpuledger.analyze.view.watched_card import WatchedCard


def _oom(device: DeviceView, page: Page) -> dict[str, Any]:
    return {"oom": oom_rows(device.rank.manifest, device.device_idx)}


def _no_oom(card: WatchedCard, page: Page) -> dict[str, Any]:
    return {"oom": []}


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    summary = device.summary
    return {
        "summary": asdict(summary) | {"instant": {"step": summary.instant.step}},
        "rates": None if device.rates is None else asdict(device.rates),
    }


def _card_data(card: WatchedCard, page: Page) -> dict[str, Any]:
    peak_bytes = int(card.used_bytes[card.peak_at])
    summary = {
        "peak_used_bytes": peak_bytes,
        "capacity_bytes": None if card.line.capacity is None else int(card.line.capacity),
        "step_time": {"count": 0, "median_ns": None, "p95_ns": None, "source": ""},
        "instant": {"step": 0},
    }
    return {"summary": summary, "figures": asdict(card.figures)}


ALARM = Section(
    name="alarm",
    scripts=(script("alarm.js"),),
    data=_oom,
    card_data=_no_oom,
    frame='<div id="alarm" class="alarm" role="alert" hidden></div>',
)
SECTION = Section(
    name="cards",
    scripts=(script("watched.js"), script("cards.js")),
    data=_data,
    card_data=_card_data,
    help={
        "recorded_peak_allocated_bytes": Definition(
            "Recorded peak allocated",
            "most bytes allocated at one instant of the recorded steps; context, libraries and other processes are "
            "not in it",
            "caching allocator's history, exact",
        ),
        "recorded_peak_reserved_bytes": of_column(
            "Recorded peak reserved",
            "segments",
            "bytes",
            "highest sum of all segments that the allocator held in the recorded steps",
        ),
        "step_time_ns": Definition(
            "Step time",
            "host time from one step's beginning to its end, the recorder's pauses taken off",
            "host clock; a step ends when the host returns from it, not when the GPU has done its work",
        ),
        "work_ns": Definition(
            "Work of a step",
            "all kernels and copies of one step summed, or on the host its outermost operators; more than busy where "
            "streams overlap; the accounts sum to it",
            "Kineto (CUPTI on a card), mean over the steps of the time pass",
        ),
        "busy_ns": Definition(
            "Busy",
            "time of a step in which at least one kernel or copy was at work on the card",
            "Kineto (CUPTI), mean over the steps of the time pass",
        ),
        "step_energy_j": Definition(
            "Energy of a step",
            "joules the GPU used in one step, idle ones included; plus or minus from the counter's ticks",
            "NVML total energy from tick to tick, shared among the steps between",
        ),
        "largest_category": Definition(
            "Largest category", "the category with most bytes at the peak", "sum over live blocks"
        ),
        "peak_bytes": Definition(
            "Peak", "most bytes in use on the GPU above the first reading", "NVML memory info v2, at the readings"
        ),
        "mean_active_bytes": Definition(
            "Mean while active", "bytes above the first reading, mean over the time above it", "NVML memory info v2"
        ),
        "duration_s": Definition(
            "Duration", "how long the command ran; of a log without one, the time above the first reading", "host clock"
        ),
        "energy_j": Definition(
            "Energy",
            "joules the GPU used while the command ran; the power summed up where the GPU counts no energy",
            "NVML total energy from tick to tick",
        ),
    },
    frame='<nav id="cards" class="cards" aria-label="Summary"></nav>',
)
