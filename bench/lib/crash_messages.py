"""What PyTorch's message of an out-of-memory error shows. Needs the standard library only."""

from __future__ import annotations

import re

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def shown_by_torch(planted: str, message: str) -> bool:
    """Return whether PyTorch's message shows the planted cause, by its numbers or its words."""
    tried, total = bytes_in(message, "Tried to allocate {}"), bytes_in(message, "total capacity of {}")
    unallocated = bytes_in(message, "{} is reserved by PyTorch but unallocated")
    shown = {
        "one_large_request": tried is not None and total is not None and tried > total / 2,
        "fragmentation": tried is not None and unallocated is not None and unallocated > tried,
        "other_processes": re.search(r"\bProcess \d+ has\b", message) is not None,
        "private_pool": "private pools" in message,
        "memory_fraction": " allowed;" in message,
    }
    return shown.get(planted, False)


def bytes_in(message: str, where: str) -> float | None:
    """Return the size at ``{}`` of a pattern in a text; None if it is not there."""
    found = re.search(where.format(r"([\d.,]+) (bytes|KiB|MiB|GiB|TiB)"), message)
    return None if found is None else float(found[1].replace(",", "")) * UNITS[found[2]]
