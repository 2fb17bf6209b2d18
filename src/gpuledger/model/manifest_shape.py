"""What manifests and a journal's facts must look like where a view reads them. Further keys may be there."""

from __future__ import annotations

from typing import Any

from gpuledger.files.shapes import Fields, Items, ListOf, MappingOf, check_shape, maybe

_TEXTS = maybe(ListOf(str))
_WHOLE, _REAL, _TEXT, _FLAG = maybe(int), maybe(float), maybe(str), maybe(bool)
_STEPS = maybe(ListOf(int, 2, 2))
_CARD = Items((int, str))
_MAX_CALLS = 4_000
"""A recording keeps at most so many (``collect/attribution/inputs.py``)."""

_DEVICE = Fields(
    {
        "device_idx": int,
        "name": _TEXT,
        "uuid": _TEXT,
        "total_bytes": _WHOLE,
        "driver_version": _TEXT,
        "compute_capability": _TEXT,
    },
    ("device_idx",),
)
_CHECK = Fields({"device_idx": int, "name": _TEXT, "expected": _REAL, "found": _REAL, "ok": _FLAG})
_PAUSE = Fields({"reason": str, "start_ns": int, "duration_ns": int}, ("reason", "start_ns", "duration_ns"))
_OOM = Fields(
    {
        "device_idx": int,
        "tried_bytes": _WHOLE,
        "total_bytes": _WHOLE,
        "free_bytes": _WHOLE,
        "largest_free_bytes": _WHOLE,
    }
)
_EDGES = ("first_step", "last_step", "start_ns", "end_ns")
_ENERGY = Fields(
    {
        **dict.fromkeys(("device_idx", *_EDGES), int),
        **dict.fromkeys(("energy_j", "uncertainty_j", "base_before_w", "base_after_w", "idle_w"), _REAL),
        "ticks": _WHOLE,
        "throttled_ns": _WHOLE,
        "source": _TEXT,
        "notes": _TEXTS,
    },
    ("device_idx", *_EDGES, "uncertainty_j"),
)
_ENERGY_PASS = Fields(
    {
        "cards": ListOf(_CARD),
        "idle_ns": maybe(ListOf(ListOf(int, 2, 2))),
        **dict.fromkeys(_EDGES, int),
    },
    ("cards",),
    together=_EDGES,  # none of them where the program was killed in the pass
)
_INPUTS = Fields({"module_id": int, "shape": ListOf(int, 1), "tokens": _FLAG}, ("module_id", "shape"))
_WAIT = Fields(dict.fromkeys(("device_idx", "gap_ns", "host_ns"), int), ("device_idx", "gap_ns", "host_ns"))
_LIBRARIES = Fields({"context_bytes": _WHOLE, "library_bytes": _WHOLE, "source": _TEXT})
_MEASURED = Fields(
    {
        **dict.fromkeys(("operator", "numbers"), str),
        **dict.fromkeys(("watts", "low_w", "high_w"), float),
        "records": int,
        "of_model": _REAL,
    },
    ("operator", "numbers", "watts", "low_w", "high_w", "records"),
)
_WATTS = Fields(
    {"card": str, "source": str, "types": ListOf(_MEASURED), "low_frac": float, "high_frac": float},
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

_FACTS = {
    "devices": maybe(ListOf(_DEVICE)),
    "allocator_settings": maybe(MappingOf(object)),
    "recorder": _TEXT,
    "steps_seen": _WHOLE,
    "recorder_bytes": _WHOLE,
    "pid": _WHOLE,
    "pids": maybe(ListOf(int)),
    "processes_known": _FLAG,
    "inputs": maybe(_INPUTS),
    "calls": maybe(ListOf(ListOf(int, 4, 4), most=_MAX_CALLS)),
    "collectives": _TEXT,
    "left_out": _TEXTS,
    "time_steps": _STEPS,
    "kernels_alone": maybe(Fields({"from_step": int, "from_ns": int}, ("from_step", "from_ns"))),
    "energy_pass": maybe(_ENERGY_PASS),
    "oom": maybe(ListOf(_OOM)),
    "torch_version": _TEXT,
    "cuda_version": _TEXT,
    "python_version": _TEXT,
}
"""What a journal's facts and a rank's manifest share."""

_RANK = Fields(
    {
        **_FACTS,
        "rank": int,
        "status": _TEXT,
        "notes": _TEXTS,
        "damaged": _TEXTS,
        "checks": maybe(ListOf(_CHECK)),
        "pauses": maybe(ListOf(_PAUSE)),
        "window": maybe(Fields({"first_step": _WHOLE, "last_step": _WHOLE, "asked": maybe(ListOf(_WHOLE))})),
        "energy": maybe(ListOf(_ENERGY)),
        "host_waits": maybe(ListOf(_WAIT)),
        "libraries": maybe(_LIBRARIES),
        "measured_watts": maybe(_WATTS),
        "power_model": maybe(_POWER_MODEL),
        "journal_parts": int,
        "sample_parts": int,
        "algorithm": _TEXT,
        "step_batches": ListOf(int),
    }
)
_RUN = Fields(
    {
        "name": _TEXT,
        "command": maybe(ListOf(str)),
        "started_ns": _WHOLE,
        "ended_ns": _WHOLE,
        "exit_status": _WHOLE,
        "signal": _WHOLE,
        "status": _TEXT,
        "settings": maybe(MappingOf(object)),
        "notes": _TEXTS,
        "gpuledger_version": _TEXT,
        "imported": Fields({"format": str, "files": ListOf(str), "unread": ListOf(str)}, ("format", "unread")),
        "repeat_of": _TEXT,
        "series_ns": _WHOLE,
    }
)
_JOURNAL = Fields(
    {
        **_FACTS,
        "closed": _TEXT,
        "called_roots": maybe(ListOf(int)),
        "workspace_bytes": maybe(ListOf(int)),
        "steps_asked": maybe(ListOf(_WHOLE)),
        "activity_names": maybe(ListOf(str)),
        "operator_inputs": maybe(ListOf(maybe(ListOf(maybe(ListOf(object)), 4, 4)))),
        "time_pass_open": _FLAG,
        "card_uuids": maybe(ListOf(str)),
        "energy_counters": maybe(MappingOf(maybe(MappingOf(int)))),
        "idle_w": maybe(MappingOf(_REAL)),
        "own_pids": maybe(ListOf(int)),
        "pids_before": maybe(MappingOf(maybe(ListOf(int)))),
        "operators": maybe(ListOf(str)),
        "cublas_handles": int,
    }
)


def check_run_manifest(manifest: dict[str, Any]) -> None:
    """Check the manifest of a run.

    Raises:
        ValueError: a value is not what a view takes it for; the message says which.
    """
    check_shape(manifest, _RUN, "")


def check_rank_manifest(manifest: dict[str, Any]) -> None:
    """Check the manifest of a rank; raises as :func:`check_run_manifest`."""
    check_shape(manifest, _RANK, "")
    for number, one in enumerate(manifest.get("energy") or []):
        if one["last_step"] < one["first_step"] or one["end_ns"] < one["start_ns"]:
            raise ValueError(f"energy[{number}]: it ends before it begins")


def check_facts(facts: dict[str, Any]) -> None:
    """Check the facts of a journal; raises as :func:`check_run_manifest`."""
    check_shape(facts, _JOURNAL, "")
