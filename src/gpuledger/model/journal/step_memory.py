"""Units of the journal's table of memory per step, which keeps sizes in 32 bits."""

from __future__ import annotations

UNIT_BYTES = 512
"""Unit of sizes on a device: the CUDA allocator rounds every block up to it."""

HOST_UNIT_BYTES = 4096
"""Unit of the process's host memory."""

MOST = (1 << 31) - 1
"""Largest stored value; larger ones are stored as this."""
