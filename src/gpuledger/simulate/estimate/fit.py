"""Decide whether a program fits: peaks, an upper bound, and every GPU of the catalogue."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.allocator.pool_history import PoolHistory, peaks_of_pools, replay_pool
from gpuledger.analyze.allocator.pools import AllocatorLimits, OutOfMemoryError
from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import Journal
from gpuledger.simulate.catalogue import HANDLES, GpuModel, catalogue
from gpuledger.simulate.convolutions.convolutions import CUDNN
from gpuledger.simulate.estimate.requests_elsewhere import PoolEvents, RequestsElsewhere, Row
from gpuledger.simulate.interval import compiled_errors, later_growth_errors, lower_factor, upper_factor
from gpuledger.simulate.traits import CAPTURE, traits_of

FITS, EDGE, TOO_LARGE = "fits", "on the edge", "does not fit"


FOLLOWED, GUESSED = "followed", "guessed"
"""Kinds of programs: all workspaces computed by rules, or some predicted because cuDNN chooses the algorithms."""
_ELSEWHERE = {FOLLOWED: "followed on another GPU", GUESSED: "guessed on another GPU"}
_MEASURED_CAPABILITY = (9, 0)
"""Compute capability of the GPU on which the rules were measured."""
CHANGING = ("activation", "activation_gradient", "temporary", "cache")
"""Categories of memory of which a program needs more or less with ``torch.compile``."""
_GUESSED = ("aten.convolution", "aten._cudnn_rnn", CAPTURE)
"""Beginnings of names of operators with predicted memory. A captured graph's pool counts as such."""


@dataclass(frozen=True)
class CompiledChange:
    """Bytes of a peak that ``torch.compile`` may save, and those that it may add."""

    saving_bytes: int = 0
    growth_bytes: int = 0


NO_CHANGE = CompiledChange()


@dataclass(frozen=True)
class EndlessGrowth:
    """Memory that each step keeps, for an unknown number of steps after those that were simulated; 0 if none."""

    steps: int = 0
    bytes_per_step: int = 0

    def full_after(self, free_bytes: int) -> int | None:
        """Return the step after which the free bytes are used up; None without growth."""
        return self.steps + max(free_bytes, 0) // self.bytes_per_step if self.bytes_per_step else None


NO_GROWTH = EndlessGrowth()


@dataclass(frozen=True)
class Peaks:
    """Peak bytes of a step: allocated, reserved, and of the whole process on the GPU."""

    allocated_bytes: int
    reserved_bytes: int
    process_bytes: int
    upper_bytes: int
    kind: str = GUESSED
    assumed: Assumed | None = None
    compiled: CompiledChange = NO_CHANGE
    """How wrong the estimate of compiled code may be. ``upper_bytes`` includes it."""
    endless: EndlessGrowth = NO_GROWTH
    """Growth that no peak includes, because its end is not known."""
    lower_factor: float = 1.0
    """The factor from the lower bound to an estimate without assumed values and compiled code."""

    @property
    def lower_bytes(self) -> int:
        """Return the lower bound of the process's peak. It includes the least of assumed values and compiled code."""
        return int(self.least_bytes / self.lower_factor)

    @property
    def least_bytes(self) -> int:
        """Return the process's peak with the least of the values that were assumed, and of compiled code."""
        more_bytes = self.reserved_bytes - min(self.reserved_bytes, *bounds_of(self.assumed, self.reserved_bytes))
        return self.process_bytes - more_bytes - self.compiled.saving_bytes


@dataclass(frozen=True)
class Assumed:
    """Peak reserved bytes if the values that were assumed are the least or the largest possible; None if unknown.

    The largest includes buffers that still fill.
    """

    least_reserved_bytes: int | None
    largest_reserved_bytes: int | None


def assumed_between(least_reserved_bytes: int | None, largest_reserved_bytes: int | None) -> Assumed:
    """Return the bounds from the peaks with the least and the largest values; None for one that is not known.

    They are put in order: with smaller values, gaps between blocks can be larger.
    """
    if least_reserved_bytes is None or largest_reserved_bytes is None:
        return Assumed(least_reserved_bytes, largest_reserved_bytes)
    return Assumed(*sorted((least_reserved_bytes, largest_reserved_bytes)))


