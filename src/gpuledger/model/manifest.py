"""A rank's manifest: its fields, and the only code that reads and writes it.

The manifest of the whole run is in :mod:`.run_manifest`. Keys unknown to this version are kept when the manifest is
written again. An absent key has its field's default.
"""

# No postponed annotations: see :mod:`gpuledger.model.json_object`.
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from gpuledger.files.shapes import Fields, ListOf, MappingOf, WholeNumber, check_shape, maybe
from gpuledger.model.bounds import DEVICE, DeviceIdx
from gpuledger.model.compilation import Compilation
from gpuledger.model.flight_facts import CensusFacts, HostMemoryKind, KeptAddresses
from gpuledger.model.flight_facts import FailedAllocation as FailedAllocation
from gpuledger.model.json_object import JsonObject, shape_of
from gpuledger.model.pass_facts import (
    EnergyEdges,
    Fusion,
    HostWait,
    KernelsAlone,
    LineStep,
    PassEnergy,
    TimedProgram,
)
from gpuledger.model.pools import GraphPoolFacts
from gpuledger.model.recorder_kind import RecorderKind
from gpuledger.model.run_directory import MANIFEST, RANK_PREFIX, write_json
from gpuledger.model.run_manifest import RunManifest, check_run_manifest, read_checked
from gpuledger.model.simulated import as_simulated

_MAX_CALLS = 4_000
"""Maximum number kept by a recording (``collect/inputs/input_shapes.py``)."""


@dataclass(frozen=True, kw_only=True)
class DeviceFacts(JsonObject):
    """One device of a rank. ``device_idx`` -1 is the CPU. ``energy_counter`` is known if the GPU was sampled."""

    device_idx: DeviceIdx
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    driver_version: str | None = None
    compute_capability: str | None = None
    energy_counter: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayCheck(JsonObject):
    """One comparison of the replay with the allocator's own counters."""

    device_idx: Annotated[int | None, maybe(WholeNumber(*DEVICE))] = None
    name: str | None = None
    expected: float | None = None
    found: float | None = None
    ok: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Pause(JsonObject):
    """An interval in which the recorder paused the program."""

    reason: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, kw_only=True)
