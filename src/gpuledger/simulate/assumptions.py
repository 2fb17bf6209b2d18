"""What an estimate assumes of values that are not computed, such as a mask or the experts that a router selects."""

from __future__ import annotations

from collections.abc import Collection

EXPECTED, LEAST, LARGEST = "expected", "least", "largest"
ASSUMPTIONS = (EXPECTED, LEAST, LARGEST)
"""Nearly uniform routing and half of a mask; the same experts for all and nothing of a mask, or all of it."""

INDICES, MASKS, LOOPS = "indices", "masks", "loops"
_TEXTS = {
    INDICES: ("nearly uniform indices (topk, sort, argmax or multinomial)", "equal indices"),
    MASKS: ("half of each mask", "the least to all of each mask"),
    LOOPS: ("10 iterations of loops that these values end", "1 to 100 iterations"),
}
"""What was assumed -> the values that are expected, and those of the other assumptions."""


def describe_assumed(kinds: Collection[str]) -> tuple[str, str]:
    """Return the values that an estimate expects, and those of the least and the largest memory.

    Args:
        kinds: What was assumed: :data:`INDICES`, :data:`MASKS` and :data:`LOOPS`.
    """
    expected, others = zip(*(texts for kind, texts in _TEXTS.items() if kind in kinds), strict=True)
    return _listed(expected), _listed(others)


def _listed(texts: tuple[str, ...]) -> str:
    """Return texts as a list: ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