def bounds_of(assumed: Assumed | None, reserved_bytes: int) -> tuple[int, int]:
    """Return the reserved bytes with the least and the largest possible values; those of the estimate if unknown."""
    if assumed is None:
        return reserved_bytes, reserved_bytes
    return assumed.least_reserved_bytes or reserved_bytes, assumed.largest_reserved_bytes or reserved_bytes


def later_steps_bytes(grown_bytes: int) -> int:
    """Return the bytes that steps may need that were not simulated, if steps differ.

    Args:
        grown_bytes: Growth of reserved memory after the third step, until the last simulated one.
    """
    return int(grown_bytes * max(later_growth_errors().values(), default=0.0))


def with_full_buffers(assumed: Assumed | None, outcome: Mapping[str, Any], later_bytes: int = 0) -> Assumed | None:
    """Return the bounds of a program that was followed, with what its later steps still need.

    These fill its buffers, or need ``later_bytes`` because they are larger. The larger of both counts.
    """
    more_bytes, reserved_bytes = max(outcome["still_to_come_bytes"], later_bytes), outcome["peak_reserved_bytes"]
    if not more_bytes:
        return assumed
    bounds = assumed or Assumed(reserved_bytes, reserved_bytes)
    return Assumed(bounds.least_reserved_bytes, (bounds.largest_reserved_bytes or reserved_bytes) + more_bytes)


@dataclass(frozen=True)
class Fit:
    """The result for one GPU."""

    card: GpuModel
    verdict: str
    process_bytes: int
    upper_bytes: int
    approximate: bool = False
    """Whether the program may run other operators on this GPU than those that were followed."""
    full_after_steps: int | None = None
    """The step after which the GPU is full, if memory grows for an unknown number of steps; None if it does not."""

    @property
    def fits_so_far(self) -> bool:
        """Return whether the upper bound of the simulated steps fits the GPU, also if memory grows for more of them."""
        return self.verdict == FITS or (
            self.full_after_steps is not None and self.upper_bytes <= self.card.usable_bytes
        )

    @property
    def free_bytes(self) -> int:
        """Return the remaining bytes of the GPU; negative if it is too small."""
        return self.card.usable_bytes - self.process_bytes


def kind_of(operators: Iterable[str]) -> str:
    """Return the kind of a program that ran these operators."""
    return GUESSED if any(name.startswith(_GUESSED) for name in operators) else FOLLOWED


def kind_on(card: GpuModel, kind: str) -> str:
    """Return the kind of a program on a GPU: rules of another GPU have other errors."""
    return kind if card.compute_capability == _MEASURED_CAPABILITY else _ELSEWHERE[kind]


def compiled_change(by_category: Mapping[str, int]) -> CompiledChange:
    """Return the bytes by which a compiled program's peak may be below its estimate, and above it.

    This is the largest error of the estimates of compiled trainings, in both directions. It is relative to activations,
    their gradients and temporary memory. Weights, gradients, optimizer state and inputs are the same when compiled.

    Source: ``bench/estimate/eager_peaks.py`` with peaks of an H200, stored in ``compiled_errors.toml``.
    """
    changing_bytes = sum(by_category.get(name, 0) for name in CHANGING)
    error_bytes = int(changing_bytes * max(map(abs, compiled_errors().values())))
    return CompiledChange(error_bytes, error_bytes)


def peaks_on(
    card: GpuModel,
    allocated_bytes: int,
    reserved_bytes: int,
    level: float,
    kind: str = GUESSED,
    assumed: Assumed | None = None,
    compiled: CompiledChange = NO_CHANGE,
) -> Peaks:
    """Return the peaks of a step on a GPU.

    The bounds are for its kind of program, for assumed values, and for what ``torch.compile`` may save or add.
    """
    process_bytes = reserved_bytes + card.outside_bytes
    largest_bytes = max(reserved_bytes, *bounds_of(assumed, reserved_bytes)) + card.outside_bytes
    upper_bytes = int(largest_bytes * upper_factor(level, kind_on(card, kind))) + compiled.growth_bytes
    below = lower_factor(level, kind_on(card, kind))
    return Peaks(
        allocated_bytes, reserved_bytes, process_bytes, upper_bytes, kind, assumed, compiled, lower_factor=below
    )


