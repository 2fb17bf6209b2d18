"""Tables of runs with several ranks: shared blocks, the expected part of each parameter, and a summary of the rank."""

from __future__ import annotations

from gpuledger.model.schema.table import DEVICE, Column, Table

_HISTORY = "caching allocator's history"
_MESH = "device mesh and placements of the parameter"
_STATE = "the same, and the number and types of the state's tensors"
_OF_STEP = "mean of the profiled steps"

_SHARED = "place and size of the tensor"

BLOCK_PARTS = Table(
    "block_parts",
    "one part of a block with tensors of several modules, such as a bucket of gradients",
    (
        Column("block", "int64", "", "row of the block in the table blocks, from 0", "recorder"),
        Column("module_id", "int32", "", "module of the tensor; if there is none, of the block", "recorder", True),
        Column("name_id", "int32", "", "name of the tensor; null where there is none", "recorder", True),
        Column("offset_bytes", "int64", "B", "place of its first byte in the block", _SHARED),
        Column("bytes", "int64", "B", "requested bytes; the sum of all parts is that of the block", _SHARED),
    ),
)

SHARDS = Table(
    "shards",
    "one parameter of a program with several ranks",
    (
        Column("name_id", "int32", "", "its name", "recorder", True),
        Column("module_id", "int32", "", "module that it belongs to", "recorder", True),
        Column("whole_bytes", "int64", "B", "of the whole parameter", "shape and type"),
        Column("shard_bytes", "int64", "B", "of the part that this rank has to hold", _MESH),
        Column("parts", "int64", "", "number of parts that it is divided into; 1 if each rank holds all of it", _MESH),
        Column("gradient_bytes", "int64", "B", "of this rank's part of the gradient; 0 without one", _MESH, True),
        Column("state_bytes", "int64", "B", "of the optimizer state that this rank has to hold", _STATE, True),
        Column("state_parts", "int64", "", "number of parts that the optimizer state is divided into", _STATE, True),
        Column("device_idx", "int32", "", "device of the parameter; -1 is the CPU", "torch", True),
    ),
)

BREAKDOWN = Table(
    "breakdown",
    "one category of one module at the peak of a device; written for runs with several ranks",
    (
        DEVICE,
        Column("category", "label", "", "category; empty for time and energy", "rules on this page"),
        Column("module", "string", "", "module path; empty outside modules", "named_modules"),
        Column("bytes", "int64", "B", "allocated at the peak", "derived from blocks"),
        Column("expected_bytes", "int64", "B", "what the mesh says; null if it says nothing", _MESH, True),
        Column("time_ns", "float64", "ns", "work of a step", _OF_STEP, True),
        Column("energy_j", "float64", "J", "energy of a step", "derived from the energy counter", True),
    ),
)

RANK_SUMMARY = Table(
    "rank_summary",
    "one device of one rank; written for runs with several ranks",
    (
        DEVICE,
        Column("device_name", "string", "", "name of the device", "torch"),
        Column("coordinate", "string", "", "device mesh and pipeline, such as dp=0,stage=1", "device mesh"),
        Column("status", "string", "", "closed or cut off", "recorder"),
        Column("steps_seen", "int64", "", "steps that the program took", "step marks", True),
        Column("peak_allocated_bytes", "int64", "B", "highest allocated bytes of the program", _HISTORY),
        Column("recorded_peak_allocated_bytes", "int64", "B", "the same, in the recorded steps", _HISTORY),
        Column("peak_reserved_bytes", "int64", "B", "highest reserved bytes", _HISTORY, True),
        Column("peak_step", "int64", "", "step of the peak", _HISTORY),
        Column("peak_phase", "string", "", "phase of the peak", _HISTORY),
        Column("peak_module", "string", "", "module of the peak; empty outside modules", _HISTORY),
        Column("step_time_ns", "int64", "ns", "median step", "host clock", True),
        Column("step_energy_j", "float64", "J", "energy of a step", "NVML energy counter", True),
    ),
)
