"""Choose the cheapest combination of measures that fits, with few programs followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.errors import InputError
from gpuledger.simulate.advice.combination import (
    ACCUMULATED,
    EIGHT_BIT,
    FUSED,
    OPTIMIZERS,
    SMALLER,
    Applied,
    Combination,
    divisors_of,
    families,
)

_UNAVAILABLE = {
    "checkpoint": "Checkpointing: the model has no list of repeated blocks.",
    "autocast": "Autocast: no matrix product, convolution or attention would run in another dtype.",
    FUSED: "Fused optimizer: no optimizer has fused kernels that the program does not use already.",
    EIGHT_BIT: "States of 8 bits: the program uses neither Adam nor AdamW of torch.optim.",
    ACCUMULATED: (
        "Smaller batches: the program has no DataLoader and no argument with a batch size above 1. "
        "Name the argument with --batch-argument."
    ),
}


@dataclass(frozen=True)
class Followed:
    """A program that was followed with a combination of measures.

    Attributes:
        sizes_bytes: Bytes of the process and their upper bound, without and with expandable segments.
        time_s: Time of its FLOPs on the GPU.
        flops: FLOPs by dtype.
        applied: What the measures were applied to.
        why_not: Why there is no estimate; "" if there is one.
    """

    sizes_bytes: Mapping[bool, tuple[int, int]] = field(default_factory=dict)
    time_s: float = 0.0
    flops: Mapping[str, int] = field(default_factory=dict)
    applied: Applied = field(default_factory=Applied)
    why_not: str = ""


@dataclass(frozen=True)
class Tried:
    """One combination: its memory, and its time by FLOPs relative to the unchanged program's."""

    combination: Combination
    process_bytes: int
    upper_bytes: int
    time_ratio: float
    fits: bool
    applied: Applied


@dataclass(frozen=True)
class Choice:
    """The cheapest combination that fits (None if there is none), every combination tried, and what cannot be tried."""

    best: Tried | None
    tried: tuple[Tried, ...]
    unavailable: tuple[str, ...]


