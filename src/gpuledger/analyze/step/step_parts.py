"""Time of a step in six parts that sum to it: forward, backward, optimizer, evaluation, between, idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.work import StepWork, read_work, union_ns

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

_ORDER = ("optimizer", "backward", "forward", "evaluation")
"""If two phases run at once on two streams, the time counts for the first of these."""


@dataclass(frozen=True)
class StepParts:
    """Time of one unprofiled step in ns. The parts sum to ``step_ns``.

    ``evaluation_ns`` is forward without gradients, such as generation or validation. ``between_ns`` is work outside the
    parts before it: input copies, metrics, code before the model.
    ``idle_ns`` is the step's time without any work on the device; it is derived. ``scale`` is the factor applied to the
    parts if the profiled steps were busy for longer than an unprofiled step takes.
    """

    device_idx: int
    step_ns: float
    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    evaluation_ns: float
    between_ns: float
    idle_ns: float
    scale: float
    source: str

    def items(self) -> tuple[tuple[str, float], ...]:
        """Return ``(name, ns)`` of every part, in the order of a step; evaluation only if the step has any."""
        return (
            ("forward", self.forward_ns),
            ("backward", self.backward_ns),
            ("optimizer", self.optimizer_ns),
            *((("evaluation", self.evaluation_ns),) if self.evaluation_ns else ()),
            ("between", self.between_ns),
            ("idle", self.idle_ns),
        )


def step_parts(rank: Rank, device_idx: int | None = None) -> StepParts | None:
    """Return the parts of one step; None without a timing measurement, or without an unprofiled step.

    It is also None if only recorded steps were timed: most of the rest of such a step is that of the recorder.

    Source: Kineto (CUPTI on a GPU) for the parts; the host clock's unprofiled steps for the whole.
    """
    work, steps = read_work(rank, device_idx), step_times(rank)
    if work is None or not steps.median_ns or rank.manifest.recorded_time_steps is not None:
        return None
    parts = _own_ns(work)
    busy_ns = sum(parts.values())
    scale = min(1.0, steps.median_ns / busy_ns) if busy_ns else 1.0
    shown = {name: time_ns * scale for name, time_ns in parts.items()}
    return StepParts(
        device_idx=work.device_idx,
        step_ns=float(steps.median_ns),
        forward_ns=shown["forward"],
        backward_ns=shown["backward"],
        optimizer_ns=shown["optimizer"],
        evaluation_ns=shown["evaluation"],
        between_ns=shown["between"],
        idle_ns=max(steps.median_ns - sum(shown.values()), 0.0),
        scale=scale,
        source=f"Kineto, {work.steps} steps; {steps.source}",
    )


def _own_ns(work: StepWork) -> dict[str, float]:
    """Return the time of each phase in one step, without overlap with the phases before it in the order."""
    taken = np.zeros(work.start_ns.size, dtype=bool)
    found, covered = {}, 0
    for name in (*_ORDER, "between"):
        taken |= (work.phase == name) | (name == "between")
        until = union_ns(work.start_ns[taken], work.end_ns[taken]) if taken.any() else 0
        found[name] = (until - covered) / work.steps
        covered = until
    return found
