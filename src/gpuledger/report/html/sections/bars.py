"""Time and energy of one step, split into parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.base.colors import phase_color, phase_order
from gpuledger.report.base.phrases import HOST_PARTS
from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.step_amounts import StepBar


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    labels = HOST_PARTS if device.times is not None and device.times.on_host else {}
    bars = [_bar(bar, labels) for bar in device.bars]
    names = phase_order(tuple({name for bar in bars for name, _ in bar["parts"]}))
    return {"bars": bars, "parts": [{"key": name, "color": phase_color(name)} for name in names]}


def _bar(bar: StepBar, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a step split into parts, in the order in which phases are stacked."""
    parts = {labels.get(name, name): amount for name, amount in bar.parts}
    return {**asdict(bar), "parts": [(name, parts[name]) for name in phase_order(tuple(parts))]}


SECTION = Section(
    name="bars",
    heading="Time and energy of one step",
    scripts=(script("bars.js"),),
    data=_data,
    help={
        "phase.forward": Definition("Forward", "work launched inside a module's forward", "ranges of modules, Kineto"),
        "phase.backward": Definition(
            "Backward",
            "work that autograd launches, attributed to the module that created the graph node in its forward",
            "sequence numbers, Kineto",
        ),
        "phase.optimizer": Definition("Optimizer", "work launched inside the optimizer's step", "step hooks, Kineto"),
        "phase.evaluation": Definition(
            "Evaluation",
            "work launched inside a module's forward without gradients, such as generation or validation",
            "ranges of modules, Kineto",
        ),
        "phase.between": Definition(
            "Between",
            "work outside forward, backward, optimizer and evaluation, such as input copies and metrics",
            "all work of the step minus the other phases",
        ),
        "phase.other operators": Definition(
            "Other operators",
            "operators outside forward, backward, optimizer and evaluation, such as input copies and metrics",
            "all operators of the step minus the other phases",
        ),
        "phase.kernel": Definition("Kernel", "kernels of the GPU, except those that communicate", "CUPTI"),
        "phase.copy": Definition("Copy", "copies of memory and memory that is set", "CUPTI"),
        "phase.collective": Definition("Collective", "kernels that communicate with other ranks", "CUPTI"),
        "phase.idle": Definition(
            "Idle",
            "time of an unprofiled step in which no kernel ran: step time minus busy time (derived)",
            "host clock of unprofiled steps; busy time from CUPTI",
        ),
        "phase.outside operators": Definition(
            "Outside operators",
            "time of an unprofiled step in which no operator ran on the CPU: step time minus that of operators",
            "host clock of unprofiled steps; operators from Kineto",
        ),
    },
    body='<div id="bars" class="bars"></div>\n'
    '<div class="scroll"><table class="ledger parts"><thead id="parts-head"></thead><tbody id="parts-body"></tbody>'
    "</table></div>",
    is_hidden=True,
)
