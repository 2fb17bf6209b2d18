"""Sizes that differ between GPUs: the traits that decide them, and sizes with their values on other GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from gpuledger.simulate.catalogue import REFERENCE, GpuModel, catalogue

CAPTURE = "capture of a CUDA graph"
"""What stands for an operator if a graph is captured."""


class Traits(NamedTuple):
    """The figures of a GPU that decide how many bytes an operator requests."""

    multiprocessors: int
    compute_capability: tuple[int, int]


def traits_of(card: GpuModel) -> Traits:
    """Return the traits of a GPU."""
    return Traits(card.multiprocessors, card.compute_capability)


@cache
def listed_traits() -> tuple[Traits, ...]:
    """Return the different traits of the GPUs in the catalogue, sorted."""
    return tuple(sorted({traits_of(card) for card in catalogue().values()}))


class Size(int):
    """Bytes of a request on the simulated GPU. ``elsewhere_bytes`` has them for each of :func:`listed_traits`."""

    elsewhere_bytes: tuple[int, ...]

    def __new__(cls, own_bytes: int, elsewhere_bytes: tuple[int, ...]) -> Size:
        """Return the size."""
        made = super().__new__(cls, own_bytes)
        made.elsewhere_bytes = elsewhere_bytes
        return made


class Sizing:
    """Computes sizes for a GPU and for all others.

    Args:
        own: Traits of the simulated GPU.
    """

    def __init__(self, own: Traits) -> None:
        self.own = own

    def one(self, rule: Callable[[Traits], int]) -> int:
        """Return the bytes by a rule: a :class:`Size` if other GPUs have others."""
        return self.many(lambda traits: (rule(traits),))[0]

    def many(self, rule: Callable[[Traits], tuple[int, ...]]) -> tuple[int, ...]:
        """Return the bytes of several requests by a rule. GPUs with fewer requests have zeros at the end."""
        own = rule(self.own)
        elsewhere = [rule(traits) for traits in listed_traits()]
        if all(sizes == own for sizes in elsewhere):
            return own
        count = max(len(own), *map(len, elsewhere))
        padded = [sizes + (0,) * (count - len(sizes)) for sizes in (own, *elsewhere)]
        return tuple(Size(one, tuple(others)) for one, *others in zip(*padded, strict=True))


@cache
def reference_sizing() -> Sizing:
    """Return sizes for the GPU on which the rules were measured."""
    return Sizing(traits_of(catalogue()[REFERENCE]))
