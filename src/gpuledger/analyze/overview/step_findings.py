"""Findings on what a step allocates: activations, temporaries, and tensors outside modules."""

from __future__ import annotations

import numpy as np

from gpuledger.analyze.memory.families import find_families
from gpuledger.analyze.memory.groups import module_label
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
from gpuledger.analyze.overview.update_advice import update_advice
from gpuledger.analyze.overview.what_if import grows_with_batch, with_autocast, with_checkpointing, with_half_batch
from gpuledger.units import format_bytes

_MOSTLY_32_BITS_FRAC = 0.9
_OF_A_STEP = ("activation", "activation_gradient", "temporary")
"""Categories that a change of the code makes smaller. Workspaces have the sizes of their libraries and stay."""

_KEPT_FOR_BACKWARD = (
    " for backward",
    "checkpoint the activations of {name}",
    "activation checkpointing stores the activations of one module at a time and recomputes the others, which takes "
    "longer",
)
_KEPT_IN_INFERENCE = (
    ", though no backward was recorded",
    "free what {name} keeps",
    "often this is the graph of a backward that never runs (use torch.inference_mode()), or a list of outputs",
)
_CACHE_LEFT_FRAC = 0.5
"""Size of a cache in half as many bits."""


def repeated_activations(facts: PeakFacts) -> Finding | None:
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


def caches(facts: PeakFacts) -> Finding | None:
    """Suggest fewer bits for what modules keep from one call to the next, if it is a large part of the peak."""
    blocks = facts.of("cache")
    size = facts.held(blocks)
    if size < 0.1 * facts.peak_bytes:
        return None
    families = find_families(facts.rank)
    sizes = [(facts.held(blocks & np.isin(facts.module_id, one.members)), one.name) for one in families]
    of_family, name = max(sizes, default=(0, ""))
    if of_family < 0.5 * size:
        largest, _ = _largest_module(facts, blocks & facts.at_peak)
        name = module_label(facts.paths.get(largest, ""), facts.classes)
    return Finding(
        title=f"Caches are {facts.share(size)} of the peak",
        evidence=f"{format_bytes(size)} that calls of {name} keep for later ones, such as keys and values of attention",
        action=f"keep the cache of {name} in half as many bits",
        saving_bytes=facts.saving(blocks, 1 - _CACHE_LEFT_FRAC),
        saved_from="the peak, with half of the cache",
        search="cache",
        advice='in transformers, cache_implementation="quantized"; a shorter maximum length makes a static cache '
        "smaller, and use_cache=False makes none if nothing is generated",
        command=facts.show("--by", "tensor"),
    )


def batch(facts: PeakFacts) -> Finding | None:
    """Suggest half the batch size, if activations are most of the peak."""
    size = facts.held(grows_with_batch(facts))
    inputs, has_batch = facts.rank.manifest.inputs, facts.rank.manifest.has_batch is not False
    if size < 0.5 * facts.peak_bytes or not (has_batch and facts.uses_modules) or (inputs and inputs.batch == 1):
        return None
    trains = facts.is_trained and facts.peak.phase != "evaluation"  # of a validation, there are no gradients
    return Finding(
        f"Memory that grows with the batch size is {facts.share(size)} of the peak",
        f"{format_bytes(size)} of activations, {'their gradients' if trains else 'caches'}, temporaries and inputs",
        "halve the batch size and accumulate gradients" if trains else "halve the batch size",
        "half the batch size halves them; gradients that are accumulated over two batches stay allocated in between"
        if trains
        else "half the batch size halves them",
        facts.peak_bytes - with_half_batch(facts).peak_bytes,
        "the peak, with half the batch size",
        facts.show("--by", "category"),
        "",
    )


def autocast(facts: PeakFacts) -> Finding | None:
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


