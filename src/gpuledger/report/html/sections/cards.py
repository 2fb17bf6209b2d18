"""The head of the page: out-of-memory errors, and figures that link to the sections below."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.html.definitions import Definition, of_column
from gpuledger.report.html.provenance import oom_rows
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
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
        "rank_of_several": device.rank.number_of_several,
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
            "largest number of bytes allocated at one instant of the recorded steps, without context, libraries "
            "and other processes",
            "caching allocator's history (exact)",
        ),
        "recorded_peak_reserved_bytes": of_column(
            "Recorded peak reserved",
            "segments",
            "bytes",
            "largest size of all segments of the allocator in the recorded steps",
        ),
        "step_time_ns": Definition(
            "Step time",
            "host time from the beginning of a step to its end, without the recorder's pauses",
            "host clock; a step ends when the host returns, not when the GPU has finished; the GPU's clock if the host "
            "runs ahead of it",
        ),
        "work_ns": Definition(
            "Work of a step",
            "summed time of all kernels and copies of a step (on a CPU: of the outermost operators); more than "
            "busy time if streams overlap",
            "Kineto (CUPTI on a GPU), mean over the profiled steps",
        ),
        "busy_ns": Definition(
            "Busy",
            "time of a step in which at least one kernel or copy ran on the GPU",
            "Kineto (CUPTI), mean over the profiled steps",
        ),
        "step_energy_j": Definition(
            "Energy of a step",
            "energy the GPU used in one step, idle power included; the uncertainty comes from the counter's ticks",
            "NVML energy counter, divided by the steps between two ticks",
        ),
        "largest_category": Definition(
            "Largest category", "the category with the most bytes at the peak", "sum over live blocks"
        ),
        "peak_bytes": Definition(
            "Peak", "largest used memory of the GPU above the first sample", "NVML memory info v2, sampled"
        ),
        "mean_active_bytes": Definition(
            "Mean while active",
            "mean memory above the first sample, over the time in which there was any",
            "NVML memory info v2",
        ),
        "duration_s": Definition(
            "Duration",
            "how long the command ran; for a log without a command, the time above the first sample",
            "host clock",
        ),
        "energy_j": Definition(
            "Energy",
            "energy the GPU used while the command ran; if the GPU has no energy counter, integrated power",
            "NVML energy counter, from tick to tick",
        ),
    },
    frame='<nav id="cards" class="cards" aria-label="Summary"></nav>',
)