class Chooser:
    """Follows a program with combinations of measures until the cheapest one that fits is found.

    The cheapest is the one with the least time by FLOPs, then with the fewest measures, then with the least intrusive.
    FLOPs per sample depend on checkpoints and autocast only.

    Args:
        follow: Follows the program with a combination; settings of the allocator are not its concern.
        limit_bytes: Bytes that the process may use.
    """

    def __init__(self, follow: Callable[[Combination], Followed], limit_bytes: int) -> None:
        self._follow = follow
        self._limit_bytes = limit_bytes
        self._followed: dict[Combination, Followed] = {}
        self._tried: dict[Combination, Tried] = {}
        self._unavailable: list[str] = []
        self._divisors: tuple[int, ...] = ()
        self._optimizers: list[str] = [""]
        self._time_ratios: dict[tuple[bool, bool], float] = {}

    def choose(self) -> Choice:
        """Return the cheapest combination that fits.

        Raises:
            InputError: the unchanged program cannot be followed.
        """
        base = self._of(Combination())
        if base.why_not:
            raise InputError(base.why_not)
        self._time_ratios[False, False] = 1.0
        self._record(Combination())
        unchanged = self._tried[Combination()]
        if unchanged.fits:
            return self._answer(unchanged)
        self._try_singles(base)
        for group in sorted(self._time_ratios, key=lambda one: (round(self._time_ratios[one], 3), one)):
            best = self._cheapest_in(*group)
            if best is not None:
                return self._answer(best)
        return self._answer(None)

    def _answer(self, best: Tried | None) -> Choice:
        order = sorted(self._tried.values(), key=lambda one: (round(one.time_ratio, 3), one.combination.weight))
        return Choice(best, tuple(order), tuple(self._unavailable))

    # -- measures ---------------------------------------------------------------------------------------------------

    def _try_singles(self, base: Followed) -> None:
        """Follow each measure alone, and find out which can be taken."""
        for optimizer in OPTIMIZERS[1:]:
            changed = Combination(optimizer=optimizer)
            if self._is_available(changed, optimizer, lambda one: bool(one.applied.optimizers)):
                self._optimizers.append(optimizer)
        self._divisors = divisors_of(base.applied.batch)
        if not self._divisors:
            self._unavailable.append(_UNAVAILABLE[ACCUMULATED])
        for parts in (ACCUMULATED, SMALLER) if self._divisors else ():
            self._record(Combination(divisor=self._divisors[0], parts=parts))
        checkpointed = Combination(checkpoint=True)
        if self._is_available(checkpointed, "checkpoint", lambda one: one.applied.blocks > 0):
            self._time_ratios[True, False] = self._ratio(checkpointed)
        cast = Combination(autocast=True)
        if self._is_available(cast, "autocast", lambda one: one.flops != base.flops):
            self._time_ratios[False, True] = self._ratio(cast)
        if {(True, False), (False, True)} <= self._time_ratios.keys():
            both = Combination(checkpoint=True, autocast=True)
            if not self._of(both).why_not:
                self._time_ratios[True, True] = self._ratio(both)
        for combination in [one for one in self._followed if not one.parts]:
            self._record(combination)

    def _is_available(self, combination: Combination, name: str, applies: Callable[[Followed], bool]) -> bool:
        found = self._of(combination)
        if not found.why_not and applies(found):
            return True
        del self._followed[combination]
        self._unavailable.append(f"{name}: {found.why_not}" if found.why_not else _UNAVAILABLE[name])
        return False

    def _ratio(self, combination: Combination) -> float:
        base_s = self._of(Combination()).time_s
        return self._of(combination).time_s / base_s if base_s else 1.0

    # -- combinations -----------------------------------------------------------------------------------------------

    def _cheapest_in(self, checkpoint: bool, autocast: bool) -> Tried | None:
        """Return the least intrusive combination that fits, with or without checkpoints and autocast."""
        most = self._divisors[-1] if self._divisors else 1
        parts = SMALLER if most > 1 else ""
        strongest = Combination(checkpoint, autocast, self._optimizers[-1], most, parts)
        if not any(self._fits(replace(strongest, expandable=expandable)) for expandable in (False, True)):
            return None
        for family in families(optimizers=tuple(self._optimizers), divides=bool(self._divisors)):
            found = self._smallest_divisor(replace(family, checkpoint=checkpoint, autocast=autocast))
            if found is not None:
                return found
        return None

    def _smallest_divisor(self, family: Combination) -> Tried | None:
        """Return a family's combination that fits with the fewest parts of a batch."""
        candidates = [replace(family, divisor=one) for one in (self._divisors if family.parts else (1,))]
        if not self._fits(candidates[-1]):
            return None
        low, high = 0, len(candidates) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(candidates[middle]) else (middle + 1, high)
        return self._tried[candidates[high]]

    def _fits(self, combination: Combination) -> bool:
        if combination not in self._tried:
            failed = (one.combination for one in self._tried.values() if not one.fits)
            if any(one.saves_at_least(combination) for one in failed):
                return False
            self._record(combination)
        return combination in self._tried and self._tried[combination].fits

    def _of(self, combination: Combination) -> Followed:
        plain = replace(combination, expandable=False)
        if plain not in self._followed:
            self._followed[plain] = self._follow(plain)
        return self._followed[plain]

    def _record(self, combination: Combination) -> None:
        """Remember the sizes of a combination, without and with expandable segments."""
        found = self._of(combination)
        ratio = self._time_ratios.get((combination.checkpoint, combination.autocast), 1.0)
        for one in _with_settings(combination):
            if found.why_not:
                continue
            process_bytes, upper_bytes = found.sizes_bytes[one.expandable]
            fits = upper_bytes <= self._limit_bytes
            self._tried[one] = Tried(one, process_bytes, upper_bytes, ratio, fits, found.applied)


def _with_settings(combination: Combination) -> Iterator[Combination]:
    for expandable in (False, True):
        yield replace(combination, expandable=expandable)
