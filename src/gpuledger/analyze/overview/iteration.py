"""One iteration in the form of the older PyTorch memory profiler, and its peak as lines that sum to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.breakdown import coded_categories
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import (
    I64,
    Curve,
    Lives,
    allocated_curve,
    device_indices,
    read_lives,
    read_numbers,
    reserved_curve,
    running_sum,
)
from gpuledger.analyze.overview.balance import GRAPH_POOLS, build_balance
from gpuledger.analyze.overview.process_bytes import LIBRARY, NCCL
from gpuledger.model.accounts import CATEGORIES, ROUNDING, UNSHARDED_CATEGORY

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

FEATURE_MAPS = ("activation", "input")
BEYOND = ("fragmented", "free_segments", "awaiting_free")
"""Cached memory beyond allocated bytes. Memory that CUDA graphs keep counts as fragmented."""
CARD_LINES = ("context", "library", "driver", "other_processes", "unaccounted")
"""Lines of the GPU; None if unknown."""
OWNED = ("weight", "gradient")
"""Categories that are split into the model's own and those of other modules."""
OTHERS = "of other modules"
NOT_CACHED_YET = "not_cached_yet"
_WORDS = tuple(word for word in CATEGORIES if word not in UNSHARDED_CATEGORY)
"""Categories of an iteration. It does not distinguish sharded training."""
PEAK_WORDS = (
    *(name for word in _WORDS for name in ((word, f"{word} {OTHERS}") if word in OWNED else (word,))),
    ROUNDING,
)
"""Every word that a line of ``at_peak`` can have, in its order."""


@dataclass(frozen=True)
class Iteration:
    """One iteration on one device. Each quantity is its maximum over the iteration.

    ``at_peak`` lists the memory at the peak of allocated bytes. It sums to ``allocated_bytes``, and together with
    ``beyond`` to ``peak_cached_bytes``. Its names are categories, ``rounding``, and ``weight of other modules``.
    """

    device_idx: int
    peak_cached_bytes: int
    current_cached_bytes: int
    feature_map_bytes: int
    gradient_bytes: int
    intermediate_gradient_bytes: int
    optimizer_state_bytes: int
    buffer_bytes: int
    temporary_bytes: int
    allocated_bytes: int
    at_peak: tuple[tuple[str, int], ...]
    beyond: tuple[tuple[str, int], ...]
    card: tuple[tuple[str, int | None], ...]


def summarize_iteration(rank: Rank, own_modules: Collection[int]) -> tuple[Iteration, ...]:
    """Return the memory of one recorded iteration, by device.

    Args:
        rank: A recording of one iteration.
        own_modules: Ids of the model's modules, to separate their weights and gradients from those of others.

    Source: caching allocator's history, exact; the GPU's lines as in :func:`build_balance`.
    """
    return tuple(_on_device(rank, device, own_modules) for device in device_indices(rank))


def _on_device(rank: Rank, device: int, own_modules: Collection[int]) -> Iteration:
    lives, reserved = read_lives(rank, device), reserved_curve(rank, device)
    words = _own_words(rank, device, own_modules)
    highest = {word: _highest(lives, mask) for word, mask in _masks(words).items()}
    peak = find_peak(rank, device)
    lines = {line.name: line.bytes for line in build_balance(rank, device).lines}
    if NCCL in lines:  # the table has no column for it
        lines[LIBRARY] = (lines[LIBRARY] or 0) + (lines[NCCL] or 0)
    if GRAPH_POOLS in lines:
        lines["fragmented"] = (lines["fragmented"] or 0) + (lines[GRAPH_POOLS] or 0)
    cached = int(reserved.bytes.max())
    beyond = [(name, lines.get(name) or 0) for name in BEYOND]
    return Iteration(
        device_idx=device,
        peak_cached_bytes=cached,
        current_cached_bytes=int(reserved.bytes[-1]),
        feature_map_bytes=_highest(lives, np.isin(words, FEATURE_MAPS)),
        gradient_bytes=highest.get("gradient", 0),
        intermediate_gradient_bytes=highest.get("activation_gradient", 0),
        optimizer_state_bytes=highest.get("optimizer_state", 0),
        buffer_bytes=highest.get("buffer", 0),
        temporary_bytes=highest.get("temporary", 0),
        allocated_bytes=allocated_curve(lives).at(peak.index),
        at_peak=_at(lives, words, peak.index),
        beyond=(*beyond, (NOT_CACHED_YET, cached - _at_or_first(reserved, peak.index))),
        card=tuple((name, lines.get(name)) for name in CARD_LINES),
    )


def _own_words(rank: Rank, device: int, own_modules: Collection[int]) -> NDArray[np.str_]:
    """Return each block's category, with a separate one for weights and gradients of other modules."""
    codes, texts = coded_categories(rank, device)
    folded = [UNSHARDED_CATEGORY.get(text, text) for text in texts]
    words = np.array(folded, dtype=np.str_)[codes].astype("U40")
    other = ~np.isin(read_numbers(rank, "blocks", "module_id", device), list(own_modules))
    for word in OWNED:
        words[other & (words == word)] = f"{word} {OTHERS}"
    return words


def _masks(words: NDArray[np.str_]) -> dict[str, NDArray[np.bool_]]:
    return {str(word): words == word for word in np.unique(words)}


def _highest(lives: Lives, some: NDArray[np.bool_]) -> int:
    """Return the peak of the bytes of some blocks."""
    if not some.any():
        return 0
    curve = running_sum(lives.requested_bytes[some], lives.alloc_index[some], lives.free_requested_index[some])
    return int(curve.bytes.max())


def _at(lives: Lives, words: NDArray[np.str_], index: int) -> tuple[tuple[str, int], ...]:
    """Return the bytes by category at ``index``, in the order of the categories, and the rounding."""
    live = lives.allocated_at(index)
    sizes: I64 = lives.requested_bytes[live]
    found = {word: int(sizes[mask].sum()) for word, mask in _masks(words[live]).items()}
    order = [name for word in _WORDS for name in (word, f"{word} {OTHERS}")]
    rounding = int(lives.allocated_bytes[live].sum() - sizes.sum())
    return (*((name, found[name]) for name in order if found.get(name)), *(((ROUNDING, rounding),) if rounding else ()))


def _at_or_first(curve: Curve, index: int) -> int:
    """Return a curve's bytes at ``index``; the first value for index -1, the start of the recording."""
    return curve.at(max(index, int(curve.index[0])))
