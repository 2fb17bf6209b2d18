"""The catalogue of GPUs: memory and other figures of each, with their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from gpuledger.errors import UsageError

REFERENCE = "h200"
"""The GPU with measured figures that are used for GPUs without their own."""
MIB = 1 << 20
HANDLES, HANDLE_BYTES = 2, 64 * MIB
"""cuBLAS handles of a training (forward and backward), and the library bytes of each.

Source: a U-Net without a matrix product used 128 MiB less of library bytes on an H200.
"""


@dataclass(frozen=True)
class Figure:
    """One figure and its source: ``measured``, ``datasheet`` or ``measured on the H200``."""

    value: int
    source: str
    where: str = ""
    when: str = ""

    @property
    def is_own(self) -> bool:
        """Return whether it belongs to this GPU and not to the reference GPU."""
        return self.source in ("measured", "datasheet")


@dataclass(frozen=True)
class Card:
    """One GPU model. Sizes in MiB or bytes as the names say; ``compute_capability`` as ``(major, minor)``.

    ``peak_tflop_s`` by dtype, ``power_limit_w`` and ``l2_mib`` are from the datasheet.
    """

    key: str
    name: str
    memory_mib: Figure
    driver_reserve_mib: Figure
    context_bytes: Figure
    library_bytes: Figure
    bandwidth_gb_s: Figure
    compute_capability: tuple[int, int]
    multiprocessors: int
    peak_tflop_s: Mapping[str, float] = field(default_factory=dict)
    power_limit_w: int = 0
    l2_mib: int = 0

    @property
    def total_bytes(self) -> int:
        """Return the total memory that the GPU reports."""
        return self.memory_mib.value * MIB

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that a process can use: the total without the driver's own reserve."""
        return (self.memory_mib.value - self.driver_reserve_mib.value) * MIB

    @property
    def outside_bytes(self) -> int:
        """Return the bytes that a training process uses outside the allocator: context and libraries."""
        return self.context_bytes.value + self.library_bytes.value

    def with_handles(self, count: int) -> Card:
        """Return the GPU for a program with ``count`` cuBLAS handles: without the library bytes of the others."""
        unused_bytes = max(HANDLES - count, 0) * HANDLE_BYTES
        kept = replace(self.library_bytes, value=max(self.library_bytes.value - unused_bytes, 0))
        return replace(self, library_bytes=kept)

    def figures(self) -> dict[str, Figure]:
        """Return every figure by name."""
        names = ("memory_mib", "driver_reserve_mib", "context_bytes", "library_bytes", "bandwidth_gb_s")
        return {name: getattr(self, name) for name in names}


@cache
def catalogue() -> dict[str, Card]:
    """Return short name -> GPU, from ``cards.toml``."""
    tables = tomllib.loads(files("gpuledger.simulate").joinpath("cards.toml").read_text(encoding="utf-8"))
    return {key: _card(key, table, tables[REFERENCE]) for key, table in tables.items()}


def _card(key: str, table: dict[str, Any], reference: dict[str, Any]) -> Card:
    major, _, minor = str(table["compute_capability"]).partition(".")
    figures = {
        name: _figure(table.get(name), reference[name])
        for name in ("memory_mib", "driver_reserve_mib", "context_bytes", "library_bytes", "bandwidth_gb_s")
    }
    return Card(
        key=key,
        name=table["name"],
        compute_capability=(int(major), int(minor)),
        multiprocessors=int(table["multiprocessors"]),
        peak_tflop_s=dict(table["peak_tflop_s"]),
        power_limit_w=int(table["power_limit_w"]),
        l2_mib=int(table["l2_mib"]),
        **figures,
    )


def _figure(own: dict[str, Any] | None, reference: dict[str, Any]) -> Figure:
    if own is not None:
        return Figure(**own)
    return Figure(reference["value"], "measured on the H200", reference.get("where", ""), reference.get("when", ""))


def find_card(text: str) -> Card:
    """Return the GPU with a short or full name, in any case.

    Raises:
        UsageError: no GPU has that name; the message lists the nearest names.
    """
    cards = catalogue()
    wanted = text.strip().lower().replace("_", "-").replace(" ", "-")
    for key, card in cards.items():
        full = card.name.lower().replace(" ", "-")
        if wanted in (key, full, full.removeprefix("nvidia-")):
            return card
    near = get_close_matches(wanted, cards, 3, 0.4) or [key for key in cards if key.startswith(wanted[:2])]
    hint = f"Did you mean {', '.join(near)}?" if near else "List the GPUs with: gpuledger gpus"
    raise UsageError(f"--gpu {text}: not in the catalogue of GPUs", hint=hint)
