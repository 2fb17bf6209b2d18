"""Memory growth in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuledger.model.flight_facts import COUNTED_NODES, DATA
from gpuledger.units import counted, device_label, format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.growth import Growth


def growth_text(growth: Growth) -> str:
    """Return how fast memory grows, since when, until when, and what holds it."""
    parts = [f"{growth_rate_text(growth)}, {format_bytes(growth.grown_bytes)} until step {growth.last_step}"]
    if growth.has_ended:
        parts.append("then the program ran out of memory")
    elif growth.will_end and growth.holder is not None and growth.steps_until_full is not None:
        steps = counted(_rounded(growth.steps_until_full), "step")
        parts.append(f"grows until {growth.holder.shown_name} is full, in about {steps}")
    elif growth.steps_left is not None:
        parts.append(f"out of memory in about {counted(_rounded(growth.steps_left), 'step')}")
    if growth.holder is not None:
        parts.append(_held(growth))
    origin = [growth.category, growth.module and f"of {growth.module}", growth.line and f"allocated at {growth.line}"]
    if any(origin):
        parts.append(" ".join(part for part in origin if part))
    return "; ".join(parts)


def growth_rate_text(growth: Growth) -> str:
    """Return how fast memory grows and since when."""
    where = "host memory" if growth.device_idx < 0 else device_label(growth.device_idx)
    where += "" if growth.rank_of_several is None else f" of rank {growth.rank_of_several}"
    return f"{where}: +{format_bytes(round(growth.step_bytes))} per step since step {growth.since_step}"


def _held(growth: Growth) -> str:
    holder = growth.holder
    assert holder is not None
    name = f"{holder.shown_name} ({holder.where})" if holder.where else holder.shown_name
    if holder.kind == "graph":
        least = "at least " if holder.length >= COUNTED_NODES else ""
        return f"{name} keeps an autograd graph of {least}{holder.length:,} nodes"
    if holder.content == DATA:
        return f"{holder.kind} {name} itself grows, to {format_bytes(holder.length)}"
    of_what = {"graph": " of tensors with their autograd graphs", "": ""}.get(holder.content, f" of {holder.content}s")
    length = f"{holder.length:,}" if holder.bound is None else f"{holder.length:,} of at most {holder.bound:,}"
    held = f"held by {holder.kind} {name}, {length} elements{of_what}"
    if not holder.keeps_more_than_values:
        return held
    values, kept = holder.element_bytes - holder.element_unused_bytes, holder.element_bytes
    sizes = f"{format_bytes(values)} of values in a storage of {format_bytes(kept)}"
    return f"{held}, each with {sizes} (keep a clone() instead)"


def _rounded(steps: int) -> int:
    """Return a number with two significant digits."""
    digits = max(len(str(steps)) - 2, 0)
    return int(steps // 10**digits * 10**digits)
