"""Combinations of measures against memory, and what each of them asks of the program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FUSED, EIGHT_BIT = "fused", "8-bit"
"""Changes of the optimizer: its fused kernels, or states of 8 bits."""
OPTIMIZERS = ("", FUSED, EIGHT_BIT)
ACCUMULATED, SMALLER = "accumulated", "smaller"
"""What becomes of a divided batch: its parts are accumulated to one step, or each part is a step."""
EXPANDABLE = "expandable_segments:True"

_WEIGHTS = {"expandable": 1, FUSED: 2, ACCUMULATED: 3, SMALLER: 8, EIGHT_BIT: 5, "autocast": 0, "checkpoint": 0}
"""Order of combinations that take the same time by FLOPs: the least intrusive measure first."""


@dataclass(frozen=True)
class Combination:
    """Measures that are taken together.

    Attributes:
        checkpoint: Repeated blocks are checkpointed: their activations are computed again in backward.
        autocast: The model's forward runs under autocast.
        optimizer: One of :data:`OPTIMIZERS`.
        divisor: Number of equal parts of a batch.
        parts: ``ACCUMULATED`` or ``SMALLER`` if the batch is divided, otherwise "".
        expandable: The allocator uses expandable segments.
    """

    checkpoint: bool = False
    autocast: bool = False
    optimizer: str = ""
    divisor: int = 1
    parts: str = ""
    expandable: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return the short names of its measures."""
        wanted = {"checkpoint": self.checkpoint, "autocast": self.autocast, "expandable": self.expandable}
        return (*(name for name, is_on in wanted.items() if is_on), *filter(None, (self.optimizer, self.parts)))

    @property
    def weight(self) -> tuple[int, int, int]:
        """Return the place in the order of combinations that take the same time."""
        return len(self.names), sum(_WEIGHTS[name] for name in self.names), self.divisor

    def saves_at_least(self, other: Combination) -> bool:
        """Return whether it has a stronger change of the optimizer or smaller batches, and is alike otherwise.

        Autocast, checkpoints and expandable segments can need more memory in some programs, so these are not compared.
        """
        alike = ("checkpoint", "autocast", "expandable")
        return (
            all(getattr(self, name) == getattr(other, name) for name in alike)
            and OPTIMIZERS.index(self.optimizer) >= OPTIMIZERS.index(other.optimizer)
            and self.divisor >= other.divisor
            and (self.parts != ACCUMULATED or other.parts != SMALLER)
        )


@dataclass(frozen=True)
class Applied:
    """What a measure found in a program: the sizes of batches, blocks, and optimizers that it changed."""

    batch: int = 0
    """Size of a batch; 0 if it is not known."""
    blocks: int = 0
    optimizers: tuple[str, ...] = ()
    dtype: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Applied:
        """Return what a process reported."""
        return cls(found["batch"], found["blocks"], tuple(found["optimizers"]), found["dtype"])


def describe(combination: Combination, found: Applied) -> Iterator[str]:
    """Yield what to change in the program, one sentence for each measure."""
    divided = found.batch // combination.divisor
    if combination.parts == ACCUMULATED:
        yield f"Use batches of {divided:,} and accumulate the gradients of {combination.divisor:,} per step."
    elif combination.parts == SMALLER:
        yield f"Use batches of {divided:,} instead of {found.batch:,}. This changes the training."
    if combination.autocast:
        scaled = " with torch.amp.GradScaler" if found.dtype == "float16" else ""
        yield f"Run the model's forward under torch.autocast('cuda', torch.{found.dtype}){scaled}."
    if combination.checkpoint:
        yield f"Call each of the {found.blocks:,} repeated blocks with torch.utils.checkpoint(use_reentrant=False)."
    names = " and ".join(found.optimizers)
    if combination.optimizer == FUSED:
        yield f"Pass fused=True to {names}."
    elif combination.optimizer == EIGHT_BIT:
        yield f"Replace {names} by a version with states of 8 bits, as bitsandbytes has."
    if combination.expandable:
        yield f"Set PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}."


def divisors_of(batch: int) -> tuple[int, ...]:
    """Return the numbers of equal parts to try: each at least twice the one before, the last one ``batch``."""
    found: list[int] = []
    for divisor in range(2, batch + 1):
        if batch % divisor == 0 and (not found or divisor >= 2 * found[-1] or divisor == batch):
            found.append(divisor)
    return tuple(found)


def families(*, optimizers: tuple[str, ...], divides: bool) -> tuple[Combination, ...]:
    """Return all combinations without checkpoints, autocast and numbers of parts, the least intrusive first."""
    parts = ("", ACCUMULATED, SMALLER) if divides else ("",)
    made = [
        Combination(optimizer=optimizer, parts=each, expandable=expandable)
        for optimizer in optimizers
        for each in parts
        for expandable in (False, True)
    ]
    return tuple(sorted(made, key=lambda one: one.weight))
