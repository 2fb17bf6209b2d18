"""The tables of a run: type, unit, meaning and source of every column. docs/format.md is generated from this file."""

from __future__ import annotations

from gpuledger.model.schema.flight_tables import FAILURE_BLOCKS, FAILURE_EVENTS, FAILURE_SEGMENTS, STEP_MEMORY
from gpuledger.model.schema.rank_tables import BLOCK_PARTS, BREAKDOWN, RANK_SUMMARY, SHARDS
from gpuledger.model.schema.table import DEVICE
from gpuledger.model.schema.table import Column as Column
from gpuledger.model.schema.table import Table as Table

SCHEMA_VERSION = 1
"""Incremented if the meaning of a column changes or a column is removed; not if one is added."""

_HISTORY = "caching allocator's history, exact"
_REPLAY = "address replay of the history, exact, checked against the closing snapshot"
_CLOCK = "host clock (Unix time); ties are possible, order is by index"
_TAG = "tag of the thread that allocated, set when a module is entered, left or run backward"
_SHAPES = "formulas of the shapes from PyTorch's profiler"

SAMPLES = Table(
    "samples",
    "one sample of one GPU",
    (
        Column("t_ns", "int64", "ns", "time of the reading", "host clock (Unix time)"),
        DEVICE,
        Column(
            "used_bytes",
            "int64",
            "B",
            "bytes in use on the GPU, the driver's own reserve excluded",
            "NVML memory info v2",
            True,
        ),
        Column(
            "driver_bytes", "int64", "B", "bytes the driver keeps for itself", "NVML memory info v2 (reserved)", True
        ),
        Column("total_bytes", "int64", "B", "capacity of the GPU", "NVML memory info", True),
        Column("power_average_w", "float64", "W", "power, mean of the last second", "NVML field 185", True),
        Column("power_instant_w", "float64", "W", "power, 25 ms of every 100 ms", "NVML field 186", True),
        Column(
            "energy_j",
            "float64",
            "J",
            "energy counter since the driver was loaded",
            "NVML total energy, ticks every 100 ms",
            True,
        ),
        Column("utilization_frac", "float64", "1", "share of time with a kernel on the GPU", "NVML utilization", True),
        Column("sm_clock_mhz", "int32", "MHz", "clock of the multiprocessors", "NVML clock info", True),
        Column("temperature_c", "int32", "°C", "temperature of the GPU", "NVML temperature", True),
        Column("throttle", "int64", "bit mask", "reasons for a lower clock", "NVML clocks event reasons", True),
    ),
)

PROCESS_SAMPLES = Table(
    "process_samples",
    "one process's bytes on one GPU",
    (
        Column("t_ns", "int64", "ns", "time of the reading", "host clock (Unix time)"),
        DEVICE,
        Column(
            "pid", "int64", "", "process id as NVML gives it (in a container it can be the host's)", "NVML process list"
        ),
        Column("bytes", "int64", "B", "bytes of the process on the GPU", "NVML process list", True),
    ),
)

COUNTERS = Table(
    "counters",
    "the allocator's own counters at one moment on one device",
    (
        Column(
            "t_ns",
            "int64",
            "ns",
            "time of the reading; equal to a row of samples when the GPU was read too",
            "host clock (Unix time)",
        ),
        DEVICE,
        Column("step", "int32", "", "step that had just ended; 0 before the first", "step marks"),
        Column("reason", "label", "", "open, step_end, drain, close, oom or exit", "recorder"),
        Column(
            "event_index",
            "int64",
            "",
            "last event before the sample; null outside the recorded steps",
            "count of allocations and frees",
            True,
        ),
        Column("alloc_count", "int64", "", "allocations since the process started", "allocator counter, exact"),
        Column("free_count", "int64", "", "frees requested since the process started", "allocator counter, exact"),
        Column("allocated_bytes", "int64", "B", "bytes of allocated blocks", "allocator counter, exact"),
        Column("requested_bytes", "int64", "B", "bytes asked for", "allocator counter, exact"),
        Column(
            "active_bytes",
            "int64",
            "B",
            "allocated, plus freed but still in use by another stream",
            "allocator counter, exact",
        ),
        Column("reserved_bytes", "int64", "B", "bytes of all segments", "allocator counter, exact"),
        Column(
            "peak_allocated_bytes",
            "int64",
            "B",
            "highest allocated since the last reset of peak statistics",
            "allocator counter, exact",
        ),
        Column(
            "peak_reserved_bytes",
            "int64",
            "B",
            "highest reserved since the last reset of peak statistics",
            "allocator counter, exact",
        ),
    ),
)

