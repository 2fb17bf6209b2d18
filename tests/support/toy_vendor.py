"""A vendor of another package: one file, and the entry point that :func:`install` writes as an installer would.

Its one GPU draws 200 W, and its counter ticks four times a second. ``TOY_BUSY`` names a file: while that is there the
GPU holds 1 GiB more. ``TOY_BROKEN`` has its driver fail.
"""

from __future__ import annotations

import os
from pathlib import Path

from simulated_card import RealClock, SimulatedCard

from gpuledger.cards.card import Processes
from gpuledger.cards.vendor import CardList, Source, Vendor
from gpuledger.model.energy_window import EnergyCounter

GIB, MIB = 1 << 30, 1 << 20
WATTS = 200.0
COUNTER = EnergyCounter(250_000_000, 249_000_000, 251_000_000, 1_000_000, 100_000)
HELD_BYTES = 700 * MIB


class ToyCard(SimulatedCard):
    """Each process that asks holds :attr:`held_bytes` of it."""

    held_bytes = HELD_BYTES

    def __init__(self) -> None:
        super().__init__(RealClock(), watts=lambda _: WATTS, counter=COUNTER, name="Toy")
        self.used_bytes = lambda _: 2 * GIB + GIB * Path(os.environ.get("TOY_BUSY", "/nowhere")).exists()

    def read_processes(self) -> Processes | None:
        return [(os.getpid(), self.held_bytes)]


def _open(tool_interval_ns: int | None) -> Source:
    if "TOY_BROKEN" in os.environ:
        raise RuntimeError("the toy is broken")
    return CardList([ToyCard()], "1.0")


VENDOR = Vendor(name="Toy", open=_open, driver_files=("/",))


def install(site: Path, target: str = "toy_vendor:VENDOR") -> dict[str, str]:
    """Return the environment in which Python finds this vendor, installed into ``site``."""
    metadata = site / "toy_cards-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-cards\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[gpuledger.cards]\ntoy = {target}\n")
    return {"PYTHONPATH": os.pathsep.join((str(site), str(Path(__file__).parent)))}