class Requests:
    """A program's allocator requests and frees in order, to be replayed on another GPU.

    Args:
        journal: The events of a followed program.
        settings: Settings of the allocator.
    """

    def __init__(self, journal: Journal, settings: AllocatorSettings) -> None:
        events = journal.tables["events"]
        wanted = np.isin(events["action"], (int(Action.ALLOC), int(Action.FREE_REQUESTED)))
        columns = ("action", "address", "bytes", "stream", "operator_id")
        self._rows: list[Row] = list(zip(*(events[name][wanted].tolist() for name in columns), strict=True))
        operators = list(journal.facts.get("operators", ()))
        self._cudnn = operators.index(CUDNN) if CUDNN in operators else None
        self.settings = settings
        self._elsewhere = RequestsElsewhere.of(journal.facts.get("elsewhere"))
        self._found: dict[tuple[int, ...], Requests] = {}
        self._sizes: tuple[int, ...] = ()
        """The bytes of the requests that differ from those on the GPU for which the program was followed."""
        self._events = PoolEvents(self._rows, self._elsewhere)
        self._pools: dict[tuple[int, ...], PoolHistory] = {}
        """What each pool of the allocator needs, on all GPUs that were asked for."""
        self._peaks: dict[tuple[int, ...], tuple[int, int]] = {}

    def on(self, card: GpuModel) -> Requests:
        """Return the requests that the program would make on another GPU; ``self`` if they are the same."""
        sizes = self._elsewhere.sizes_on(traits_of(card))
        if sizes not in self._found:
            other = copy.copy(self)
            other._sizes = sizes
            self._found[sizes] = self if self._events.are_same(sizes) else other
        return self._found[sizes]

    def is_approximate(self, card: GpuModel) -> bool:
        """Return whether the program may run other operators on a GPU than those that were followed."""
        return traits_of(card) in self._elsewhere.approximate

    @property
    def peak_bytes(self) -> tuple[int, int]:
        """Peaks of allocated and reserved bytes on a GPU with enough memory.

        Requests that differ between GPUs are often in one pool only, so the other one is replayed once for all.
        """
        if self._sizes not in self._peaks:
            self._peaks[self._sizes] = peaks_of_pools(self._pool(small=False), self._pool(small=True))
        return self._peaks[self._sizes]

    def _pool(self, *, small: bool) -> PoolHistory:
        key = self._events.key(self._sizes, small=small)
        if key not in self._pools:
            self._pools[key] = replay_pool(self._events.of(self._sizes, small=small), self.settings)
        return self._pools[key]

    def without_cudnn(self) -> Requests:
        """Return the same requests without cuDNN's workspaces."""
        other = copy.copy(self)
        rows = self._elsewhere.rows_on(self._rows, self._sizes)
        other._rows = [row for row in rows if row[4] != self._cudnn or row[0] != Action.ALLOC]
        other._events, other._sizes, other._pools = PoolEvents(other._rows, RequestsElsewhere()), (), {}
        other._peaks = {}
        return other

    def replay(
        self, settings: AllocatorSettings | None = None, capacity_bytes: int | None = None
    ) -> CachingAllocator | None:
        """Return the allocator after all requests; None if the GPU was too small for one of them.

        Workspaces of cuDNN that do not fit are left out, as torch chooses another algorithm then.
        """
        allocator = CachingAllocator(settings or self.settings, AllocatorLimits(capacity_bytes=capacity_bytes))
        places: dict[int, int] = {}
        for action, address, size_bytes, stream, operator in self._elsewhere.rows_on(self._rows, self._sizes):
            if action == Action.ALLOC:
                try:
                    places[address] = allocator.malloc(size_bytes, stream)
                except OutOfMemoryError:
                    if operator != self._cudnn:
                        return None
            elif address in places:
                allocator.free(places.pop(address))
        return allocator


