"""Suggestions that would lower the peak: up to five findings, each with evidence, saving and a command to show it.

A saving is the difference between the peak of the recording and the peak of a replay without the bytes in question, or
with the changed lifetimes of :mod:`.what_if`. If another instant is nearly as high as the peak, the saving is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.graph_pools import kept_free_bytes
from gpuledger.analyze.memory.groups import module_label
from gpuledger.analyze.memory.lifetimes import (
    distinct_numbers,
    pick_device,
    read_labels,
    read_numbers,
    reserved_curve,
    running_sum,
)
from gpuledger.analyze.memory.lines.source_lines import read_stacks
from gpuledger.analyze.memory.peaks import allocator_peaks
from gpuledger.analyze.memory.small_states import SHARE, has_8_bit_form
from gpuledger.analyze.overview.balance import STATED_POOL, read_card
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.grown_memory import grown_memory
from gpuledger.analyze.overview.kept_advice import find_holder, kept_advice, kept_module, place_of
from gpuledger.analyze.overview.kept_steps import find_kept
from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
from gpuledger.analyze.overview.resharding import kept_gathered
from gpuledger.analyze.overview.step_findings import (
    autocast,
    batch,
    caches,
    one_line,
    one_module,
    optimizer_temporaries,
    outside_modules,
    repeated_activations,
)
from gpuledger.analyze.overview.summary import capacity_bytes
from gpuledger.units import format_bytes, format_frac

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

MOST = 5
_LEAST_SHARE = 0.03
"""Savings below this fraction of the peak are not shown, unless they grow with each step."""


def find_findings(rank: Rank, device_idx: int | None = None) -> tuple[Finding, ...]:
    """Return at most :data:`MOST` findings on one device, the largest saving first.

    Raises:
        EmptyRunError: no block was recorded.

    Source: caching allocator's history, replayed without the bytes in question.
    """
    facts = PeakFacts(rank, pick_device(rank, device_idx))
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    worth = [
        replace(finding, peak_after_bytes=facts.peak_bytes - finding.saving_bytes if finding.is_replayed else None)
        for finding in found
        if finding.grows or finding.saving_bytes >= _LEAST_SHARE * facts.peak_bytes
    ]
    most = sorted(worth, key=lambda finding: (not finding.grows, -finding.saving_bytes))[:MOST]
    return tuple(sorted(most, key=lambda finding: -finding.saving_bytes))


def _optimizer_state(facts: PeakFacts) -> Finding | None:
    """Suggest a smaller optimizer state, if it is a large part of the peak."""
    state = facts.of("optimizer_state", "sharded_optimizer_state")
    size, weights = facts.held(state), facts.held(facts.of("weight", "sharded_weight"))
    if size < 0.1 * facts.peak_bytes or facts.has_small_state:
        return None
    title = f"Optimizer state is {facts.share(size)} of the peak"
    beside = f", {size / weights:.1f} times the weights" if weights else ""
    half = _half_of_the_state(facts)
    if half is not None:
        action, why, label = half
        return Finding(
            title,
            f"{format_bytes(size)} at the peak{beside}",
            action,
            why,
            facts.saving(state, 0.5),
            label,
            facts.show("--by", "category"),
            "optimizer_state",
        )
    optimizers = facts.rank.manifest.optimizers or ()
    without = frozenset(one.step_module for one in optimizers if not has_8_bit_form(one))
    if optimizers and all(one.step_module in without for one in optimizers):
        return None
    if without and not read_stacks(facts.rank):
        return None  # it is not known which optimizer a state is of, as in an estimate
    return Finding(
        title,
        f"{format_bytes(size)} at the peak{beside}",
        "use 8-bit optimizer states",
        "8-bit states take a quarter of 32-bit ones; those of parameters with few elements stay in 32 bits"
        + ("" if facts.is_sharded else "; sharding (ZeRO, FSDP) divides the states by the number of ranks"),
        facts.saving(state & facts.is_large_state & ~facts.allocated_in(without), 1 - SHARE),
        "the peak, with 8-bit states",
        facts.show("--by", "category"),
        "optimizer_state",
        is_upper_bound=bool(without),
    )


def _half_of_the_state(facts: PeakFacts) -> tuple[str, str, str] | None:
    """Return how a state that no 8-bit optimizer can keep is halved, why so, and what the peak is then called."""
    if facts.has_large_state:
        return (
            "halve the optimizer state",
            "it is more than a few values for each weight: L-BFGS keeps two vectors of all weights for each entry of "
            "its history, so that a smaller history_size takes less",
            "the peak, with half the state",
        )
    if facts.rank.manifest.optimizers == ():
        return (
            "keep the optimizer state in half as many bits",
            "your program updates its weights by itself, so it also chooses the dtype of its states",
            "the peak, with half the bits",
        )
    return None


def _late_zero_grad(facts: PeakFacts) -> Finding | None:
    """Suggest an earlier ``zero_grad``, if the previous step's gradients are alive during the next forward."""
    forward = _first_forwards(facts)
    gradients = facts.of("gradient", "sharded_gradient")
    saving = facts.saving(gradients, during=forward) if forward.any() else 0
    if not saving:
        return None
    size = facts.held(gradients)
    return Finding(
        "Gradients of the previous step are still allocated during the forward",
        f"{format_bytes(size)} of gradients at the peak, in {facts.peak.phase or 'setup'}",
        "call optimizer.zero_grad() before the forward",
        "optimizer.zero_grad() before the forward frees them earlier than after it",
        saving,
        "the peak",
        facts.show("--by", "phase"),
        "gradient",
    )


