"""Memory and power over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.report.html.columns import differences, power_columns
from gpuledger.report.html.definitions import Definition, of_column
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.watched_card import WatchedCard


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    power = page.power.get((device.rank.number, device.device_idx))
    return {
        "timeline": _timeline(device, page.categories),
        "bands": _bands(device),
        "power": None if power is None else power_columns(power, device.origin_ns),
    }


def _card_data(card: WatchedCard, page: Page) -> dict[str, Any]:
    timeline = {
        "t": differences(card.t_ns - card.origin_ns),
        "index": differences(np.arange(card.used_bytes.size)),
        "categories": [page.categories[name] for name in card.categories],
        "bytes": [differences(row) for row in card.bytes],
        "reserved": differences(card.used_bytes),
        "has_times": True,
    }
    power = None if card.power is None else power_columns(card.power, card.origin_ns)
    return {"timeline": timeline, "bands": [], "power": power}


def _timeline(view: DeviceView, numbers: dict[str, int]) -> dict[str, Any]:
    timeline = view.timeline
    order = sorted(range(len(timeline.categories)), key=lambda row: numbers[timeline.categories[row]])
    return {
        "t": differences(timeline.t_ns - view.origin_ns),
        "index": differences(timeline.index),
        "categories": [numbers[timeline.categories[row]] for row in order],
        "bytes": [differences(timeline.bytes[row]) for row in order],
        "reserved": differences(timeline.reserved_bytes),
        "has_times": timeline.has_times,
    }


def _bands(view: DeviceView) -> list[dict[str, Any]]:
    return [
        {
            "kind": band.kind,
            "label": band.label,
            "step": band.step,
            "start": band.start_ns - view.origin_ns,
            "end": band.end_ns - view.origin_ns,
        }
        for band in view.bands
    ]


_TOOLS = """<p id="readout" class="readout number" aria-live="off"></p>
<div class="tools">
<button id="axis" type="button" class="button" aria-pressed="false" data-tip="Show allocator events on the \
axis instead of time">By event</button>
<button id="scale" type="button" class="button" aria-pressed="false" data-tip="Scale the vertical axis to \
the GPU's capacity">To capacity</button>
<button id="span" type="button" class="button" aria-pressed="false" data-tip="Show the run from the first to \
the last step or sample, beyond the recorded steps">Whole run</button>
<button id="reset-zoom" type="button" class="button" data-tip="Reset the zoom (or double-click)">Whole \
recording</button>
</div>"""
_BODY = """<div id="timeline" role="img" aria-label="Allocated bytes by category over time, stacked, with the \
reserved bytes as a line"></div>
<div id="power-section" hidden>
<p class="strip-head"><dfn tabindex="0" data-define="power">Power</dfn> <span id="power-value" class="number"></span> \
<span id="power-caption" class="muted"></span></p>
<div id="power" role="img" aria-label="Power of the GPU over time, in watts, on the axis above"></div>
</div>
<div id="legend" class="legend" role="group" aria-label="Categories; press one to hide it"></div>
<p class="hint">Drag to zoom. Click to select the nearest instant that is marked below the axis.</p>"""

SECTION = Section(
    name="timeline",
    heading="Memory over time",
    scripts=tuple(script(name) for name in ("bands.js", "timeline.js", "power.js", "legend.js")),
    data=_data,
    card_data=_card_data,
    help={
        "allocated": of_column("Allocated", "counters", "allocated_bytes"),
        "reserved": of_column("Reserved", "counters", "reserved_bytes"),
        "active": of_column("Active", "counters", "active_bytes"),
        "power": of_column("Power", "samples", "power_instant_w"),
        "power_average": of_column("Power", "samples", "power_average_w"),
        "category.program": Definition("Program", "memory of the command's own processes", "NVML process list"),
        "category.rest of the GPU": Definition(
            "Rest of the GPU", "used memory of the GPU minus that of the command's processes", "NVML memory info v2"
        ),
        "category.used": Definition("Used", "used memory of the GPU, of all processes", "NVML memory info v2"),
    },
    tools=_TOOLS,
    body=_BODY,
)
