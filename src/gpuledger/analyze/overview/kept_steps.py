"""Blocks that every step of the program keeps: leaks, as distinct from blocks that are kept for some steps.

A call before ``optimizer.step()`` allocates in its own step, and the first step has it. A call after it belongs to the
next step, so that the first one does not have it. Some recorded steps look the same if the program keeps the last
outputs, prepares batches ahead or fills a cache. So what later steps show decides: on the CPU, whether the blocks are
alive at the end of the last step and tensors become more; on a GPU, whether allocated memory still rises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.growth import FEWEST_LATER_STEPS
from gpuledger.analyze.memory.lifetimes import distinct_numbers, read_labels, read_numbers
from gpuledger.analyze.posting.replay import NEVER

if TYPE_CHECKING:
    from gpuledger.analyze.memory.lifetimes import I64
    from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
    from gpuledger.model.flight_facts import KeptAddresses

_BEFORE = ("activation", "temporary", "cache")
_AFTER = (*_BEFORE, "input", "other")
"""Categories of blocks that a program keeps. A block that lives for more than a step has no other known purpose."""
_LEAST_BYTES = 4096
_LEAST_SHARE = 0.002
_RISES_FRAC = 0.5
"""Smallest rise of allocated memory in later steps, relative to what the recorded steps keep."""


@dataclass(frozen=True)
class KeptSteps:
    """Blocks of ``first_step`` to ``last_step`` that nothing frees, and their bytes for each step."""

    blocks: Mask
    first_step: int
    last_step: int
    sizes: tuple[int, ...]

    @property
    def each_bytes(self) -> int:
        """Return the bytes that a step keeps: the last one of an estimate has those of all steps to come, too."""
        return int(np.median(self.sizes))


def find_kept(facts: PeakFacts) -> KeptSteps | None:
    """Return the blocks that every step keeps; None if there are none, or if only few steps keep them."""
    steps = read_numbers(facts.rank, "blocks", "step", facts.device_idx)
    recorded = steps[steps >= 1]
    if not recorded.size:
        return None
    first, last = int(recorded.min()), int(recorded.max())
    last, end_index = _end_of_steps(facts, first, last)
    kept = (facts.lives.free_requested_index >= end_index) & (steps >= 1) & (steps <= last)
    later = _alive_later(facts, last)
    if later is not None:
        kept &= later
    of_before = kept & facts.of(*_BEFORE)
    before = _of_each(facts, of_before, steps, range(first, last))
    if later is not None and _of_each(facts, of_before, steps, range(first, last + 1)) is None:
        before = None  # the last step keeps nothing for good
    if before is not None:
        return before if _goes_on(facts, last, before) is not False else None
    stacks = facts.stack_id
    after = kept & facts.of(*_AFTER) & _before_backward(facts, steps)
    in_steps = {
        stack: distinct_numbers(steps[after & (stacks == stack)]).size for stack in distinct_numbers(stacks[after])
    }
    repeated = [stack for stack, count in in_steps.items() if count == last - first]
    found = _of_each(facts, after & np.isin(stacks, repeated), steps, range(first + 1, last + 1))
    if found is None or last - first > FEWEST_LATER_STEPS:
        return found
    return found if _goes_on(facts, last, found) else None


def _end_of_steps(facts: PeakFacts, first: int, last: int) -> tuple[int, int]:
    """Return the last step that has ended, and the event from which on what is freed was kept by all of the steps.

    A program that ends while it is recorded, as on a simulated GPU, frees what it has kept. In few steps, that can be
    the variables of its last one.
    """
    steps, ends = (read_numbers(facts.rank, "steps", name, facts.device_idx) for name in ("step", "end_index"))
    inside = (ends >= 0) & (steps >= first) & (steps <= last)
    if not inside.any() or int(steps[inside].max()) - first <= FEWEST_LATER_STEPS:
        return last, NEVER
    return int(steps[inside].max()), int(ends[inside].max())


def _of_each(facts: PeakFacts, blocks: Mask, steps: I64, wanted: range) -> KeptSteps | None:
    """Return the blocks of some steps; None if these are fewer than two, or one of them keeps little."""
    sizes = [int(facts.lives.allocated_bytes[blocks & (steps == step)].sum()) for step in wanted]
    usual_bytes = facts.peak_bytes - sum(sizes)
    if len(sizes) < 2 or min(sizes) < max(_LEAST_SHARE * usual_bytes, _LEAST_BYTES):
        return None
    inside = blocks & (steps >= wanted[0]) & (steps <= wanted[-1])
    return KeptSteps(inside, wanted[0], wanted[-1], tuple(sizes))


def _before_backward(facts: PeakFacts, steps: I64) -> Mask:
    """Return which blocks were allocated before the first backward pass of their step."""
    rank, device = facts.rank, facts.device_idx
    codes, words = read_labels(rank, "spans", "phase", device)
    found = np.ones(steps.size, dtype=bool)
    if "backward" in words:
        of_step, starts = (read_numbers(rank, "spans", name, device) for name in ("step", "start_index"))
        backward = (codes == words.index("backward")) & (starts >= 0)
        for step in distinct_numbers(of_step[backward]):
            found &= (steps != step) | (facts.lives.alloc_index < starts[backward & (of_step == step)].min())
    return found


def _alive_later(facts: PeakFacts, last: int) -> Mask | None:
    """Return which blocks were alive at the end of the last step; None if that is not known, or too early to decide."""
    known = facts.rank.manifest.kept_blocks
    if known is None or known.step < last + FEWEST_LATER_STEPS:
        return None
    found: Mask = np.isin(read_numbers(facts.rank, "blocks", "address", facts.device_idx), known.addresses)
    return found


def _goes_on(facts: PeakFacts, last: int, kept: KeptSteps) -> bool | None:
    """Return whether later steps keep more, too; None if it is not known."""
    rank, device = facts.rank, facts.device_idx
    if rank.manifest.kept_blocks is not None:
        return _tensors_rise(facts, rank.manifest.kept_blocks, kept)
    steps, allocated = (read_numbers(rank, "step_memory", name, device) for name in ("step", "allocated_bytes"))
    later = (steps >= last) & (allocated >= 0)
    if np.count_nonzero(later) <= FEWEST_LATER_STEPS:
        return None
    order = np.argsort(steps[later])
    steps, allocated = steps[later][order], allocated[later][order]
    return bool(allocated[-1] - allocated[0] >= _RISES_FRAC * kept.each_bytes * (steps[-1] - steps[0]))


def _tensors_rise(facts: PeakFacts, known: KeptAddresses, kept: KeptSteps) -> bool | None:
    """Return whether there is another tensor after each later step, or a graph keeps the blocks; None if not known.

    A graph is never a cache, and the tensors that it keeps cannot be counted.
    """
    addresses = read_numbers(facts.rank, "blocks", "address", facts.device_idx)[kept.blocks]
    sizes = facts.lives.allocated_bytes[kept.blocks]
    if 2 * int(sizes[np.isin(addresses, known.hidden)].sum()) >= int(sizes.sum()):
        return True
    if len(known.counts) < 2:
        return None
    (first, before), (last, after) = known.counts[0], known.counts[-1]
    return after - before >= _RISES_FRAC * (last - first)