def _whole_on_every_rank(facts: PeakFacts) -> Finding | None:
    """Suggest to shard the largest weights of a module that are whole on every rank, if other weights are sharded."""
    divided, of_rank = max(facts.parts.values(), default=1), facts.of("weight", "gradient", "optimizer_state")
    whole = [module for module, parts in facts.parts.items() if parts == 1 < divided]
    sizes = {module: facts.held(of_rank & (facts.module_id == module)) for module in whole}
    module_id = max(sizes, key=lambda module: sizes[module], default=-1)
    if not sizes.get(module_id):
        return None
    name = module_label(facts.paths.get(module_id, ""), facts.classes)
    return Finding(
        f"{name} is whole on every rank",
        f"{format_bytes(sizes[module_id])} of weights, gradients and optimizer state at the peak; other weights are "
        f"divided into {divided} parts",
        f"shard {name} too",
        "pass it to fully_shard, or add it to the plan of parallelize_module",
        facts.saving(of_rank & (facts.module_id == module_id), 1 - 1 / divided),
        f"the peak, with {divided} parts",
        facts.show("--by", "module", "-n", "50"),
        facts.paths.get(module_id, ""),
    )


def _kept_activations(facts: PeakFacts) -> Finding | None:
    """Report memory of earlier steps that is never freed."""
    kept = find_kept(facts)
    if kept is None:
        return None
    line, owner = facts.line_at_any_time(kept.blocks), kept_module(facts, kept)
    holder = find_holder(facts, kept)
    action, advice = kept_advice(facts, kept, holder)
    total, steps = format_bytes(sum(kept.sizes)), f"steps {kept.first_step} to {kept.last_step}"
    return Finding(
        f"Every step keeps {format_bytes(kept.each_bytes)} more{place_of(holder)}"
        + (f", the largest part allocated at {line}" if line else ""),
        f"tensors of {steps} are still allocated at the end, {total} in total, most of it {owner}",
        action,
        advice,
        facts.saving(kept.blocks),
        f"the peak of {len(kept.sizes) + 1} steps; the saving grows with each step",
        facts.show("--at", "end", "--by", "module"),
        "activation",
        grows=True,
    )


def _what_grows(facts: PeakFacts) -> Finding | None:
    """Report what every recorded step keeps, or else what grows in the program, as with each evaluation."""
    return _kept_activations(facts) or grown_memory(facts)


