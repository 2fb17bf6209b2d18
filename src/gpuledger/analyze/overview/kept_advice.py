"""What every step keeps, in words, and advice that suits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.groups import module_label
from gpuledger.analyze.memory.growth import last_holder
from gpuledger.analyze.memory.lifetimes import distinct_numbers, read_labels, read_numbers
from gpuledger.model.flight_facts import EXPLAINED_FRAC

if TYPE_CHECKING:
    from gpuledger.analyze.overview.kept_steps import KeptSteps
    from gpuledger.analyze.overview.peak_facts import PeakFacts
    from gpuledger.model.flight_facts import Holder

_GRAPH = "graph"
_SCALAR_BYTES = 8
_MAY_END = "; a cache or a deque with maxlen stops growing once it is full"


def kept_module(facts: PeakFacts, kept: KeptSteps) -> str:
    """Return where most of the kept bytes belong: ``in blocks.0 (Block)``, ``outside modules``."""
    ids, place = np.unique(facts.module_id[kept.blocks], return_inverse=True)
    sizes = np.bincount(place, weights=facts.lives.allocated_bytes[kept.blocks])
    path = facts.paths.get(int(ids[np.argmax(sizes)]), "")
    return f"in {module_label(path, facts.classes)}" if path else "outside modules"


def find_holder(facts: PeakFacts, kept: KeptSteps) -> Holder | None:
    """Return the object of the program that keeps most of the blocks; None if it is not known.

    What an autograd graph keeps was not counted. A container of other tensors must have gained enough of them.
    """
    holder, censuses = last_holder(facts.rank), facts.rank.manifest.censuses
    if holder is None or _GRAPH in (holder.kind, holder.content):
        return holder
    last = next((one for one in reversed(censuses) if one.holder is holder), None)
    if last is None or holder.content != "tensor":
        return None
    gained = holder.more * holder.element_bytes
    return holder if gained >= EXPLAINED_FRAC * kept.each_bytes * (last.step - censuses[0].step) else None


def place_of(holder: Holder | None) -> str:
    """Return where tensors are kept, to follow "keeps 1 MiB more": `` in history``; "" if it is not known."""
    if holder is None:
        return ""
    return f" for the autograd graph of {holder.shown_name}" if holder.kind == _GRAPH else f" in {holder.shown_name}"


def kept_advice(facts: PeakFacts, kept: KeptSteps, holder: Holder | None) -> tuple[str, str]:
    """Return action and advice for tensors that every step keeps.

    A scalar that is kept with larger tensors is probably a loss, whose graph keeps them. Without a scalar, the program
    keeps the tensors themselves, or one of them with its graph: which of both is not known without ``holder``.
    """
    if holder is not None and holder.kind == _GRAPH:
        return (
            f"detach() {holder.shown_name} in each step",
            f"{_described(holder)} keeps an autograd graph that becomes longer with each step",
        )
    what = "something" if holder is None else _described(holder)
    fewer = "or keep fewer" if facts.device_idx < 0 else "keep fewer, or move them to the CPU"
    if _has_scalars(facts, kept):
        action = "keep loss.item() instead of loss"
        if holder is not None and holder.content == _GRAPH:
            action = f"keep numbers or detached tensors in {holder.shown_name}"
        return (
            action,
            "every step also keeps a scalar: if that is the loss, its autograd graph keeps these tensors; otherwise "
            f"detach() what you need, {fewer}{_MAY_END}",
        )
    fewer = "keep fewer tensors of each step"
    if _has_no_graph(facts, kept):
        return (
            fewer if facts.device_idx < 0 else f"{fewer}, or move them to the CPU",
            f"{what} keeps tensors of every step{'' if holder else ', such as a list of outputs or a cache'}{_MAY_END}",
        )
    fewer += "" if facts.device_idx < 0 else ", move them to the CPU"
    return (
        f"{fewer}, or detach() those with a graph",
        f"{what} keeps tensors of every step{'' if holder else ', such as a list of outputs'}; a tensor that was not "
        f"detached also keeps what its backward needs{_MAY_END}",
    )


def _described(holder: Holder) -> str:
    """Return what an object is: ``trainer.outputs (list, attribute of Trainer)``."""
    known = [one for one in ("tensor" if holder.kind == _GRAPH else holder.kind, holder.where) if one]
    return f"{holder.shown_name} ({', '.join(known)})"


def _has_scalars(facts: PeakFacts, kept: KeptSteps) -> bool:
    """Return whether each of the steps keeps a block of the size of a scalar."""
    steps = read_numbers(facts.rank, "blocks", "step", facts.device_idx)
    small = kept.blocks & (facts.lives.requested_bytes <= _SCALAR_BYTES)
    return distinct_numbers(steps[small]).size == len(kept.sizes)


def _has_no_graph(facts: PeakFacts, kept: KeptSteps) -> bool:
    """Return whether all blocks were allocated in an evaluation, of which autograd keeps nothing."""
    codes, phases = read_labels(facts.rank, "blocks", "phase", facts.device_idx)
    return "evaluation" in phases and bool((codes[kept.blocks] == phases.index("evaluation")).all())
