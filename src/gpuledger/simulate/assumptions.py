"""What an estimate assumes of values that are not computed, such as a mask or the experts that a router selects."""

from __future__ import annotations

EXPECTED, LEAST, LARGEST = "expected", "least", "largest"
ASSUMPTIONS = (EXPECTED, LEAST, LARGEST)
"""Uniform routing and half of a mask; the same experts for all and nothing of a mask; the same and all of a mask."""