def _fragmentation(facts: PeakFacts) -> Finding | None:
    """Report fragmentation: reserved bytes are far above the peak of allocated bytes. Pools of CUDA graphs are not."""
    if facts.device_idx < 0:
        return None
    reserved, gap, when = _unused_bytes(facts)
    if gap < 0.1 * reserved:
        return None
    if STATED_POOL in facts.rank.table("segments", ("pool",)).column("pool").to_pylist():  # its use is not in the file
        return None
    settings = facts.rank.manifest.allocator_settings or {}
    expandable = bool(settings.get("expandable_segments"))
    action, advice = (
        (
            "pad inputs to a few lengths",
            "expandable segments are enabled already; inputs padded to a few lengths need fewer different block sizes, "
            "which leaves smaller gaps",
        )
        if expandable
        else (
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets segments grow instead of leaving gaps",
        )
    )
    return Finding(
        f"{format_frac(gap / reserved, 0)} of the reserved memory was never in use at the same time",
        f"{format_bytes(reserved)} reserved{when}, at most {format_bytes(reserved - gap)} in use",
        action,
        advice,
        gap,
        "reserved bytes",
        ("balance", *facts.show()[1:]),
        "",
        is_upper_bound=True,
        is_replayed=False,
    )


def _unused_bytes(facts: PeakFacts) -> tuple[int, int, str]:
    """Return the peak of reserved bytes, how many of them were never in use, and when it was.

    Outside the recorded steps, what is in use is not known. It is then what is allocated, as in most programs.
    """
    reserved = int(reserved_curve(facts.rank, facts.device_idx).bytes.max())
    peaks = allocator_peaks(facts.rank, facts.device_idx)
    later = peaks.peak_reserved_bytes or 0
    if max(reserved - facts.peak_bytes, later - peaks.peak_allocated_bytes) < 0.1 * reserved:
        return reserved, 0, ""  # what is in use contains what is allocated
    active = running_sum(facts.lives.allocated_bytes, facts.lives.alloc_index, facts.lives.free_index)
    of_graphs = int(kept_free_bytes(facts.rank, facts.device_idx, facts.lives.last_index).sum())
    in_use = int(active.bytes.max())
    gap, later_gap = reserved - of_graphs - in_use, later - of_graphs - max(in_use, peaks.peak_allocated_bytes)
    if later > reserved and later_gap > gap:
        return later, later_gap, " outside the recorded steps"
    return reserved, gap, ""


def _other_processes(facts: PeakFacts) -> Finding | None:
    """Report memory of other processes on the GPU."""
    capacity, reading = capacity_bytes(facts.rank, facts.device_idx), read_card(facts.rank, facts.peak)
    if not capacity or not reading.other_bytes or reading.other_bytes < 0.03 * capacity:
        return None
    return Finding(
        f"Other processes use {format_frac(reading.other_bytes / capacity, 0)} of the GPU",
        f"{format_bytes(reading.other_bytes)} at the sample nearest to the peak",
        "end other processes on the GPU",
        "to list them, run nvidia-smi; often it is a notebook that was left open",
        reading.other_bytes,
        "the GPU, not this process",
        ("balance", *facts.show()[1:]),
        "",
        is_replayed=False,
    )


RULES: tuple[Callable[[PeakFacts], Finding | None], ...] = (
    _optimizer_state,
    repeated_activations,
    caches,
    batch,
    autocast,
    _late_zero_grad,
    one_module,
    _whole_on_every_rank,
    kept_gathered,
    optimizer_temporaries,
    outside_modules,
    one_line,
    _what_grows,
    _fragmentation,
    _other_processes,
)
"""The rules. Each function returns one finding or None."""


def _first_forwards(facts: PeakFacts) -> Mask:
    """Return which events of the curve are in a step's first forward, from the second step on.

    Later forwards of a step belong to gradient accumulation, which needs the gradients.
    """
    rank, device = facts.rank, facts.device_idx
    codes, words = read_labels(rank, "spans", "phase", device)
    steps, starts = (read_numbers(rank, "spans", name, device) for name in ("step", "start_index"))
    inside = np.zeros(facts.curve.index.size, dtype=bool)
    if not {"forward", "backward"} <= set(words):
        return inside
    forward, backward = ((codes == words.index(name)) & (starts >= 0) for name in ("forward", "backward"))
    for step in distinct_numbers(steps[steps > 1]).tolist():
        begin = starts[forward & (steps == step)]
        end = starts[backward & (steps == step)]
        if begin.size and end.size:
            inside |= (facts.curve.index >= begin.min()) & (facts.curve.index < end.min())
    return inside
