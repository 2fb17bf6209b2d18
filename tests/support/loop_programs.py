"""Scripts with loops, of which the rest is simulated, and the estimated peaks of whole scripts."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path
from typing import Any

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.child import run_as_main
from gpuledger.simulate.estimate.follow import follow
from gpuledger.simulate.estimate.forked import run_forked
from gpuledger.simulate.estimate.run import Estimate, Order, describe_order, estimate_program
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.ending import StepsDone
from gpuledger.simulate.rest.own_code import is_own, own_place
from gpuledger.simulate.rest.program_source import install_changes
from gpuledger.simulate.rest.rest import RestOfProgram

NEEDED = 3


class LoopProgram:
    """A script that calls ``step``, ``work``, ``use`` and ``keep``. The rest begins after its third step."""

    def __init__(self, directory: Path, patches: Patches) -> None:
        self.device = SimulatedDevice(find_card("h200"), CachingAllocator())
        self.rest = RestOfProgram(self.device, own_place, is_own, str(directory / "run"))
        self.steps = 0
        self.worked: list[tuple[int, object]] = []
        """Steps that had ended, and what was done then."""
        self._file = directory / "train.py"
        install_changes(patches, is_own, self.rest)

    def step(self) -> None:
        self.device.allocator.free(self.device.malloc(1 << 20, "step"))
        self.steps += 1
        self.device.steps = self.steps
        if self.rest.began:
            self.rest.step_ended(self.steps)
        elif self.steps == NEEDED:
            self.rest.begin(NEEDED)

    def _use(self, size_mib: int) -> None:
        if size_mib:
            self.device.allocator.free(self._keep(size_mib))

    def _keep(self, size_mib: int) -> int:
        return self.device.malloc(size_mib << 20, "kept")

    def _work(self, what: object = "") -> None:
        self.worked.append((self.steps, what))

    def run(self, source: str, **more: Any) -> list[tuple[int, object]]:
        """Return the work that was done. ``more`` are names that the script gets, too."""
        self._file.write_text(textwrap.dedent(source), encoding="utf-8")
        given: dict[str, Any] = {"step": self.step, "work": self._work, "use": self._use, "keep": self._keep}
        given |= more
        try:
            runpy.run_path(str(self._file), init_globals=given)
        except StepsDone:
            self.worked.append((self.steps, "ended early"))
        finally:
            self.rest.end()
        return self.worked


def peak_of(directory: Path, source: str) -> int:
    """Return the estimated peak of a script's allocated bytes."""
    return estimate_of(directory, source).peak_allocated_bytes


def estimate_of(directory: Path, source: str) -> Estimate:
    """Return the estimate of a script for an H200. It is followed in a fork of this process."""
    number = len(list(directory.glob("*.py")))
    script = directory / f"script_{number}.py"
    script.write_text(source, encoding="utf-8")
    order = Order((str(script),), find_card("h200"), None)

    def follower(order: Order, place: Path, _output: object, assumption: str) -> dict[str, Any]:
        given = describe_order(order, place, assumption)
        return run_forked(lambda: follow(given, lambda: run_as_main(list(order.program))))

    return estimate_program(order, directory / f"{number}.ledger", follower=follower)