BLOCKS = Table(
    "blocks",
    "one allocation's life",
    (
        DEVICE,
        Column("stream", "int64", "", "stream the block belongs to", _HISTORY),
        Column(
            "pool_id",
            "int32",
            "",
            "0 for the default pool, above 0 a CUDA graph's own, below 0 one the program made; null where not seen",
            "snapshot",
            True,
        ),
        Column("address", "int64", "", "first byte", _HISTORY),
        Column("requested_bytes", "int64", "B", "bytes asked for", _HISTORY),
        Column("allocated_bytes", "int64", "B", "bytes the allocator gave", _REPLAY),
        Column(
            "alloc_index",
            "int64",
            "",
            "index of the allocation in the device's events; -1 when it was alive before the recording",
            _HISTORY,
        ),
        Column(
            "free_requested_index", "int64", "", "index at which it was given back; null while alive", _HISTORY, True
        ),
        Column(
            "free_index",
            "int64",
            "",
            "index at which it could be used again; null while alive or awaiting free",
            _HISTORY,
            True,
        ),
        Column(
            "alloc_ns",
            "int64",
            "ns",
            "time of the allocation; null when it was alive before the recording",
            _CLOCK,
            True,
        ),
        Column("free_requested_ns", "int64", "ns", "time it was given back", _CLOCK, True),
        Column("free_ns", "int64", "ns", "time it could be used again", _CLOCK, True),
        Column("step", "int32", "", "step that allocated it; 0 before the first", _TAG),
        Column("phase", "label", "", "phase that allocated it", _TAG),
        Column("category", "label", "", "purpose", "identity, otherwise lifetime"),
        Column(
            "module_id",
            "int32",
            "",
            "module that owns it (weights, gradients, state) or allocated it; null outside modules",
            _TAG,
            True,
        ),
        Column("name_id", "int32", "", "parameter, buffer or imported tag it belongs to", "identity", True),
        Column("scope_id", "int32", "", "gpuledger.scope it was allocated in", _TAG, True),
        Column("operator_id", "int32", "", "operator that allocated it", "dispatch-mode recorder only", True),
        Column(
            "stack_id",
            "int32",
            "",
            "Python stack of the allocation; in backward, of the module's forward call, or of the call that started it",
            "recorder",
            True,
        ),
    ),
)

SEGMENTS = Table(
    "segments",
    "one piece taken from the driver",
    (
        DEVICE,
        Column("address", "int64", "", "first byte", _HISTORY),
        Column("bytes", "int64", "B", "size", _HISTORY),
        Column("stream", "int64", "", "stream it serves", _HISTORY),
        Column("pool", "label", "", "small, large, or expandable", "snapshot and history"),
        Column("alloc_index", "int64", "", "index at which it was taken; -1 before the recording", _HISTORY),
        Column("free_index", "int64", "", "index at which it was given back; null while held", _HISTORY, True),
        Column("alloc_ns", "int64", "ns", "time it was taken", _CLOCK, True),
        Column("free_ns", "int64", "ns", "time it was given back", _CLOCK, True),
    ),
)

SPANS = Table(
    "spans",
    "one interval of work",
    (
        DEVICE,
        Column("kind", "label", "", "phase, kernel, copy, collective or host", "recorder"),
        Column("name_id", "int32", "", "what ran", "recorder", True),
        Column("start_ns", "int64", "ns", "start", "host clock for phases, CUPTI for kernels"),
        Column("end_ns", "int64", "ns", "end", "host clock for phases, CUPTI for kernels"),
        Column("start_index", "int64", "", "first allocator event inside; null where there is none", _HISTORY, True),
        Column("end_index", "int64", "", "last allocator event inside", _HISTORY, True),
        Column("module_id", "int32", "", "module it belongs to", _TAG, True),
        Column("phase", "label", "", "phase it belongs to", _TAG),
        Column("step", "int32", "", "step it belongs to", _TAG),
        Column("stream", "int64", "", "stream it ran on", "CUPTI", True),
        Column("operator_id", "int32", "", "name of the operator that launched it, or that it is", "Kineto", True),
        Column("scope_id", "int32", "", "gpuledger.scope it belongs to, in backward its forward's", "Kineto", True),
        Column("flops", "float64", "", "its share, by time, of its operator's FLOPs", _SHAPES, True),
        Column("moved_bytes", "float64", "bytes", "and of the bytes it moves at least", _SHAPES, True),
        Column("numbers", "label", "", "kind of number that its operator computes with", "Kineto, kernel's name", True),
        Column("fusion_id", "int32", "", "compiled kernel, by its position in the rank's manifest", "recorder", True),
        Column("stack_id", "int32", "", "Python stack of the call that launched it", "recorder", True),
    ),
)

