"""Where a run comes from, as rows of words: the command, versions, the card, settings, checks, pauses."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpuledger.report.base.phrases import cost_parts
from gpuledger.units import format_ns

if TYPE_CHECKING:
    from gpuledger.analyze.step.own_cost import OwnCost

Row = tuple[str, str]
_FIRST_DATE_NS = 10**17
"""Before 1973 there were no cards to log."""


def facts_of_run(manifest: dict[str, Any]) -> list[Row]:
    """Return name and value of what is known of the whole run; what is not known is left out."""
    started, ended = manifest.get("started_ns"), manifest.get("ended_ns")
    rows = [
        ("Command", shlex.join(str(word) for word in manifest.get("command") or [])),
        ("Started", _moment(started)),
        ("Took", format_ns(ended - started) if isinstance(started, int) and isinstance(ended, int) else ""),
        ("Status", _status(manifest)),
        ("gpuledger", _text(manifest.get("gpuledger_version"))),
        ("Schema version", _text(manifest.get("schema_version"))),
    ]
    rows += [
        (f"Setting {name}", _setting(setting)) for name, setting in sorted((manifest.get("settings") or {}).items())
    ]
    return [row for row in rows if row[1]]


def facts_of_rank(manifest: dict[str, Any], device_idx: int, cost: OwnCost | None = None) -> list[Row]:
    """Return name and value of what is known of one process and one of its devices, and of what recording took."""
    device: dict[str, Any] = next(
        (one for one in manifest.get("devices") or [] if one.get("device_idx") == device_idx), {}
    )
    rows = [
        ("Device", _text(device.get("name"))),
        ("Device UUID", _text(device.get("uuid"))),
        ("Driver", _text(device.get("driver_version"))),
        ("torch", _text(manifest.get("torch_version"))),
        ("CUDA", _text(manifest.get("cuda_version"))),
        ("Python", _text(manifest.get("python_version"))),
        ("Process", _text(manifest.get("pid"))),
        ("Recorder", _text(manifest.get("recorder"))),
        ("Recorded steps", _window(manifest)),
        (
            "Allocator settings",
            ", ".join(f"{k}={v}" for k, v in sorted((manifest.get("allocator_settings") or {}).items())),
        ),
        ("Pauses of the recorder", _pauses(manifest)),
        ("Cost of recording", "" if cost is None else _cost(cost)),
        ("Recording", _text(manifest.get("status"))),
    ]
    return [row for row in rows if row[1]]


def _cost(cost: OwnCost) -> str:
    return " · ".join(cost_parts(cost)) if cost.recorder_bytes or cost.paused_ns else ""


def check_rows(manifest: dict[str, Any], device_idx: int) -> list[dict[str, Any]]:
    """Return the recorder's checks of one device: name, expected, found, and whether they agree."""
    checks = manifest.get("checks") or []
    return [
        {
            "name": _text(one.get("name")),
            "expected": _text(one.get("expected")),
            "found": _text(one.get("found")),
            "ok": bool(one.get("ok")),
        }
        for one in checks
        if one.get("device_idx", device_idx) == device_idx
    ]


def oom_rows(manifest: dict[str, Any], device_idx: int) -> list[dict[str, Any]]:
    """Return each time one device ran out of memory: the size tried, and what was free."""
    keys = ("tried_bytes", "total_bytes", "free_bytes", "largest_free_bytes")
    return [
        {key: one.get(key) for key in keys} for one in manifest.get("oom") or [] if one.get("device_idx") == device_idx
    ]


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _moment(t_ns: object) -> str:
    """Return a time in words; "" for one that counts from the run's own beginning, as in logs without dates."""
    if not isinstance(t_ns, int) or t_ns < _FIRST_DATE_NS:
        return ""
    return datetime.fromtimestamp(t_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _status(manifest: dict[str, Any]) -> str:
    code = manifest.get("exit_status")
    return _text(manifest.get("status")) + (f", exit status {code}" if code is not None else "")


def _setting(setting: object) -> str:
    if not isinstance(setting, dict):
        return _text(setting)
    return f"{_text(setting.get('value'))} ({_text(setting.get('origin'))})"


def _window(manifest: dict[str, Any]) -> str:
    window = manifest.get("window") or {}
    first, last, seen = window.get("first_step"), window.get("last_step"), manifest.get("steps_seen")
    if first is None or last is None:
        return ""
    return f"{first} to {last}" + (f" of {seen} seen" if seen is not None else "")


def _pauses(manifest: dict[str, Any]) -> str:
    pauses = manifest.get("pauses") or []
    if not pauses:
        return ""
    total_ns = sum(int(pause.get("duration_ns") or 0) for pause in pauses)
    return f"{len(pauses)}, {format_ns(total_ns)} in all"