def one_module(facts: PeakFacts) -> Finding | None:
    """Suggest a change to one module with much memory that is not repeated: often the head's logits."""
    blocks = facts.of(*_OF_A_STEP) & facts.at_peak & (facts.module_id >= 0)
    for family in find_families(facts.rank):
        blocks &= ~np.isin(facts.module_id, family.members)
    if not blocks.any():
        return None
    module_id, size = _largest_module(facts, blocks)
    if size < 0.1 * facts.peak_bytes:
        return None
    if module_id < 0 and facts.rank.manifest.recorder.is_imported:  # the file does not say where it was allocated
        return None
    name = module_label(facts.paths.get(module_id, ""), facts.classes)
    largest = int(facts.lives.allocated_bytes[blocks & (facts.module_id == module_id)].max())
    return Finding(
        f"{name} alone uses {facts.share(size)} of the peak",
        f"{format_bytes(size)} of activations and temporaries, the largest block {format_bytes(largest)}",
        f"reduce the memory of {name}",
        "if these are logits, a loss in chunks or a fused loss never stores all of them; otherwise see which tensors "
        "it keeps",
        facts.saving(blocks & (facts.module_id == module_id)),
        "the peak",
        facts.show("--by", "module", "-n", "50"),
        facts.paths.get(module_id, ""),
        is_upper_bound=True,
    )


def _largest_module(facts: PeakFacts, blocks: Mask) -> tuple[int, int]:
    """Return the module with most bytes of these blocks, and these bytes."""
    ids, place = np.unique(facts.module_id[blocks], return_inverse=True)
    sizes = np.bincount(place, weights=facts.lives.allocated_bytes[blocks])
    return int(ids[np.argmax(sizes)]), int(sizes.max())


def optimizer_temporaries(facts: PeakFacts) -> Finding | None:
    """Suggest an update without temporaries, if those of ``optimizer.step()`` are a large part of the peak."""
    advised = update_advice(facts.rank.manifest.optimizers)
    if advised is None or facts.rank.manifest.recorder.is_imported or facts.has_large_state:
        return None
    blocks = facts.of("temporary") & facts.born_in("optimizer")
    if facts.held(blocks) < 0.1 * facts.peak_bytes:
        return None
    blocks &= facts.of_updates(advised.step_modules)
    size = facts.held(blocks)
    if size < 0.1 * facts.peak_bytes:
        return None
    return Finding(
        f"Temporaries of the optimizer are {facts.share(size)} of the peak",
        f"{format_bytes(size)} that optimizer.step() allocates and frees",
        advised.action,
        advised.advice,
        facts.saving(blocks),
        "the peak",
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


def outside_modules(facts: PeakFacts) -> Finding | None:
    """Suggest less memory in the code outside modules: often the logits and the loss of a training step."""
    blocks = facts.of(*_OF_A_STEP) & (facts.module_id < 0) & ~facts.of_update
    size = facts.held(blocks)
    if size < 0.1 * facts.peak_bytes or facts.rank.manifest.recorder.is_imported or not facts.uses_modules:
        return None
    largest, line = int(facts.lives.allocated_bytes[blocks & facts.at_peak].max()), facts.line_of(blocks)
    of_pass = facts.held(blocks & (facts.born_in("forward") | facts.born_in("backward")))
    action, advice = _OF_THE_LOSS if facts.is_trained and 2 * of_pass >= size else _OF_OTHER_CODE
    if line and 2 * facts.held(blocks & facts.is_on(line)) >= size:
        action = f"reduce tensors outside modules, most of them allocated at {line}"
    return Finding(
        f"Tensors outside modules are {facts.share(size)} of the peak",
        f"{format_bytes(size)} of activations and temporaries, the largest block {format_bytes(largest)}"
        + (f", the largest part allocated at {line}" if line else ""),
        action,
        advice,
        facts.saving(blocks),
        "the peak",
        facts.show("--by", "line", "-n", "50"),
        OUTSIDE_PATH,
        is_upper_bound=True,
    )


def one_line(facts: PeakFacts) -> Finding | None:
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
        "the peak",
        facts.show("--by", "line", "-n", "50"),
        "",
        is_upper_bound=True,
    )