def fit_card(card: GpuModel, peaks: Peaks, requests: Requests, level: float) -> Fit:
    """Return whether a program with known peaks and requests fits a GPU.

    A program that fits with the least of values that were assumed, or of compiled code, is on the edge. So is one that
    fits, but needs more with each step, for an unknown number of steps.
    """
    found = _fit_card(card, peaks, requests, level)
    full_after = peaks.endless.full_after(card.usable_bytes - found.upper_bytes)
    if full_after is None or found.verdict == TOO_LARGE:
        return found
    return replace(found, verdict=EDGE, full_after_steps=full_after)


def _fit_card(card: GpuModel, peaks: Peaks, requests: Requests, level: float) -> Fit:
    measured = (peaks.allocated_bytes, peaks.reserved_bytes)
    own = peaks_on(card, *measured, level, peaks.kind, peaks.assumed, peaks.compiled)
    if own.upper_bytes <= card.usable_bytes:
        return Fit(card, FITS, own.process_bytes, own.upper_bytes)
    room = card.usable_bytes - card.outside_bytes
    full = requests.replay(capacity_bytes=room)
    if full is None:
        may_fit = own.least_bytes < own.process_bytes and own.least_bytes <= card.usable_bytes
        return Fit(card, EDGE if may_fit else TOO_LARGE, own.process_bytes, own.upper_bytes)
    # Near the limit, the allocator returns cached memory to the driver, so that less is reserved.
    reserved_bytes = full.counters.peak_reserved_bytes
    return Fit(card, EDGE, min(own.process_bytes, reserved_bytes + card.outside_bytes), own.upper_bytes)


def with_handled_errors(fit: Fit) -> Fit:
    """Return the result for the GPU on which a program has handled out-of-memory errors: it cannot need more."""
    usable_bytes = fit.card.usable_bytes
    process_bytes, upper_bytes = min(fit.process_bytes, usable_bytes), min(fit.upper_bytes, usable_bytes)
    return replace(fit, verdict=EDGE, process_bytes=process_bytes, upper_bytes=upper_bytes)


def at_the_edge(fit: Fit) -> Fit:
    """Return the result for another GPU than the one on which a program has handled out-of-memory errors."""
    return replace(fit, verdict=EDGE) if fit.verdict == FITS else fit


def fit_catalogue(
    peaks: Peaks,
    requests: Requests,
    level: float,
    handles: int = HANDLES,
    nccl_bytes: int = 0,
    *,
    cards: Iterable[GpuModel] | None = None,
) -> tuple[Fit, ...]:
    """Return the result for every GPU, the largest first, for a program with ``handles`` cuBLAS handles.

    ``cards`` are other GPUs than those of the catalogue.

    Requests that depend on the GPU have the sizes of that GPU: workspaces of cuBLAS and cuDNN, sums and dropout states.
    """
    every = (
        card.with_handles(handles).with_nccl(nccl_bytes) for card in (catalogue().values() if cards is None else cards)
    )
    ordered = sorted(every, key=lambda card: -card.total_bytes)
    found = []
    for card in ordered:
        there = requests.on(card)
        fit = fit_card(card, peaks if there is requests else peaks_of(there, peaks), there, level)
        found.append(replace(fit, approximate=requests.is_approximate(card)))
    return tuple(found)


def peaks_of(requests: Requests, peaks: Peaks) -> Peaks:
    """Return the peaks of a program with other requests. Assumed values change reserved bytes by as much as before."""
    allocated_bytes, reserved_bytes = requests.peak_bytes
    more_bytes = reserved_bytes - peaks.reserved_bytes
    assumed = peaks.assumed
    if assumed is not None:
        least, largest = assumed.least_reserved_bytes, assumed.largest_reserved_bytes
        assumed = Assumed(
            None if least is None else max(least + more_bytes, 0), None if largest is None else largest + more_bytes
        )
    return replace(peaks, allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes, assumed=assumed)
