"""Memory that the iterations of a loop keep, in a program that fails before its step ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.growth import FEWEST_FAILED_STEPS
from gpuledger.analyze.memory.lifetimes import I64, Lives, distinct_numbers, read_labels, read_lives, read_numbers
from gpuledger.analyze.memory.lines.loops import find_iterations
from gpuledger.analyze.memory.lines.source_lines import line_texts, read_stacks
from gpuledger.model.accounts import ONE_OF_EACH_WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuledger.model.run import Rank

_CALLS = ("forward", "evaluation")
_MOST_FRAC = 0.9
"""Share of the iterations that must keep something, and in which a module must allocate."""
_PARTS, _STEADY_FRAC = 4, 0.5
"""Each part of the iterations must keep at least this share of what it would keep if all were equal."""


@dataclass(frozen=True)
class LoopGrowth:
    """What iterations of a loop have allocated and not freed.

    Attributes:
        line: ``file:line function`` of the first line that allocates in an iteration; "" if it is a call of the model.
        iterations: Number of iterations that have ended.
        iteration_bytes: Bytes that an iteration keeps, median.
        grown_bytes: Bytes that all of them keep.
        kept_line: ``file:line function`` that allocated most of it; "" if not known.
    """

    line: str
    iterations: int
    iteration_bytes: int
    grown_bytes: int
    kept_line: str


def find_loop_growth(rank: Rank, device_idx: int, index: int, *, has_graphs: bool) -> LoopGrowth | None:
    """Return what the iterations of the program's main loop keep; None if they do not, or if that is not certain.

    The request must have failed in the loop. A loop over the layers of a model keeps activations, and ends. So the loop
    must be outside modules. With autograd, each iteration must call the same modules: a loop over layers calls another
    one in each. Without such a loop, calls of the model are the iterations.

    Args:
        rank: The rank.
        device_idx: The device.
        index: The allocator's event at which a request failed.
        has_graphs: Whether gradients were enabled then, or that is not known.

    Source: the recorded blocks and their stacks; exact. Weights, gradients and optimizer state are not counted.
    """
    loop = find_iterations(rank, device_idx)
    if loop is not None and not loop.is_in_module:
        has_ended = loop.next is not None and loop.next <= index
        return None if has_ended else _growth(rank, device_idx, index, loop.begins, loop.line, is_of_calls=has_graphs)
    begins = _calls(rank, device_idx)
    longest = int(np.diff(begins).max(initial=0))
    has_ended = not begins.size or index - int(begins[-1]) > longest
    return None if has_ended else _growth(rank, device_idx, index, begins, "", is_of_calls=True)


def _calls(rank: Rank, device_idx: int) -> I64:
    """Return the allocator's events at which calls of outermost modules begin."""
    codes, words = read_labels(rank, "spans", "phase", device_idx)
    kinds, kind_words = read_labels(rank, "spans", "kind", device_idx)
    begins = read_numbers(rank, "spans", "start_index", device_idx)
    is_call = np.isin(codes, [words.index(word) for word in _CALLS if word in words])
    is_phase = kinds == kind_words.index("phase") if "phase" in kind_words else np.zeros(kinds.size, dtype=bool)
    return distinct_numbers(begins[is_call & is_phase & (begins >= 0)])


def _growth(rank: Rank, device_idx: int, index: int, begins: I64, line: str, *, is_of_calls: bool) -> LoopGrowth | None:
    begins = begins[begins <= index]
    count = begins.size - 1  # the last one has not ended
    if count < FEWEST_FAILED_STEPS:
        return None
    lives = read_lives(rank, device_idx)
    iteration = np.searchsorted(begins, lives.alloc_index, side="right") - 1
    is_inside = (iteration >= 0) & (iteration < count) & (lives.alloc_index >= 0)
    if is_of_calls and not _call_same_modules(rank, lives, iteration, is_inside, count):
        return None
    codes, words = read_labels(rank, "blocks", "category", device_idx)
    lasting = [words.index(word) for word in ONE_OF_EACH_WEIGHT if word in words]
    is_kept = is_inside & lives.allocated_at(index) & ~np.isin(codes, lasting)
    kept = np.bincount(iteration[is_kept], weights=lives.requested_bytes[is_kept], minlength=count)
    parts = np.array([part.sum() for part in np.array_split(kept, _PARTS)])
    if (kept > 0).mean() < _MOST_FRAC or parts.min() < _STEADY_FRAC * kept.sum() / _PARTS:
        return None
    kept_line = _most_of(rank, device_idx, is_kept, lives.requested_bytes)
    return LoopGrowth(line, count, round(float(np.median(kept))), int(kept.sum()), kept_line)


def _call_same_modules(rank: Rank, lives: Lives, iteration: I64, is_inside: NDArray[np.bool_], count: int) -> bool:
    """Return whether most of what modules allocate is of modules that allocate in most of the iterations."""
    module = read_numbers(rank, "blocks", "module_id", lives.device_idx)
    mine = np.flatnonzero(is_inside & (module >= 0))
    if not mine.size:
        return False
    calls = np.bincount(distinct_numbers(module[mine] * count + iteration[mine]) // count)
    is_again = calls[module[mine]] >= _MOST_FRAC * count
    size = lives.requested_bytes[mine]
    return bool(size[is_again].sum() >= _MOST_FRAC * size.sum())


def _most_of(rank: Rank, device_idx: int, is_kept: NDArray[np.bool_], sizes: I64) -> str:
    """Return the source line that allocated most of the blocks."""
    stack_id = read_numbers(rank, "blocks", "stack_id", device_idx)
    of_line = Counter[str]()
    for number, text in line_texts(read_stacks(rank)).items():
        of_line[text] += int(sizes[is_kept & (stack_id == number)].sum())
    line, size = max(of_line.items(), key=lambda one: one[1], default=("", 0))
    return line if size else ""
