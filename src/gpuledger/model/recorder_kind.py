"""What made a rank's tables, and what such tables can tell."""

from enum import Enum
from typing import Self


class RecorderKind(Enum):
    """What made a rank's tables: a recorder, a sampler of GPUs, or the format of an imported file.

    The value is what stands in manifests and journals. Ask for what a kind has, not which one it is. Whether events
    have times is asked of the tables: of one kind some files have them and some do not.
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
    """None is named, or one that this version does not know; it has what a recorder of an allocator has."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("") if isinstance(value, str) and value else None

    @property
    def has_segments(self) -> bool:
        """Return whether blocks are cut from segments, by the CUDA caching allocator's rules."""
        return self in _ALLOCATORS

    @property
    def has_tags(self) -> bool:
        """Return whether the blocks carry an older profiler's tags, each of which is a whole name."""
        return self in (RecorderKind.MXNET, RecorderKind.TBD_LOG)

    @property
    def has_lines_as_names(self) -> bool:
        """Return whether a block's name can be the line of a stack."""
        return self is RecorderKind.TORCH_SNAPSHOT

    @property
    def has_measured_times(self) -> bool:
        """Return whether steps took on the device what the run says; on a simulated GPU they did not run."""
        return self is not RecorderKind.VIRTUAL

    @property
    def has_layer_times(self) -> bool:
        """Return whether there are times per layer, and nothing else."""
        return self is RecorderKind.TIME_LOG

    @property
    def has_only_card_readings(self) -> bool:
        """Return whether GPUs were read from outside, and no allocation was seen."""
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
"""What tells of the CUDA caching allocator's own events, or of those of its simulation."""
