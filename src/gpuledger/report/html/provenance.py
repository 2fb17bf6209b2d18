"""Provenance of a run as rows of text: command, versions, GPU, settings, checks, pauses."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.allocator.alloc_conf import alloc_conf_text
from gpuledger.model.manifest import RankManifest, Window
from gpuledger.model.run_manifest import RunManifest
from gpuledger.report.base.phrases import overhead_parts
from gpuledger.units import format_ns

if TYPE_CHECKING:
    from gpuledger.analyze.step.overhead import Overhead
    from gpuledger.model.run import Run

Row = tuple[str, str]
_FIRST_DATE_NS = 10**17
"""Before 1973 there were no GPUs to log."""


def facts_of_run(run: Run) -> list[Row]:
    """Return name and value of the known facts of the whole run."""
    manifest = run.manifest
    started, ended = manifest.started_ns, manifest.ended_ns if run.has_measured_times else None
    rows = [
        ("Command", shlex.join(manifest.command)),
        ("Started", _moment(started)),
        ("Duration", format_ns(ended - started) if started is not None and ended is not None else ""),
        ("Status", _status(manifest)),
        ("gpuledger", _text(manifest.gpuledger_version)),
        ("Schema version", _text(manifest.schema_version)),
    ]
    rows += [(f"Setting {name}", _setting(setting)) for name, setting in sorted(manifest.settings.items())]
    return [row for row in rows if row[1]]


def facts_of_rank(manifest: RankManifest, device_idx: int, overhead: Overhead | None = None) -> list[Row]:
    """Return name and value of the known facts of one process and one of its devices, and the overhead of recording."""
    device, settings = manifest.device(device_idx), manifest.allocator_settings
    rows = [
        ("Device", _text(device.name)),
        ("Device UUID", _text(device.uuid)),
        ("Driver", _text(device.driver_version)),
        ("torch", _text(manifest.torch_version)),
        ("CUDA", _text(manifest.cuda_version)),
        ("Python", _text(manifest.python_version)),
        ("Process", _text(manifest.pid)),
        ("Recorder", manifest.recorder_name),
        ("Recorded steps", _window(manifest)),
        ("Allocator settings", "" if settings is None else alloc_conf_text(settings)),
        ("Pauses of the recorder", _pauses(manifest)),
        ("Overhead of recording", "" if overhead is None else _overhead(overhead)),
        ("Recording", _text(manifest.status)),
    ]
    return [row for row in rows if row[1]]


def _overhead(overhead: Overhead) -> str:
    return " · ".join(overhead_parts(overhead))


def check_rows(manifest: RankManifest, device_idx: int) -> list[dict[str, Any]]:
    """Return the recorder's checks of one device: name, expected value, found value, and whether they are equal."""
    return [
        {
            "name": _text(one.name),
            "expected": _text(one.expected),
            "found": _text(one.found),
            "ok": bool(one.ok),
        }
        for one in manifest.checks
        if one.device_idx in (None, device_idx)
    ]


def oom_rows(manifest: RankManifest, device_idx: int) -> list[dict[str, Any]]:
    """Return each out-of-memory error of one device, or of the host: requested and free bytes, and what had these."""
    keys = ("tried_bytes", "total_bytes", "free_bytes", "largest_free_bytes")
    place = "machine" if device_idx < 0 else "GPU"
    return [
        {**{key: getattr(one, key) for key in keys}, "place": place}
        for one in manifest.oom
        if one.device_idx == device_idx
    ]


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _moment(t_ns: object) -> str:
    """Return a date and time as text; "" for times since the start of the run, as in logs without dates."""
    if not isinstance(t_ns, int) or t_ns < _FIRST_DATE_NS:
        return ""
    return datetime.fromtimestamp(t_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _status(manifest: RunManifest) -> str:
    code = manifest.exit_status
    return _text(manifest.status) + (f", exit status {code}" if code is not None else "")


def _setting(setting: object) -> str:
    if not isinstance(setting, dict):
        return _text(setting)
    return f"{_text(setting.get('value'))} ({_text(setting.get('origin'))})"


def _window(manifest: RankManifest) -> str:
    window = manifest.window or Window()
    first, last, seen = window.first_step, window.last_step, manifest.steps_seen
    if first is None or last is None:
        return ""
    return f"{first} to {last}" + (f" of {seen} seen" if seen is not None else "")


def _pauses(manifest: RankManifest) -> str:
    pauses = manifest.pauses
    if not pauses:
        return ""
    total_ns = sum(pause.duration_ns for pause in pauses)
    return f"{len(pauses)}, {format_ns(total_ns)} in total"
