"""What a rank's manifest says about the measurements after the recorded steps: energy, kernels and their code."""

# No postponed annotations: see :mod:`gpuledger.model.json_object`.
from dataclasses import dataclass
from typing import Annotated, ClassVar

from gpuledger.files.shapes import maybe
from gpuledger.model.bounds import DeviceIdx
from gpuledger.model.json_object import JsonObject

TIME_STEPS = 3
"""Number of profiled steps, if the user gives none. One more can follow, with the lines of operators."""

UNPROFILED_STEPS = 10
"""Minimum number of unprofiled steps after those, if the user gives none: for step times and energy."""


@dataclass(frozen=True, kw_only=True)
class PassEnergy(JsonObject):
    """The energy of one GPU in the energy measurement. ``energy_j`` is None if unknown; a note says why.

    ``base_before_w`` and ``base_after_w`` are the power of the idle GPU with the program's context, ``idle_w`` the
    power before the program began.
    """

    device_idx: DeviceIdx
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    energy_j: float | None = None
    uncertainty_j: Annotated[float | None, maybe(float)]
    ticks: int = 0
    throttled_ns: int | None = None
    source: str = ""
    base_before_w: float | None = None
    base_after_w: float | None = None
    idle_w: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnergyEdges(JsonObject):
    """Start and end of the energy measurement, written by its process. Without ``end_ns``, it was interrupted.

    ``cards`` has torch's index and the UUID of each GPU, ``idle_ns`` the intervals in which the program was idle.
    """

    together: ClassVar[tuple[str, ...]] = ("first_step", "last_step", "start_ns", "end_ns")

    cards: tuple[tuple[DeviceIdx, str], ...]
    idle_ns: tuple[tuple[int, int], ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class KernelsAlone(JsonObject):
    """The time in the profiled steps from which on operators were not recorded."""

    from_step: int
    from_ns: int


@dataclass(frozen=True, kw_only=True)
class LineStep(JsonObject):
    """The step after the profiled ones that shows which source lines launch the kernels, and its start."""

    step: int
    from_ns: int


@dataclass(frozen=True, kw_only=True)
class TimedProgram(JsonObject):
    """Operators of a program without steps that were timed. ``is_whole`` is False if there were others.

    ``before`` is the number of operators before the first timed one.
    """

    operators: int
    is_whole: bool
    before: int = 0


@dataclass(frozen=True, kw_only=True)
class HostWait(JsonObject):
    """Idle time of a device, ``gap_ns``, and the part of it in which it waited for the CPU."""

    device_idx: DeviceIdx
    gap_ns: int
    host_ns: int


@dataclass(frozen=True, kw_only=True)
class FusionPart(JsonObject):
    """A part of a compiled kernel: the module's path below the compiled module, and the bytes it reads and writes.

    ``module_id`` is the module for which the code was compiled, -1 if unknown. Other modules of its class can use it.
    ``stack_id`` is the stack of the source line that the part comes from, -1 if unknown.
    """

    path: str = ""
    module_id: int = -1
    moved_bytes: int = 0
    stack_id: int = -1


@dataclass(frozen=True, kw_only=True)
class Fusion(JsonObject):
    """A kernel of compiled code: where it is launched, the nodes it computes and the source lines they come from.

    ``in_optimizer`` is whether they are those of an optimizer's step.
    """

    file: str
    line: int
    kernel: str
    function: str | None = None
    nodes: tuple[str, ...] = ()
    parts: tuple[FusionPart, ...] = ()
    sources: tuple[str, ...] = ()
    in_optimizer: bool = False