STEPS = Table(
    "steps",
    "one step on one device",
    (
        Column("step", "int32", "", "number, from 1", "step marks"),
        DEVICE,
        Column("kind", "label", "", "optimizer, call, marked or replay: what ended it", "step marks"),
        Column("recorded", "bool", "", "whether its allocations were recorded", "recorder"),
        Column("start_ns", "int64", "ns", "host time at its start", _CLOCK),
        Column("end_ns", "int64", "ns", "host time at its end", _CLOCK),
        Column(
            "paused_ns",
            "int64",
            "ns",
            "pauses of the recorder inside it, not part of the step's own time",
            "host clock",
        ),
        Column("start_index", "int64", "", "first event; null when nothing was recorded", _HISTORY, True),
        Column("end_index", "int64", "", "last event", _HISTORY, True),
    ),
)

MODULES = Table(
    "modules",
    "one nn.Module seen",
    (
        Column("module_id", "int32", "", "number used by the other tables", "recorder"),
        Column("parent_id", "int32", "", "module that holds it; null for an outermost module", "named_modules", True),
        Column("path", "string", "", "qualified name; the class name for an outermost module", "named_modules"),
        Column("class_name", "string", "", "class", "recorder"),
        Column("root_id", "int32", "", "outermost module it was reached from", "recorder"),
        Column("depth", "int32", "", "0 for an outermost module", "recorder"),
        Column("compiled", "bool", "", "runs as a compiled region", "recorder"),
    ),
)

NAMES = Table(
    "names",
    "one name",
    (
        Column("name_id", "int32", "", "number used by the other tables", "recorder"),
        Column("name", "string", "", "text as the program gave it", "recorder"),
    ),
)

STACKS = Table(
    "stacks",
    "one frame of one stack, innermost first",
    (
        Column("stack_id", "int32", "", "number used by blocks and spans", "recorder"),
        Column("frame_idx", "int32", "", "0 is the innermost frame", "recorder"),
        Column("file", "string", "", "file name", "torch's stack capture"),
        Column("line", "int32", "", "line number", "torch's stack capture"),
        Column("function", "string", "", "function name", "torch's stack capture"),
    ),
)

WINDOWS = Table(
    "windows",
    "one energy window",
    (
        DEVICE,
        Column("start_ns", "int64", "ns", "start", "host clock (Unix time)"),
        Column("end_ns", "int64", "ns", "end", "host clock (Unix time)"),
        Column("energy_j", "float64", "J", "energy used", "NVML energy counter from tick to tick", True),
        Column("uncertainty_j", "float64", "J", "plus or minus, from tick jitter and counter step", "derived", True),
        Column("name", "string", "", "name the program gave it; null for the whole command", "watch", True),
        Column("ticks", "int64", "", "ticks of the counter inside", "NVML energy counter"),
        Column(
            "throttled_ns", "int64", "ns", "time below the asked clock by the power cap", "NVML violation status", True
        ),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        BLOCKS,
        SEGMENTS,
        COUNTERS,
        SAMPLES,
        PROCESS_SAMPLES,
        STEPS,
        SPANS,
        WINDOWS,
        MODULES,
        NAMES,
        STACKS,
        BLOCK_PARTS,
        SHARDS,
        BREAKDOWN,
        RANK_SUMMARY,
        STEP_MEMORY,
        FAILURE_BLOCKS,
        FAILURE_SEGMENTS,
        FAILURE_EVENTS,
    )
}
"""Every table that a run can contain."""
