"""The tables of the flight recorder: memory at the end of every step, and the GPU at each out-of-memory error."""

from __future__ import annotations

from gpuledger.model.schema.table import DEVICE, Column, Table

_COUNTER = "allocator counter, rounded up to 512 B"
_SNAPSHOT = "allocator's snapshot at the error"
_FAILURE = Column("failure_id", "int32", "", "`failure_id` of the out-of-memory error in the manifest", "recorder")

STEP_MEMORY = Table(
    "step_memory",
    "memory at the end of one step on one device",
    (
        DEVICE,
        Column("step", "int32", "", "step that had just ended", "step marks"),
        Column("t_ns", "int64", "ns", "time of the end of the step, in whole ms", "host clock (Unix time)"),
        Column("allocated_bytes", "int64", "B", "bytes of allocated blocks; null where not known", _COUNTER, True),
        Column("reserved_bytes", "int64", "B", "bytes of all segments", _COUNTER, True),
        Column(
            "peak_allocated_bytes",
            "int64",
            "B",
            "highest allocated since the last reset of peak statistics",
            _COUNTER,
            True,
        ),
        Column("blocks", "int64", "", "allocated blocks", "allocator counter, exact", True),
        Column(
            "allocations",
            "int64",
            "",
            "allocations since the process started, modulo 2^31",
            "allocator counter, exact",
            True,
        ),
        Column("retries", "int64", "", "allocations that succeeded after cached memory was freed", "allocator", True),
        Column(
            "host_bytes",
            "int64",
            "B",
            "host memory of the process: anonymous, shared and swapped pages, without those of files",
            "/proc/self/status; all resident pages where it does not divide them",
            True,
        ),
    ),
)

FAILURE_BLOCKS = Table(
    "failure_blocks",
    "one block at an out-of-memory error",
    (
        _FAILURE,
        DEVICE,
        Column("segment_address", "int64", "", "first byte of its segment", _SNAPSHOT),
        Column("address", "int64", "", "first byte", _SNAPSHOT),
        Column("allocated_bytes", "int64", "B", "size of the block", _SNAPSHOT),
        Column("requested_bytes", "int64", "B", "bytes asked for; 0 for a free block", _SNAPSHOT),
        Column("state", "label", "", "inactive (free), allocated, or awaiting_free", _SNAPSHOT),
        Column("category", "label", "", "purpose; null for a free block", "a block of the recorded steps", True),
        Column("module_id", "int32", "", "module that owns or allocated it", "a block of the recorded steps", True),
        Column("phase", "label", "", "phase that allocated it", "a block of the recorded steps", True),
        Column(
            "known_by",
            "label",
            "",
            "stack (its own Python stack), address (alive since the recorded steps), order (same allocation of "
            "another step), or size",
            "allocator's history, compared with the recorded steps",
            True,
        ),
        Column("step", "int32", "", "step that allocated it; null if not recorded", "allocator's history", True),
        Column("stack_id", "int32", "", "Python stack of its allocation", "its own, or that of known_by", True),
    ),
)

FAILURE_SEGMENTS = Table(
    "failure_segments",
    "one segment at an out-of-memory error",
    (
        _FAILURE,
        DEVICE,
        Column("address", "int64", "", "first byte", _SNAPSHOT),
        Column("bytes", "int64", "B", "size", _SNAPSHOT),
        Column("stream", "int64", "", "stream it serves", _SNAPSHOT),
        Column("small", "bool", "", "whether it is of the pool of blocks up to 1 MiB", _SNAPSHOT),
        Column("expandable", "bool", "", "whether it can grow", _SNAPSHOT),
        Column("pool_id", "int32", "", "as in blocks", _SNAPSHOT),
    ),
)

FAILURE_EVENTS = Table(
    "failure_events",
    "one of the last events before an out-of-memory error",
    (
        _FAILURE,
        DEVICE,
        Column("action", "label", "", "alloc, free_requested, free_completed, segment_alloc and so on", "allocator"),
        Column("address", "int64", "", "first byte", "allocator's history, exact"),
        Column("bytes", "int64", "B", "bytes asked for, or of the segment", "allocator's history, exact"),
        Column("stream", "int64", "", "stream", "allocator's history, exact"),
    ),
)
