"""Suggestions that would lower the peak: up to five findings, each with evidence, saving and a command to show it.

A saving is the difference between the peak of the recording and the peak of a replay without the bytes in question, or
with the changed lifetimes of :mod:`.what_if`. If another instant is nearly as high as the peak, the saving is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.families import find_families
from gpuledger.analyze.memory.graph_pools import kept_free_bytes
from gpuledger.analyze.memory.groups import module_label
from gpuledger.analyze.memory.live import (
    distinct_numbers,
    pick_device,
    read_labels,
    read_numbers,
    reserved_curve,
    running_sum,
)
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.overview.balance import STATED_POOL, read_card
from gpuledger.analyze.overview.kept_advice import kept_advice, kept_module
from gpuledger.analyze.overview.kept_steps import find_kept
from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
from gpuledger.analyze.overview.summary import capacity_bytes
from gpuledger.analyze.overview.update_advice import has_8_bit_form, update_advice
from gpuledger.analyze.overview.what_if import GROWS_WITH_BATCH, with_autocast, with_checkpointing, with_half_batch
from gpuledger.units import format_bytes, format_frac

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

MOST = 5
_SMALL_STATE_FRAC = 0.75
"""8-bit optimizer states keep a quarter of 32-bit ones (Dettmers et al., 2022, 8-bit Optimizers)."""
_MOSTLY_32_BITS_FRAC = 0.9
_LEAST_SHARE = 0.03
"""Savings below this fraction of the peak are not shown, unless they grow with each step."""


@dataclass(frozen=True)
class Finding:
    """One finding. ``command`` are the arguments of ``gpuledger`` that show it, with ``RUN`` for the run.

    ``action`` is the advice in a few words. ``saving_bytes`` is an estimate relative to ``saved_from``, and an upper
    bound if ``is_upper_bound``. ``is_replayed`` is False if the saving is not from a replay of this run's peak.
    ``peak_after_bytes`` is what the peak would then be, at least if the saving is an upper bound; None if not replayed.
    ``grows`` says that the saving grows with each step. ``search`` is the search text for the report.
    """

    title: str
    evidence: str
    action: str
    advice: str
    saving_bytes: int
    saved_from: str
    command: tuple[str, ...]
    search: str
    is_upper_bound: bool = False
    is_replayed: bool = True
    grows: bool = False
    peak_after_bytes: int | None = None


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
    if facts.has_large_state:
        return Finding(
            title,
            f"{format_bytes(size)} at the peak{beside}",
            "halve the optimizer state",
            "it is more than a few values for each weight: L-BFGS keeps two vectors of all weights for each entry of "
            "its history, so that a smaller history_size takes less",
            facts.saving(state, 0.5),
            "the peak, with half the state",
            facts.show("--by", "category"),
            "optimizer_state",
        )
    forms = [has_8_bit_form(one) for one in facts.rank.manifest.optimizers or ()]
    if forms and not any(forms):
        return None
    return Finding(
        title,
        f"{format_bytes(size)} at the peak{beside}",
        "use 8-bit optimizer states",
        "8-bit states take a quarter of 32-bit ones; those of parameters with few elements stay in 32 bits"
        + ("" if facts.is_sharded else "; sharding (ZeRO, FSDP) divides the states by the number of ranks"),
        facts.saving(state & facts.is_large_state, _SMALL_STATE_FRAC),
        "the peak, with 8-bit states",
        facts.show("--by", "category"),
        "optimizer_state",
        is_upper_bound=not all(forms),
    )


_KEPT_FOR_BACKWARD = (
    " for backward",
    "checkpoint the activations of {name}",
    "activation checkpointing stores the activations of one module at a time and recomputes the others, which takes "
    "longer",
)
_KEPT_IN_INFERENCE = (
    ", though no backward was recorded",
    "free what {name} keeps",
    "often this is a cache of keys and values (set use_cache=False if nothing is generated), or a list of outputs",
)


def _repeated_activations(facts: PeakFacts) -> Finding | None:
    """Suggest activation checkpointing, if activations of repeated modules are a large part of the peak."""
    activations = facts.of("activation")
    families = find_families(facts.rank)
    sizes = [(facts.held(activations & np.isin(facts.module_id, family.members)), family) for family in families]
    size, family = max(sizes, key=lambda pair: pair[0], default=(0, None))
    if family is None or size < 0.15 * facts.peak_bytes:
        return None
    if (activations & facts.born_in("backward") & np.isin(facts.module_id, family.members)).any():
        return None  # computed again in backward: checkpointing is in use
    kept_frac = 1 / family.count
    saving_bytes = (
        facts.peak_bytes - with_checkpointing(facts, family).peak_bytes
        if facts.is_trained
        else facts.saving(activations & np.isin(facts.module_id, family.members), 1 - kept_frac)
    )
    why, action, advice = _KEPT_FOR_BACKWARD if facts.is_trained else _KEPT_IN_INFERENCE
    return Finding(
        f"Activations of {family.name} are {facts.share(size)} of the peak",
        f"{family.count} modules of class {family.class_name} keep {format_bytes(size)}{why}",
        action.format(name=family.name),
        advice,
        saving_bytes,
        "the peak; the outputs of these modules are kept",
        facts.show("--by", "module", "--depth", str(family.depth)),
        "activation",
    )


def _batch(facts: PeakFacts) -> Finding | None:
    """Suggest half the batch size, if activations are most of the peak."""
    blocks = facts.of(*GROWS_WITH_BATCH)
    size = facts.held(blocks)
    inputs = facts.rank.manifest.inputs
    if size < 0.5 * facts.peak_bytes or (inputs is not None and inputs.shape[0] == 1) or not facts.uses_modules:
        return None
    return Finding(
        f"Memory that grows with the batch size is {facts.share(size)} of the peak",
        f"{format_bytes(size)} of activations, {'their gradients, ' if facts.is_trained else ''}temporaries and inputs",
        "halve the batch size and accumulate gradients" if facts.is_trained else "halve the batch size",
        "half the batch size halves them; gradients that are accumulated over two batches stay allocated in between"
        if facts.is_trained
        else "half the batch size halves them",
        facts.peak_bytes - with_half_batch(facts).peak_bytes,
        "the peak, with half the batch size",
        facts.show("--by", "category"),
        "",
    )


def _autocast(facts: PeakFacts) -> Finding | None:
    """Suggest autocast for a training in 32-bit floating point."""
    precision = facts.rank.manifest.precision
    if precision is None or precision.autocast is not False or not facts.is_trained or facts.is_sharded:
        return None
    size = facts.held(facts.of(*_OF_A_STEP) & (facts.module_id >= 0))
    if (precision.float32_frac or 0.0) < _MOSTLY_32_BITS_FRAC or size < 0.1 * facts.peak_bytes:
        return None
    device = "cuda" if facts.device_idx >= 0 else "cpu"
    return Finding(
        title=f"Tensors that modules compute in 32 bits are {facts.share(size)} of the peak",
        evidence=f"{format_bytes(size)} of activations, their gradients and temporaries; autocast is not used",
        action="use autocast with bfloat16",
        advice=f'torch.autocast("{device}", dtype=torch.bfloat16) around the forward and the loss halves most of them; '
        "results differ slightly",
        search="activation",
        command=facts.show("--by", "module"),
        saved_from="the peak, under autocast",
        saving_bytes=facts.peak_bytes - with_autocast(facts).peak_bytes,
    )


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


_OF_A_STEP = ("activation", "activation_gradient", "temporary", "workspace")


def _one_module(facts: PeakFacts) -> Finding | None:
    """Suggest a change to one module with much memory that is not repeated: often the head's logits."""
    blocks = facts.of(*_OF_A_STEP) & facts.at_peak & (facts.module_id >= 0)
    for family in find_families(facts.rank):
        blocks &= ~np.isin(facts.module_id, family.members)
    if not blocks.any():
        return None
    ids, place = np.unique(facts.module_id[blocks], return_inverse=True)
    sizes = np.bincount(place, weights=facts.lives.allocated_bytes[blocks])
    module_id, size = int(ids[np.argmax(sizes)]), int(sizes.max())
    if size < 0.1 * facts.peak_bytes:
        return None
    if module_id < 0 and facts.rank.manifest.recorder.is_imported:  # the file does not say where it was allocated
        return None
    name = module_label(facts.paths.get(module_id, ""), facts.classes)
    largest = int(facts.lives.allocated_bytes[blocks & (facts.module_id == module_id)].max())
    return Finding(
        f"{name} alone uses {facts.share(size)} of the peak",
        f"{format_bytes(size)} of activations, temporaries and workspaces, the largest block {format_bytes(largest)}",
        f"reduce the memory of {name}",
        "if these are logits, a loss in chunks or a fused loss never stores all of them; otherwise see which tensors "
        "it keeps",
        facts.saving(blocks & (facts.module_id == module_id)),
        "the peak, at most",
        facts.show("--by", "module", "-n", "50"),
        facts.paths.get(module_id, ""),
        is_upper_bound=True,
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


def _optimizer_temporaries(facts: PeakFacts) -> Finding | None:
    """Suggest an update without temporaries, if those of ``optimizer.step()`` are a large part of the peak."""
    advised = update_advice(facts.rank.manifest.optimizers)
    if advised is None or facts.rank.manifest.recorder.is_imported or facts.has_large_state:
        return None
    blocks = facts.of("temporary", "workspace") & facts.of_updates(advised.step_modules)
    size = facts.held(blocks)
    if size < 0.1 * facts.peak_bytes:
        return None
    return Finding(
        f"Temporaries of the optimizer are {facts.share(size)} of the peak",
        f"{format_bytes(size)} that optimizer.step() allocates and frees",
        advised.action,
        advised.advice,
        facts.saving(blocks),
        "the peak, at most",
        facts.show("--by", "phase"),
        OUTSIDE_PATH,
        is_upper_bound=True,
    )


_OF_THE_LOSS = (
    "reduce tensors outside modules, such as the loss",
    "a loss in chunks or a fused loss never stores all logits and their gradients at once",
)
_OF_OTHER_CODE = (
    "reduce tensors outside modules",
    "compute them in parts, or delete those that are no longer needed",
)


def _outside_modules(facts: PeakFacts) -> Finding | None:
    """Suggest less memory in the code outside modules: often the logits and the loss of a training step."""
    blocks = facts.of(*_OF_A_STEP) & (facts.module_id < 0) & ~facts.of_update
    size = facts.held(blocks)
    if size < 0.1 * facts.peak_bytes or facts.rank.manifest.recorder.is_imported or not facts.uses_modules:
        return None
    largest, line = int(facts.lives.allocated_bytes[blocks & facts.at_peak].max()), facts.line_of(blocks)
    of_pass = facts.held(blocks & (facts.born_in("forward") | facts.born_in("backward")))
    action, advice = _OF_THE_LOSS if facts.is_trained and 2 * of_pass >= size else _OF_OTHER_CODE
    return Finding(
        f"Tensors outside modules are {facts.share(size)} of the peak",
        f"{format_bytes(size)} of activations, temporaries and workspaces, the largest block {format_bytes(largest)}"
        + (f", the largest part allocated at {line}" if line else ""),
        action,
        advice,
        facts.saving(blocks),
        "the peak, at most",
        facts.show("--by", "line", "-n", "50"),
        OUTSIDE_PATH,
        is_upper_bound=True,
    )


def _one_line(facts: PeakFacts) -> Finding | None:
    """Suggest less memory on the source line with most of it, in a program without modules."""
    blocks = facts.of(*_OF_A_STEP)
    line = "" if facts.uses_modules else facts.line_of(blocks)
    here = blocks & facts.is_on(line) if line else blocks
    size = facts.held(here)
    if not line or size < 0.1 * facts.peak_bytes:
        return None
    largest = int(facts.lives.allocated_bytes[here & facts.at_peak].max())
    return Finding(
        f"{line} alone uses {facts.share(size)} of the peak",
        f"{format_bytes(size)} of temporaries, the largest block {format_bytes(largest)}",
        f"reduce the memory of {line}",
        "compute it in parts, or in place with out= or an operator that ends in _",
        facts.saving(here),
        "the peak, at most",
        facts.show("--by", "line", "-n", "50"),
        "",
        is_upper_bound=True,
    )


def _kept_activations(facts: PeakFacts) -> Finding | None:
    """Report memory of earlier steps that is never freed."""
    kept = find_kept(facts)
    if kept is None:
        return None
    line, owner = facts.line_of(kept.blocks), kept_module(facts, kept)
    action, advice = kept_advice(facts, kept)
    total, steps = format_bytes(sum(kept.sizes)), f"steps {kept.first_step} to {kept.last_step}"
    return Finding(
        f"Every step keeps {format_bytes(kept.each_bytes)} more",
        f"tensors of {steps} are still allocated at the end, {total} in total, most of it {owner}"
        + (f", the largest part allocated at {line}" if line else ""),
        action,
        advice,
        facts.saving(kept.blocks),
        f"the peak of {len(kept.sizes) + 1} steps; the saving grows with each step",
        facts.show("--at", "end", "--by", "module"),
        "activation",
        grows=True,
    )


def _fragmentation(facts: PeakFacts) -> Finding | None:
    """Report fragmentation: reserved bytes are far above the peak of allocated bytes. Pools of CUDA graphs are not."""
    if facts.device_idx < 0:
        return None
    reserved = int(reserved_curve(facts.rank, facts.device_idx).bytes.max())
    if reserved - facts.peak_bytes < 0.1 * reserved:  # what is in use contains what is allocated
        return None
    active = running_sum(facts.lives.allocated_bytes, facts.lives.alloc_index, facts.lives.free_index)
    of_graphs = int(kept_free_bytes(facts.rank, facts.device_idx, facts.lives.last_index).sum())
    gap = reserved - of_graphs - int(active.bytes.max())
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
        f"{format_bytes(reserved)} reserved, at most {format_bytes(reserved - gap)} in use",
        action,
        advice,
        gap,
        "reserved bytes, at most",
        ("balance", *facts.show()[1:]),
        "",
        is_upper_bound=True,
        is_replayed=False,
    )


def _other_processes(facts: PeakFacts) -> Finding | None:
    """Report memory of other processes on the GPU."""
    capacity, reading = capacity_bytes(facts.rank, facts.device_idx), read_card(facts.rank, facts.peak)
    if not capacity or not reading.other_bytes or reading.other_bytes < 0.03 * capacity:
        return None
    return Finding(
        f"Other processes use {format_frac(reading.other_bytes / capacity, 0)} of the GPU",
        f"{format_bytes(reading.other_bytes)} at the sample nearest to the peak",
        "end other processes on the GPU",
        "nvidia-smi lists them; often it is a notebook that was left open",
        reading.other_bytes,
        "the GPU, not this process",
        ("balance", *facts.show()[1:]),
        "",
        is_replayed=False,
    )


RULES: tuple[Callable[[PeakFacts], Finding | None], ...] = (
    _optimizer_state,
    _repeated_activations,
    _batch,
    _autocast,
    _late_zero_grad,
    _one_module,
    _whole_on_every_rank,
    _optimizer_temporaries,
    _outside_modules,
    _one_line,
    _kept_activations,
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
