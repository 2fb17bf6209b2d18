"""The catalogue of GPUs: memory and other figures of each, with their sources."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from gpuledger.errors import UsageError

REFERENCE, OLDER = "h200", "rtx-3060"
"""GPUs with measured figures that are used for GPUs without their own: from compute capability 9 on, and below."""
NOT_MODELLED = {"mi300x": "AMD Instinct MI300X", "mi325x": "AMD Instinct MI325X", "mi250x": "AMD Instinct MI250X"}
"""Short name -> name of GPUs without an estimate: their allocator's libraries were not measured."""
MIB = 1 << 20
HANDLES, HANDLE_BYTES = 2, 64 * MIB
"""cuBLAS handles of a training (forward and backward), and the library bytes of each.

Source: a U-Net without a matrix product used 128 MiB less of library bytes on an H200.
"""


@dataclass(frozen=True)
class Figure:
    """One figure and its source: ``measured``, ``datasheet``, or the GPU that it was measured on."""

    value: int
    source: str
    where: str = ""
    when: str = ""

    @property
    def is_own(self) -> bool:
        """Return whether it belongs to this GPU and not to another one."""
        return self.source in ("measured", "datasheet")


@dataclass(frozen=True)
class GpuModel:
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
    driver_names: tuple[str, ...] = ()
    """Other names that drivers report, of several form factors."""
    nccl_bytes: int = 0
    """Memory of NCCL beside context and libraries; 0 for a program of one process."""
    limit_frac: float = 1.0
    """Share of the memory to which the program limits its allocator."""

    @property
    def total_bytes(self) -> int:
        """Return the total memory that the GPU reports."""
        return self.memory_mib.value * MIB

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that a process can use: the total without the driver's own reserve, or up to its limit."""
        available_bytes = self.available_bytes
        return min(available_bytes, int(self.limit_frac * available_bytes) + self.outside_bytes)

    @property
    def available_bytes(self) -> int:
        """Return the total memory without the driver's own reserve."""
        return (self.memory_mib.value - self.driver_reserve_mib.value) * MIB

    @property
    def outside_bytes(self) -> int:
        """Return the bytes that a training process uses outside the allocator: context, libraries and NCCL."""
        return self.context_bytes.value + self.library_bytes.value + self.nccl_bytes

    def with_nccl(self, nccl_bytes: int) -> GpuModel:
        """Return the GPU for a program that uses ``nccl_bytes`` for NCCL."""
        return replace(self, nccl_bytes=nccl_bytes)

    def with_limit(self, limit_frac: float) -> GpuModel:
        """Return the GPU for a program that uses ``torch.cuda.set_per_process_memory_fraction``."""
        return replace(self, limit_frac=limit_frac)

    def with_handles(self, count: int) -> GpuModel:
        """Return the GPU for a program with ``count`` cuBLAS handles: without the library bytes of the others."""
        each_bytes = min(HANDLE_BYTES, self.library_bytes.value // HANDLES)
        unused_bytes = max(HANDLES - count, 0) * each_bytes
        kept = replace(self.library_bytes, value=max(self.library_bytes.value - unused_bytes, 0))
        return replace(self, library_bytes=kept)

    def figures(self) -> dict[str, Figure]:
        """Return every figure by name."""
        names = ("memory_mib", "driver_reserve_mib", "context_bytes", "library_bytes", "bandwidth_gb_s")
        return {name: getattr(self, name) for name in names}


@cache
def catalogue() -> dict[str, GpuModel]:
    """Return short name -> GPU, from ``cards.toml``."""
    tables = tomllib.loads(files("gpuledger.simulate").joinpath("cards.toml").read_text(encoding="utf-8"))
    return {key: _card(key, table, tables[REFERENCE], tables[OLDER]) for key, table in tables.items()}


def gpu_sizes() -> tuple[tuple[str, int], ...]:
    """Return name and usable bytes of every GPU."""
    return tuple((card.name, card.usable_bytes) for card in catalogue().values())


def _card(key: str, table: dict[str, Any], reference: dict[str, Any], older: dict[str, Any]) -> GpuModel:
    major, _, minor = str(table["compute_capability"]).partition(".")
    share = int(table["multiprocessors"]) / int(reference["multiprocessors"])
    figures: dict[str, Any] = {
        name: _figure(table.get(name), reference[name], "measured on the H200")
        for name in ("memory_mib", "driver_reserve_mib", "bandwidth_gb_s")
    }
    # Most of a context is stack and other memory of each multiprocessor.
    figures["context_bytes"] = _figure(
        table.get("context_bytes"), reference["context_bytes"], "scaled from the H200", share
    )
    of_older = int(major) < int(float(reference["compute_capability"]))
    lender, source = (older, "measured on the RTX 3060") if of_older else (reference, "measured on the H200")
    figures["library_bytes"] = _figure(table.get("library_bytes"), lender["library_bytes"], source)
    return GpuModel(
        key=key,
        name=table["name"],
        compute_capability=(int(major), int(minor)),
        multiprocessors=int(table["multiprocessors"]),
        peak_tflop_s=dict(table["peak_tflop_s"]),
        power_limit_w=int(table["power_limit_w"]),
        l2_mib=int(table["l2_mib"]),
        driver_names=tuple(table.get("driver_names", ())),
        **figures,
    )


def _figure(own: dict[str, Any] | None, other: dict[str, Any], source: str, share: float = 1.0) -> Figure:
    if own is not None:
        return Figure(**own)
    return Figure(int(other["value"] * share), source, other.get("where", ""), other.get("when", ""))


def make_card(memory_bytes: int, capability: tuple[int, int]) -> GpuModel:
    """Return a GPU that is not in the catalogue.

    Its other figures are those of the listed GPU with the nearest compute capability and then the nearest memory.

    Raises:
        UsageError: there is no memory left beside the driver, context and libraries, or no such compute capability.
    """
    known = [card for card in catalogue().values() if card.compute_capability[0] == capability[0]]
    if not known:
        listed = ", ".join(sorted({"{}.{}".format(*card.compute_capability) for card in catalogue().values()}))
        raise UsageError(
            "--sm {}.{}: no GPU with this major version is known".format(*capability), hint=f"Known: {listed}"
        )
    memory_mib = memory_bytes // MIB
    nearest = min(
        known,
        key=lambda card: (abs(card.compute_capability[1] - capability[1]), abs(card.memory_mib.value - memory_mib)),
    )
    full = f"GPU with {memory_mib / 1024:.4g} GiB and compute capability {capability[0]}.{capability[1]}"
    made = replace(
        nearest,
        key=f"{memory_mib}MiB-sm-{capability[0]}.{capability[1]}",
        name=full,
        memory_mib=Figure(memory_mib, "given"),
        compute_capability=capability,
        driver_reserve_mib=_borrowed(nearest, "driver_reserve_mib"),
        context_bytes=_borrowed(nearest, "context_bytes"),
        library_bytes=_borrowed(nearest, "library_bytes"),
        bandwidth_gb_s=_borrowed(nearest, "bandwidth_gb_s"),
    )
    if made.usable_bytes <= made.outside_bytes:
        raise UsageError(f"--gpu-memory {memory_mib} MiB: less than a CUDA context needs", hint="For example 24GiB")
    return made


def _borrowed(card: GpuModel, name: str) -> Figure:
    return replace(card.figures()[name], source=f"of the {card.key}")


_BRAND = re.compile(r"nvidia|tesla|quadro|geforce|rtx|generation|blackwell|workstation edition|[^a-z0-9]")
"""Parts of a GPU's name that drivers and people add or leave out."""
_MADE = re.compile(r"(?P<memory>\d+)mib-sm-(?P<major>\d+)\.(?P<minor>\d+)")


def find_card(text: str) -> GpuModel:
    """Return the GPU with a short or full name, in any case, or with the name that a driver reports.

    Raises:
        UsageError: no GPU has that name; the message lists the nearest names.
    """
    cards = catalogue()
    wanted = text.strip().lower().replace("_", "-").replace(" ", "-")
    made = _MADE.fullmatch(wanted)
    if made is not None:
        return make_card(int(made["memory"]) * MIB, (int(made["major"]), int(made["minor"])))
    if wanted in NOT_MODELLED:
        raise UsageError(
            f"--gpu {text}: {NOT_MODELLED[wanted]} is not modelled", hint="List the GPUs with: gpuledger gpus"
        )
    for key, card in cards.items():
        full = card.name.lower().replace(" ", "-")
        if wanted in (key, full, full.removeprefix("nvidia-")):
            return card
    core = _core(text)
    for key, card in cards.items():
        if core in map(_core, (key, card.name, *card.driver_names)):
            return card
    longer = [key for key in cards if key.startswith(wanted)]
    near = (longer + get_close_matches(wanted, cards, 3, 0.4))[:3] or [key for key in cards if key[:2] == wanted[:2]]
    hint = f"Did you mean {', '.join(near)}?" if near else "List the GPUs with: gpuledger gpus"
    raise UsageError(f"--gpu {text}: not in the catalogue of GPUs", hint=hint)


def _core(name: str) -> str:
    """Return a GPU's name without its brand: ``4090`` of "NVIDIA GeForce RTX 4090"."""
    return _BRAND.sub("", name.lower())
