"""Time and energy of one step, split into parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.base.colors import phase_order
from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.step_amounts import StepBar


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    return {"bars": [_bar(bar) for bar in device.bars]}


def _bar(bar: StepBar) -> dict[str, Any]:
    """Return a step split into parts, in the order in which phases are stacked."""
    parts = dict(bar.parts)
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
        "phase.data": Definition(
            "Data",
            "work outside forward, backward, optimizer and evaluation, such as input copies and metrics",
            "all work of the step minus the other phases",
        ),
        "phase.between": Definition(
            "Between",
            "work outside forward, backward, optimizer and evaluation",
            "all work of the step minus the other phases",
        ),
        "phase.idle": Definition(
            "Idle",
            "time of an unprofiled step in which no kernel ran: step time minus busy time (derived)",
            "host clock of unprofiled steps; busy time from CUPTI",
        ),
    },
    body='<div id="bars" class="bars"></div>',
    is_hidden=True,
)
