"""Where a step goes: time and energy of one step, cut into parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.report.base.colors import phase_order
from gpuledger.report.html.definitions import Definition
from gpuledger.report.html.sections.section import Page, Section, script

if TYPE_CHECKING:
    from gpuledger.analyze.view.step_amounts import StepBar
    from gpuledger.analyze.view.view import DeviceView


def _data(device: DeviceView, page: Page) -> dict[str, Any]:
    return {"bars": [_bar(bar) for bar in device.bars]}


def _bar(bar: StepBar) -> dict[str, Any]:
    """Return a step cut into parts, in the order in which phases are stacked."""
    parts = dict(bar.parts)
    return {**asdict(bar), "parts": [(name, parts[name]) for name in phase_order(tuple(parts))]}


SECTION = Section(
    name="bars",
    heading="Where a step goes",
    scripts=(script("bars.js"),),
    data=_data,
    help={
        "phase.forward": Definition("Forward", "work launched inside a module's forward", "ranges of modules, Kineto"),
        "phase.backward": Definition(
            "Backward",
            "work launched by autograd, with the module whose forward made the node",
            "sequence numbers, Kineto",
        ),
        "phase.optimizer": Definition("Optimizer", "work launched inside the optimizer's step", "step hooks, Kineto"),
        "phase.data": Definition(
            "Data",
            "work outside forward, backward and optimizer: copies of input, metrics, what comes before a model",
            "what is left of the work",
        ),
        "phase.between": Definition(
            "Between", "work outside forward, backward and optimizer", "what is left of the work"
        ),
        "phase.idle": Definition(
            "Idle",
            "the unprofiled step less the busy time: no kernel was at work; derived, not measured",
            "host clock of steps without a recorder, less CUPTI's busy time",
        ),
    },
    body='<div id="bars" class="bars"></div>',
    is_hidden=True,
)