class Window(JsonObject):
    """The recorded steps; None if there are none.

    ``asked`` are the requested steps; the last is None if not limited.
    """

    first_step: int | None = None
    last_step: int | None = None
    asked: tuple[int | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Inputs(JsonObject):
    """The input of the outermost module that shows the batch: its shape, and whether it contains token ids.

    ``step_calls`` is the number of calls in most steps; None if unknown. ``batch_dim`` is the dimension of the batch,
    the first one if it is None. ``step_samples`` is the number of samples in most steps, if each step accumulates the
    gradients of several batches. ``is_part`` is whether batches are parts of one tensor, such as a whole data set.
    """

    module_id: int
    shape: Annotated[tuple[int, ...], ListOf(int, 1)]
    tokens: bool | None = None
    step_calls: int | None = None
    batch_dim: int | None = None
    step_samples: int | None = None
    is_part: bool = False

    @property
    def batch(self) -> int:
        """Return the batch size of a call."""
        return self.shape[self.batch_dim or 0]


@dataclass(frozen=True, kw_only=True)
class Libraries(JsonObject):
    """GPU memory of the CUDA context and loaded libraries. ``source`` says how it was measured."""

    context_bytes: int | None = None
    library_bytes: int | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts(JsonObject):
    """An optimizer of the program. ``step_module`` is the module in which its ``step`` is written.

    ``has`` are the switches that its groups have, of foreach, fused and differentiable; ``uses`` those that are True,
    and ``without`` those that are False. ``is_floating`` says that all parameters are real floating-point numbers.
    """

    name: str
    step_module: str = ""
    has: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    is_floating: bool = True


@dataclass(frozen=True, kw_only=True)
class PrecisionFacts(JsonObject):
    """Whether the program used autocast, and the share of its parameters in 32 bits."""

    autocast: bool | None = None
    float32_frac: float | None = None


@dataclass(frozen=True, kw_only=True)
class SamplerFacts(JsonObject):
    """How a GPU was sampled."""

    interval_ns: int | None = None
    readings: int | None = None
    on_time: int | None = None
    missed: int | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class World(JsonObject):
    """Number of ranks of the program, and the number of this one among them."""

    size: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Mesh(JsonObject):
    """The program's device mesh with the most dimensions: names, sizes, and this rank's place in each."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    coordinate: tuple[int, ...]

    def coordinates(self) -> dict[str, int]:
        """Return this rank's place in each dimension of the mesh, by name."""
        return dict(zip(self.names, self.coordinate, strict=False))

    def sizes(self) -> dict[str, int]:
        """Return the size of each dimension of the mesh, by name."""
        return dict(zip(self.names, self.shape, strict=False))


@dataclass(frozen=True)
class FirstCommunication(JsonObject):
    """The first communication of one kind in a process group of ``size`` ranks: the function, and when it had returned.

    NCCL takes memory for a group in that moment.
    """

    group: str
    size: int
    call: str
    t_ns: int


_MEASURED_TYPE = Fields(
    {
        **dict.fromkeys(("operator", "numbers"), str),
        **dict.fromkeys(("watts", "low_w", "high_w"), float),
        "records": int,
        "of_model": maybe(float),
    },
    ("operator", "numbers", "watts", "low_w", "high_w", "records"),
)
_WATTS = Fields(
    {"card": str, "source": str, "types": ListOf(_MEASURED_TYPE), "low_frac": float, "high_frac": float},
    ("card", "source", "types"),
)
_POWER_MODEL = Fields(
    {
        "card": str,
        "source": str,
        "limit_w": float,
        "byte_per_s": float,
        "flop_per_s": MappingOf(float),
        "coefficients": MappingOf(float),
    },
    ("card", "source", "limit_w", "byte_per_s", "flop_per_s", "coefficients"),
)


@dataclass(frozen=True, kw_only=True)
class RecordedFacts(JsonObject):
    """The fields that a journal's facts and a rank's manifest share.

    ``processes_known`` is False if the driver's process ids are not those of this machine. ``time_steps`` are the first
    and the last profiled step. Without one, ``recorded_time_steps`` are the recorded steps whose operators were timed.
    ``calls`` are rows of module, step, batch size and sequence length.
    ``compiled_unread`` says, by file, why generated code could not be divided among its modules. ``graph_pools`` is
    None in runs of versions without it. ``has_all_steps`` is False if nothing counted the steps until the
    program ended, so that it can have taken more than ``steps_seen``. ``exit_began_ns`` is when the process began to
    exit (None if it did not, as one that is killed), and ``exit_error`` the type of its last exception.
    ``cpu_wait_frac`` is the share of time after the recorded steps in which the thread of the steps waited for a CPU.
    ``times_of_all_threads`` is whether the profiled steps have the work of all threads of the program.
    ``trainings`` are rows of a step and a number: of which training the steps from that one on are.
    ``exit_lost_peer`` is True if that exception came from another rank, which had closed the connection.
    ``is_ended_by_parent`` is True if the process that started it kills it when its work is done, as Ray does.
    ``launched_ranks`` is the number of ranks that the launcher starts: known before a process group is made.
    ``meshes`` are all device meshes of the program's weights, if there are several that differ.
    ``pipeline_stages`` are the stages of a pipeline that this rank has, from 0; empty without one.
    ``joins_ranks`` is whether the training ran in torch's ``Join``: its ranks may take different numbers of steps.
    """

    devices: tuple[DeviceFacts, ...] = ()
    allocator_settings: Mapping[str, Any] | None = None
    recorder: RecorderKind = RecorderKind.UNKNOWN
    steps_seen: int | None = None
    trainings: tuple[tuple[int, int], ...] = ()
    has_all_steps: bool = False
    exit_began_ns: int | None = None
    exit_error: str | None = None
    exit_lost_peer: bool = False
    is_ended_by_parent: bool = False
    launched_ranks: int | None = None
    recorder_bytes: int | None = None
    pid: int | None = None
    pids: tuple[int, ...] = ()
    processes_known: bool | None = None
    inputs: Inputs | None = None
    has_batch: bool | None = None
    calls: Annotated[tuple[tuple[int, int, int, int], ...], ListOf(ListOf(int, 4, 4), most=_MAX_CALLS)] = ()
    collectives: str | None = None
    communications: tuple[FirstCommunication, ...] = ()
    precision: PrecisionFacts | None = None
    optimizers: tuple[OptimizerFacts, ...] | None = None
    world: World | None = None
    mesh: Mesh | None = None
    meshes: tuple[Mesh, ...] = ()
    pipeline_stages: tuple[int, ...] = ()
    joins_ranks: bool = False
    left_out: tuple[str, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    compiled_unread: Mapping[str, str] | None = None
    compilation: Compilation | None = None
    graph_pools: tuple[GraphPoolFacts, ...] | None = None
    time_steps: tuple[int, int] | None = None
    recorded_time_steps: tuple[int, int] | None = None
    cpu_wait_frac: float | None = None
    kernels_alone: KernelsAlone | None = None
    times_of_all_threads: bool = False
    line_step: LineStep | None = None
    timed_program: TimedProgram | None = None
    energy_pass: EnergyEdges | None = None
    oom: tuple[FailedAllocation, ...] = ()
    censuses: tuple[CensusFacts, ...] = ()
    tensor_counts: tuple[tuple[int, int], ...] = ()
    kept_blocks: KeptAddresses | None = None
    failure_census: CensusFacts | None = None
    host_memory: tuple[HostMemoryKind, ...] = ()
    host_limit_bytes: int | None = None
    passes: tuple[str, ...] = ()
    stacks: bool | None = None
    sampler: SamplerFacts | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    python_version: str | None = None

    @property
    def recorder_name(self) -> str:
        """Return the name of the recorder as stored; "" if none is."""
        return str(self.as_read.get("recorder") or "") if self.recorder is RecorderKind.UNKNOWN else self.recorder.value

    def training_of(self, step: int) -> int:
        """Return the number of the training that a step is of. It is 0 for all steps of a program with one."""
        return next((number for first, number in reversed(self.trainings) if first <= step), 0)

    def leaves_training(self, number: int, first: int, last: int) -> int | None:
        """Return the first of the steps from ``first`` to ``last`` that is of another training than ``number``."""
        steps = [first, *(step for step, _ in self.trainings if first < step <= last)]
        return next((step for step in steps if self.training_of(step) != number), None)

    def device(self, device_idx: int) -> DeviceFacts:
        """Return the facts of a device; only its index if it is not described."""
        known = (one for one in self.devices if one.device_idx == device_idx)
        return next(known, DeviceFacts(device_idx=device_idx))


@dataclass(frozen=True, kw_only=True)
class RankManifest(RecordedFacts):
    """``rank-N/manifest.json``: one process of a run.

    ``status`` is ``closed`` or ``cut off``. ``energy`` is None before the energy measurement is posted.
    ``journal_parts`` and ``journal_bytes`` are how much of the journal the tables cover, ``sample_parts`` how much of
    the samples. ``exit_status`` and ``signal`` are those of its process, which ended at ``ended_ns``; None if unknown.
    ``stopped_ns`` is when the launcher was asked to end the program; None if it was not.
    """

    schema_version: int
    rank: int = 0
    status: str | None = None
    closed_by: str | None = None
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    checks: tuple[ReplayCheck, ...] = ()
    pauses: tuple[Pause, ...] = ()
    window: Window | None = None
    energy: tuple[PassEnergy, ...] | None = None
    host_waits: tuple[HostWait, ...] = ()
    libraries: Libraries | None = None
    measured_watts: Annotated[Mapping[str, Any] | None, _WATTS] = None
    power_model: Annotated[Mapping[str, Any] | None, _POWER_MODEL] = None
    journal_parts: int | None = None
    journal_bytes: int | None = None
    sample_parts: int | None = None
    algorithm: str | None = None
    step_batches: tuple[int, ...] = ()
    exit_status: int | None = None
    signal: int | None = None
    ended_ns: int | None = None
    stopped_ns: int | None = None


_RANK_SHAPE = shape_of(RankManifest)
_Manifest = TypeVar("_Manifest", RankManifest, RunManifest)


def write_rank_manifest(rank_directory: Path, manifest: RankManifest) -> None:
    """Write a rank's manifest into the run's own directory. Follows no link.

    Raises:
        InputError: the rank's directory is a link.
    """
    write_json(rank_directory / MANIFEST, manifest.to_json(), inside=rank_directory.parent)


def read_rank_manifest(rank_directory: Path) -> RankManifest:
    """Return the manifest of the rank in ``rank_directory``; raises as :func:`read_json`."""
    return as_simulated(RankManifest.from_json(read_json(rank_directory / MANIFEST)))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in ``path``, a rank's manifest or a run's, with its shape checked.

    Raises:
        InputError: missing, not JSON, not an object, or of a newer schema.
    """
    is_rank = path.parent.name.startswith(RANK_PREFIX)
    return read_checked(path, check_rank_manifest if is_rank else check_run_manifest)


def check_rank_manifest(value: dict[str, Any]) -> None:
    """Check the JSON object of a rank's manifest.

    Raises:
        ValueError: a value is invalid; the message names it.
    """
    check_shape(value, _RANK_SHAPE, "")
    for number, one in enumerate(value.get("energy") or []):
        if one["last_step"] < one["first_step"] or one["end_ns"] < one["start_ns"]:
            raise ValueError(f"energy[{number}]: it ends before it begins")


def with_notes(manifest: _Manifest, *notes: str) -> _Manifest:
    """Return ``manifest`` with more notes."""
    return replace(manifest, notes=(*manifest.notes, *notes))
