"""Combinations of measures that make a training need less memory, each followed on the simulated GPU."""

from __future__ import annotations
