"""The source of a rank's tables, and which data such tables contain."""

from enum import Enum
from typing import Self


class RecorderKind(Enum):
    """The source of a rank's tables: a recorder, a sampler of GPUs, or the format of an imported file.

    The value is stored in manifests and journals. Query the properties of a kind and not its identity. Whether events
    have times depends on the tables: some files of a kind have them, others do not.
    """

    CUDA_HISTORY = "cuda-history"
    DISPATCH = "dispatch"
    VIRTUAL = "virtual"
    WATCH = "watch"
    TORCH_SNAPSHOT = "torch-snapshot"
    MEMORY_CSV = "memory-csv"
    MXNET = "mxnet"
    TBD_LOG = "tbd-log"
    NVIDIA_SMI = "nvidia-smi"
    TIME_LOG = "time-log"
    UNKNOWN = ""
    """Not given, or unknown to this version. Treated as a recorder of an allocator."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("") if isinstance(value, str) and value else None

    @property
    def has_segments(self) -> bool:
        """Return whether blocks are parts of segments, by the rules of the CUDA caching allocator."""
        return self in _ALLOCATORS

    @property
    def has_tags(self) -> bool:
        """Return whether the blocks carry tags of an older profiler, in which each tag is a whole name."""
        return self in (RecorderKind.MXNET, RecorderKind.TBD_LOG)

    @property
    def has_lines_as_names(self) -> bool:
        """Return whether a block's name can be a line of a stack."""
        return self is RecorderKind.TORCH_SNAPSHOT

    @property
    def has_measured_times(self) -> bool:
        """Return whether times are those of a program that ran.

        On a simulated GPU, nothing runs: host times are those of the simulation. No table of such a rank has times.
        """
        return self is not RecorderKind.VIRTUAL

    @property
    def has_pauses(self) -> bool:
        """Return whether a recorder paused a running program."""
        return self.has_measured_times and not self.is_imported

    @property
    def has_layer_times(self) -> bool:
        """Return whether there are times per layer, and nothing else."""
        return self is RecorderKind.TIME_LOG

    @property
    def has_only_card_readings(self) -> bool:
        """Return whether GPUs were sampled from outside, without any allocations."""
        return self in (RecorderKind.WATCH, RecorderKind.NVIDIA_SMI)

    @property
    def is_imported(self) -> bool:
        """Return whether the tables come from a file that another tool wrote."""
        return self in _IMPORTED


_IMPORTED = (
    RecorderKind.TORCH_SNAPSHOT,
    RecorderKind.MEMORY_CSV,
    RecorderKind.MXNET,
    RecorderKind.TBD_LOG,
    RecorderKind.NVIDIA_SMI,
    RecorderKind.TIME_LOG,
)
_ALLOCATORS = (RecorderKind.CUDA_HISTORY, RecorderKind.VIRTUAL, RecorderKind.TORCH_SNAPSHOT, RecorderKind.UNKNOWN)
"""Sources with events of the CUDA caching allocator, real or simulated."""
