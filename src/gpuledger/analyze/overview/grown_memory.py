"""Memory that grows after the recorded steps: with it, nothing that lowers the peak of a step helps for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.analyze.memory.growth import find_growth
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.kept_advice import place_of
from gpuledger.model.flight_facts import DATA
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.overview.peak_facts import PeakFacts
    from gpuledger.model.flight_facts import Holder

_GRAPH = "graph"


def grown_memory(facts: PeakFacts) -> Finding | None:
    """Return that memory grows step after step; None if it does not, or if it stops before memory ends."""
    found = (one for one in find_growth(facts.rank) if one.device_idx == facts.device_idx and not one.will_end)
    growth = next(found, None)
    if growth is None:
        return None
    action, advice = _advice(growth.holder, fewer="" if facts.device_idx < 0 else ", or move them to the CPU")
    grown, line = format_bytes(growth.grown_bytes), f", allocated at {growth.line}" if growth.line else ""
    return Finding(
        f"Memory grows by {format_bytes(round(growth.step_bytes))} per step{place_of(growth.holder)}{line}",
        f"{grown} more in step {growth.last_step} than in step {growth.since_step}; a change that only lowers the peak "
        "of a step does not stop it",
        action,
        advice,
        growth.grown_bytes,
        f"the memory in step {growth.last_step}; the saving grows with each step",
        ("show", "RUN"),
        growth.category or "activation",
        is_replayed=False,
        grows=True,
    )


def _advice(holder: Holder | None, fewer: str) -> tuple[str, str]:
    """Return action and advice by what keeps the memory."""
    if holder is None:
        return "free what grows", "no variable of the program was found that leads to it"
    name = holder.shown_name
    if holder.kind == _GRAPH:
        return f"detach() {name} in each step", f"{name} keeps an autograd graph that becomes longer"
    if holder.content == _GRAPH:
        return (
            f"keep numbers or detached tensors in {name}",
            f"each tensor in {name} ({holder.kind}) keeps its autograd graph, and with it what its backward needs: "
            "append loss.item() instead of loss, or detach() what you need",
        )
    if holder.content == DATA:
        return f"limit the size of {name}", f"{name} ({holder.kind}) itself becomes larger"
    return (
        f"keep fewer elements in {name}{fewer}",
        f"{name} ({holder.kind}) has {holder.length:,} elements and gains more; a limit ends that, such as "
        "deque(maxlen=…)",
    )
